"""What the consent sheet says of a sketch, a lift and scores."""

import io
from pathlib import Path
from typing import Any

import pytest
import wide_studies as wide
from owner_scene import MakeScene, Scene
from page_scene import PageScene, words_of
from rich.console import Console
from study_parties import MakeManifest

from dpdpca_owner import actions
from dpdpca_owner.commands.display import show_sheet
from dpdpca_owner.consent import ConsentSheet

CUT = {
    "sketch": "the 16 mixtures of a record are cut to norm √2·2",
    "lift": "the 2 numbers of a record are cut to a fixed length, whatever the rule is",
    "scores": "the 2 scores of a record are cut to norm 1.5",
}
SAID = {
    "sketch": (
        "released to Institute: sums of 16 public mixtures of your 20 features, and sums of their products.",
        "the hidden numbers are the number of records, the sums of 16 public mixtures of your 20 features and"
        " the sums of products of two mixtures",
        "puts into the manifests of later rounds",
    ),
    "lift": (
        "released to Institute: for each feature the sum of its products with 2 numbers, which a public rule",
        "Institute made the rule from the sketch",
        "the sums of products of these numbers",
        "For this reason the components are sent to the owners sealed",
    ),
    "scores": (
        "released to Institute: means and covariances of 2 scores, the coordinates of each record",
        "The components reached you sealed; Relay does not see them",
        "the sums of 2 scores and the sums of products of two scores",
    ),
}


@pytest.fixture
def make_round(make_scene: MakeScene, make_manifest: MakeManifest) -> Any:
    """make_round(release, of): an owner that is asked to take part in this round."""

    def make(release: str, of: str = "records") -> Scene:
        drafts: list[dict[str, Any]] = []

        def record(**draft: Any) -> Any:
            drafts.append(draft)
            return make_manifest(**draft)

        wide.CHAIN[release](record, of)
        return make_scene(**drafts[-1])

    return make


def shown(sheet: ConsentSheet) -> str:
    file = io.StringIO()
    show_sheet(sheet, Console(file=file, width=400, highlight=False, markup=False))
    return file.getvalue()


@pytest.mark.parametrize("release", wide.CHAIN)
def test_each_round_says_what_is_released_and_what_for(release: str, make_round: Any) -> None:
    scene = make_round(release)
    sheet = actions.review(scene.desk, scene.address, None)
    text = shown(sheet)
    for words in (*SAID[release], CUT[release], "whatever public rule the data user chose"):
        assert words in text
    told = sheet.to_json()
    assert told["round"]["cut"] == CUT[release]
    assert told["round"]["released"] in text
    assert told["round"]["numbers"] == (wide.M if release == "sketch" else wide.K)
    assert (told["misfit"] is None) == (release == "sketch")
    assert ("This owner cannot join: this round does not fit" in text) == (release != "sketch")


@pytest.mark.parametrize("release", wide.CHAIN)
def test_a_round_of_pairs_speaks_of_differences(release: str, make_round: Any) -> None:
    scene = make_round(release, "pairs")
    text = shown(actions.review(scene.desk, scene.address, None))
    assert "the number of pairs of records" in text
    assert CUT[release].replace("record", "difference") in text
    assert "records are paired at random" in text
    assert "means and covariances" not in text


def test_the_page_shows_the_same_sheet(make_round: Any, tmp_path: Path) -> None:
    page = PageScene(make_round("sketch"), tmp_path / "page-link.json")
    page.register()
    text = words_of(page.show(page.study_path)).casefold()
    for words in (SAID["sketch"][0], CUT["sketch"]):
        assert words.casefold() in text


def test_other_releases_say_nothing_of_rules(make_scene: MakeScene) -> None:
    scene = make_scene()
    sheet = actions.review(scene.desk, scene.address, None)
    assert "whatever public rule" not in shown(sheet)
    assert (sheet.to_json()["round"], sheet.to_json()["misfit"]) == (None, None)
