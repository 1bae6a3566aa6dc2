"""A first draft from a sample: what it writes, what it leaves open, and what it refuses with a reason."""

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpdpca_protocol.errors import InputError, MessageError
from dpdpca_protocol.terms.terms import NoiseBy, SuiteName
from dpdpca_user.commands.parts import lint_draft
from dpdpca_user.planning.advice import advice, sample_advice
from dpdpca_user.planning.preview import forecast, lint_facts
from dpdpca_user.planning.rounds import check_base
from dpdpca_user.planning.sample import (
    FirstDraft,
    columns_of_sample,
    draft_from_sample,
    finite_numbers,
    room_for,
)


def drafted(
    folder: Path,
    *columns: tuple[str, ...],
    records: int | None = 5000,
    participants: Sequence[str] | None = None,
    single: bool = True,
) -> FirstDraft:
    """The draft of a sample with these columns, each its header and its fields."""
    path = folder / "sample.csv"
    path.write_text("".join(";".join(row) + "\n" for row in zip(*columns, strict=True)), encoding="utf-8")
    return draft_from_sample(path, records, participants, single=single)


def feature(draft: FirstDraft, name: str) -> dict[str, Any]:
    (found,) = (each for each in tomllib.loads(draft.text)["features"] if each["name"] == name)
    return dict(found)


AGE = ("age", "31", "78", "40")


@pytest.mark.parametrize("names", [None, ["Hospital A", 'The "B"'], [f"Owner {index}" for index in range(7)]])
def test_a_draft_that_names_owners_is_blinded(tmp_path: Path, names: list[str] | None) -> None:
    draft = tomllib.loads(drafted(tmp_path, AGE, participants=names).text)
    assert draft["participants"] == (names or "enrolled")
    assert draft["max_colluding"] == 1
    manifest = lint_draft(draft)
    assert manifest.is_blinded
    assert (manifest.suite, manifest.noise_by) == (SuiteName.PADS, NoiseBy.OWNERS)
    if names:
        assert manifest.min_owners == manifest.max_owners == len(names)


@pytest.mark.parametrize("names", [None, ("A", "B"), ()])
def test_a_draft_is_that_of_a_chain(tmp_path: Path, names: Sequence[str] | None) -> None:
    """It differs from that of a single study only by members that the chain chooses."""
    text = drafted(tmp_path, AGE, participants=names, single=False).text
    assert "study run --auto" in text
    base = tomllib.loads(text)
    check_base(base)
    facts = lint_facts(base, lint_draft, 5000, columns_of_sample(tmp_path / "sample.csv"))
    assert facts["release"] is None
    assert not [line for line in facts["advice"] if "clip" in line]
    single = tomllib.loads(drafted(tmp_path, AGE, participants=names).text)
    assert single == base | {
        "release": "joint",
        "clip_norm": 0.35,
        "clip_share": 0.005,
        "clip_cap": 1.05,
    }
    assert not [line for line in advice(lint_draft(single)) if "without clip" in line]


def test_a_draft_that_names_nobody_has_the_proxy_s_noise(tmp_path: Path) -> None:
    draft = tomllib.loads(drafted(tmp_path, AGE, participants=()).text)
    assert draft["noise_by"] == "proxy"
    assert not {"participants", "blinding", "max_colluding"} & draft.keys()
    manifest = lint_draft(draft)
    assert manifest.participants == ()
    assert not manifest.is_blinded


@pytest.mark.parametrize("names", [("A", "B"), ()])
def test_the_forecast_of_a_first_draft_has_each_release_that_it_can_have(
    tmp_path: Path, names: Sequence[str]
) -> None:
    """A masked study is shown beside a blinded one, with the proxy's noise; it must name its owners."""
    draft = tomllib.loads(drafted(tmp_path, AGE, participants=names).text)
    shown = [seen.name for seen in forecast(draft, lint_draft, 5000).outlooks]
    assert shown == ["chain", *(["masked"] if names else []), "joint", "pairs"]


@pytest.mark.parametrize(
    ("fields", "lower", "upper"),
    [
        (("31", "78"), 30, 80),
        (("-3", "7.5"), -10, 10),
        (("1000000", "1000001"), 1_000_000, 2_000_000),
        (("-1000001", "-1000000"), -2_000_000, -1_000_000),
        (("1e28", "3e28"), 1e28, 3e28),
        (("0.00011", "0.00019"), 0.0001, 0.0002),
        (("0", "inf", "1"), 0, 1),
        (("0", "", "1"), 0, 1),
        (("0", "N/A", "1"), 0, 1),
    ],
)
def test_bounds_are_the_sample_s_rounded_outward(
    tmp_path: Path, fields: tuple[str, ...], lower: float, upper: float
) -> None:
    draft = drafted(tmp_path, ("x", *fields), AGE[: len(fields) + 1])
    found = feature(draft, "x")
    assert (found["lower"], found["upper"]) == pytest.approx((lower, upper), rel=1e-9)
    assert draft.left_open == ()
    assert (f"without a finite number: 1 of {len(fields)}" in draft.text) == (len(fields) == 3)
    lint_draft(tomllib.loads(draft.text))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (("5", "5", "5"), "only one value"),
        (("0", "0", "-0.0"), "only one value"),
        (("5", "", "nan"), "only one value"),
        (("7",), "only one value"),
        (("", "na", "inf"), "no number"),
        (("1e40", "2e40"), "another unit"),
        (("1e-35", "2e-35"), "another unit"),
        (("1.7e308", "-1.7e308"), "another unit"),
    ],
)
def test_bounds_are_left_open_where_the_sample_tells_nothing_of_them(
    tmp_path: Path, fields: tuple[str, ...], reason: str
) -> None:
    draft = drafted(tmp_path, AGE[: len(fields) + 1], ("x", *fields))
    assert "bounds of x" in draft.left_open
    assert reason in draft.text
    assert feature(draft, "x") == {"name": "x"}
    filled = draft.text
    if len(fields) > 1:
        with pytest.raises(MessageError, match=r"features\[1\] \(x\) lacks bounds"):
            lint_draft(tomllib.loads(filled))
    filled = filled.replace("# lower =  ", "lower = 0  ").replace("# upper =", "upper = 1")
    assert lint_draft(tomllib.loads(filled)).features[1].upper == 1


def test_max_records_follows_from_what_is_expected_and_not_from_the_sample(tmp_path: Path) -> None:
    long = ("x", *("1", "2") * 6000)
    assert tomllib.loads(drafted(tmp_path, long).text)["max_records"] == 6000
    silent = drafted(tmp_path, long, records=None)
    assert silent.left_open == ("max_records",)
    with pytest.raises(MessageError, match="lacks max_records"):
        lint_draft(tomllib.loads(silent.text))
    lint_draft(tomllib.loads(silent.text.replace("# max_records =  ", "max_records = 6000  ")))


def test_room_is_a_fifth_rounded_up_to_two_digits() -> None:
    expected = {1: 1, 5: 6, 99: 120, 100: 120, 5000: 6000, 20_000: 24_000, 123_456: 150_000}
    assert {records: room_for(records) for records in expected} == expected
    assert all(records + records // 5 <= room_for(records) < 1.32 * records + 1 for records in range(1, 3000))


def test_codes_truth_values_and_names_of_records_are_pointed_at(tmp_path: Path) -> None:
    count = 20
    draft = drafted(
        tmp_path,
        ("ward", *("1", "2", "3", "2") * 5),
        ("smokes", *("true", "false") * 10),
        ("patient", *(f"P{index}" for index in range(count))),
        ("weight", *(f"{60 + index}.5" for index in range(count))),
    )
    assert draft.text.count("if these numbers are codes") == 1
    assert 'levels = ["1", "2", "3"]' in draft.text
    assert feature(draft, "smokes")["levels"] == ["false", "true"]
    assert "if owners store this column as booleans" in draft.text
    assert draft.text.count("leave out columns that identify a record") == 1


def test_a_word_for_a_missing_number_is_a_level_among_texts(tmp_path: Path) -> None:
    """As it is in the owners' files."""
    draft = drafted(tmp_path, ("smokes", "none", "light", "heavy", ""), ("y", *"1234"))
    assert feature(draft, "smokes")["levels"] == ["heavy", "light", "none"]
    assert "a word such as NA is a level of its own" in draft.text


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (("2024-01-31", "2023-12-01"), "dates or times"),
        (("31.12.1999", "", "1.2.2001"), "dates or times"),
        (("12/31/1999 10:00", "1/2/2001 11:30"), "dates or times"),
        (("08:15", "23:59:01"), "dates or times"),
        (("1,234", "900"), "thousands separators"),
        (("1.234.567", "5"), "thousands separators"),
        (("1 234", "900"), "thousands separators"),
        (("1'234.5", "900"), "thousands separators"),
        (("3,5", "4,25"), "decimal comma"),
        ((*map(str, range(10)), "-"), "the same word wherever a number is missing"),
        (tuple(f"t{index}" for index in range(51)), "51 different values"),
    ],
)
def test_a_column_that_is_no_feature_is_refused_with_what_it_is(
    tmp_path: Path, fields: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(InputError, match=reason) as refused:
        drafted(tmp_path, ("x", *fields), ("y", *map(str, range(len(fields)))))
    assert "'x'" in refused.value.problem
    assert refused.value.next_step
    assert not any(field in str(refused.value) for field in fields if len(field) > 2)


def test_words_for_a_missing_number_are_those_of_the_owners_files(tmp_path: Path) -> None:
    path = tmp_path / "sample.csv"
    path.write_text("x,y\n1,NA\nNone,2\nNULL,\nnan,n/a\n3,4\n")
    columns = columns_of_sample(path)
    assert [len(column) for column in columns.values()] == [5, 5]
    assert {name: finite_numbers(column) for name, column in columns.items()} == {
        "x": [1.0, 3.0],
        "y": [2.0, 4.0],
    }


@pytest.mark.parametrize(
    ("release", "norm", "shown"), [("joint", 1, "50%"), ("pairs", 1, "50%"), ("pairs", "0.7", "100%")]
)
def test_a_sample_shows_the_share_that_the_clip_norm_shortens(release: str, norm: object, shown: str) -> None:
    """Two of four records are 0.8 half-ranges from the centre in both features, the others at it. In pairs,
    the first record meets the third and the second the fourth, which lacks a value."""
    features = [{"name": name, "lower": -1, "upper": 1} for name in "ab"]
    manifest = manifest_of(release=release, clip_norm=norm, features=features)
    sample = {"a": [0.8, 0.8, 0.0, math.nan], "b": [-0.8, -0.8, 0.0, 0.0]}
    measured = [line for line in sample_advice(manifest, sample) if "would be shortened" in line]
    assert len(measured) == 1
    assert shown in measured[0]
    assert not [line for line in sample_advice(manifest, {"a": [0.8]}) if "shortened" in line]


def test_a_draft_by_hand_says_what_it_will_clip() -> None:
    features = [{"name": f"x{index}", "lower": 0, "upper": 1} for index in range(20)]

    def said(**changes: Any) -> str:
        return " ".join(advice(manifest_of(features=features, **changes)))

    assert "shorten nearly all of the records if the centres" in said(clip_norm="0.7")
    assert "shorten few of the records if the centres are at the means, and nearly all" in said(clip_norm=3)
    assert "few of the differences" in said(release="pairs", clip_norm=4)
    assert "shorten" not in " ".join(advice(manifest_of(features=features), of_chain=True))


def told_advice(**changes: Any) -> str:
    return " ".join(line for line in advice(manifest_of(**changes)) if line.startswith("without clip_"))


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_a_draft_by_hand_is_told_what_its_result_cannot_say(release: str) -> None:
    said = told_advice(release=release)
    assert "how many records were clipped, and by how much" in said
    assert "how many values are missing. clip_share = 0.005 lets it say so, for three times" in said
    assert told_advice(release=release, clip_share="0.005") == ""
    if release == "joint":
        assert "for two times" in told_advice(missing="reject")
        assert "missing" not in told_advice(missing="reject")
        assert told_advice(mechanism="laplace") == ""
    assert told_advice(release="masked", participants="enrolled") == ""
    assert not [line for line in advice(manifest_of(), of_chain=True) if "clip_share" in line]


@pytest.mark.parametrize(("release", "unit"), [("joint", 1.0), ("pairs", math.sqrt(2))])
def test_a_cap_is_advised_where_the_bounds_allow_far_longer_records(release: str, unit: float) -> None:
    """The centres are at the lower bounds, so records may have norm 2√3, and differences too."""
    features = [{"name": name, "lower": 0, "upper": 100, "centre": 0} for name in "abc"]
    terms = {"release": release, "features": features, "clip_share": "0.005"}
    usual = 2 * 0.35 * math.sqrt(3) * unit
    assert f"lengths up to {2 * math.sqrt(3):.3g} count" in told_advice(**terms, clip_norm="0.1")
    assert f"clip_cap = {usual:.3g} is usually" in told_advice(**terms, clip_norm="0.1")
    assert "clip_cap = 1.71 is usually" in told_advice(**terms, clip_norm="0.57")
    assert told_advice(**terms, clip_norm="0.6") == ""
    assert told_advice(**terms, clip_norm="0.1", clip_cap="1") == ""


def manifest_of(**changes: Any) -> Any:
    draft = {
        "title": "T",
        "purpose": "P",
        "release": "joint",
        "epsilon": 1,
        "clip_norm": 1,
        "missing": "midpoint",
        "max_records": 100_000,
        "features": [{"name": name, "lower": 0, "upper": 100, "centre": 40} for name in "abc"],
    }
    return lint_draft(draft | changes)


def test_max_records_far_above_the_records_is_told_with_what_it_costs() -> None:
    far, near = manifest_of(), manifest_of(max_records=6000)
    factor = far.noise_scale / near.noise_scale
    assert 1.17 < factor < 1.19
    (said,) = (line for line in advice(far, 5000) if "max_records" in line)
    assert f"{float(factor):.2f} times what it would be with max_records = 6000" in said
    for silent in (advice(near, 5000), advice(far), advice(far, 80_000), advice(near, 4000)):
        assert not [line for line in silent if "max_records" in line]
    # With a delta of its own the noise does not hang on max_records.
    assert not [line for line in advice(manifest_of(delta="1e-9"), 5000) if "max_records" in line]
    assert [line for line in advice(near, 7000) if "more than max_records" in line]


def test_bounds_that_are_narrow_beside_their_size_are_told() -> None:
    features = [
        {"name": "narrow", "lower": 5, "upper": "5.000000001"},
        {"name": "year", "lower": 2000, "upper": 2030},
        {"name": "tiny", "lower": 0, "upper": "0.000000001"},
    ]
    (said,) = (line for line in advice(manifest_of(features=features)) if "millionth" in line)
    assert "narrow." in said
    assert "year" not in said
    assert "tiny" not in said


def test_a_title_that_nobody_wrote_is_told() -> None:
    assert [line for line in advice(manifest_of(title="…")) if "title" in line]
    assert not [line for line in advice(manifest_of()) if "title" in line]


def test_a_sample_shows_values_outside_the_bounds_and_is_silent_where_it_tells_nothing() -> None:
    sample = {"a": [-5.0, 50.0, 300.0], "b": [7.0, 7.0], "c": [0.0, 100.0]}
    said = sample_advice(manifest_of(), sample)
    assert said == ["values of the sample outside the bounds, which would be clipped: a (2 of 3)"]
