"""Manifests of blinded studies: what a silent draft gets, and each rule that the proof of C14 needs."""

from collections.abc import Callable
from typing import Any

import pytest
from study_parties import MakeManifest, Parties

from dpdpca_owner.accounts.approvals import lasting_terms
from dpdpca_protocol.errors import CryptographicError, DpdpcaError, MessageError, PolicyError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_user.planning.lint import lint_alone


@pytest.fixture
def manifest(make_manifest: MakeManifest) -> Manifest:
    return make_manifest(blinding="pairwise")


def test_a_silent_draft_gets_what_blinding_needs(manifest: Manifest, parties: Parties) -> None:
    body = manifest.to_body()
    assert manifest.is_blinded
    assert (body["blinding"], body["suite"], body["noise_by"]) == ("pairwise", "pads", "owners")
    assert (body["closing"], body["max_colluding"]) == ("when-complete", 1)
    assert body["min_owners"] == body["max_owners"] == 3
    named = [(each["ed25519"], each["x25519"]) for each in body["participants"]]
    assert named == [(key.public.ed25519.hex(), key.public.blinding_key.hex()) for key in parties.owners]
    assert parse_manifest(body) == manifest


def test_without_blinding_nothing_of_it_is_in_a_manifest(make_manifest: MakeManifest) -> None:
    for draft in ({}, {"blinding": "none"}):
        body = make_manifest(suite="pads", **draft).to_body()
        assert "blinding" not in body
        assert "x25519" not in body["participants"][0]


def renamed(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda body: body["participants"][0].update(changes)


def without_participants(body: dict[str, Any]) -> None:
    body.update(participants=[])


def with_two(body: dict[str, Any]) -> None:
    body["participants"].pop()


def without_key(body: dict[str, Any]) -> None:
    del body["participants"][1]["x25519"]


def with_equal_keys(body: dict[str, Any]) -> None:
    body["participants"][0]["x25519"] = body["participants"][1]["x25519"]


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (lambda body: body.update(noise_by="proxy", max_colluding=0), PolicyError, "."),
        (lambda body: body.update(closing="at-time"), PolicyError, "closes when all owners"),
        (lambda body: body.update(min_owners=2), PolicyError, "."),
        (lambda body: body.update(max_owners=4), PolicyError, "all of its participants"),
        (lambda body: body.update(max_colluding=3), PolicyError, "."),
        (lambda body: body.update(max_colluding=0), PolicyError, "."),
        (without_participants, PolicyError, "named participants"),
        (with_two, PolicyError, "."),
        (without_key, PolicyError, "has no x25519"),
        (with_equal_keys, CryptographicError, "same blinding key"),
        (renamed(x25519="00" * 32), CryptographicError, "low order"),
        (renamed(x25519="ff" * 32), CryptographicError, "only encoding"),
        (renamed(x25519="00" * 31), MessageError, "x25519"),
        (lambda body: body.update(blinding="none"), PolicyError, "which is the default"),
        (lambda body: body.update(blinding="star"), DpdpcaError, "blinding"),
        (lambda body: body.pop("blinding"), PolicyError, "only in a blinded study"),
    ],
)
def test_each_rule_of_blinding_is_checked_by_every_party(
    manifest: Manifest, change: Callable[[dict[str, Any]], Any], error: type[DpdpcaError], reason: str
) -> None:
    body = manifest.to_body()
    change(body)
    with pytest.raises(error, match=reason):
        parse_manifest(body)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"suite": "paillier"}, "only under suite pads"),
        ({"noise_by": "proxy"}, "noise by the owners"),
        ({"closing": "at-time"}, "closes when all owners"),
        ({"min_owners": 2}, "all of its participants"),
        ({"max_owners": 4}, "all of its participants"),
        ({"participants": None}, "this draft names 0"),
        ({"max_colluding": 3}, "max_colluding is not between 1"),
        ({"release": "masked"}, "a masked study cannot be blinded"),
        ({"participants": []}, "needs two named owners or more, and this draft names 0"),
        ({"participants": ["Hospital A"]}, "needs two named owners or more, and this draft names 1"),
    ],
)
def test_a_draft_that_contradicts_blinding_is_refused(
    make_manifest: MakeManifest, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PolicyError, match=reason):
        make_manifest(blinding="pairwise", **change)


@pytest.mark.parametrize("release", ["joint", "pairs", "pre-study"])
def test_every_flat_release_can_be_blinded(make_manifest: MakeManifest, release: str) -> None:
    blocks = {"blocks": {"sum": "1"}} if release == "pre-study" else {}
    assert make_manifest(blinding="pairwise", release=release, **blocks).is_blinded


def test_a_draft_can_be_checked_before_owners_have_enrolled(
    draft: dict[str, Any], parties: Parties, manifest: Manifest
) -> None:
    for named in ("enrolled", ["A", "B"], [{"name": "A", "ed25519": "9f" * 32}, "B"]):
        checked = lint_alone({**draft, "blinding": "pairwise", "participants": named}, manifest.closes_at)
        assert checked.is_blinded


def test_an_approval_of_a_chain_covers_rounds_with_the_same_blinding_only(
    make_manifest: MakeManifest,
) -> None:
    terms = {"suite": "pads", "noise_by": "owners", "closing": "when-complete", "max_owners": 3}
    plain, blinded = make_manifest(**terms), make_manifest(**terms, blinding="pairwise")
    assert lasting_terms(plain) != lasting_terms(blinded)
    # The keys in the list of participants differ too; the word alone makes a difference.
    body = {**blinded.to_body(), "participants": plain.to_body()["participants"]}
    del body["blinding"]
    assert lasting_terms(parse_manifest(body)) == lasting_terms(plain)
