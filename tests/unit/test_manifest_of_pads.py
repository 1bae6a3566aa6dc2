"""Manifests of studies under pads: which key they name, and what every party refuses."""

from typing import Any

import pytest
from study_parties import PADS_SECRET, MakeManifest, Parties

from dpdpca_protocol.errors import CryptographicError, DpdpcaError, MessageError, PolicyError, UsageError
from dpdpca_protocol.layout.blocks import Block, BlockName
from dpdpca_protocol.release.suite import PadsSuite, PaillierSuite
from dpdpca_protocol.terms.figures import _padded_size
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import open_manifest, parse_manifest, sign_manifest, suite_of
from dpdpca_protocol.wire.identifiers import Digest


@pytest.fixture
def manifest(make_manifest: MakeManifest) -> Manifest:
    return make_manifest(suite="pads")


@pytest.mark.parametrize("release", ["joint", "pairs", "pre-study"])
def test_it_names_one_key_and_no_slots(make_manifest: MakeManifest, release: str) -> None:
    blocks = {"blocks": {"sum": "1"}} if release == "pre-study" else {}
    made = make_manifest(suite="pads", release=release, **blocks)
    body = made.to_body()
    assert (body["suite"], body["key"]) == ("pads", {"kem": PADS_SECRET.public.hex()})
    assert "slot_bits" not in body
    assert parse_manifest(body) == made
    assert made.figures.share_bytes == 8 * made.figures.value_count


def test_it_opens_for_every_party(manifest: Manifest, parties: Parties) -> None:
    signed = open_manifest(sign_manifest(manifest, parties.user).encoded)
    count = manifest.figures.value_count
    assert signed.suite == PadsSuite(PADS_SECRET.public, manifest.study_id, count)
    with pytest.raises(UsageError):
        _ = signed.public_key


def test_the_same_terms_under_paillier_have_another_suite(
    make_manifest: MakeManifest, parties: Parties
) -> None:
    made = make_manifest(suite="paillier")
    figures = made.figures
    expected = PaillierSuite(
        parties.secret.public, figures.slot_bits, figures.value_count, figures.ciphertext_count
    )
    assert suite_of(made) == expected


def test_a_key_of_another_study_is_refused(manifest: Manifest, parties: Parties) -> None:
    encoded = sign_manifest(manifest, parties.user).encoded
    with pytest.raises(CryptographicError, match="was used in another study"):
        open_manifest(encoded, {Digest.of(PADS_SECRET.public)})


PAILLIER_KEY = {"modulus": "c1" * 64, "proof": []}


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"key": {"kem": "ff" * 1216}}, CryptographicError, "sealed"),
        ({"key": {"kem": "00" * 1215}}, MessageError, "kem"),
        ({"key": {"kem": "00" * 1216, "modulus": "c1"}}, MessageError, "unknown"),
        ({"key": {}}, MessageError, "modulus"),
        ({"key": PAILLIER_KEY}, PolicyError, "not one for suite pads"),
        ({"suite": "paillier"}, PolicyError, "not one for suite paillier"),
        ({"suite": "shamir"}, PolicyError, "suite must be one of"),
        ({"slot_bits": 40}, PolicyError, "slot_bits has no meaning"),
    ],
)
def test_a_body_that_does_not_fit_its_suite_is_refused(
    manifest: Manifest, change: dict[str, Any], error: type[DpdpcaError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        parse_manifest(manifest.to_body() | change)


def test_the_suite_is_always_there(manifest: Manifest) -> None:
    body = manifest.to_body()
    del body["suite"]
    with pytest.raises(MessageError, match="suite"):
        parse_manifest(body)


def test_a_masked_study_cannot_use_pads(make_manifest: MakeManifest) -> None:
    with pytest.raises(PolicyError, match="multiplies"):
        make_manifest(suite="pads", release="masked")


def test_sums_with_their_noise_stay_below_2_to_the_62(make_manifest: MakeManifest) -> None:
    terms = {"suite": "pads", "fraction_bits": 20, "delta": "0.000000001"}
    figures = make_manifest(**terms).figures
    tail = figures.blocks[-1].tail
    most = (2**62 - 1 - tail) // figures.record_bound
    assert make_manifest(**terms, max_records=most).figures.blocks[-1].tail == tail
    with pytest.raises(PolicyError, match="reach 2⁶²"):
        make_manifest(**terms, max_records=most + 1)


def test_2_to_the_62_is_the_first_sum_that_is_refused() -> None:
    for tail in (0, 1, 2**61):
        _padded_size((Block(BlockName.SECOND_MOMENT, 1, 2**62 - 1 - tail, tail),), 1)
        with pytest.raises(PolicyError, match="reach 2⁶²"):
            _padded_size((Block(BlockName.SECOND_MOMENT, 1, 2**62 - tail, tail),), 1)
