"""Bounds of papers: the values that their formulas give, and what they imply."""

import math
from fractions import Fraction

import numpy as np
import pytest

from dpdpca_lab.central.bounds import (
    captured_loss_bound,
    least_records,
    modsulq_overlap_bound,
    modsulq_records_order,
    ppca_records,
    wishart_utility,
)
from dpdpca_lab.central.result import captured_energy
from dpdpca_lab.mechanisms import Wishart, noise_matrix, unit_setting
from dpdpca_lab.mechanisms.modsulq import modsulq_scale
from dpdpca_lab.pipelines.dppca_svm import leading_directions
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Quantity

ONE, DELTA = Fraction(1), Fraction(1, 100)


def test_how_many_records_are_enough_for_ppca() -> None:
    assert ppca_records(10, 1, 0.2, 0.9, 0.05, 0.5) == pytest.approx(5255.61, abs=6e-3)
    assert ppca_records(116, 0.1, 0.366140, 0.9, 0.05, 0.477638) == pytest.approx(257_109, rel=2e-6)


def test_how_many_records_no_algorithm_can_do_with() -> None:
    assert least_records(3, 1, 0.2, 0.9999).one_minus_phi == pytest.approx(3.514e-5, rel=2e-4)
    printed = least_records(100, 1, 0.2, 0.9999)
    assert printed.one_minus_phi == pytest.approx(0.124524, rel=5e-6)
    assert printed.least_overlap == pytest.approx(1 - 0.124524 / 16)
    assert printed.records == pytest.approx(1972.66, abs=6e-3)
    corrected = least_records(100, 1, 0.2, 0.9999, corrected=True)
    assert corrected.one_minus_phi == pytest.approx(0.064331, rel=1e-5)
    assert corrected.least_overlap == pytest.approx(0.995979, abs=1e-6)
    assert corrected.records == pytest.approx(1417.87, abs=6e-3)
    assert least_records(100, 1, 0.2, 0.996).records == 500
    assert least_records(3000, 1, 0.2, 0.9999).one_minus_phi > 0.13  # e^d alone would overflow
    for d, gap in ((2, 0.2), (10, 0.6), (10, 0.0)):
        with pytest.raises(UsageError):
            least_records(d, 1, gap, 0.9999)


@pytest.mark.parametrize(
    ("d", "n", "beta", "phi", "overlap"),
    [(50, 1000, 0.238432, 0.9046, 0.993058), (1000, 10_000, 0.580500, 0.2924, 0.852220)],
)
def test_the_bound_on_the_overlap_of_modsulq(d: int, n: int, beta: float, phi: float, overlap: float) -> None:
    assert float(modsulq_scale(ONE, DELTA, d)) / n == pytest.approx(beta, rel=4e-6)
    bound = modsulq_overlap_bound(d, n, ONE, DELTA)
    assert bound.overlap == pytest.approx(overlap, abs=6e-7)
    assert bound.phi == pytest.approx(phi, abs=1e-3)


@pytest.mark.parametrize(("d", "overlap"), [(50, 0.90741), (100, 0.88006), (1000, 0.81427)])
def test_where_the_bound_ends_with_few_and_many_records(d: int, overlap: float) -> None:
    assert modsulq_overlap_bound(d, 1, Fraction(1, 10**6), DELTA).overlap == pytest.approx(overlap, abs=6e-6)
    rising = [modsulq_overlap_bound(d, 10**power, ONE, DELTA).overlap for power in range(1, 9)]
    assert rising == sorted(rising)
    assert 0.75 < rising[0] <= rising[-1] <= 1


def test_the_order_of_theorem_9() -> None:
    assert modsulq_records_order(100, 0.1, 0.01) == pytest.approx(1000 * math.sqrt(math.log(1e4)) / 0.1)


def test_the_claims_for_wishart_noise() -> None:
    claimed = wishart_utility(54, 2, 0.5, 750.0)
    assert (claimed.captured, claimed.approximation) == (2 * 108**2, 108)
    assert claimed.subspace == pytest.approx(108 / 750)


@pytest.mark.parametrize("epsilon", ["0.1", "1"])
def test_captured_variance_falls_by_no_more_than_the_derived_bound(epsilon: str) -> None:
    """For certain, whatever the draw."""
    d, k = 20, 3
    fitted = Wishart.calibrated(unit_setting(Quantity.SECOND_MOMENT, d, Fraction(epsilon)))
    moment = np.diag(100 / np.arange(1.0, d + 1))
    for _ in range(20):
        noise = noise_matrix(fitted) / fitted.setting.record_bound
        found = leading_directions(moment + noise, k)
        lost = captured_energy(np.eye(d)[:k], moment) - captured_energy(found, moment)
        assert -1e-9 <= lost <= captured_loss_bound(noise, k)
