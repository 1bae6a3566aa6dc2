"""The audit against the proxy's own steps: sealed draws, products and releases on disk, opened by a toy key.

The games elsewhere leave the encryption out to have many runs; this one leaves nothing out and has few. It
shows that what the proxy draws and releases is what those games play: noise of the stated law on both sides
of the diagonal, at the scale of N·S, under a mask of the stated range.
"""

import secrets
from pathlib import Path

import numpy as np
import pytest
from gmpy2 import mpz
from present import present
from streamed import encrypted
from study_parties import MakeManifest

from dpdpca_lab.audit.game import ALPHA, audit
from dpdpca_lab.audit.neighbours import arena_of, worst_pairs
from dpdpca_lab.audit.releases import JointRelease, MaskedRelease, Totals, Views, integers
from dpdpca_lab.audit.report import Claim
from dpdpca_protocol.layout.packing import unpack
from dpdpca_protocol.pads.chunks import add_pads, decode, encode, open_chunk
from dpdpca_protocol.paillier.chunks import decode_chunk, encode_chunk
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.suite import PadsSuite, PaillierSuite, Suite
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.kem import KemKey
from dpdpca_protocol.wire.salts import salted_chunk
from dpdpca_proxy import worker
from dpdpca_proxy.store.files import FolderStore, product_name, release_name
from dpdpca_proxy.study_files import StudyFiles

from .alpha import level

STUDY = StudyId.of(b"audit")
RECORDS = 20
FEATURES = [{"name": f"x{i}", "lower": -1, "upper": 1} for i in range(2)]


class Proxy:
    """The worker's part of a proxy, with a folder of its own; it keeps nothing between releases."""

    def __init__(self, root: Path, suite: Suite) -> None:
        self.files = FolderStore(root)
        self.place = StudyFiles(self.files, STUDY, suite, secrets.token_bytes(32))

    def store(self, content: bytes) -> str:
        """The name of the products."""
        content = salted_chunk(content, OS_RANDOMNESS)
        product = product_name(self.place.study, 0, Digest.of(content))
        self.place.write(product, content)
        return product

    def release(self, figures: Figures, records: int | None, product: str) -> bytes:
        """The chunk of a release of these products, noise and mask drawn afresh."""
        token = worker.draw(self.place, figures, records)
        folder, _ = worker.make_release(self.place, figures, records, [product], token)
        return self.files.read(release_name(self.place.study, folder, 0))


class Paillier:
    """A proxy whose ciphertexts are opened by a toy key."""

    def __init__(self, figures: Figures, root: Path, secret: SecretKey) -> None:
        self.secret = secret
        counts = figures.value_count, figures.ciphertext_count
        self.proxy = Proxy(root, PaillierSuite(secret.public, figures.slot_bits, *counts))

    def store(self, ciphertexts: list[mpz]) -> str:
        return self.proxy.store(encode_chunk(ciphertexts, self.secret.public))

    def release(self, figures: Figures, records: int | None, product: str) -> list[int]:
        """The plaintexts of a release."""
        released = decode_chunk(self.proxy.release(figures, records, product), self.secret.public)
        return [int(self.secret.decrypt(c)) for c in released]


class MaskedThroughTheProxy(MaskedRelease):
    def __init__(self, figures: Figures, root: Path, secret: SecretKey) -> None:
        super().__init__(figures)
        self.opened = Paillier(figures, root, secret)

    def play(self, totals: Totals, runs: int) -> Views:
        vectors = PaillierVectors(self.opened.secret.public, self.figures.slot_bits)
        encryptor = Encryptor(vectors.public, self.layout.ciphertext_count)
        share = list(self.layout.pack_share(totals.count, totals.sum, totals.second_moment))
        product = self.opened.store(encryptor.encrypt_many(share))
        values, veiled = [], []
        for _ in range(runs):
            plains = self.opened.release(self.figures, totals.count, product)
            sums, blocks = plains[: self.d], iter(plains[self.d :])
            held = {}
            for i in range(self.d):
                for _, columns in self.layout.blocks(i):
                    entries = unpack(next(blocks), self.figures.slot_bits, len(columns))
                    held.update(
                        {(i, j): t - sums[i] * sums[j] for j, t in zip(columns, entries, strict=True)}
                    )
            values.append([held[present(c.entry)] for c in self.coordinates(totals.count)])
            veiled.append(sums)
        return Views(integers(values), integers(veiled))


class JointThroughTheProxy(JointRelease):
    def __init__(self, figures: Figures, root: Path, secret: SecretKey) -> None:
        super().__init__(figures)
        self.opened = Paillier(figures, root, secret)

    def play(self, totals: Totals, runs: int) -> Views:
        vectors = PaillierVectors(self.opened.secret.public, self.figures.slot_bits)
        plain = [totals.count, *self.truth(totals)]
        product = self.opened.store(encrypted(vectors, plain))
        values = []
        for _ in range(runs):
            packed = self.opened.release(self.figures, None, product)
            count, *seen = vectors.layout(len(plain)).unpack_all(packed)
            assert count == totals.count
            values.append(seen)
        return Views(integers(values), np.empty((runs, 0), dtype=object))


class PaddedThroughTheProxy(JointRelease):
    def __init__(self, figures: Figures, root: Path, secret: SecretKey) -> None:
        super().__init__(figures)
        self.proxy = Proxy(root, PadsSuite(KemKey.generate().public, STUDY, figures.value_count))

    def play(self, totals: Totals, runs: int) -> Views:
        plain = np.array([totals.count, *self.truth(totals)], dtype=np.int64)
        pad_key = secrets.token_bytes(32)
        product = self.proxy.store(encode(add_pads(pad_key, 0, plain)))
        values = []
        for _ in range(runs):
            released = decode(self.proxy.release(self.figures, None, product))
            count, *seen = open_chunk(released, [pad_key], 0).tolist()
            assert count == totals.count
            values.append(seen)
        return Views(integers(values), np.empty((runs, 0), dtype=object))


@pytest.mark.parametrize(
    "runs", [pytest.param(200, id="few"), pytest.param(2000, id="many", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(
    ("kind", "suite", "through"),
    [
        ("masked", "paillier", MaskedThroughTheProxy),
        ("joint", "paillier", JointThroughTheProxy),
        ("joint", "pads", PaddedThroughTheProxy),
    ],
)
def test_what_the_proxy_releases_is_what_the_games_play(
    kind: str,
    suite: str,
    through: type[MaskedThroughTheProxy | JointThroughTheProxy | PaddedThroughTheProxy],
    runs: int,
    make_manifest: MakeManifest,
    toy_key: SecretKey,
    tmp_path: Path,
) -> None:
    manifest = make_manifest(
        release=kind,
        suite=suite,
        features=FEATURES,
        epsilon=2,
        delta="0.04",
        max_records=RECORDS,
        min_records=RECORDS,
    )
    release = through(manifest.figures, tmp_path, toy_key)
    pairs = worst_pairs(manifest, arena_of(manifest), RECORDS)[:1]
    report = audit(release, pairs, Claim.of(manifest), runs, alpha=level())
    assert report.holds, report.facts()
    assert report.alpha < ALPHA
    tested = {check.name for _, check in report.checks if not check.measured.startswith("not tested")}
    assert {"noise has the stated deviation", "noise is independent", "noise covers all residues"} <= tested
    if kind == "masked":
        assert {"mask covers all residues", "copies of an entry carry the same noise"} <= tested
