"""What mechanisms say about themselves: names, claims, what is proved, what is refused."""

import math
import subprocess
import sys
from fractions import Fraction
from typing import Any

import dp_accounting
import numpy as np
import opendp.prelude as dp
import pytest
from dp_accounting import pld
from present import present

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import (
    analytic_gaussian_scale,
    delta_of_tails,
    epsilon_of_rho,
    zcdp_rho,
)
from dpdpca_protocol.privacy.mechanisms import (
    MECHANISMS,
    Calibration,
    Gaussian,
    GuaranteeKind,
    Laplace,
    Mechanism,
    ModSulq,
    PublishedDiscretizer,
    PublishedGaussian,
    PublishedLaplace,
    Quantity,
    Setting,
    Wishart,
    mechanism_class,
)
from dpdpca_protocol.privacy.mechanisms.analytic import published_scale, real_epsilon
from dpdpca_protocol.privacy.mechanisms.gaussian import gaussian_triangle
from dpdpca_protocol.privacy.mechanisms.modsulq import modsulq_scale
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.privacy.mechanisms.wishart import impossible_probability

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
    assert mechanism_class(mechanism.name, mechanism.calibration) is mechanism
    assert mechanism.title
    assert mechanism.reference
    assert fitted.claim.epsilon == 1
    assert fitted.guarantee.relation == "replace-one"
    assert fitted.guarantee.basis
    if fitted.guarantee.kind is GuaranteeKind.NONE:
        assert fitted.event is None
        assert str(fitted.guarantee).startswith("no differential privacy: ")
    else:
        assert fitted.guarantee.assumptions
        assert present(fitted.event).rho > 0
        assert "replace-one" in str(fitted.guarantee)
    law = fitted.law(7)
    assert law.triangle_bound >= 13 * math.isqrt(int(law.diagonal)) + law.shift
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
    front = {Quantity.JOINT: 4, Quantity.PAIRS: 1}.get(quantity, 0)
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


@pytest.mark.parametrize(
    ("claimed", "moment", "scatter", "spent"),
    [
        ("0.1", 0.089, 0.276, 0.0048),
        ("0.3", 0.295, 0.917, None),
        ("0.5", 0.514, 1.61, 0.029),
        ("1", 1.098, 3.51, 0.071),
        ("3", 3.76, 13.1, 0.37),
    ],
)
def test_what_the_published_calibration_really_gives(
    claimed: str, moment: float, scatter: float, spent: float | None
) -> None:
    """The table of the privacy notes: sensitivity 1 and the classical τ, δ = 10⁻⁵."""
    from dpdpca_protocol.privacy.accounting import gaussian_delta

    delta = Fraction(1, 10**5)
    of_moment = PublishedGaussian.calibrated(setting(Quantity.SECOND_MOMENT, epsilon=claimed, delta=delta))
    of_scatter = PublishedGaussian.calibrated(setting(Quantity.SCATTER, epsilon=claimed, delta=delta))
    assert of_moment.real_epsilon == pytest.approx(moment, rel=4e-3)
    assert of_scatter.real_epsilon == pytest.approx(scatter, rel=4e-3)
    if spent:
        ratio = 4 / float(published_scale(Fraction(claimed), delta))
        assert gaussian_delta(float(claimed), ratio) == pytest.approx(spent, rel=0.013)
    # What is printed as a promise is the conversion for integers, a few per cent above the continuous figure.
    for fitted in (of_moment, of_scatter):
        assert 1 <= float(present(fitted.guarantee.epsilon)) / present(fitted.real_epsilon) < 1.25
        assert fitted.guarantee.kind is GuaranteeKind.APPROXIMATE
        assert fitted.claim.epsilon == Fraction(claimed)
        assert fitted.law(1).diagonal == fitted.law(1).off_diagonal


def test_the_published_formula_is_too_small_for_large_epsilon() -> None:
    """At sensitivity 1 itself: true ε 10.39 for a claimed 10, 25.4 for 20; at δ = 0.01 already 8.60 for 8."""
    for claimed, delta, real in (("10", "1e-5", 10.39), ("20", "1e-5", 25.4), ("8", "0.01", 8.60)):
        tau = published_scale(Fraction(claimed), Fraction(delta))
        assert real_epsilon(1 / float(tau), float(Fraction(delta))) == pytest.approx(real, rel=2e-3)


def test_the_real_epsilon_is_dp_accountings() -> None:
    for ratio in (0.01, 0.3, 1.0, 4.0):
        for delta in (1e-8, 1e-5, 1e-2):
            expected = dp_accounting.get_epsilon_gaussian(1 / ratio, delta)
            assert real_epsilon(ratio, delta) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("d", "scale", "looseness", "real"),
    [(10, 65.0, 10.9, None), (64, 418.0, 70.0, 0.0104), (300, 2070.0, 346.0, None)],
)
def test_how_loose_modsulq_is(d: int, scale: float, looseness: float, real: float | None) -> None:
    """nβ against the exact Gaussian for sensitivity √2 at ε = 1, δ = 10⁻⁶."""
    fitted = ModSulq.calibrated(setting(d=d))
    assert float(fitted.scale) / K == pytest.approx(scale, rel=2e-3)
    assert float(fitted.scale) / K / (math.sqrt(2) * 4.2247) == pytest.approx(looseness, rel=3e-3)
    if real:
        assert fitted.real_epsilon == pytest.approx(real, rel=5e-3)
    assert present(fitted.real_epsilon) < float(present(fitted.guarantee.epsilon)) < 1 / d
    assert fitted.claim.epsilon == 1


def test_modsulq_is_sound_on_every_quantity() -> None:
    for quantity in ModSulq.quantities:
        assert present(ModSulq.calibrated(setting(quantity)).guarantee.epsilon) < 1
    assert modsulq_scale(Fraction(1), Fraction(99, 100), 1) >= 1


def test_wishart_noise_has_no_guarantee_and_says_why() -> None:
    fitted = Wishart.calibrated(setting(epsilon="0.5"))
    assert fitted.guarantee.kind is GuaranteeKind.NONE
    assert fitted.guarantee.epsilon is None
    assert "0.393" in str(fitted.guarantee)
    assert fitted.claim.kind is GuaranteeKind.PURE
    for epsilon, lost in (("0.1", 0.0952), ("0.5", 0.3935), ("1", 0.6321), ("3", 0.9502)):
        assert impossible_probability(Fraction(epsilon), Fraction(1)) == pytest.approx(lost, abs=5e-5)


def test_events_are_what_dp_accounting_and_opendp_say() -> None:
    dp.enable_features("contrib")
    for mechanism, quantity in OFFERED:
        fitted = mechanism.calibrated(setting(quantity))
        event = fitted.event
        if event is None:
            continue
        delta = float(fitted.setting.delta)
        accountant = pld.PLDAccountant()
        distance = math.sqrt(fitted.sensitivity.squared)
        scale = float(fitted.scale)
        if event.pure_epsilon is None:
            accountant.compose(dp_accounting.GaussianDpEvent(scale / distance))
            measurement: Any = dp.m.make_gaussian(
                dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64"), scale=scale
            )
            assert measurement.map(distance) == pytest.approx(float(event.rho), rel=1e-9)
            assert accountant.get_epsilon(delta) <= float(present(fitted.guarantee.epsilon)) * 1.001
        else:
            accountant.compose(dp_accounting.LaplaceDpEvent(scale / distance))
            measurement = dp.m.make_laplace(
                dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="f64"), scale=scale
            )
            assert measurement.map(distance) == pytest.approx(float(event.pure_epsilon), rel=1e-9)
            assert accountant.get_epsilon(1e-12) == pytest.approx(float(event.pure_epsilon), rel=1e-3)
            assert event.rho == event.pure_epsilon**2 / 2


def test_the_published_discretizer_and_its_price() -> None:
    rows = np.array([[0.0, 10.0], [0.5, 20.0], [1.0, 40.0]])
    lower, upper = rows.min(axis=0), rows.max(axis=0)  # of the data, as the paper has them
    discretize = PublishedDiscretizer(lower, upper, 2**4 - 1)
    assert discretize(rows).tolist() == [[0, 0], [8, 5], [15, 15]]
    assert discretize(np.array([[-5.0, 99.0]])).tolist() == [[0, 15]]
    # Opposite corners of the cube move the scatter by 4K(N−1)/N; τ is not rescaled, so ε is beyond use.
    assert discretize.record_bound == Fraction(2 * 15**2, 4)
    assert discretize.real_epsilon(Fraction(1), Fraction(1, 10**5)) > 1000
    for bits in (0, 32):
        with pytest.raises(UsageError):
            PublishedDiscretizer(lower, upper, 2**bits - 1)
    with pytest.raises(UsageError):
        PublishedDiscretizer(rows[0], rows[0], 2**4 - 1)


@pytest.mark.parametrize("mechanism", [PublishedGaussian, PublishedLaplace, Wishart])
def test_a_quantity_that_a_mechanism_is_not_made_for_is_refused(
    mechanism: type[PublishedGaussian] | type[PublishedLaplace] | type[Wishart],
) -> None:
    with pytest.raises(UsageError, match="not for the joint release"):
        mechanism.calibrated(setting(Quantity.JOINT))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_less_noise_than_the_formula_gives_is_refused(mechanism: type[Mechanism]) -> None:
    fitted = mechanism.calibrated(setting())
    with pytest.raises(UsageError, match="noise scale"):
        mechanism(fitted.setting, fitted.scale * Fraction(999, 1000))
    assert mechanism(fitted.setting, fitted.scale * (1 + Fraction(1, 2**30))).claim == fitted.claim


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
        Wishart.calibrated(setting()).draw_sum()
    with pytest.raises(UsageError, match="gaussian"):
        mechanism_class("wishart", Calibration.PROVED)
    for function, arguments in (
        (published_scale, (Fraction(0), DELTA)),
        (published_scale, (Fraction(1), Fraction(1))),
        (real_epsilon, (0.0, 1e-6)),
        (real_epsilon, (1.0, 0.0)),
    ):
        with pytest.raises(UsageError):
            function(*arguments)
    assert real_epsilon(1e-9, 1e-6) == 0.0


def test_mechanisms_import_no_opendp() -> None:
    script = (
        "import sys, dpdpca_protocol.privacy.mechanisms;"
        " sys.exit(any(m.startswith('opendp') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
