"""The law of the noise: fit on the support, variance, low bits, independence; planted faults are seen."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from promises import Promise
from scipy import stats

from dpdpca_protocol.privacy import gaussian
from dpdpca_protocol.privacy.gaussian import TAIL, discrete_gaussian

from .alpha import level

DRAWS = 100_000


@pytest.fixture(params=["many", pytest.param("reference", marks=pytest.mark.nightly)], autouse=True)
def sampler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Our draws, which serve where there are more than a million, and OpenDP's, ten times as slow."""
    if request.param == "many":
        monkeypatch.setattr(gaussian, "MANY_DRAWS", 0)
    return str(request.param)


def draw(variance: Fraction, bound: int | None = None) -> NDArray[np.int64]:
    scale = math.sqrt(variance)
    bound = math.ceil(TAIL * scale) if bound is None else bound
    return np.array(discrete_gaussian(Fraction(variance), DRAWS, bound), dtype=np.int64)


def chi_square_rate(draws: NDArray[np.int64], variance: Fraction, bound: int) -> float:
    """The chance of a worse fit to exp(−x²/(2σ²)) on |x| ≤ bound; cells of fewer than 100 are merged."""
    support = np.arange(-bound, bound + 1)
    weights = np.exp(-(support.astype(float) ** 2) / (2 * float(variance)))
    expected = DRAWS * weights / weights.sum()
    observed = np.bincount(draws + bound, minlength=len(support)).astype(float)
    inner = np.flatnonzero(expected >= 100)
    first, last = inner[0], inner[-1]
    cells = [
        np.concatenate([[x[:first].sum()], x[first : last + 1], [x[last + 1 :].sum()]])
        for x in (observed, expected)
    ]
    kept = cells[1] > 5
    statistic = ((cells[0] - cells[1]) ** 2 / np.maximum(cells[1], 1e-300))[kept].sum()
    return float(stats.chi2.sf(statistic, kept.sum() - 1))


def variance_rate(draws: NDArray[np.int64], variance: Fraction) -> float:
    """The chance of a variance further from σ², both sides; exact to 10⁻⁹ for a discrete σ ≥ 3."""
    total = float((draws.astype(float) ** 2).sum()) / float(variance)
    return 2 * float(min(stats.chi2.sf(total, len(draws)), stats.chi2.cdf(total, len(draws))))


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(4), Fraction(25), Fraction(2003, 7)])
def test_small_scales_fit_value_by_value(variance: Fraction, promise: Promise) -> None:
    bound = math.ceil(TAIL * math.sqrt(variance))
    assert chi_square_rate(draw(variance), variance, bound) > level()
    promise(
        "P12",
        counted=f"{DRAWS:,} draws of variance {variance}, value by value",
        result="chi-square above the level",
    )


def test_redrawn_tails_leave_the_conditional_law() -> None:
    variance, bound = Fraction(25), 6
    draws = draw(variance, bound)
    assert np.abs(draws).max() == bound
    assert chi_square_rate(draws, variance, bound) > level()


@pytest.mark.parametrize("scale", [5.0, 1234.5, 2.0**40 + 0.5, 2.0**59])
def test_variance_is_the_one_asked_for(scale: float) -> None:
    variance = Fraction(scale) ** 2
    assert variance_rate(draw(variance), variance) > level()


@pytest.mark.parametrize("scale", [2.0**20 + 0.5, 2.0**45, 2.0**59])
def test_large_scales_fit_the_normal_law_and_have_even_low_bits(scale: float) -> None:
    draws = draw(Fraction(scale) ** 2)
    cells = 64
    positions = np.minimum((stats.norm.cdf(draws / scale) * cells).astype(int), cells - 1)
    # At σ = 2²⁰ a cell holds some 40,000 integers: half of one at its edge is nothing to 10⁵ draws.
    observed = np.bincount(positions, minlength=cells)
    assert stats.chisquare(observed).pvalue > level()
    assert stats.chisquare(np.bincount(draws & 15, minlength=16)).pvalue > level()


def test_draws_are_independent_and_signs_are_fair(promise: Promise) -> None:
    draws = draw(Fraction(10**12)).astype(float)
    for lag in (1, 2, 7):
        correlation = float((draws[lag:] * draws[:-lag]).mean()) / 1e12 * math.sqrt(len(draws) - lag)
        assert 2 * stats.norm.sf(abs(correlation)) > level()
    positive = int((draws > 0).sum())
    assert stats.binomtest(positive, int((draws != 0).sum())).pvalue > level()
    promise("P12", counted=f"{DRAWS:,} draws at lags 1, 2 and 7", result="no correlation, fair signs")


def test_two_calls_share_nothing() -> None:
    first, second = draw(Fraction(10**12)).astype(float), draw(Fraction(10**12)).astype(float)
    assert not np.array_equal(first, second)
    correlation = float((first * second).mean()) / 1e12 * math.sqrt(DRAWS)
    assert 2 * stats.norm.sf(abs(correlation)) > level()


@pytest.mark.parametrize("scale", [5.0, 2.0**30 + 0.5])
def test_both_samplers_have_one_law(scale: float, sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if sampler == "reference":
        pytest.skip("compared once")
    ours = draw(Fraction(scale) ** 2)
    monkeypatch.setattr(gaussian, "MANY_DRAWS", DRAWS + 1)
    theirs = draw(Fraction(scale) ** 2)
    edges = np.unique(np.round(scale * np.linspace(-3.5, 3.5, 36)))
    counts = [
        np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1) for draws in (ours, theirs)
    ]
    assert stats.chi2_contingency(np.array(counts)).pvalue > level()
    low = [np.bincount(draws & 15, minlength=16) for draws in (ours, theirs)]
    assert stats.chi2_contingency(np.array(low)).pvalue > level()


def test_planted_faults_are_seen() -> None:
    """The tests above have teeth: noise at 0.97 of its scale, rounded reals, a reused draw."""
    draws = draw(Fraction(25))
    small = np.rint(draw(Fraction(10**12)) * (0.97 * 5 / 1e6)).astype(np.int64)
    for fault in (small, 2 * (draws // 2), np.abs(draws)):
        assert min(chi_square_rate(fault, Fraction(25), 65), variance_rate(fault, Fraction(25))) < level()
