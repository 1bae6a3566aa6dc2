"""What runs in the worker process: big products, draws and releases, from files to files.

The functions know neither database nor identity key. They read and write sealed files under the names they
are given and return digests, which the caller commits; a crash in between leaves a file that nobody names.
"""

import json
import multiprocessing
import os
import secrets
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gmpy2 import mpz

from dpdpca_protocol.aggregate import multiply_shares
from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.figures import Figures, NoiseBy
from dpdpca_protocol.identifiers import Digest, StudyId
from dpdpca_protocol.packing import BlockLayout
from dpdpca_protocol.paillier.cipher import rerandomize
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release import draw_mask, make_joint_release, make_masked_release
from dpdpca_protocol.share import decode_chunk, encode_chunk, encode_chunks
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.suite import PaillierSuite
from dpdpca_proxy.store.files import FileStore, draw_name, product_name, release_name

Outcome = TypeVar("Outcome")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where a study's files are and what opens them. Its repr shows no key."""

    root: Path
    study: StudyId
    modulus: int
    data_key: bytes

    def __repr__(self) -> str:
        return f"Workplace({self.study!r})"

    @property
    def public(self) -> PublicKey:
        return PublicKey(mpz(self.modulus))

    def read(self, name: str) -> list[mpz]:
        return decode_chunk(FileStore(self.root).read_sealed(name, self.data_key), self.public)

    def write(self, name: str, content: bytes) -> None:
        FileStore(self.root).write_sealed(name, content, self.data_key, OS_RANDOMNESS)


def multiply_chunk(place: Workplace, position: int, names: list[str]) -> Digest:
    """Stores the products of chunk `position` over the cohort, whose chunk files are `names`."""
    product = encode_chunk(multiply_shares((place.read(name) for name in names), place.public), place.public)
    digest = Digest.of(product)
    place.write(product_name(place.study, position, digest), product)
    return digest


def rerandomized_count(place: Workplace, name: str) -> bytes:
    """E[N] out of the first product, under a fresh uniform n-th residue, as its bytes on the wire."""
    return encode_chunk([rerandomize(place.public, place.read(name)[0], OS_RANDOMNESS)], place.public)


def draw(place: Workplace, figures: Figures, records: int | None) -> str:
    """Draws noise, and in a masked study the mask, and stores both sealed; returns the file's token.

    Args:
        place: where.
        figures: of the manifest.
        records: N in a masked study, else None.
    """
    if figures.noise_by is NoiseBy.OWNERS:
        drawn: dict[str, list[int]] = {"mask": [], "noise": []}  # it is in the shares
    elif figures.release is ReleaseKind.JOINT:
        drawn = {"mask": [], "noise": figures.mechanism.draw(1)}
    else:
        assert records is not None
        drawn = {
            "mask": draw_mask(figures.encoded_features, figures.mask_bits, OS_RANDOMNESS),
            "noise": figures.mechanism.draw(records),
        }
    token = secrets.token_hex(16)
    place.write(draw_name(place.study, token), json.dumps(drawn).encode())
    return token


def make_release(
    place: Workplace,
    figures: Figures,
    records: int | None,
    products: list[str],
    token: str,
    progress: Progress | None = None,
) -> tuple[str, tuple[Digest, ...]]:
    """Computes the release and stores its chunks in a new folder.

    Args:
        place: where.
        figures: of the manifest.
        records: N in a masked study, else None.
        products: names of the product files, in order.
        token: of the draw that was committed.
        progress: told (done, total) ciphertexts.

    Returns:
        The folder's token and the digests of its chunks.
    """
    files, public = FileStore(place.root), place.public
    drawn = json.loads(files.read_sealed(draw_name(place.study, token), place.data_key))
    aggregate = [ciphertext for name in products for ciphertext in place.read(name)]
    if figures.noise_by is NoiseBy.OWNERS:
        # As it is: the randomness of the aggregate is a sum of the owners' and says nothing about the data.
        released = aggregate
    elif figures.release is ReleaseKind.JOINT:
        released = make_joint_release(PaillierSuite(public, figures.slot_bits), aggregate, drawn["noise"])
    else:
        assert records is not None
        layout = BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)
        randomness = _CountingRandomness(progress or _tell, layout.release_count)
        released = make_masked_release(
            public, layout, aggregate, records, drawn["mask"], drawn["noise"], randomness
        )
    folder, digests = secrets.token_hex(16), []
    for position, chunk in enumerate(encode_chunks(released, public)):
        files.write(release_name(place.study, folder, position), chunk)
        digests.append(Digest.of(chunk))
    return folder, tuple(digests)


class _CountingRandomness:
    """The operating system's randomness; each released ciphertext draws from it once, which tells."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def bytes(self, count: int) -> bytes:
        return OS_RANDOMNESS.bytes(count)

    def below(self, bound: int) -> int:
        self._done += 1
        self._progress(min(self._done, self._total), self._total)
        return OS_RANDOMNESS.below(bound)


class Worker(Protocol):
    """Runs one function at a time, away from the requests."""

    def call(self, function: Callable[..., Outcome], *args: Any) -> Outcome: ...

    def progress(self) -> tuple[int, int]: ...

    def close(self) -> None: ...


class ProcessWorker:
    """One spawned process, made when it is first needed and again if it dies."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._counts = self._context.Array("Q", 2)
        self._pool: ProcessPoolExecutor | None = None

    def call(self, function: Callable[..., Outcome], *args: Any) -> Outcome:
        """Waits for `function(*args)` in the worker.

        Raises:
            UnavailableError: `worker-died`; the next call has a new one.
            Exception: what the function raised.
        """
        self._counts[:] = [0, 0]
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, mp_context=self._context, initializer=_settle, initargs=(self._counts,)
            )
        try:
            return self._pool.submit(function, *args).result()
        except BrokenProcessPool as error:
            self._pool = None
            raise UnavailableError("worker-died", "the worker process died", "it is started again") from error

    def progress(self) -> tuple[int, int]:
        done, total = self._counts[:]
        return int(done), int(total)

    def close(self) -> None:
        if self._pool is not None:
            processes = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                # Every step can be done again: nobody waits for a release that takes minutes.
                process.terminate()
            self._pool = None


_counts: Any = None


def _settle(counts: Any) -> None:
    """Makes a new worker process a good child: it leaves Ctrl-C to its parent and does not outlive it."""
    global _counts
    _counts = counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()


def _tell(done: int, total: int) -> None:
    if _counts is not None:
        _counts[:] = [done, total]
