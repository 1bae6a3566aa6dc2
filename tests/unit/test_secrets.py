"""Every secret is drawn anew, or follows its key: what somebody else could compute would differ.

`secret_mutants` names the test of each secret, and tests/mutation runs the mutants. Where a test draws twice,
a repetition by chance has a probability below 2⁻⁶⁰.
"""

import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from folders import files_below
from gmpy2 import mpz
from proxy_world import ProxyWorld
from reference_data import Seeded
from scripted import SILENCE
from secret_mutants import (
    NO_SECRETS,
    OPEN_TYPES,
    ROOT,
    SECRET_TYPES,
    SECRETS,
    hiding_types,
    mutants,
    node_of,
    places,
)
from small_studies import KINDS
from study_parties import MakeManifest

from dpdpca_owner.accounts.ledger_file import LedgerFile
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.fingerprint import RecordsFingerprint
from dpdpca_owner.records.shuffle import Shuffle
from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.paillier.chunks import encode_chunk
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import KeyRules, SecretKey, random_unit
from dpdpca_protocol.paillier.primes import _uniform_prime, random_prime
from dpdpca_protocol.paillier.residues import ResidueProducts, pool_size, uniform_residues
from dpdpca_protocol.privacy import gaussian_draws
from dpdpca_protocol.privacy.gaussian import discrete_gaussian
from dpdpca_protocol.privacy.gaussian_draws import draw_gaussians
from dpdpca_protocol.privacy.mechanisms.discrete_laplace import discrete_laplace
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.pairing import KeyStream, pairing_seed
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import draw_mask
from dpdpca_protocol.release.suite import PaillierSuite
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.salts import salted_chunk
from dpdpca_protocol.wire.sealing import (
    open_at_rest,
    open_with_passphrase,
    seal_at_rest,
    seal_with_passphrase,
)
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.enrolment import invite
from dpdpca_proxy.precomputed import _read_parts, prepare_residues, residues_for
from dpdpca_proxy.proxy import make_home, open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.files import FolderStore, draw_name
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_proxy.worker import draw, make_release, multiply_chunks, rerandomized_count
from dpdpca_runtime.http.signature import RequestSigner
from dpdpca_user.home import UserHome
from dpdpca_user_service.keyring import Keyring
from dpdpca_user_service.work import make_key, make_pads_key

STUDY = StudyId(bytes(range(32)))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


# --- the list of secrets ----------------------------------------------------------------------------------


def test_every_place_that_draws_or_uses_a_key_is_a_secret_with_a_mutant_or_none_with_a_reason() -> None:
    assert set(places()) == SECRETS.keys() | NO_SECRETS.keys()
    assert not SECRETS.keys() & NO_SECRETS.keys()
    assert all(NO_SECRETS.values())


def test_every_type_that_hides_its_content_has_a_mutant_or_is_no_secret_with_a_reason() -> None:
    assert hiding_types() == SECRET_TYPES.keys() | OPEN_TYPES.keys()
    assert not SECRET_TYPES.keys() & OPEN_TYPES.keys()
    for kind, where in SECRET_TYPES.items():
        assert where, kind
        assert set(where) <= SECRETS.keys(), kind


def test_every_secret_names_a_test_that_exists_and_its_mutant_changes_the_module() -> None:
    where = places()
    for place, test in SECRETS.items():
        file, name = node_of(test).split("::")
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test
        source = where[place].read_text(encoding="utf-8")
        made = list(mutants(source, place.partition(" ")[2]))
        assert len(made) == len(set(made)) > 0
        for mutant in made:
            assert "_public" in mutant or "bytes(len(" in mutant
            compile(mutant, place, "exec")


# --- randomness of ciphertexts and keys -------------------------------------------------------------------


def test_each_encryption_has_its_own_randomness(toy_key: SecretKey) -> None:
    encryptors = [Encryptor(toy_key.public, 2) for _ in range(2)]
    made = {encryptor.encrypt(0) for encryptor in encryptors for _ in range(2)}
    assert len(made) == 4


class Counting:
    """The system's randomness, and how many integers were asked of it."""

    def __init__(self) -> None:
        self.drawn = 0

    def bytes(self, count: int) -> bytes:
        return OS_RANDOMNESS.bytes(count)

    def below(self, bound: int) -> int:
        self.drawn += 1
        return OS_RANDOMNESS.below(bound)


def test_secret_powers_are_blinded(toy_key: SecretKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are the same with any randomness, so what counts is whether it was asked for."""
    secret, source = SecretKey(toy_key.p, toy_key.q), Counting()
    ciphertext = Encryptor(secret.public, 1).encrypt(5)
    assert [secret.decrypt(ciphertext, source), secret.decrypt(ciphertext, source)] == [5, 5]
    assert source.drawn == 3  # a shift each time, and one residue that is squared for the second
    asked: list[int] = []
    honest = secrets.randbelow

    def counting(bound: int) -> int:
        asked.append(bound)
        return honest(bound)

    monkeypatch.setattr(secrets, "randbelow", counting)
    secret.decrypt(ciphertext)
    assert len(asked) == 1
    secret.residue_root(ciphertext)
    assert len(asked) == 2


def test_units_differ(toy_key: SecretKey) -> None:
    assert len({random_unit(toy_key.public.modulus, OS_RANDOMNESS) for _ in range(2)}) == 2


class FactorStartAndPicks:
    """The first factor of p − 1, the starts of windows, and the picks in them: each from its own source."""

    def __init__(self, factor: int, start: int, picks: int) -> None:
        self._factor, self._start, self._picks = Seeded(factor), Seeded(start), Seeded(picks)
        self._first = 0

    def bytes(self, count: int) -> bytes:
        raise AssertionError("no bytes are asked for")

    def below(self, bound: int) -> int:
        self._first = self._first or bound
        is_pick = bound < 1 << 20
        source = self._factor if bound == self._first else self._picks if is_pick else self._start
        return source.below(bound)


def test_primes_differ() -> None:
    """By itself: with primes that repeat, no key is ever made. Factor, start and order each matter."""
    assert len({random_prime(96, OS_RANDOMNESS, lambda: None) for _ in range(2)}) == 2
    for seeds in ([(1, 0, 0), (2, 0, 0)], [(1, 1, 0), (1, 2, 0)], [(1, 1, picks) for picks in range(20)]):
        sources = [FactorStartAndPicks(*each) for each in seeds]
        assert len({random_prime(96, source, lambda: None) for source in sources}) > 1


def test_factors_below_primes_differ() -> None:
    low, high = mpz(1) << 95, mpz(3) << 94
    assert len({_uniform_prime(low, high, OS_RANDOMNESS) for _ in range(2)}) == 2


def test_each_study_has_its_own_key() -> None:
    for make in (partial(make_key, 512, bytes(32), KeyRules(512)), make_pads_key):
        assert len({make().secret for _ in range(2)}) == 2


# --- the re-randomisers of a masked release ---------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, toy_key: SecretKey) -> StudyFiles:
    return StudyFiles(
        FolderStore(tmp_path / "proxy"), STUDY, PaillierSuite(toy_key.public, 16, 1, 1), bytes(32)
    )


@pytest.fixture
def figures(make_manifest: MakeManifest) -> Figures:
    return make_manifest(release="masked").figures


def test_products_of_a_pool_differ(toy_key: SecretKey) -> None:
    key = toy_key.public
    pool = uniform_residues(key, pool_size(key, 4), OS_RANDOMNESS)
    products = ResidueProducts(key, pool, 4, 2**20)
    steps = [products.random_steps(OS_RANDOMNESS) for _ in range(3)]
    assert all(one != other for one, other in pairwise(steps))


def test_no_randomizer_is_made_twice(files: StudyFiles, tmp_path: Path) -> None:
    outgoing = 600
    while prepare_residues(files, outgoing):
        pass
    made, pool = residues_for(files, outgoing, None, 1)
    residues = list(made)
    assert len(set(residues)) == len(residues) == outgoing
    assert not pool
    kept = list(_read_parts(files, "pool"))
    assert len(set(kept)) == len(kept) == pool_size(files.public, outgoing)
    # Without a pool, in two parts.
    few = StudyFiles(FolderStore(tmp_path / "few"), STUDY, files.suite, bytes(32))
    while prepare_residues(few, 40):
        pass
    assert len(set(_read_parts(few, "residues"))) == 40
    assert not list(_read_parts(few, "pool"))
    # As if nothing had been made ahead: the whole pool is made now, in slices.
    bare = StudyFiles(FolderStore(tmp_path / "bare"), STUDY, files.suite, bytes(32))
    _, pool = residues_for(bare, outgoing, None, 1)
    assert len(set(pool)) == len(pool) == pool_size(files.public, outgoing)


def test_a_count_never_looks_the_same(files: StudyFiles) -> None:
    files.write("count", encode_chunk([Encryptor(files.public, 1).encrypt(7)], files.public))
    assert len({rerandomized_count(files, "count") for _ in range(2)}) == 2


def test_a_masked_release_never_looks_the_same(files: StudyFiles, figures: Figures) -> None:
    """The same draw on the same sums, so that all that differs is the randomness of the ciphertexts."""
    zeros = [Encryptor(files.public, 2).encrypt(0)] * figures.ciphertext_count
    files.write("product", encode_chunk(zeros, files.public))
    token = draw(files, figures, 1)
    released = {make_release(files, figures, 1, ["product"], token)[1] for _ in range(2)}
    assert len(released) == 2


def test_masks_differ(files: StudyFiles, figures: Figures) -> None:
    masks = [draw_mask(2, 80, OS_RANDOMNESS) for _ in range(2)]
    tokens = [draw(files, figures, 5) for _ in range(2)]
    for token in tokens:
        stored = files.read_bytes(draw_name(STUDY, token))
        masks.append(json.loads(stored.partition(b"\n")[0]))
    assert len(set(map(tuple, masks))) == 4
    assert len(set(tokens)) == 2


def test_the_size_of_a_draw_says_nothing_about_the_mask(
    files: StudyFiles, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = 1 << (figures.mask_bits - 1)
    sizes = set()
    for mask in ([0] * figures.encoded_features, [-half] * figures.encoded_features, None):
        if mask is not None:
            monkeypatch.setattr("dpdpca_proxy.worker.draw_mask", lambda *_, mask=mask: mask)
        else:
            monkeypatch.undo()
        stored = files.read_bytes(draw_name(STUDY, draw(files, figures, 5)))
        assert mask is None or json.loads(stored.partition(b"\n")[0]) == mask
        sizes.add(len(stored))
    assert len(sizes) == 1


def test_salts_differ(files: StudyFiles) -> None:
    assert len({salted_chunk(b"ciphertexts", OS_RANDOMNESS) for _ in range(2)}) == 2
    files.write("chunk", encode_chunk([Encryptor(files.public, 1).encrypt(0)], files.public))
    assert len({multiply_chunks(files, [(0, ["chunk"])])[0] for _ in range(2)}) == 2


# --- noise ------------------------------------------------------------------------------------------------


def test_noise_differs() -> None:
    gaussian = {tuple(discrete_gaussian(Fraction(2**80), 6, 2**44)) for _ in range(2)}
    laplace = {tuple(discrete_laplace(Fraction(2**40), 6)) for _ in range(2)}
    ours = {tuple(draw_gaussians(2.0**40, 6, 2**44).tolist()) for _ in range(2)}
    assert len(gaussian) == len(laplace) == len(ours) == 2


class Signs(Seeded):
    """Bytes that repeat, but for the lowest bit of those asked for in an odd number: the signs, here."""

    def __init__(self, bit: int) -> None:
        super().__init__(1)
        self._bit = bit

    def bytes(self, count: int) -> bytes:
        drawn = super().bytes(count)
        return bytes(byte & 0xFE | self._bit for byte in drawn) if count % 2 else drawn


def test_our_sampler_uses_its_source() -> None:
    assert len({tuple(draw_gaussians(2.0**40, 6, 2**44).tolist()) for _ in range(2)}) == 2
    positive, negative = (draw_gaussians(1000.0, 5, 13_000, Signs(bit)) for bit in (0, 1))
    assert (positive >= 0).all()
    assert (negative <= 0).all()
    assert (positive != 0).any()
    sources = [Seeded(seed) for seed in range(20)]
    assert len({tuple(gaussian_draws._below(1000, 20, source).tolist()) for source in sources}) == 20
    even = np.full(64, np.log(2))
    happened = {
        tuple(gaussian_draws._happens(even, lambda index: Fraction(0), source, 2.0**-32).tolist())
        for source in sources
    }
    assert len(happened) == 20
    least, most = gaussian_draws._bounds(Fraction(1), gaussian_draws._WORD_BITS)
    assert most - least == 1  # a word of 62 bits that decides nothing, so that more bits are drawn
    decided = [gaussian_draws._is_below(int(least), Fraction(1), Seeded(seed)) for seed in range(40)]
    assert set(decided) == {True, False}


# --- what follows a secret --------------------------------------------------------------------------------


def test_the_order_of_pairs_follows_a_secret(make_manifest: MakeManifest, tmp_path: Path) -> None:
    keys = (b"a" * 32, b"b" * 32)
    assert len({pairing_seed(key, STUDY) for key in keys}) == 2
    assert len({KeyStream(key).take(32).tobytes() for key in keys}) == 2
    records = np.arange(200, dtype=np.int64)[:, None]
    orders = set()
    for key in keys:
        shuffle = Shuffle(1, key, tmp_path)
        shuffle.add(records)
        orders.add(tuple(np.concatenate(list(shuffle.batches())).ravel().tolist()))
    assert len(orders) == 2
    manifest = make_manifest(**KINDS["pairs"])
    columns: dict[str, Any] = {"a": np.arange(40) / 8, "b": np.zeros(40), "c": ["x"] * 40}
    released = {str(run_study(manifest, [columns], Seeded(s), SILENCE, UNENCRYPTED)) for s in (1, 2)}
    assert len(released) == 2


def test_fingerprints_follow_a_secret() -> None:
    found = set()
    for key in (b"a" * 32, b"b" * 32):
        fingerprint = RecordsFingerprint(key)
        fingerprint.add([np.arange(3.0), ["x", "y", "z"]])
        found.add(fingerprint.content.fingerprint)
    assert len(found) == 2


# --- keys of parties, ledgers and studies; seals ----------------------------------------------------------


def test_the_source_never_repeats() -> None:
    assert len({OS_RANDOMNESS.bytes(16) for _ in range(2)}) == 2
    assert len({OS_RANDOMNESS.below(2**128) for _ in range(2)}) == 2


def test_each_party_has_its_own_keys() -> None:
    made = [IdentityKey.generate().public for _ in range(2)]
    parts = [
        (each.ed25519, each.sealing_key[:1184], each.sealing_key[1184:], each.blinding_key) for each in made
    ]
    assert [len(set(of_all)) for of_all in zip(*parts, strict=True)] == [2, 2, 2, 2]


def test_seals_open_with_their_own_secret_alone() -> None:
    sealed = seal_at_rest(b"content", b"a" * 32, b"context", OS_RANDOMNESS)
    assert open_at_rest(sealed, b"a" * 32, b"context") == b"content"
    with pytest.raises(DpdpcaError):
        open_at_rest(sealed, b"b" * 32, b"context")
    sealed = seal_with_passphrase(b"content", b"one", b"context", OS_RANDOMNESS)
    with pytest.raises(DpdpcaError):
        open_with_passphrase(sealed, b"two", b"context")


def test_no_two_seals_are_alike(files: StudyFiles, tmp_path: Path) -> None:
    """The same content under the same key and context: a nonce that comes twice would open both."""
    assert len({seal_at_rest(b"x", bytes(32), b"c", OS_RANDOMNESS) for _ in range(2)}) == 2
    assert len({seal_with_passphrase(b"x", b"p", b"c", OS_RANDOMNESS)[:16] for _ in range(2)}) == 2
    assert len({Keyring(b"p").close(b"secret", STUDY)[:17] for _ in range(2)}) == 2
    stored = []
    for _ in range(2):
        files.write("name", b"content")
        (path,) = files_below(tmp_path / "proxy")
        stored.append(path.read_bytes())
        path.unlink()
    assert stored[0] != stored[1]


def test_each_study_at_the_proxy_has_its_own_data_key(world: ProxyWorld, tmp_path: Path) -> None:
    keys = {world.proxy.data_key(world.open_study().study)}
    world.with_new_key()
    keys.add(world.proxy.data_key(world.open_study().study))
    assert len(keys) == 2
    settings = load_settings(tmp_path / "other", port=world.port)
    make_home(settings)
    assert len({open_proxy(settings).randomness.bytes(32) for _ in range(2)}) == 2


def test_each_ledger_has_its_own_key_and_number(tmp_path: Path) -> None:
    def ledgers() -> Iterator[LedgerFile]:
        for number in range(2):
            ledger = LedgerFile(tmp_path / f"ledger {number}")
            ledger.create(NOW, OS_RANDOMNESS)
            yield ledger
            home = OwnerHome(tmp_path / f"home {number}")
            home.create("Hospital A", None)
            yield home.ledger

    made = list(ledgers())
    assert len({ledger.key() for ledger in made}) == len({ledger.read().id for ledger in made}) == 4


# --- what lets somebody in --------------------------------------------------------------------------------


def test_invitations_and_tokens_differ(world: ProxyWorld, tmp_path: Path) -> None:
    assert len({invite(world.proxy, "owner", "Hospital A").token for _ in range(2)}) == 2
    tokens, signatures = set(), set()
    signer = RequestSigner(IdentityKey.generate())
    for number in range(2):
        home = UserHome(tmp_path / f"user {number}")
        home.create("Institute", None)
        tokens.add((home.folder / "token").read_text())
        request = httpx.Request("GET", "http://127.0.0.1/v1/proxy")
        signer.sign(request, None, NOW)
        signatures.add(request.headers["signature-input"])
    assert len(tokens) == len(signatures) == 2
    assert all(len(token.strip()) >= 43 for token in tokens)
