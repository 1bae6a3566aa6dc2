"""Columns are matched by name and by nothing looser."""

import pytest

from dpdpca_owner.records.matching import match_columns
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.terms.features import Feature

FEATURES = [Feature(name, "numeric") for name in ("age", "größe", "weight")]


def test_positions_by_normalised_name() -> None:
    names = ["id", "weight ", "gro\u0308ße", "\ufeffage", "id"]
    assert match_columns(names, FEATURES) == [3, 2, 1]


@pytest.mark.parametrize(
    ("names", "slug", "words"),
    [
        (["age", "größe"], "missing-column", "column 'weight'"),
        (["age", "größe", "weight", "age"], "duplicated-column", "more than one column named 'age'"),
        (["age", "age", "x"], "duplicated-column", "'age'"),
        (["Age", "größe", "weight"], "missing-column", "rename 'Age' to 'age'"),
        (["age", "größe", "wieght"], "missing-column", "rename 'wieght' to 'weight'"),
        ([], "missing-column", "columns 'age', 'größe', 'weight'"),
    ],
)
def test_missing_renamed_and_doubled_columns_are_named(names: list[str], slug: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        match_columns(names, FEATURES)
    assert caught.value.slug == slug
    assert words in str(caught.value)


def test_many_missing_columns_are_not_all_listed() -> None:
    features = [Feature(f"f{index}", "numeric") for index in range(500)]
    with pytest.raises(InputError, match="and 495 more") as caught:
        match_columns(["x"], features)
    assert len(str(caught.value)) < 200
