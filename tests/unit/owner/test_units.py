"""Units are suspected where somebody erred, in both directions, and not where bounds are merely wide."""

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdpca_owner.records.units import UnitCheck
from dpdpca_protocol.terms.features import Feature

Values = np.ndarray

RNG = np.random.default_rng(11)  # noqa: TID251  # data, not noise
HEIGHT = RNG.normal(170, 9, 2000)
WEIGHT = RNG.normal(76, 14, 2000)
TEMPERATURE = RNG.normal(37.2, 0.7, 2000)


def feature(lower: float, upper: float, unit: str | None = None) -> Feature:
    return Feature("x", "numeric", Fraction(str(lower)), Fraction(str(upper)), unit=unit)


def suspected(asked: Feature, *batches: Values) -> tuple[str, ...]:
    check = UnitCheck([asked])
    for values in batches:
        check.add({"x": values})
    return check.suspected()


INCH, POUND = 2.54, 0.45359237
CASES = [
    # bounds in the study's unit, its unit, values in it, the values as they are by mistake, what is said
    (140, 210, "cm", HEIGHT, HEIGHT / INCH, "multiplied by 2.54"),
    (55, 85, "in", HEIGHT / INCH, HEIGHT, "divided by 2.54"),
    (30, 140, "kg", WEIGHT, WEIGHT / POUND, "multiplied by 0.4536"),
    (100, 320, "lb", WEIGHT / POUND, WEIGHT, "divided by 0.4536"),
    (34, 42, "°C", TEMPERATURE, TEMPERATURE * 1.8 + 32, "°F to °C"),
    (93, 108, "°F", TEMPERATURE * 1.8 + 32, TEMPERATURE, "°C to °F"),
    (140, 210, "cm", HEIGHT, HEIGHT / 100, "multiplied by 100"),
    (1.4, 2.1, "m", HEIGHT / 100, HEIGHT, "divided by 100"),
    (140, 210, "cm", HEIGHT, HEIGHT * 10, "divided by 10"),
    (1400, 2100, "mm", HEIGHT * 10, HEIGHT, "multiplied by 10"),
    (0, 250, "cm", HEIGHT, HEIGHT / 100, "multiplied by 100"),
    (0, 200_000, "g", WEIGHT * 1000, WEIGHT, "multiplied by 1,000"),
    (0, 200, "kg", WEIGHT, WEIGHT * 1000, "divided by 1,000"),
    (0, 1, "share", HEIGHT / 300, HEIGHT / 3, "divided by 100"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[2]}: {case[5]}")
@pytest.mark.parametrize("names_unit", [True, False])
def test_each_error_is_named_and_the_right_unit_is_not(
    case: tuple[float, float, str, Values, Values, str], names_unit: bool
) -> None:
    lower, upper, unit, right, wrong, words = case
    asked = feature(lower, upper, unit if names_unit else None)
    assert suspected(asked, right) == ()
    (said,) = suspected(asked, wrong)
    assert re.search(rf"{re.escape(words)}(?![\d,]*\d)", said), said
    assert "If your unit is right, the bounds are wrong" in said
    if names_unit:
        assert " or " not in said, "the study's unit leaves only one conversion"


def test_a_conversion_needs_a_unit_that_it_could_concern() -> None:
    """Values above narrow bounds are no pounds if the study says that they are concentrations."""
    assert suspected(feature(30, 140, "mmol/l"), WEIGHT / POUND) == ()
    assert suspected(feature(0, 1.2, "mg/dl"), RNG.lognormal(0.3, 0.2, 500)) == ()


def test_wide_bounds_and_skewed_values_are_usual() -> None:
    assert suspected(feature(0, 2000, "cm"), HEIGHT) == ()
    assert suspected(feature(0, 1000), RNG.poisson(1.0, 2000).astype(float)) == ()
    assert suspected(feature(-100, 100), np.zeros(2000)) == ()
    assert suspected(feature(0, 1), RNG.integers(0, 2, 2000).astype(float)) == ()


def test_without_a_unit_every_conversion_that_fits_is_named() -> None:
    (said,) = suspected(feature(30, 140), WEIGHT / POUND)
    assert (
        "divided by 2.54 (centimetres to inches), multiplied by 0.4536 (pounds to kilograms) or conv" in said
    )


def test_few_values_show_nothing() -> None:
    assert suspected(feature(140, 210, "cm"), HEIGHT[:9] / INCH) == ()
    assert len(suspected(feature(140, 210, "cm"), HEIGHT[:10] / INCH)) == 1


def test_batches_count_together_and_values_without_a_number_do_not_count() -> None:
    wrong = HEIGHT / INCH
    assert len(suspected(feature(140, 210, "cm"), wrong[:6], wrong[6:12])) == 1
    mixed = np.array([*wrong[:20], None, "tall", float("nan"), float("inf"), "1e999"] * 3, dtype=object)
    assert len(suspected(feature(140, 210, "cm"), mixed)) == 1
    assert suspected(feature(140, 210, "cm"), np.array([None, "x"] * 50, dtype=object)) == ()


@given(
    half=st.floats(1e-3, 1e6),
    shape=st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=20, max_size=200),
    lowest=st.sampled_from([0.0, -1.0]),
)
def test_values_that_use_their_bounds_are_never_suspected(
    half: float, shape: list[float], lowest: float
) -> None:
    """Within the bounds, and more than one value in twenty above a hundredth of them."""
    asked = feature(lowest * half, half)
    lower, upper = float(asked.lower or 0), float(asked.upper or 0)
    values = np.clip(np.array(shape) * upper, lower, upper)
    if np.count_nonzero(np.abs(values) > upper / 99) > 0.05 * len(values):
        assert suspected(asked, values) == ()


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=50))
def test_no_value_is_an_error(values: list[float]) -> None:
    suspected(feature(0, 1), np.array(values))
    suspected(feature(-1e12, 1e12), np.array(values))
