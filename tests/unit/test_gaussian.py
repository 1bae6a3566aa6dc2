"""The door to the sampler: its scale, what it refuses and redraws. The law is for tests/statistical."""

import math
import subprocess
import sys
from fractions import Fraction

import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.gaussian import TAIL, discrete_gaussian, sampler_scale


@pytest.mark.parametrize(
    "variance",
    [
        Fraction(1),
        Fraction(2),
        Fraction(1, 3),
        Fraction(10**30 + 1, 7),
        Fraction(2) ** 118,
        Fraction(2) ** 118 + 1,
        Fraction(3, 2**200),
        (1 + Fraction(1, 2**52)) ** 2,
        Fraction(1) + Fraction(1, 2**400),
    ],
)
def test_the_scale_is_the_smallest_double_that_is_enough(variance: Fraction) -> None:
    scale = sampler_scale(variance)
    assert Fraction(scale) ** 2 >= variance
    assert Fraction(math.nextafter(scale, 0)) ** 2 < variance


def test_draws_are_python_integers_within_the_bound() -> None:
    draws = discrete_gaussian(Fraction(25), 2000, 5)
    assert len(draws) == 2000
    assert {type(draw) for draw in draws} == {int}
    assert set(draws) == set(range(-5, 6))


def test_no_draws_are_no_error() -> None:
    assert discrete_gaussian(Fraction(25), 0, 65) == []


def test_scales_up_to_the_limit_are_drawn_and_do_not_saturate() -> None:
    scale = 2**59
    draws = discrete_gaussian(Fraction(scale) ** 2, 200, TAIL * scale)
    assert max(abs(draw) for draw in draws) < 8 * scale
    assert max(abs(draw) for draw in draws) > scale


@pytest.mark.parametrize(
    ("variance", "count", "bound"),
    [
        (Fraction(0), 1, 10),
        (Fraction(-1), 1, 10),
        (Fraction(1), -1, 10),
        (Fraction(100), 1, 9),
        (Fraction(2**63, TAIL) ** 2, 1, 2**62),
        (Fraction(2) ** 130, 1, 2**62),
        (Fraction(2) ** 2000, 1, 2**62),
        (Fraction(1), 1, 2**63 - 1),
    ],
)
def test_what_the_sampler_cannot_do_is_refused(variance: Fraction, count: int, bound: int) -> None:
    with pytest.raises(UsageError):
        discrete_gaussian(variance, count, bound)


def test_opendp_is_not_imported_before_noise_is_drawn() -> None:
    script = (
        "import sys, dpdpca_protocol.privacy.gaussian;"
        " sys.exit(any(m.startswith('opendp') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
