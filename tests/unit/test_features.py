"""Features: public bounds or public levels, and nothing else."""

from fractions import Fraction
from typing import Any

import pytest

from dpdpca_protocol.errors import MessageError, PolicyError, UsageError
from dpdpca_protocol.terms.features import Feature, column_key

NUMERIC = {"name": "age", "kind": "numeric", "lower": "0", "upper": "100"}
CATEGORICAL = {"name": "blood", "kind": "categorical", "levels": ["A", "B", "0"]}


def test_numeric_defaults_to_the_midpoint() -> None:
    feature = Feature.parse(NUMERIC, "f")
    assert (feature.origin, feature.half_range, feature.width) == (Fraction(50), Fraction(50), 1)
    assert feature.encoded_names == ("age",)


def test_a_centre_moves_the_origin_and_not_the_range() -> None:
    feature = Feature.parse({**NUMERIC, "centre": "40.5"}, "f")
    assert (feature.origin, feature.half_range) == (Fraction("40.5"), Fraction(50))


def test_a_level_is_a_column_around_zero() -> None:
    feature = Feature.parse(CATEGORICAL, "f")
    assert (feature.origins, feature.half_range, feature.width) == ((Fraction(0),) * 3, Fraction(1), 3)
    assert feature.encoded_names == ("blood = A", "blood = B", "blood = 0")


def test_each_level_may_have_its_own_centre() -> None:
    feature = Feature.parse({**CATEGORICAL, "centre": ["0.5", "0.25", "0"]}, "f")
    assert feature.origins == (Fraction(1, 2), Fraction(1, 4), Fraction(0))
    with pytest.raises(UsageError, match="for each of its levels"):
        _ = feature.origin


@pytest.mark.parametrize(
    "body",
    [
        NUMERIC,
        CATEGORICAL,
        {**CATEGORICAL, "centre": ["0", "1", "0.25"]},
        {**NUMERIC, "centre": "1", "unit": "a", "description": "of whom"},
    ],
)
def test_a_feature_survives_its_body(body: dict[str, str] | dict[str, list[str] | str]) -> None:
    assert Feature.parse(body, "f").to_body() == body


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"lower": "100"}, PolicyError),
        ({"lower": "101"}, PolicyError),
        ({"centre": "-1"}, PolicyError),
        ({"centre": "100.5"}, PolicyError),
        ({"lower": 0}, MessageError),
        ({"upper": "1e2"}, MessageError),
        ({"kind": "text"}, PolicyError),
        ({"kind": None}, MessageError),
        ({"levels": ["a"]}, MessageError),
        ({"unit": ""}, PolicyError),
        ({"unit": None}, MessageError),
        ({"name": "a\x00"}, PolicyError),
        ({"name": "cafe\u0301"}, PolicyError),
        ({"name": "x" * 201}, PolicyError),
        ({"more": 1}, MessageError),
    ],
)
def test_a_numeric_feature_is_refused(
    change: dict[str, Any], error: type[PolicyError] | type[MessageError]
) -> None:
    with pytest.raises(error):
        Feature.parse({**NUMERIC, **change}, "f")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"levels": []}, PolicyError),
        ({"levels": ["a", "a"]}, PolicyError),
        ({"levels": ["a", 1]}, MessageError),
        ({"levels": "ab"}, MessageError),
        ({"levels": ["\u202ea"]}, PolicyError),
        ({"levels": [str(i) for i in range(1001)]}, PolicyError),
        ({"lower": "0"}, MessageError),
        ({"centre": "0"}, MessageError),
        ({"centre": ["0.5", "0.25"]}, PolicyError),
        ({"centre": ["0.5", "0.25", "0", "0"]}, PolicyError),
        ({"centre": ["0.5", "-0.25", "0"]}, PolicyError),
        ({"centre": ["0.5", "1.25", "0"]}, PolicyError),
        ({"centre": ["0", "0", "0"]}, PolicyError),
        ({"centre": []}, PolicyError),
        ({"centre": [0.5, 0.25, 0]}, MessageError),
    ],
)
def test_a_categorical_feature_is_refused(
    change: dict[str, Any],
    error: type[PolicyError] | type[MessageError],
) -> None:
    with pytest.raises(error):
        Feature.parse({**CATEGORICAL, **change}, "f")


def test_a_feature_is_an_object() -> None:
    with pytest.raises(MessageError, match=r"features\[3\] must be an object"):
        Feature.parse("age", "features[3]")


def test_headers_are_compared_without_mark_and_decomposition() -> None:
    assert column_key("\ufeffcafe\u0301 ") == "café" == column_key("café")


WIDE = {"name": "income", "kind": "numeric", "lower": "0", "upper": "1000"}


def test_a_scale_is_what_one_unit_is_worth_and_the_half_range_without_it() -> None:
    plain, scaled = Feature.parse(WIDE, "f"), Feature.parse(WIDE | {"scale": "20"}, "f")
    assert (plain.scaled_unit, scaled.scaled_unit) == (Fraction(500), Fraction(20))
    assert scaled.half_range == 500
    assert "scale" not in plain.to_body()
    assert Feature.parse(scaled.to_body(), "f") == scaled


@pytest.mark.parametrize("scale", ["500.1", "0", "-1", "0.001"])
def test_a_scale_beyond_the_half_range_or_of_no_size_is_refused(scale: str) -> None:
    with pytest.raises(PolicyError, match="scale"):
        Feature.parse(WIDE | {"scale": scale}, "f")
