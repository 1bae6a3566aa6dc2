"""The table of members: one row decides how a member is parsed, written, drafted and described."""

import copy
import json
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from study_parties import MakeManifest

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import MEMBERS, Drafted, draft_schema, manifest_schema
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.terms.terms import Terms

ROOT = Path(__file__).parents[2]
MANIFESTS = [
    operation["body"]
    for operation in json.loads((ROOT / "tests/vectors/manifests.json").read_text())["operations"]
    if operation["must_succeed"]
]


def test_every_field_of_a_manifest_has_one_row() -> None:
    assert [member.name for member in MEMBERS] == [field.name for field in fields(Manifest)]


def test_terms_take_what_the_table_says_and_six_figures_of_their_own() -> None:
    own = {
        "encoded_features",
        "modulus_bits",
        "assured_shares",
        "clip_cap_squared",
        "columns",
        "score_norm",
    }
    assert {member.name for member in MEMBERS if member.in_terms} | own == {
        each.name for each in fields(Terms)
    }


@pytest.mark.parametrize("schema", [manifest_schema, draft_schema])
def test_schemas_are_schemas(schema: Callable[[], dict[str, Any]]) -> None:
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("body", MANIFESTS, ids=lambda body: body["title"])
def test_the_schema_takes_the_manifests_that_the_parser_takes(body: dict[str, Any]) -> None:
    parse_manifest(body)
    Draft202012Validator(manifest_schema()).validate(body)


@pytest.mark.parametrize("member", [member.name for member in MEMBERS if member.is_required])
def test_schema_and_parser_miss_a_member(member: str) -> None:
    body = {name: value for name, value in MANIFESTS[0].items() if name != member}
    assert not Draft202012Validator(manifest_schema()).is_valid(body)
    with pytest.raises(Exception, match=member):
        parse_manifest(body)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("unknown", 1),
        ("epsilon", 1),
        ("epsilon", "1.0"),
        ("features", [{"name": "a", "kind": "numeric", "lower": "0"}]),
        ("participants", [{"name": "a"}]),
        ("release", "open"),
        ("closes_at", "tomorrow"),
        ("blocks", {}),
        ("rho_share", 0.5),
        ("nonnegative", False),
    ],
)
def test_the_schema_refuses_what_the_parser_refuses_by_shape(member: str, value: object) -> None:
    body = copy.deepcopy(MANIFESTS[0]) | {member: value}
    assert not Draft202012Validator(manifest_schema()).is_valid(body)
    with pytest.raises(Exception, match=member.split("_")[0]):
        parse_manifest(body)


@pytest.mark.parametrize(
    "member", [member for member in MEMBERS if not member.is_required], ids=lambda m: m.name
)
def test_what_goes_without_saying_is_left_out(member: Any) -> None:
    written = [] if member.default is None else member.form.write(member.default)
    if written in ([], {}, False, "1"):  # no value of the form is the default
        return
    with pytest.raises(PolicyError, match="which is the default"):
        parse_manifest(MANIFESTS[0] | {member.name: written})


def test_a_draft_may_say_a_default_and_a_manifest_does_not(make_manifest: MakeManifest) -> None:
    plain = make_manifest()
    said = make_manifest(
        calibration="proved", cohort_distance=2, nonnegative=False, rho_share=1, missing="reject"
    )
    assert said == plain
    assert said.rho_share == Fraction(1)
    assert not {"calibration", "cohort_distance", "nonnegative", "rho_share"} & said.to_body().keys()


def test_a_draft_must_say_what_only_people_know(make_manifest: MakeManifest) -> None:
    must = {member.name for member in MEMBERS if member.drafted is Drafted.MUST}
    assert must == set(draft_schema()["required"]) | {"features"}  # or feature_list
    for name in must:
        with pytest.raises(Exception, match=name):
            make_manifest(**{name: None})
