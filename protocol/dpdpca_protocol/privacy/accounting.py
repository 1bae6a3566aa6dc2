"""Privacy arithmetic: conversion between (ε, δ) and zCDP, always rounded to the safe side.

All binding figures are exact rationals. MPFR computes logarithms with about 200 bits to spare. The result is
then moved to the safe side by far more than MPFR's error and far less than the 2⁻³⁴ on which parties must
agree. The analytic Gaussian figures are for display and never calibrate noise.
"""

import math
from fractions import Fraction
from functools import lru_cache

import gmpy2
from gmpy2 import mpfr

from dpdpca_protocol.errors import UsageError

TAIL_SIGMAS = 13
"""κ: a draw beyond κ scales is redrawn. For up to 2⁴⁰ draws this has a probability below 2⁻⁸⁰."""

MAX_NOISE_DRAWS = 2**40

_PRECISION = 320
_MARGIN = Fraction(1, 2**90)
_ALPHA_RANGE = 160  # α − 1 is searched between 2⁻¹⁶⁰ and 2¹⁶⁰
_STEPS = 200
_SHARES_GRID = 2**256


@lru_cache(maxsize=256)
def zcdp_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest ρ that the tight conversion turns into (ε, δ), rounded down by a relative error below 2⁻⁸⁰.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1), without the parts that other steps of the mechanism spend.

    Returns:
        ρ > 0, an exact rational. Parties that compute ρ in different ways agree far more closely than 2⁻³⁴.

    Raises:
        UsageError: ε or δ out of range.

    Guarantee: a ρ-zCDP mechanism is (ε, δ)-DP. For every α > 1 the ρ that solves
        e^((α−1)(αρ−ε))/(α−1)·(1−1/α)^α = δ is sound, so an inexact α costs tightness and never privacy.
    Source: Canonne, Kamath, Steinke 2020, corollary 13; docs/claims.md, C3.
    Tested: tests/unit/test_accounting.py (closed form, OpenDP's and dp-accounting's conversions).
    """
    _check_target(epsilon, delta)
    with gmpy2.context(precision=_PRECISION):
        eps, log_delta = mpfr(gmpy2.mpq(epsilon)), gmpy2.log(mpfr(gmpy2.mpq(delta)))
        low, high = mpfr(-_ALPHA_RANGE), mpfr(_ALPHA_RANGE)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            x = gmpy2.exp2(middle)
            # The sign of dρ/dα is opposite to that of (2α−1)ρ(α) − ε + log(1−1/α). ρ(α) rises, then falls.
            if (2 * x + 1) * _rho_at(x, eps, log_delta) - eps - gmpy2.log1p(1 / x) < 0:
                low = middle
            else:
                high = middle
        rho = _rho_at(gmpy2.exp2(low), eps, log_delta)
        return _exact(rho) * (1 - _MARGIN)


def epsilon_of_rho(rho: Fraction, delta: Fraction) -> Fraction:
    """The ε that ρ-zCDP gives at δ by the tight conversion, rounded up by less than 2⁻⁸⁰·(1 + ε).

    Args:
        rho: ρ > 0.
        delta: δ in (0, 1).

    Raises:
        UsageError: ρ or δ out of range.

    Source: Canonne, Kamath, Steinke 2020, corollary 13.
    """
    if rho <= 0:
        raise UsageError("bad-argument", "ρ must be above 0")
    _check_target(Fraction(1), delta)
    with gmpy2.context(precision=_PRECISION):
        r, log_delta = mpfr(gmpy2.mpq(rho)), gmpy2.log(mpfr(gmpy2.mpq(delta)))
        low, high = mpfr(-_ALPHA_RANGE), mpfr(_ALPHA_RANGE)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            x = gmpy2.exp2(middle)
            if (2 * x + 1) * r - _epsilon_at(x, r, log_delta) - gmpy2.log1p(1 / x) < 0:
                low = middle
            else:
                high = middle
        epsilon = _exact(_epsilon_at(gmpy2.exp2(low), r, log_delta))
    return max(epsilon * (1 + _MARGIN) + _MARGIN, Fraction(0))


@lru_cache(maxsize=256)
def rho_of_shares(shares: int, least_variance: Fraction, coordinates: int) -> Fraction:
    """The extra ρ beyond D²/(2σ²) if the noise is a sum of discrete Gaussians; a multiple of 2⁻²⁵⁶.

    Args:
        shares: m ≥ 1 independent draws of the same parameter on each coordinate.
        least_variance: the least σ² of a draw, over the coordinates.
        coordinates: how many integers have noise.

    Returns:
        `coordinates`·τ, τ = 10·Σ_{k=1}^{m−1} exp(−2π²σ²k/(k+1)), rounded up; 0 for one share.

    Source: Kairouz, Liu, Steinke 2021, proposition 14, whose Rényi divergence α·D²/(2mσ²) + τ·n is at most
        α times the sum of its two terms for α ≥ 1.
    Tested: tests/unit/test_accounting.py, against the divergence of sums computed term by term.
    """
    if shares < 1 or coordinates < 1 or 4 * least_variance < 1:
        raise UsageError("bad-argument", "shares of noise must have a variance of 1/4 or more")
    # More variance makes the term smaller. It is far below 2⁻²⁵⁶ long before a variance of 1,000.
    variance, exact = min(least_variance, Fraction(1_000)), min(shares - 1, 1_000)
    with gmpy2.context(precision=_PRECISION):
        unit = -2 * gmpy2.const_pi() ** 2 * mpfr(gmpy2.mpq(variance))
        terms = [gmpy2.exp(unit * k / (k + 1)) for k in range(1, exact + 1)]
        # Terms fall with k, so the omitted terms are no larger than the last.
        tau = 10 * (sum(terms) + (shares - 1 - exact) * terms[-1]) if terms else mpfr(0)
        total = _exact(tau * coordinates) * (1 + _MARGIN)
    return Fraction(math.ceil(total * _SHARES_GRID), _SHARES_GRID)


def best_guess(rho: Fraction, epsilon: Fraction, delta: Fraction, apart: Fraction) -> Fraction:
    """The largest chance with which anybody tells which of two equally likely neighbours gave a release,
    rounded up by a relative error below 2⁻⁸⁰.

    Args:
        rho: ρ > 0 of the ideal release, for zCDP.
        epsilon, delta: what is proved for the whole release, with every part of δ.
        apart: by how much the total variation distance of neighbours can exceed that of the ideal release.

    Returns:
        The least of three sound bounds, from above 1/2 up to 1.

    Guarantee: the chance of the best guess is (1 + TV)/2, with TV the total variation distance. (ε, δ) gives
        (1 + TV)/2 ≤ (e^ε + δ)/(e^ε + 1). ρ bounds the Kullback–Leibler divergence, so TV ≤ √(ρ/2), and
        TV ≤ √(1 − e^(−ρ)).
    Source: Kairouz, Oh, Viswanath 2015; Pinsker's and Bretagnolle and Huber's inequalities (Tsybakov 2009,
        section 2.4); Bun, Steinke 2016; docs/claims.md, C3.
    Tested: tests/unit/test_best_guess.py, against exact laws and the audit's game.
    """
    if rho <= 0:
        raise UsageError("bad-argument", "ρ must be above 0")
    with gmpy2.context(precision=_PRECISION):
        r, eps = mpfr(gmpy2.mpq(rho)), mpfr(gmpy2.mpq(min(epsilon, Fraction(100))))
        distance = _exact(min(gmpy2.sqrt(r / 2), gmpy2.sqrt(-gmpy2.expm1(-r))))
        exponential = _exact(gmpy2.exp(eps))
    by_rho = (1 + distance + apart) / 2
    by_epsilon = Fraction(1) if epsilon > 100 else 1 - (1 - delta) / (1 + exponential)
    return min(by_rho * (1 + _MARGIN), by_epsilon * (1 + _MARGIN), Fraction(1))


def delta_of_tails(epsilon: Fraction) -> Fraction:
    """(2 + e^ε)·2⁻⁸⁰, rounded up, at most 1: the δ for tails of the noise and re-randomisation from a pool.

    Source: docs/claims.md, C3 and C5.
    """
    if epsilon > 56:
        return Fraction(1)  # the result would be above 1, and e^ε of a hostile ε would fill the memory
    with gmpy2.context(precision=128, round=gmpy2.RoundUp):
        exponential = _exact(gmpy2.exp(mpfr(gmpy2.mpq(epsilon))))
    return min((2 + exponential) / 2**80, Fraction(1))


def delta_of_mask(encoded_features: int, record_bound: int, mask_bits: int) -> Fraction:
    """2√(dK)/B, rounded up: the statistical distance between the masked sums of neighbours.

    Args:
        encoded_features: d.
        record_bound: K, bound on Σ z² of one record in grid units.
        mask_bits: β; each coordinate of the mask is uniform on B = 2^β consecutive integers.

    Guarantee: the view (v + b, N·S + H) is (ε, δ + this distance)-DP if N·S + H is (ε, δ)-DP.
    Source: |v − w|₁ ≤ 2√(dK) for neighbouring sums v and w.
    """
    return Fraction(2 * ceil_sqrt(Fraction(encoded_features * record_bound)), 2**mask_bits)


def gaussian_delta(epsilon: float, sensitivity_over_scale: float) -> float:
    """The δ that the continuous Gaussian mechanism spends at ε; for display.

    Source: Balle, Wang 2018, theorem 8: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = sensitivity/scale.
    """
    mu = sensitivity_over_scale
    first = math.erfc(-(mu / 2 - epsilon / mu) / math.sqrt(2)) / 2
    second = math.erfc((mu / 2 + epsilon / mu) / math.sqrt(2)) / 2
    # e^ε alone can overflow while its product with the tiny second term cannot.
    return first - (math.exp(epsilon + math.log(second)) if second > 0 else 0.0)


def analytic_gaussian_scale(epsilon: Fraction, delta: Fraction) -> float:
    """The least scale of a continuous Gaussian that is (ε, δ)-DP at sensitivity 1; for display only.

    Args:
        epsilon: ε > 0.
        delta: δ in (0, 1).

    Returns:
        σ per unit of ℓ₂ sensitivity, relative error about 10⁻⁹.

    Raises:
        UsageError: ε or δ out of range.

    Source: Balle, Wang 2018, theorem 8. The result is not valid for discrete noise of small scale.
    """
    _check_target(epsilon, delta)
    target_epsilon, target_delta = float(epsilon), float(delta)
    low, high = 1e-9, 1e12
    for _ in range(200):
        middle = math.sqrt(low * high)
        if gaussian_delta(target_epsilon, 1 / middle) > target_delta:
            low = middle
        else:
            high = middle
    return high


def ceil_sqrt(value: Fraction) -> int:
    """The least integer whose square is at least `value` ≥ 0. The result is exact."""
    whole = -(-value.numerator // value.denominator)
    root = math.isqrt(whole)
    return root if root * root == whole else root + 1


def _rho_at(x: mpfr, epsilon: mpfr, log_delta: mpfr) -> mpfr:
    """The ρ that gives δ at α = 1 + x."""
    return (epsilon + (log_delta + _log_moment(x)) / x) / (1 + x)


def _epsilon_at(x: mpfr, rho: mpfr, log_delta: mpfr) -> mpfr:
    """The ε that gives δ at α = 1 + x."""
    return (1 + x) * rho - (log_delta + _log_moment(x)) / x


def _log_moment(x: mpfr) -> mpfr:
    """log(α−1) − α log(1−1/α) at α = 1 + x."""
    return gmpy2.log(x) + (1 + x) * gmpy2.log1p(1 / x)


def _exact(value: mpfr) -> Fraction:
    numerator, denominator = value.as_integer_ratio()
    return Fraction(int(numerator), int(denominator))


def _check_target(epsilon: Fraction, delta: Fraction) -> None:
    if epsilon <= 0 or not 0 < delta < 1:
        raise UsageError("bad-argument", "ε must be above 0 and δ between 0 and 1")
