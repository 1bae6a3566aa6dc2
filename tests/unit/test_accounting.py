"""Conversions against their own definition, OpenDP and dp-accounting."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import opendp.prelude as dp
import pytest
from dp_accounting import rdp

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import (
    analytic_gaussian_scale,
    ceil_sqrt,
    delta_of_mask,
    delta_of_tails,
    epsilon_of_rho,
    gaussian_delta,
    rho_of_shares,
    zcdp_rho,
)

TARGETS = [
    (Fraction(epsilon), Fraction(delta))
    for epsilon in ("0.01", "0.1", "0.5", "1", "3", "8", "20")
    for delta in ("1e-12", "1e-6", "1e-5", "0.01")
]


def spent(alpha: float | Fraction, rho: Fraction, epsilon: Fraction, delta: Fraction) -> mpmath.mpf:
    """e^((α−1)(αρ−ε))/(α−1)·(1−1/α)^α over δ, as it stands in the paper."""
    with mpmath.workdps(60):
        a, r, e, d = (mpmath.mpf(x.numerator) / x.denominator for x in (Fraction(alpha), rho, epsilon, delta))
        return mpmath.exp((a - 1) * (a * r - e)) / (a - 1) * (1 - 1 / a) ** a / d


@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
def test_rho_meets_delta_and_a_little_more_does_not(epsilon: Fraction, delta: Fraction) -> None:
    rho = zcdp_rho(epsilon, delta)
    # The best α of the definition, by golden section on a log scale; δ has one valley in α.
    low, high = -40.0, 60.0
    ratio = (math.sqrt(5) - 1) / 2
    while high - low > 1e-9:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if spent(1 + 2.0**left, rho, epsilon, delta) < spent(1 + 2.0**right, rho, epsilon, delta):
            high = right
        else:
            low = left
    best = Fraction(2.0**low)
    assert abs(spent(1 + best, rho, epsilon, delta) - 1) < 1e-12
    more = rho * (1 + Fraction(1, 2**34))
    assert all(
        spent(1 + best * Fraction(2.0**step), more, epsilon, delta) > 1
        for step in (-1.0, -0.1, -1e-4, -1e-8, 0.0, 1e-8, 1e-4, 0.1, 1.0)
    )


@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
def test_epsilon_of_rho_is_the_inverse_and_never_below(epsilon: Fraction, delta: Fraction) -> None:
    back = epsilon_of_rho(zcdp_rho(epsilon, delta), delta)
    assert abs(back / epsilon - 1) < Fraction(1, 2**70)
    assert zcdp_rho(back, delta) <= zcdp_rho(epsilon, delta) * (1 + Fraction(1, 2**70))


def best_over_orders(value: Callable[..., Any]) -> mpmath.mpf:
    """The largest of value(α − 1) for α > 1, by golden section on a log scale; relative error below 2⁻¹⁰⁰."""
    low, high = mpmath.mpf(-60), mpmath.mpf(60)
    ratio = (mpmath.sqrt(5) - 1) / 2
    while high - low > mpmath.mpf(10) ** -20:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if value(2**left) > value(2**right):
            high = right
        else:
            low = left
    return value(2**low)


@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
def test_conversions_are_rounded_to_the_safe_side_and_hardly(epsilon: Fraction, delta: Fraction) -> None:
    hardly = mpmath.mpf(2) ** -80
    rho, back = zcdp_rho(epsilon, delta), epsilon_of_rho(epsilon, delta)  # ε stands in for a large or small ρ
    with mpmath.workdps(80):

        def real(value: Fraction) -> mpmath.mpf:
            return mpmath.mpf(value.numerator) / value.denominator

        def price(x: mpmath.mpf) -> mpmath.mpf:
            return (mpmath.log(real(delta)) + mpmath.log(x) + (1 + x) * mpmath.log1p(1 / x)) / x

        exact = best_over_orders(lambda x: (real(epsilon) + price(x)) / (1 + x))
        assert exact * (1 - hardly) < real(rho) < exact
        exact = -best_over_orders(lambda x: price(x) - (1 + x) * real(epsilon))
        assert exact < real(back) < exact * (1 + hardly) + hardly


@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
def test_opendp_converts_our_rho_to_the_same_epsilon(epsilon: Fraction, delta: Fraction) -> None:
    dp.enable_features("contrib")
    measurement: Any = dp.c.make_zCDP_to_approxDP(
        dp.m.make_gaussian(dp.atom_domain(T="i64"), dp.absolute_distance(T="f64"), scale=1.0)
    )
    rho = zcdp_rho(epsilon, delta)
    # Scale 1 costs d²/2 at distance d.
    measured = measurement.map(math.sqrt(2 * rho)).epsilon(float(delta))
    assert measured == pytest.approx(float(epsilon), rel=1e-6)


def test_dp_accounting_finds_our_rho_sound_for_the_continuous_gaussian() -> None:

    for epsilon, delta in TARGETS[4:20]:
        scale = 1 / math.sqrt(2 * zcdp_rho(epsilon, delta))
        orders = [1 + 2 ** (k / 40) for k in range(-160, 440)]
        accountant = rdp.RdpAccountant(orders).compose(dp_accounting.GaussianDpEvent(scale))
        assert accountant.get_epsilon(float(delta)) == pytest.approx(float(epsilon), rel=1e-3)
        assert gaussian_delta(float(epsilon), 1 / scale) < delta


@pytest.mark.parametrize(("epsilon", "delta"), [target for target in TARGETS if target[0] >= Fraction("0.1")])
def test_the_analytic_scale_is_dp_accountings(epsilon: Fraction, delta: Fraction) -> None:
    assert analytic_gaussian_scale(epsilon, delta) == pytest.approx(
        dp_accounting.get_sigma_gaussian(float(epsilon), float(delta)), rel=1e-6
    )


def test_the_zcdp_price_is_the_one_in_the_notes() -> None:
    for epsilon, price in (("0.1", 1.087), ("0.5", 1.077), ("1", 1.073), ("3", 1.065), ("8", 1.056)):
        target = Fraction(epsilon), Fraction("1e-6")
        assert 1 / math.sqrt(2 * zcdp_rho(*target)) / analytic_gaussian_scale(*target) == pytest.approx(
            price, abs=6e-4
        )


def test_less_privacy_costs_a_larger_rho() -> None:
    assert zcdp_rho(Fraction(1), Fraction("1e-6")) < zcdp_rho(Fraction(2), Fraction("1e-6"))
    assert zcdp_rho(Fraction(1), Fraction("1e-6")) < zcdp_rho(Fraction(1), Fraction("1e-5"))


@pytest.mark.parametrize(("epsilon", "delta"), [("0", "1e-6"), ("-1", "1e-6"), ("1", "0"), ("1", "1")])
def test_nonsense_targets_are_refused(epsilon: str, delta: str) -> None:
    for function in (zcdp_rho, analytic_gaussian_scale):
        with pytest.raises(UsageError):
            function(Fraction(epsilon), Fraction(delta))


def test_no_rho_no_epsilon() -> None:
    with pytest.raises(UsageError):
        epsilon_of_rho(Fraction(0), Fraction("1e-6"))


def test_a_tiny_rho_costs_no_negative_epsilon() -> None:
    assert 0 <= epsilon_of_rho(Fraction(1, 10**12), Fraction("0.5")) < Fraction("1e-6")


def test_parts_of_delta_are_rounded_up() -> None:
    tails = delta_of_tails(Fraction(1))
    assert 0 <= tails * 2**80 - 2 - Fraction(math.e) < Fraction(1, 10**12)
    assert delta_of_tails(Fraction(57)) == delta_of_tails(Fraction(10**29)) == 1
    assert delta_of_tails(Fraction(56)) == 1 > delta_of_tails(Fraction(55))
    mask = delta_of_mask(7, 1000, 90)
    assert mask >= Fraction(2 * math.sqrt(7000)) / 2**90
    assert mask <= Fraction(2 * math.sqrt(7000) + 2) / 2**90


@pytest.mark.parametrize("value", [0, 1, 2, 3, 4, 5, 2**200, 2**200 + 1, 2**200 - 1])
def test_ceiling_of_a_root_is_exact(value: int) -> None:
    root = ceil_sqrt(Fraction(value))
    assert root**2 >= value
    assert root == 0 or (root - 1) ** 2 < value


def test_ceiling_of_a_root_of_a_fraction() -> None:
    assert ceil_sqrt(Fraction(9, 4)) == 2
    assert ceil_sqrt(Fraction(1, 10**9)) == 1


def divergence_of_sums(variance: float, shares: int, shift: int, alpha: float) -> float:
    """Rényi divergence of order α between the sum of discrete Gaussians and the same moved by `shift`."""
    reach = math.ceil(16 * math.sqrt(variance)) + 2
    one = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    law = one / one.sum()
    total = law
    for _ in range(shares - 1):
        total = np.convolve(total, law)
    p, q = total[shift:], total[:-shift]
    seen = (p > 1e-250) & (q > 1e-250)
    logs = alpha * np.log(p[seen]) + (1 - alpha) * np.log(q[seen])
    return float((logs.max() + np.log(np.exp(logs - logs.max()).sum())) / (alpha - 1))


@pytest.mark.parametrize("variance", [0.25, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("shares", [2, 3, 6])
def test_a_sum_of_discrete_gaussians_costs_no_more_than_its_term(variance: float, shares: int) -> None:
    term = float(rho_of_shares(shares, Fraction(variance), 1))
    for shift in (1, 2):
        for alpha in (1.01, 1.5, 2.0, 4.0):
            bound = alpha * (shift**2 / (2 * shares * variance) + term)
            assert divergence_of_sums(variance, shares, shift, alpha) <= bound * (1 + 1e-9)


def test_the_term_of_shares_is_the_formula_rounded_up() -> None:
    exact = 10 * sum(math.exp(-2 * math.pi**2 * k / (k + 1)) for k in range(1, 5))
    assert float(rho_of_shares(5, Fraction(1), 7)) == pytest.approx(7 * exact, rel=1e-12)
    assert rho_of_shares(5, Fraction(1), 7) > Fraction(7 * exact) * (1 - Fraction(1, 10**12))
    assert rho_of_shares(1, Fraction(1), 7) == 0
    with mpmath.workdps(90):
        exact = 70 * sum(mpmath.exp(-2 * mpmath.pi**2 * mpmath.mpf(k) / (k + 1)) for k in range(1, 5))
        rounded = rho_of_shares(5, Fraction(1), 7)
        assert (
            exact < mpmath.mpf(rounded.numerator) / rounded.denominator < exact * (1 + mpmath.mpf(2) ** -80)
        )
    # At the least scale that is admitted it is below m·2⁻²²⁴ a coordinate, and it only falls from there.
    assert 0 < rho_of_shares(2, Fraction(16), 1) < Fraction(2, 2**224)
    assert 0 < rho_of_shares(100_000, Fraction(16), 1) < Fraction(100_000, 2**224)
    assert rho_of_shares(3, Fraction(10**30), 1) == Fraction(1, 2**256)
    assert rho_of_shares(2_000, Fraction(1), 1) > rho_of_shares(1_001, Fraction(1), 1)
    for arguments in ((0, Fraction(1), 1), (2, Fraction(1), 0), (2, Fraction(1, 5), 1)):
        with pytest.raises(UsageError):
            rho_of_shares(*arguments)
