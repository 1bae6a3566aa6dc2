"""The box at the top of the consent sheet: what leaves, what ε means, who could learn more, and warnings."""

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import wide_studies
from owner_scene import MakeScene, OwnerCommands
from rich.console import Console
from study_parties import MakeManifest

from dpdpca_owner import actions
from dpdpca_owner.commands.display import show_sheet
from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.dry_run import DryRun
from dpdpca_owner.summary import Summary, percent_up
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.records.encoding import BatchReport
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.statements import best_guess_of


def shown(sheet: ConsentSheet) -> str:
    file = io.StringIO()
    show_sheet(sheet, Console(file=file, width=400, highlight=False, markup=False))
    return file.getvalue()


def summary(manifest: Manifest, dry_run: DryRun | None = None, compared: int = 0) -> Summary:
    return Summary.of(manifest, 1000, compared, dry_run, [])


def dry_run_of(records: int, clipped: int, features: int = 3) -> DryRun:
    none = (0,) * features
    return DryRun(("x",) * features, BatchReport(records, 0, clipped, none, none, none), ())


OWNERS = {"noise_by": "owners", "max_colluding": 1}
BLINDED = {"release": "joint", **OWNERS, "blinding": "pairwise"}
OPENED = (
    "It shows your exact number of records, and only your own part of the noise then protects your records."
)
TOGETHER: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"release": "masked"},
        [
            "Institute and Relay together can open your exact sums.",
            "Institute and one owner together can compute the exact sums over all owners.",
            "Relay and one owner together can compute the exact sums over all owners.",
        ],
    ),
    (
        {"release": "joint"},
        [
            "Institute and Relay together can open your exact sums.",
            "Relay and one owner together can compute the exact sums over all owners.",
        ],
    ),
    ({"release": "joint", "participants": None}, ["Institute and Relay together can open your exact sums."]),
    (
        {"release": "pre-study", "blocks": {"sum": 1}},
        ["Institute and Relay together can open your exact sums."],
    ),
    (
        {"release": "joint", **OWNERS},
        [
            f"Institute and Relay together can open your share. {OPENED}",
            "The chance above holds even if one other owner tells its noise to Institute or Relay. It is"
            " larger if more owners do so.",
        ],
    ),
    (
        BLINDED,
        [
            "Institute and Relay, even together, see only noisy sums over all owners.",
            "If one other owner works with them, they see noisy sums over the remaining owners. The chance"
            " above still holds.",
            f"If both other owners work with them, they can open your share. {OPENED} The chance above is"
            " then larger.",
            "You have not compared the words of any other owner. An owner whose words you have not compared"
            " may be Institute itself.",
        ],
    ),
    (
        {**BLINDED, "max_colluding": 2},
        [
            "Institute and Relay, even together, see only noisy sums over all owners.",
            f"If both other owners work with them, they can open your share. {OPENED} The chance above still"
            " holds.",
            "You have not compared the words of any other owner. An owner whose words you have not compared"
            " may be Institute itself.",
        ],
    ),
]


@pytest.mark.parametrize(("changes", "lines"), TOGETHER, ids=lambda case: str(case)[:60])
def test_each_kind_of_study_says_who_together_could_learn_more(
    make_manifest: MakeManifest, changes: dict[str, Any], lines: list[str]
) -> None:
    assert list(summary(make_manifest(**changes)).together) == lines


def test_an_owner_that_has_compared_all_words_is_not_asked_again(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(**BLINDED)
    assert "1 of the 2 other owners" in summary(manifest, compared=1).together[-1]
    assert not any("compared" in line for line in summary(manifest, compared=2).together)


def test_the_box_comes_first_and_states_the_chance(make_scene: MakeScene) -> None:
    sheet = actions.review(*_review(make_scene()))
    text, chance = shown(sheet), best_guess_of(sheet.manifest)
    assert text.index("What matters most") < text.index("Who asks")
    assert (
        f"ε = 1 means: even somebody who knows all other records has a chance of at most {percent_up(chance)}"
        in text
    )
    assert f"hidden in {sheet.sealed_bytes:,} bytes" in text
    facts = sheet.to_json()["summary"]
    assert facts["best_guess"] == pytest.approx(float(chance))
    assert facts["warnings"] == []


def test_the_page_for_data_managers_shows_the_box_as_it_is(make_scene: MakeScene) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "data-manager.md"
    printed = page.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    box = shown(actions.review(*_review(make_scene(**BLINDED)))).split("Who asks")[0]
    lines = [line for line in printed.splitlines() if line]
    assert len(lines) == 9
    assert [line for line in lines if line not in box] == []


def _review(scene: Any) -> tuple[Any, Any, None]:
    return scene.desk, scene.address, None


def test_a_chain_states_the_chance_of_all_rounds(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(release="pairs", rho_share="0.05", delta="0.00000001")
    assert summary(manifest).meaning.startswith("ε = 1 for all rounds together means: ")


@pytest.mark.parametrize(
    ("chance", "text"),
    [("0.5431", "54.4 %"), ("0.543", "54.3 %"), ("0.50000001", "50.1 %"), ("1", "100.0 %")],
)
def test_a_chance_is_rounded_up(chance: str, text: str) -> None:
    assert percent_up(Fraction(chance)) == text


@pytest.mark.parametrize(
    ("changes", "records", "clipped", "words"),
    [
        ({"release": "joint"}, 40, 40, "ALL 40 records are longer than the clip norm 1 "),
        ({"release": "joint"}, 4000, 2000, "2,000 of 4,000 records are longer"),
        ({"release": "joint"}, 40, 19, None),
        ({"release": "joint"}, 40, 0, None),
        ({"release": "pairs"}, 41, 20, "ALL 20 pairs of records are longer"),
        ({"release": "pairs", "rho_share": "0.05", "delta": "0.00000001"}, 200, 94, None),
        ({"release": "pairs", "rho_share": "0.05", "delta": "0.00000001"}, 200, 95, "95 of 100 pairs"),
    ],
)
def test_many_clipped_records_are_a_warning(
    make_manifest: MakeManifest, changes: dict[str, Any], records: int, clipped: int, words: str | None
) -> None:
    """A chain may choose a clip norm that shortens nine of ten records; a single study has no such reason."""
    warnings = summary(make_manifest(**changes), dry_run_of(records, clipped)).warnings
    assert len(warnings) == (words is not None)
    if words is not None:
        assert words in warnings[0]
        assert "Ask the data user before you join" in warnings[0]


def test_many_features_are_a_reason_why_all_records_are_shortened(make_manifest: MakeManifest) -> None:
    (warning,) = summary(wide_studies.sketch(make_manifest), dry_run_of(40, 40)).warnings
    assert "ALL 40 records are longer than the clip norm" in warning
    assert "a little on purpose" in warning
    assert "may be wrong" not in warning


def test_warnings_are_shown_and_decide_nothing(make_scene: MakeScene) -> None:
    """Heights in metres instead of centimetres, all records clipped: the owner can join, even strictly."""
    features = [
        {"name": "height", "lower": 0, "upper": 250, "unit": "cm"},
        {"name": "age", "lower": 0, "upper": 9},
    ]
    scene = make_scene(features=features, clip_norm="0.3")
    rows = "".join(f"{1.5 + index / 100},{index % 2 * 9}\n" for index in range(40))
    Path(scene.location.data).write_text(f"height,age\n{rows}", encoding="utf-8")
    for strict in (False, True):
        sheet = actions.review(scene.desk, scene.address, scene.location, strict=strict)
        text = shown(sheet)
        assert "WARNING: ALL 40 records are longer than the clip norm 0.3" in text
        assert "WARNING: Is 'height' in the study's unit?" in text
        assert "multiplied by 100" in text
        assert text.index("WARNING") < text.index("Who asks")
        assert len(sheet.to_json()["summary"]["warnings"]) == 2
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location, strict=True)
    settled = actions.join(scene.desk, scene.address, prepared, Watcher())
    assert settled.receipt.subject == "share"


def test_a_join_without_a_question_warns_before_it_sends(run: OwnerCommands) -> None:
    data = Path(run.scene.location.data)
    rows = "".join(f"{index % 2 * 100},{30 + index % 2 * 170},{250 * (index % 2)}\n" for index in range(40))
    data.write_text(f"age,weight,systolic\n{rows}", encoding="utf-8")
    status, _, errors = run("join", str(run.scene.address), "--data", str(data), "--yes")
    assert status == 0
    assert "WARNING: ALL 40 records" in errors


def test_a_policy_that_refuses_stands_in_the_box(make_scene: MakeScene) -> None:
    scene = make_scene()
    policy = scene.desk.home.policy_path
    policy.write_text(policy.read_text().replace("min_owners = 3", "min_owners = 9"))
    text = shown(actions.review(scene.desk, scene.address, None))
    assert "WARNING: This owner cannot join: " in text.split("Who asks")[0]
