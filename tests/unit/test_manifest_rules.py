"""The rules for nonnegative records, pairs, pre-studies and rounds of a chain: kept, and each one broken."""

from dataclasses import replace
from typing import Any

import pytest
from study_parties import MakeManifest

from dpdpca_protocol.errors import MessageError, PolicyError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import parse_manifest

LEAST = 512


@pytest.fixture(params=["joint", "masked"])
def body(request: pytest.FixtureRequest, make_manifest: MakeManifest) -> dict[str, Any]:
    return make_manifest(release=request.param).to_body()


def parse(body: dict[str, Any]) -> Manifest:
    return parse_manifest(body)


def from_zero(**changes: int | str) -> dict[str, int | str]:
    return {"name": "count", "lower": 0, "upper": 50, **changes}


def test_a_nonnegative_study_has_its_centre_at_the_lower_bound(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(release="masked", features=[from_zero(), from_zero(name="b")], nonnegative=True)
    assert manifest.to_body()["nonnegative"] is True
    assert [feature.origin for feature in manifest.features] == [0, 0]
    assert parse(manifest.to_body()) == manifest
    plain = make_manifest(release="masked", features=[from_zero(centre=0), from_zero(name="b", centre=0)])
    # √3/√8 of the noise, at the same ε: 6K² in place of 16K².
    assert float(manifest.noise_scale / plain.noise_scale) == pytest.approx((3 / 8) ** 0.5, rel=1e-6)
    assert manifest.figures.rho == pytest.approx(plain.figures.rho, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"features": [from_zero(centre=1), from_zero(name="b")]}, "lower bound as centre"),
        (
            {"features": [from_zero(), {"name": "c", "levels": ["x", "y"], "centre": ["0.5", "0.5"]}]},
            "the centre 0 for every level",
        ),
        ({"release": "joint"}, "the noise only in a masked study"),
        ({"mechanism": "laplace"}, "proved only for the gaussian mechanism"),
    ],
)
def test_nonnegative_is_refused_where_it_proves_nothing(
    make_manifest: MakeManifest, changes: dict[str, Any], reason: str
) -> None:
    terms = {"release": "masked", "features": [from_zero(), from_zero(name="b")], "nonnegative": True}
    with pytest.raises(PolicyError, match=reason):
        make_manifest(**terms | changes)


@pytest.mark.parametrize("value", [False, None, 1, "true"])
def test_nonnegative_is_true_or_left_out(body: dict[str, Any], value: bool | int | str | None) -> None:
    body["nonnegative"] = value
    with pytest.raises(MessageError, match="true, or omitted"):
        parse(body)


def test_pairs_and_pre_studies_survive_their_bodies(make_manifest: MakeManifest) -> None:
    first = make_manifest(release="pre-study", blocks={"pair-norms": 0.5, "norms": "0.5"}, rho_share="0.05")
    body = first.to_body()
    assert body["blocks"] == {"norms": "0.5", "pair-norms": "0.5"}
    assert (body["rho_share"], body["sum_weight"], body["missing"]) == ("0.05", "0", "midpoint")
    assert body["fraction_bits"] == 16
    assert parse(body) == first
    second = make_manifest(release="pairs", clip_norm=2, rho_share=0.95, pre_studies=[first.study_id.hex()])
    body = second.to_body()
    assert body["pre_studies"] == [first.study_id.hex()]
    assert not {"blocks", "nonnegative"} & body.keys()
    assert parse(body) == second
    assert second.study_id != replace(second, pre_studies=()).study_id


PRE_STUDY = {"release": "pre-study", "blocks": {"norms": "1"}}
PAIRS = {"release": "pairs"}


@pytest.mark.parametrize(
    ("terms", "changes", "reason"),
    [
        (PAIRS, {"missing": "reject"}, "dropping a record would change the other pairs"),
        (PRE_STUDY, {"blocks": {"octaves": "1"}, "missing": "reject"}, "would change the other pairs"),
        (PAIRS, {"sum_weight": "0.43"}, "no meaning in a pairs study"),
        (PAIRS, {"clip_norm": "3.5"}, "above 2·√3"),
        (PAIRS, {"noise_by": "owners"}, "max_colluding is not between 1 and min_owners"),
        (
            PRE_STUDY,
            {"noise_by": "owners", "max_colluding": 1, "epsilon": "25"},
            "too small for the proof.*lower epsilon to [0-9.]+",
        ),
        (PAIRS, {"mechanism": "laplace"}, "supports"),
        (PAIRS, {"blocks": {"norms": "1"}}, "a pre-study must name blocks"),
        (PAIRS, {"fraction_bits": 30, "clip_norm": "0.01"}, "squares, too much|exact 64-bit sums"),
        (PRE_STUDY, {"clip_norm": "2"}, "above 1.98997"),
        (PRE_STUDY, {"blocks": {"norms": "0.9"}}, "and add up to 1"),
        (PRE_STUDY, {"blocks": {"norms": "1.5", "sum": "-0.5"}}, "all be above 0 and add up to 1"),
        (PRE_STUDY, {"rho_share": "1"}, "not between 0 and 1"),
        (PRE_STUDY, {"rho_share": "0"}, "not between 0 and 1"),
        (PRE_STUDY, {"pre_studies": ["ab" * 32]}, "add rho_share"),
        (PRE_STUDY, {"rho_share": "0.1", "pre_studies": ["ab" * 32] * 2}, "contains an entry twice"),
        (PRE_STUDY, {"rho_share": "0.1", "pre_studies": [f"{k:064x}" for k in range(8)]}, "more than 7"),
        ({}, {"mechanism": "laplace", "rho_share": "0.1"}, "rho_share is proved only for the gaussian"),
        (PRE_STUDY, {"rho_share": "0.1", "epsilon": "35"}, "tails and masks of a chain"),
    ],
)
def test_pairs_and_pre_studies_are_held_to_their_rules(
    make_manifest: MakeManifest,
    terms: dict[str, Any],
    changes: dict[str, Any],
    reason: str,
) -> None:
    body = make_manifest(**terms).to_body() | changes
    with pytest.raises(PolicyError, match=reason):
        parse(body)


@pytest.mark.parametrize(
    "changes",
    [
        {"blocks": {}},
        {"blocks": []},
        {"blocks": {"means": "1"}},
        {"blocks": {"norms": 1}},
        {"blocks": {"norms": "1.0"}},
        {"pre_studies": [], "rho_share": "0.1"},
        {"pre_studies": ["ab"], "rho_share": "0.1"},
        {"rho_share": 0.5},
    ],
)
def test_other_shapes_of_the_new_members_are_malformed(
    make_manifest: MakeManifest, changes: dict[str, Any]
) -> None:
    with pytest.raises(MessageError):
        parse(make_manifest(**PRE_STUDY).to_body() | changes)
