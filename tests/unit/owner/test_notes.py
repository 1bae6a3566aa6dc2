"""What is unusual and yet admitted is said, once each; what is usual is not."""

import unicodedata
from pathlib import Path

import pytest
from owner_scene import MakeScene

from dpdpca_owner import actions

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
            [
                "2 columns left out, because the study does not ask for them",
                "the columns are in a different order",
            ],
        ),
        (
            "reject",
            [unicodedata.normalize("NFD", "Größe") + ",age,ward", "170,50,A", "180,51,B"],
            ["some column names differ from the manifest's in their Unicode form"],
        ),
        (
            "reject",
            ["Größe,age,ward", "170,50,A", "180,51,B", "inf,52,A", "170,,A"],
            [
                "2 records left out, because a value is missing; more than 5 % of the records lack a value in"
                " 'Größe', 'age'",
            ],
        ),
        (
            "midpoint",
            ["Größe,age,ward", "170,,A", *["180,51,B"] * 20],
            ["1 missing value replaced by the centre of the feature"],
        ),
        (
            "midpoint",
            ["Größe,age,ward", "170,50,A", "180,51,B", "-inf,52,A", "170,NaN,"],
            [
                "3 missing values replaced by the centre of the feature; more than 5 % of the records lack a"
                " value in 'Größe', 'age', 'ward'",
            ],
        ),
        (
            "reject",
            ["Größe,age,ward", "tall,50,A", "180,51,C", "170,52,D", "175,53,B", "160,,A"],
            [
                "1 record left out, because a value is missing",
                "3 values replaced by the centre of the feature, because they are text in a numeric column"
                " or an unlisted level: 1 in 'Größe', 2 in 'ward'; --strict would stop at the first one",
            ],
        ),
        ("reject", ["Größe,age,ward", "170,50,A"], ["there is only one record"]),
        (
            "reject",
            ["Größe,age,ward", "170,50,A", "180,50,A", "175,50,A"],
            ["features with the same value in every record: 'age', 'ward'"],
        ),
    ],
)
def test_each_oddity_is_one_sentence(
    make_scene: MakeScene, missing: str, rows: list[str], expected: list[str]
) -> None:
    scene = make_scene(features=FEATURES, missing=missing, clip_norm="1.5")
    Path(scene.location.data).write_text("\n".join(rows) + "\n", encoding="utf-8")
    notes = actions.prepare_join(scene.desk, scene.address, scene.location).contribution.notes
    assert len(notes) == len(expected)
    for note, beginning in zip(notes, expected, strict=True):
        assert note.startswith(beginning)
