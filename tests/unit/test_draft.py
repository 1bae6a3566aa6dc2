"""Drafts: what people write, completed once, then judged like any manifest."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from study_parties import MakeManifest, Parties, key_for

from dpdpca_protocol.errors import MessageError, PolicyError
from dpdpca_protocol.terms.parties import Participant
from dpdpca_protocol.wire.fields import real_of
from dpdpca_user.planning.draft import complete_draft, default_delta


def test_defaults(make_manifest: MakeManifest) -> None:
    manifest = make_manifest()
    assert (manifest.missing, manifest.scaling, manifest.mechanism) == ("reject", "range", "gaussian")
    assert (manifest.relation, manifest.noise_by, manifest.closing) == ("replace-one", "proxy", "at-time")
    assert manifest.sum_weight == Fraction("0.43")
    assert manifest.delta == Fraction(1, 5000**2)
    assert (manifest.min_owners, manifest.max_owners, manifest.min_records) == (3, 3, 3)
    assert manifest.fraction_bits == 10
    assert manifest.noise_scale == manifest.figures.noise_scale
    assert manifest.slot_bits == manifest.figures.slot_bits
    assert [feature.kind for feature in manifest.features] == ["numeric"] * 3


@pytest.mark.parametrize("said", [None, []])
def test_a_draft_that_names_nobody_names_nobody(make_manifest: MakeManifest, said: list[str] | None) -> None:
    manifest = make_manifest(participants=said)
    assert (manifest.participants, manifest.max_owners) == ((), 100)


def test_naming_all_is_said(make_manifest: MakeManifest, parties: Parties) -> None:
    manifest = make_manifest(participants="enrolled")
    assert (manifest.participants, manifest.max_owners) == (parties.participants, 3)


def test_who_needs_named_owners_says_how_to_name_them(make_manifest: MakeManifest) -> None:
    for needs in ({"release": "masked"}, {"closing": "when-complete"}):
        with pytest.raises(PolicyError, match="needs named participants") as refusal:
            make_manifest(participants=None, **needs)
        assert 'participants = "enrolled"' in refusal.value.next_step


@pytest.mark.parametrize("max_records", [0, -1, True, "5000", 2**53, 10**4000])
def test_default_delta_of_no_number_of_records_is_the_usual(max_records: int | bool | str) -> None:
    assert default_delta(max_records) == Fraction(1, 10**6)


@pytest.mark.parametrize("max_records", [1, 2, 999, 1000, 1001, 5000, 20_000, 123_457, 10**9])
def test_default_delta_is_below_both_limits(max_records: int) -> None:
    delta = default_delta(max_records)
    limit = min(Fraction(1, 10**6), Fraction(1, max_records**2))
    assert limit * (1 - Fraction(1, 10**5)) < delta <= limit


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (1, "1"),
        (-500, "-500"),
        (0.1, "0.1"),
        (1e-6, "0.000001"),
        (1e22, "10000000000000000000000"),
        ("1.0", "1"),
        ("+.5", "0.5"),
        ("1e-9", "0.000000001"),
        (Decimal("0.10"), "0.1"),
    ],
)
def test_numbers_as_people_write_them(written: float | str | Decimal, value: str) -> None:
    assert real_of(written, "x") == Fraction(value)


@pytest.mark.parametrize(
    "written",
    [
        True,
        None,
        "",
        "a",
        "nan",
        "inf",
        "1e999999",
        "--1",
        "1 2",
        "9" * 90,
        [],
        float("nan"),
        float("inf"),
        1e50,
        1e300,
        "1e-50",
    ],
)
def test_what_is_no_number_is_refused(written: object) -> None:
    with pytest.raises(
        MessageError, match="x must be a finite number below 10³⁰ with at most 40 decimal places"
    ):
        real_of(written, "x")


def test_text_is_put_on_one_line_in_nfc(make_manifest: MakeManifest, draft: dict[str, Any]) -> None:
    features = [{**draft["features"][0], "name": "cafe\u0301"}]
    manifest = make_manifest(purpose="two\n   lines ", features=features)
    assert manifest.purpose == "two lines"
    assert manifest.features[0].name == "café"


def test_levels_may_be_written_as_numbers(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(features=[{"name": "grade", "levels": [1, 2, "three"]}])
    assert manifest.features[0].levels == ("1", "2", "three")
    assert manifest.features[0].kind == "categorical"


@pytest.mark.parametrize("word", ["ENROLLED", "enrolled ", "all", ""])
def test_another_word_for_all_participants_is_refused_with_the_right_one(
    make_manifest: MakeManifest, word: str
) -> None:
    with pytest.raises(MessageError, match='must be a list, or the word "enrolled"'):
        make_manifest(participants=word)


def test_participants_by_name_or_by_key(make_manifest: MakeManifest, parties: Parties) -> None:
    third = parties.participants[2]
    manifest = make_manifest(
        participants=["Hospital B", {"name": "Third", "ed25519": third.ed25519.hex()}], min_owners=2
    )
    assert manifest.participants == (parties.participants[1], Participant("Third", third.ed25519))
    with pytest.raises(PolicyError, match="name of 0 known owners"):
        make_manifest(participants=["Hospital D"])


def test_one_draft_serves_both_releases(make_manifest: MakeManifest) -> None:
    weight = {"sum_weight": "0.5"}
    assert make_manifest(release="joint", **weight).sum_weight == Fraction(1, 2)
    assert make_manifest(release="masked", **weight).sum_weight == 0


def test_a_draft_from_json_is_the_same(make_manifest: MakeManifest, draft: dict[str, Any]) -> None:
    written = json.loads(json.dumps({**draft, "closes_at": "2030-01-02T03:04:05Z"}))
    assert make_manifest(**written) == make_manifest()


def test_the_closing_time_may_come_from_the_service(draft: dict[str, Any], parties: Parties) -> None:
    undated = {member: value for member, value in draft.items() if member != "closes_at"}
    arguments = (
        parties.user_party,
        parties.proxy_party,
        parties.participants,
        key_for(undated, parties.secret, parties.proof),
    )
    with pytest.raises(MessageError, match="closes_at is missing"):
        complete_draft(undated, *arguments)
    closing = datetime(2031, 1, 1, tzinfo=UTC)
    manifest = complete_draft(undated, *arguments, closes_at=closing)
    assert manifest.closes_at == closing


@pytest.mark.parametrize("member", ["user", "proxy", "key", "noise_scale", "slot_bits", "format", "epsilom"])
def test_a_draft_has_no_members_that_are_filled_in(make_manifest: MakeManifest, member: str) -> None:
    with pytest.raises(MessageError, match="unknown"):
        make_manifest(**{member: "1"})


@pytest.mark.parametrize("member", ["title", "features", "clip_norm", "release", "epsilon", "max_records"])
def test_what_has_no_default_is_asked_for(make_manifest: MakeManifest, member: str) -> None:
    with pytest.raises(MessageError, match=f"lacks {member}"):
        make_manifest(**{member: None})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"features": []}, PolicyError),
        ({"features": {}}, MessageError),
        ({"features": ["age"]}, MessageError),
        ({"features": [{"name": "age", "lower": 2, "upper": 1}]}, PolicyError),
        ({"features": [{"name": "age", "lower": 0}]}, MessageError),
        ({"features": [{"name": "age", "lower": "low", "upper": 1}]}, MessageError),
        ({"participants": "Hospital A"}, MessageError),
        ({"participants": ["enrolled"]}, PolicyError),
        ({"participants": ["Hospital A"] * 10_001}, PolicyError),
        ({"max_records": 10**4000}, PolicyError),
        ({"clip_norm": 10**5000}, MessageError),
        ({"features": [{"name": "ward", "levels": [10**5000]}]}, MessageError),
        ({"clip_norm": 0}, PolicyError),
        ({"clip_norm": -1}, PolicyError),
        ({"clip_norm": 2}, PolicyError),
        ({"max_records": "many"}, MessageError),
        ({"max_records": 0}, PolicyError),
        ({"epsilon": "nan"}, MessageError),
        ({"release": "both"}, PolicyError),
        ({"closes_at": "tomorrow"}, MessageError),
        ({"closes_at": datetime(2030, 1, 1)}, MessageError),
        ({"relation": "add-or-remove"}, PolicyError),
        ({"noise_by": "nobody"}, PolicyError),
        ({"noise_by": "owners", "release": "masked"}, PolicyError),
    ],
)
def test_bad_drafts_are_refused(
    make_manifest: MakeManifest, change: dict[str, Any], error: type[PolicyError] | type[MessageError]
) -> None:
    with pytest.raises(error):
        make_manifest(**change)
