"""What mechanisms say about themselves: names, what is proved, what is refused."""

import math
import subprocess
import sys
from fractions import Fraction
from typing import Any

import dp_accounting
import opendp.prelude as dp
import pytest
from dp_accounting import pld

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.accounting import (
    analytic_gaussian_scale,
    delta_of_tails,
    epsilon_of_rho,
    zcdp_rho,
)
from dpdpca_protocol.privacy.mechanisms import (
    MECHANISMS,
    BlockGaussian,
    Gaussian,
    Laplace,
    Mechanism,
    Quantity,
    Setting,
    mechanism_for,
)
from dpdpca_protocol.privacy.mechanisms.analytic import real_epsilon
from dpdpca_protocol.privacy.mechanisms.gaussian import frobenius_sensitivity_squared, gaussian_triangle
from dpdpca_protocol.privacy.mechanisms.laplace import l1_sensitivity
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers

K = 2**20
WEIGHT = Fraction(43, 100) * K
DELTA = Fraction(1, 10**6)


def setting(
    quantity: Quantity = Quantity.SECOND_MOMENT, d: int = 8, epsilon: str = "1", delta: Fraction = DELTA
) -> Setting:
    weight = WEIGHT if quantity is Quantity.JOINT else Fraction(0)
    return Setting(quantity, d, K, Fraction(epsilon), delta, weight)


OFFERED = [(mechanism, quantity) for mechanism in MECHANISMS for quantity in sorted(mechanism.quantities)]


@pytest.mark.parametrize(("mechanism", "quantity"), OFFERED)
def test_every_mechanism_says_the_same_things_about_itself(
    mechanism: type[Mechanism], quantity: Quantity
) -> None:
    fitted = mechanism.calibrated(setting(quantity))
    assert mechanism_for(mechanism.name, quantity) is mechanism
    assert fitted.guarantee.epsilon == 1
    assert fitted.guarantee.relation == "replace-one"
    assert fitted.guarantee.basis
    assert fitted.guarantee.assumptions
    assert fitted.event.rho > 0
    assert "replace-one" in str(fitted.guarantee)
    law = fitted.law(7)
    assert law.triangle_bound >= 13 * math.isqrt(int(law.diagonal))
    assert (law.sum_ > 0) == (quantity is Quantity.JOINT)
    if quantity is Quantity.SCATTER:
        # In N·S everything is N times as large, at the grain of single units.
        assert law.off_diagonal == 49 * fitted.law(1).off_diagonal
    else:
        assert law == fitted.law(1)


@pytest.mark.parametrize(("mechanism", "quantity"), OFFERED)
def test_draws_have_the_order_of_the_release_and_obey_their_bounds(
    mechanism: type[Mechanism], quantity: Quantity
) -> None:
    fitted = mechanism.calibrated(setting(quantity, d=3))
    draws = fitted.draw(5)
    law = fitted.law(5)
    front = {Quantity.JOINT: 4, Quantity.SCATTER: 0}.get(quantity, 1)
    assert len(draws) == front + 6
    assert {type(draw) for draw in draws} == {int}
    assert all(abs(draw) <= law.triangle_bound for draw in draws[front:])
    if front:
        assert draws[0] == 0
        assert all(0 < abs(draw) <= law.sum_bound for draw in draws[1:front])
    assert fitted.draw(5) != draws


def test_a_triangle_is_drawn_once_and_whole() -> None:
    asked = []

    def draws(variance: Fraction, count: int, bound: int) -> list[int]:
        asked.append((variance, count, bound))
        return list(range(10 * len(asked), 10 * len(asked) + count))

    triangle = gaussian_triangle(4, Fraction(9), Fraction(4), Samplers(gaussian=draws))
    assert asked == [(Fraction(9), 4, 39), (Fraction(4), 6, 26)]
    assert triangle == [10, 20, 21, 22, 11, 23, 24, 12, 25, 13]


def test_ours_is_the_calibration_of_the_releases() -> None:
    rho = zcdp_rho(Fraction(1), DELTA)
    masked = Gaussian.calibrated(setting(Quantity.SCATTER))
    joint = Gaussian.calibrated(setting(Quantity.JOINT))
    for fitted, variance in (
        (masked, 8 * K**2 / rho),
        (joint, (2 * K + WEIGHT) ** 2 / (4 * rho)),
    ):
        assert 0 <= fitted.scale**2 / variance - 1 < Fraction(1, 2**59)
        assert fitted.rho <= rho
        law = fitted.law(1)
        assert law.off_diagonal * 2 == law.diagonal == fitted.scale**2
        assert fitted.guarantee.epsilon == 1
        assert fitted.guarantee.delta == DELTA + delta_of_tails(Fraction(1))
        assert epsilon_of_rho(fitted.rho, DELTA) <= 1
    assert joint.law(9).sum_ == joint.scale**2 / WEIGHT
    unit = analytic_gaussian_scale(Fraction(1), DELTA)
    assert masked.analytic_scale == pytest.approx(4 * K * unit)
    assert joint.analytic_scale == pytest.approx(float(2 * K + WEIGHT) / math.sqrt(2) * unit)


def test_the_real_epsilon_is_dp_accountings() -> None:
    for ratio in (0.01, 0.3, 1.0, 4.0):
        for delta in (1e-8, 1e-5, 1e-2):
            expected = dp_accounting.get_epsilon_gaussian(1 / ratio, delta)
            assert real_epsilon(ratio, delta) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_events_are_what_dp_accounting_and_opendp_say() -> None:
    dp.enable_features("contrib")
    for mechanism, quantity in OFFERED:
        fitted = mechanism.calibrated(setting(quantity))
        event = fitted.event
        delta = float(fitted.setting.delta)
        accountant = pld.PLDAccountant()
        scale = float(fitted.scale)
        if event.pure_epsilon is None:
            distance = math.sqrt(frobenius_sensitivity_squared(fitted.setting))
            accountant.compose(dp_accounting.GaussianDpEvent(scale / distance))
            measurement: Any = dp.m.make_gaussian(
                dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64"), scale=scale
            )
            assert measurement.map(distance) == pytest.approx(float(event.rho), rel=1e-9)
            assert accountant.get_epsilon(delta) <= float(fitted.guarantee.epsilon) * 1.001
        else:
            distance = float(l1_sensitivity(fitted.setting))
            accountant.compose(dp_accounting.LaplaceDpEvent(scale / distance))
            measurement = dp.m.make_laplace(
                dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="f64"), scale=scale
            )
            assert measurement.map(distance) == pytest.approx(float(event.pure_epsilon), rel=1e-9)
            assert accountant.get_epsilon(1e-12) == pytest.approx(float(event.pure_epsilon), rel=1e-3)
            assert event.rho == event.pure_epsilon**2 / 2
        assert event.extra_delta == delta_of_tails(fitted.guarantee.epsilon)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_less_noise_than_the_formula_gives_is_refused(mechanism: type[Mechanism]) -> None:
    fitted = mechanism.calibrated(setting())
    with pytest.raises(UsageError, match="noise scale"):
        mechanism(fitted.setting, fitted.scale * Fraction(999, 1000))
    assert mechanism(fitted.setting, fitted.scale * (1 + Fraction(1, 2**30))).guarantee == fitted.guarantee


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": Fraction(0)},
        {"epsilon": Fraction(-1)},
        {"delta": Fraction(0)},
        {"delta": Fraction(1)},
        {"encoded_features": 0},
        {"record_bound": 0},
        {"alpha_squared": Fraction(1)},
        {"quantity": Quantity.JOINT},
        {"quantity": Quantity.JOINT, "alpha_squared": Fraction(2 * K + 1)},
    ],
)
def test_terms_out_of_range_are_refused(change: dict[str, Any]) -> None:
    terms: dict[str, Any] = {
        "quantity": Quantity.SCATTER,
        "encoded_features": 4,
        "record_bound": K,
        "epsilon": Fraction(1),
        "delta": DELTA,
    }
    with pytest.raises(UsageError):
        Setting(**(terms | change))


def test_calls_out_of_range_are_refused() -> None:
    fitted = Laplace.calibrated(setting())
    with pytest.raises(UsageError):
        fitted.draw(0)
    with pytest.raises(UsageError):
        BlockGaussian.calibrated(
            Setting(Quantity.PRE_STUDY, 3, K, Fraction(1), DELTA, blocks=((BlockName.NORMS, Fraction(1)),))
        ).draw_sum()
    with pytest.raises(UsageError, match="gaussian or laplace"):
        mechanism_for("wishart", Quantity.SCATTER)
    for arguments in ((0.0, 1e-6), (1.0, 0.0)):
        with pytest.raises(UsageError):
            real_epsilon(*arguments)
    assert real_epsilon(1e-9, 1e-6) == 0.0


def test_mechanisms_import_no_opendp() -> None:
    script = (
        "import sys, dpdpca_protocol.privacy.mechanisms;"
        " sys.exit(any(m.startswith('opendp') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
