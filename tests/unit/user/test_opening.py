"""What opens a release in clear draws the second noise from the study's secret, and from the release."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from cohorts import cohort_of, of_one_owner
from streamed import encrypted
from study_parties import PADS_SECRET, MakeManifest

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.packing import BlockLayout, symmetric_rows
from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.paillier.chunks import encode_chunks
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.privacy.mechanisms import Gaussian
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.release.suite import Cohort
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_user_service import work
from dpdpca_user_service.work import open_pre_study, open_release

N = 40
SUMS = [30, -7, 11]
UPPER = [90_000, 400, -800, 70_000, 200, 60_000]


def released(manifest: Manifest, key: SecretKey) -> list[bytes]:
    """The chunks of a release without noise of the proxy's."""
    figures, public = manifest.figures, key.public
    if figures.rules.is_masked:
        layout = BlockLayout(3, figures.slot_bits, figures.slots)
        scaled = [[N * x for x in row] for row in symmetric_rows(3, UPPER)]
        centred = (np.array(scaled) - np.outer(SUMS, SUMS)).tolist()
        upper = [centred[i][j] for i in range(3) for j in range(i, 3)]
        plains = list(layout.pack_share(0, [0, 0, 0], symmetric_rows(3, upper)))[1:]
        return list(encode_chunks(Encryptor(public, 8).encrypt_many(plains), public))
    vectors = PaillierVectors(public, figures.slot_bits)
    return list(encode_chunks(encrypted(vectors, [N, *SUMS, *UPPER]), public))


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_the_second_noise_follows_the_secret_and_the_release(
    make_manifest: MakeManifest, toy_key: SecretKey, release: str
) -> None:
    """p and q in either order are the same key and two secrets. With the same chunks all else is the same."""
    manifest = make_manifest(release=release)
    secrets = [SecretKey(toy_key.p, toy_key.q).to_bytes(), SecretKey(toy_key.q, toy_key.p).to_bytes()]
    one, other = released(manifest, toy_key), released(manifest, toy_key)

    def opened(secret: bytes, chunks: list[bytes]) -> bytes:
        records = N if release == "masked" else None
        return open_release(secret, manifest.to_body(), chunks, records, cohort_of(3), True).components

    found = [opened(secrets[0], one), opened(secrets[1], one), opened(secrets[0], other)]
    assert len(set(found)) == 3
    assert opened(secrets[0], one) == found[0]


@pytest.mark.parametrize("release", ["joint", "pairs", "pre-study"])
def test_under_pads_the_second_noise_follows_the_secret_the_release_and_the_cohort(
    make_manifest: MakeManifest, release: str
) -> None:
    """One release under two cohorts would otherwise show an exact difference under one draw."""
    changes: dict[str, Any] = {"blocks": {"sum": "1"}} if release == "pre-study" else {}
    manifest = make_manifest(release=release, suite="pads", **changes)
    values = {"joint": [N, *SUMS, *UPPER], "pairs": [N, *UPPER], "pre-study": [N, *SUMS]}[release]
    one, other = of_one_owner(manifest, values), of_one_owner(manifest, values)
    secrets = [PADS_SECRET, replace(PADS_SECRET, second_noise=bytes(32))]

    def opened(secret: PadsSecret, chunks: list[bytes], cohort: Cohort) -> bytes:
        body = manifest.to_body()
        if release == "pre-study":
            return str(open_pre_study(secret.to_bytes(), body, chunks, cohort)[0]).encode()
        return open_release(secret.to_bytes(), body, chunks, None, cohort, True).components

    chunks, cohort = one
    renamed = replace(cohort, digest=Digest.of(b"another cohort"))
    found = [
        opened(secrets[0], chunks, cohort),
        opened(secrets[1], chunks, cohort),
        opened(secrets[0], chunks, renamed),
        opened(secrets[0], *other),
    ]
    assert len(set(found)) == 4
    assert opened(secrets[0], chunks, cohort) == found[0]


def noised_by(monkeypatch: pytest.MonkeyPatch, drawn: int) -> None:
    """Every draw of the data user's own is this number."""
    fixed = Samplers(gaussian=lambda variance, count, bound: [drawn] * count)
    monkeypatch.setattr(work, "own_samplers", lambda secret, chunks: fixed)


def test_noise_by_owners_gets_no_second_draw(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(work, "own_samplers")
    manifest = make_manifest(release="pre-study", suite="pads", blocks={"sum": "1"}, noise_by="owners")
    chunks, cohort = of_one_owner(manifest, [N, *SUMS])
    result, _ = open_pre_study(PADS_SECRET.to_bytes(), manifest.to_body(), chunks, cohort)
    assert result.total is not None
    assert np.round(np.array(result.total.mean) * N * manifest.figures.grid).tolist() == SUMS


@pytest.mark.parametrize("drawn", [-900, 0, 900])
@pytest.mark.parametrize("off", [0, 1])
def test_whether_a_pre_study_is_refused_shows_numbers_with_the_second_noise_only(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch, drawn: int, off: int
) -> None:
    """T2 (d): the proxy knows its own noise and pushes a value to the edge of a check."""
    noised_by(monkeypatch, drawn)
    manifest = make_manifest(release="pre-study", suite="pads", blocks={"sum": "1"})
    (_, block) = manifest.figures.blocks
    edge = block.bound + 2 * block.tail
    chunks, cohort = of_one_owner(manifest, [N, edge + off - drawn, 0, 0])
    opened = partial(open_pre_study, PADS_SECRET.to_bytes(), manifest.to_body(), chunks, cohort)
    if off:
        with pytest.raises(CryptographicError, match="out of range"):
            opened()
    else:
        assert opened()[0].records == N


@pytest.mark.parametrize("in_clear", [False, True])
def test_what_passes_with_the_second_noise_is_fitted_whatever_it_is(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch, in_clear: bool
) -> None:
    manifest = make_manifest(release="pairs", suite="pads")
    _, block = manifest.figures.blocks

    def diagonal(tails: int) -> list[int]:
        return [tails * block.tail if i == j else 0 for i in range(3) for j in range(i, 3)]

    def opened(released: int, drawn: int) -> bytes:
        """The components if all variances and all of our own draws are so many times the noise's tail."""
        monkeypatch.setattr(Gaussian, "draw", lambda self, count, sample: [0, *diagonal(drawn)])
        chunks, cohort = of_one_owner(manifest, [N, *diagonal(released)])
        secret, body = PADS_SECRET.to_bytes(), manifest.to_body()
        return open_release(secret, body, chunks, None, cohort, in_clear).components

    for released, drawn in ((-4, 0), (-1, -2), (0, -3)):
        with pytest.raises(CryptographicError, match="more negative"):
            opened(released, drawn)
    found = {opened(released, drawn) for released, drawn in ((-4, 3), (-1, 0), (0, -1))}
    assert len(found) == (1 if in_clear else 3)
