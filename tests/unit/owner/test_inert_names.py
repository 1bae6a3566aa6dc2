"""What a data user writes stands on the owner's screen and in its files as text, and does nothing (P27)."""

from pathlib import Path

import numpy as np
import pytest
from owner_scene import MakeScene, Scene
from promises import Promise
from study_parties import MakeManifest

from dpdpca_owner import actions
from dpdpca_owner.commands.display import show_sheet
from dpdpca_owner.projection import project
from dpdpca_protocol.result.components import Components, EncodedSpace

TEXTS = [
    "<script>alert(1)</script>",
    "=HYPERLINK(1)",
    "+cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "-2+3",
    "[red]markup[/red]",
    ":smile: {{7*7}}",
]


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    features = [{"name": text, "lower": 0, "upper": 1, "unit": text} for text in TEXTS]
    return make_scene(title=TEXTS[5], purpose=TEXTS[0], features=features)


def test_the_consent_sheet_prints_them_as_they_are(
    scene: Scene, capsys: pytest.CaptureFixture[str], promise: Promise
) -> None:
    from dpdpca_owner.commands.parts import make_console

    show_sheet(actions.review(scene.desk, scene.address, scene.location), make_console())
    shown = capsys.readouterr().out
    assert TEXTS[5] in shown
    assert TEXTS[0] in shown
    assert "\x1b" not in shown
    assert not [letter for letter in shown if not (letter.isprintable() or letter == "\n")]
    promise(
        "P27", counted=f"{len(TEXTS)} names of features on an owner's consent sheet", result="printed as text"
    )


def test_a_table_of_scores_holds_no_name_of_a_stranger(
    scene: Scene, tmp_path: Path, make_manifest: MakeManifest, promise: Promise
) -> None:
    manifest = make_manifest(
        title=TEXTS[5],
        features=[{"name": text, "lower": 0, "upper": 1, "unit": text} for text in TEXTS],
    )
    d = len(TEXTS)
    space, ones = EncodedSpace.of(manifest), np.ones(2)
    components = Components(
        space=space,
        count=40,
        vectors=np.eye(2, d),
        eigenvalues=ones,
        noise_edges=ones,
        captured=ones,
        signals=ones,
        overlaps=ones,
        noise_scale=1.0,
        noise_edge=1.0,
        total_variance=1.0,
        mean=np.zeros(d),
    )
    out = tmp_path / "scores.csv"
    assert project(scene.location, manifest, components, out).records == 40
    head, *rows = out.read_text().splitlines()
    assert head == '"component_1","component_2"'
    assert not [row for row in rows if row[0] in "=+@\t\r" or any(text in row for text in TEXTS)]
    promise("P27", counted=f"a table of {len(rows)} scores for spreadsheets", result="numbers only")
