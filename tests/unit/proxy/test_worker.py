"""Products in files are those of plain multiplication, however many hands; a hand that dies leaves none."""

import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gmpy2 import mpz

from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.paillier.chunks import encode_chunk
from dpdpca_protocol.paillier.keys import KeyRules, PublicKey, generate_secret_key
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.suite import PaillierSuite
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.salts import salted_chunk
from dpdpca_proxy.store.files import FolderStore, product_name, sealed_folder
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_proxy.worker import multiply_chunks
from dpdpca_runtime.workers import WorkerProcesses


@pytest.fixture(scope="module", params=[520, 576])
def public(request: pytest.FixtureRequest) -> PublicKey:
    """One that does not fill whole machine words, and one that does."""
    return generate_secret_key(request.param, OS_RANDOMNESS, rules=KeyRules(520)).public


@pytest.fixture
def place(tmp_path: Path, public: PublicKey) -> StudyFiles:
    suite = PaillierSuite(public, 16, 1, 1)
    return StudyFiles(FolderStore(tmp_path), StudyId.of(b"study"), suite, OS_RANDOMNESS.bytes(32))


def stored(place: StudyFiles, positions: int, owners: int, ciphertexts: int) -> tuple[Any, list[list[mpz]]]:
    """Chunks of random units, and their products by the formula."""
    square = int(place.public.ciphertext_modulus)
    wanted, expected = [], []
    for position in range(positions):
        names, product = [], [1] * ciphertexts
        for owner in range(owners):
            units = [secrets.randbelow(square - 2) + 2 for _ in range(ciphertexts)]
            names.append(f"{sealed_folder(place.study)}/shares/{owner}/{position}")
            encoded = encode_chunk(map(mpz, units), place.public)
            place.write(names[-1], salted_chunk(encoded, OS_RANDOMNESS))
            product = [left * right % square for left, right in zip(product, units, strict=True)]
        wanted.append((position, names))
        expected.append([mpz(value) for value in product])
    return wanted, expected


def take_hands(monkeypatch: pytest.MonkeyPatch, kind: Callable[[int], WorkerProcesses], count: int) -> None:
    @contextmanager
    def processes(self: StudyFiles, multiplications: int) -> Iterator[tuple[Executor, int]]:
        with kind(count) as processes:
            yield processes, count

    monkeypatch.setattr(StudyFiles, "processes", processes)


@pytest.mark.parametrize("workers", [None, 3])
@pytest.mark.parametrize(("positions", "owners", "ciphertexts"), [(1, 1, 1), (1, 2, 1), (3, 40, 2)])
def test_products_are_those_of_multiplying_one_by_one(
    place: StudyFiles,
    monkeypatch: pytest.MonkeyPatch,
    workers: int | None,
    positions: int,
    owners: int,
    ciphertexts: int,
) -> None:
    wanted, expected = stored(place, positions, owners, ciphertexts)
    if workers:
        take_hands(monkeypatch, WorkerProcesses, workers)
    digests = multiply_chunks(place, wanted)
    for position, (digest, product) in enumerate(zip(digests, expected, strict=True)):
        name = product_name(place.study, position, digest)
        assert place.read(name) == product
        assert digest != Digest.of(encode_chunk(product, place.public)), "a digest that anybody can test"


class DyingWorkers(WorkerProcesses):
    """The first call kills its worker."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return super().submit(os._exit, 9)


def test_a_hand_that_dies_ends_the_step_and_leaves_no_product(
    place: StudyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, expected = stored(place, 2, 5, 2)
    with monkeypatch.context() as patch:
        take_hands(patch, DyingWorkers, 2)
        with pytest.raises(UnavailableError) as died:
            multiply_chunks(place, wanted)
    assert died.value.slug == "worker-died"
    assert not place.store.entries(f"{sealed_folder(place.study)}/aggregate")
    digests = multiply_chunks(place, wanted)
    assert place.read(product_name(place.study, 0, digests[0])) == expected[0]
