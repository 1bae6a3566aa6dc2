"""Columns as readers deliver them: what is missing, what is a number, what is a level."""

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.columns import (
    Unusable,
    levels_of,
    numbers_of,
    pick_columns,
    read_levels,
    read_numbers,
)
from dpdpca_protocol.terms.features import Feature

AGE = Feature("age", "numeric", Fraction(0), Fraction(100))
BLOOD = Feature("blood", "categorical", levels=("A", "B", "3", "true", "é"))


def objects(values: Sequence[Any]) -> NDArray[np.object_]:
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def test_columns_are_found_by_name_in_any_order() -> None:
    picked = pick_columns(
        {"x": [1, 2], "blood": ["A", "B"], "\ufeffage ": np.array([3.0, 4.0])}, [AGE, BLOOD]
    )
    assert picked[0].tolist() == [3.0, 4.0]
    assert picked[1].tolist() == ["A", "B"]


def test_a_decomposed_header_is_the_same_name() -> None:
    picked = pick_columns({"cafe\u0301": [1.0]}, [Feature("café", "numeric", Fraction(0), Fraction(1))])
    assert picked[0].tolist() == [1.0]


@pytest.mark.parametrize(
    ("columns", "slug"),
    [
        ({}, "missing-column"),
        ({"Age": [1], "blood": ["A"]}, "missing-column"),
        ({"age": [1], "blood": ["A"], "age ": [1]}, "duplicated-column"),
        ({"age": [1], "blood": ["A", "B"]}, "ragged-columns"),
        ({"age": np.zeros((1, 1)), "blood": ["A"]}, "ragged-columns"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: dict[str, Any], slug: str) -> None:
    with pytest.raises(InputError) as caught:
        pick_columns(columns, [AGE, BLOOD])
    assert caught.value.slug == slug


def test_many_missing_columns_are_counted_and_the_first_named() -> None:
    features = [Feature(f"f{i}", "numeric", Fraction(0), Fraction(1)) for i in range(20)]
    with pytest.raises(
        InputError, match="20 of 20 features have no column with their name: f0, f1, f2, f3, f4, …"
    ):
        pick_columns({"other": [1]}, features)


@pytest.mark.parametrize(
    "column",
    [
        np.array([1.5, math.nan, math.inf, -math.inf]),
        np.array([1.5, math.nan, math.inf, -math.inf], dtype=np.float32),
        objects([1.5, None, math.inf, Decimal("NaN")]),
        objects([Decimal("1.5"), "", Decimal("-Infinity"), np.float64("nan")]),
        objects([1.5, Decimal("sNaN"), Decimal("NaN"), None]),
        np.ma.masked_array([1.5, 7.0, math.nan, 9.0], mask=[False, True, False, True]),
    ],
)
def test_missing_numbers(column: NDArray[np.float64] | NDArray[np.float32] | NDArray[np.object_]) -> None:
    numbers = numbers_of(column, AGE)
    assert numbers[0] == 1.5
    assert np.isnan(numbers[1:]).all()


def test_what_no_double_can_hold_is_the_largest_double() -> None:
    largest = float(np.finfo(np.float64).max)
    column = objects([10**400, -(10**400), Decimal("1e999"), Decimal("-1e999"), Fraction(10**400)])
    assert numbers_of(column, AGE).tolist() == [largest, -largest, largest, -largest, largest]
    wide = np.array([1, np.inf, -np.inf, np.nan], dtype=np.longdouble)
    wide[0] = np.longdouble("1e999")
    assert numbers_of(wide, AGE)[0] == (largest if np.isfinite(wide[0]) else np.inf)
    assert np.isnan(numbers_of(wide, AGE)[1:]).all()


def test_integers_and_truth_values_are_numbers() -> None:
    assert numbers_of(np.array([1, -2], dtype=np.int8), AGE).tolist() == [1.0, -2.0]
    assert numbers_of(np.array([2**64 - 1], dtype=np.uint64), AGE).tolist() == [2.0**64]
    assert numbers_of(np.array([True, False]), AGE).tolist() == [1.0, 0.0]
    assert numbers_of(objects([True, np.int32(3), np.bool_(False)]), AGE).tolist() == [1.0, 3.0, 0.0]


@pytest.mark.parametrize(
    "column",
    [
        np.array(["1", "2"]),
        objects([1.0, "2"]),
        objects([1.0, b"2"]),
        objects([1.0, [2]]),
        objects([1.0, 2j]),
        np.array([1, 2], dtype="datetime64[s]"),
        np.array([1j, 2j]),
    ],
)
def test_text_in_a_number_is_an_error_that_names_the_record_only(column: NDArray[Any]) -> None:
    with pytest.raises(InputError, match=r"column 'age' holds .* in record 10[12], which is not a number"):
        numbers_of(column, AGE, first_record=100)


def test_levels_by_text_number_and_truth_value() -> None:
    column = objects(["A", "B", 3, 3.0, np.int64(3), True, 1 == 1, "e\u0301", b"A"])
    assert levels_of(column, BLOOD).tolist() == [0, 1, 2, 2, 2, 3, 3, 4, 0]
    assert levels_of(np.array(["B", "A"]), BLOOD).tolist() == [1, 0]
    assert levels_of(np.array([3, 3]), BLOOD).tolist() == [2, 2]
    assert levels_of(np.array([3.0, math.nan]), BLOOD).tolist() == [2, -1]
    assert levels_of(np.array([b"A"]), BLOOD).tolist() == [0]


def test_one_and_true_are_different_levels() -> None:
    feature = Feature("flag", "categorical", levels=("1", "true"))
    assert levels_of(objects([1, True, 1.0]), feature).tolist() == [0, 1, 0]


def test_missing_levels() -> None:
    column = objects([None, math.nan, "", math.inf, "A"])
    assert levels_of(column, BLOOD).tolist() == [-1, -1, -1, -1, 0]
    masked = np.ma.masked_array(["A", "zzz"], mask=[False, True])
    assert levels_of(masked, BLOOD).tolist() == [0, -1]


@pytest.mark.parametrize("value", ["C", "a", 4, 0.5, False, b"\xff", Decimal("3.01")])
def test_an_unknown_level_is_an_error_that_repeats_nothing(value: object) -> None:
    with pytest.raises(
        InputError, match=r"^in record 2, column .* holds a level that the manifest does not list"
    ) as caught:
        levels_of(objects(["A", value]), BLOOD)
    assert caught.value.slug == "unknown-level"


@pytest.mark.parametrize(
    ("column", "numbers", "unusable"),
    [
        (objects([1.5, "2", None, [2], b"", "x"]), [1.5, None, None, None, None, None], [1, 3, 5]),
        (np.array(["1", " ", "x"]), [None] * 3, [0, 2]),
        (np.array([1, "NaT", 2], dtype="datetime64[s]"), [None] * 3, [0, 2]),
        (np.array([1j, math.nan]), [None] * 2, [0]),
        (np.ma.masked_array(objects(["x", "y"]), mask=[True, False]), [None] * 2, [1]),
        (objects([Unusable("a value of type map"), 3, math.nan]), [None, 3.0, None], [0]),
    ],
)
def test_any_column_is_read_as_numbers(
    column: NDArray[Any], numbers: list[float | None], unusable: list[int]
) -> None:
    found, marks = read_numbers(column)
    assert [None if math.isnan(x) else x for x in found.tolist()] == numbers
    assert np.flatnonzero(marks).tolist() == unusable


def test_any_column_is_read_as_levels() -> None:
    column = objects(["A", "C", None, [2], {}, " ", 3, Unusable("a value of type map"), math.nan, "C", 2j])
    positions, marks = read_levels(column, BLOOD.levels)
    assert positions.tolist() == [0, -1, -1, -1, -1, -1, 2, -1, -1, -1, -1]
    assert np.flatnonzero(marks).tolist() == [1, 3, 4, 7, 9, 10]
    times = np.array([1, "NaT"], dtype="datetime64[s]")
    positions, marks = read_levels(times, BLOOD.levels)
    assert (positions.tolist(), marks.tolist()) == ([-1, -1], [True, False])


def test_what_a_reader_put_in_place_of_a_value_is_named_with_the_readers_advice() -> None:
    with pytest.raises(InputError, match="holds text in record 1") as caught:
        numbers_of(objects([Unusable("text", "add --decimal ,")]), AGE)
    assert caught.value.next_step == "add --decimal ,"
