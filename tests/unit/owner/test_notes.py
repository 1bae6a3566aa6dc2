"""What is unusual and yet admitted is said, once each; what is usual is not."""

import unicodedata
from pathlib import Path

import pytest
from owner_scene import MakeScene

from dpdpca_owner import acts

FEATURES = [
    {"name": "Größe", "lower": 140, "upper": 210},
    {"name": "age", "lower": 0, "upper": 100},
    {"name": "ward", "levels": ["A", "B"]},
]


@pytest.mark.parametrize(
    ("missing", "rows", "expected"),
    [
        ("reject", ["Größe,age,ward", "170,50,A", "180,51,B"], []),
        (
            "reject",
            ["age,note,Größe,id,ward", "50,x,170,1,A", "51,y,180,2,B"],
            ["2 columns that the study does not ask for: left out", "the columns stand in another order"],
        ),
        (
            "reject",
            [unicodedata.normalize("NFD", "Größe") + ",age,ward", "170,50,A", "180,51,B"],
            ["some headers are written in another Unicode form"],
        ),
        (
            "reject",
            ["Größe,age,ward", "170,50,A", "180,51,B", "inf,52,A", "170,,A"],
            ["2 records with a missing value: left out"],
        ),
        (
            "midpoint",
            ["Größe,age,ward", "170,50,A", "180,51,B", "-inf,52,A", "170,NaN,"],
            ["3 missing values: the feature's centre counts in its place"],
        ),
        ("reject", ["Größe,age,ward", "170,50,A"], ["there is one record only"]),
        (
            "reject",
            ["Größe,age,ward", "170,50,A", "180,50,A", "175,50,A"],
            ["the same in every record: 'age', 'ward'"],
        ),
    ],
)
def test_each_oddity_is_one_sentence(
    make_scene: MakeScene, missing: str, rows: list[str], expected: list[str]
) -> None:
    scene = make_scene(features=FEATURES, missing=missing, clip_norm="1.5")
    Path(scene.location.data).write_text("\n".join(rows) + "\n", encoding="utf-8")
    notes = acts.prepare_join(scene.desk, scene.address, scene.location).contribution.notes
    assert len(notes) == len(expected)
    for note, beginning in zip(notes, expected, strict=True):
        assert note.startswith(beginning)
