"""Mechanisms of the literature: what their papers claim, and what is proved for their noise."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from study_parties import MakeManifest

from dpdpca_lab.mechanisms import (
    PUBLISHED,
    ModSulq,
    NoGuarantee,
    PublishedDiscretizer,
    PublishedGaussian,
    PublishedLaplace,
    Wishart,
    noise_matrix,
    unit_setting,
)
from dpdpca_lab.mechanisms.gaussian import published_scale
from dpdpca_lab.mechanisms.modsulq import modsulq_root, modsulq_scale
from dpdpca_lab.mechanisms.visibility import least_laplace_epsilon, least_visible, noise_norm
from dpdpca_lab.mechanisms.wishart import impossible_probability
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import gaussian_delta
from dpdpca_protocol.privacy.mechanisms import Gaussian, Mechanism, Quantity, Setting
from dpdpca_protocol.privacy.mechanisms.analytic import real_epsilon
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.records.encoding import RecordEncoder

K = 2**20
DELTA = Fraction(1, 10**6)


def setting(
    quantity: Quantity = Quantity.SECOND_MOMENT,
    d: int = 8,
    epsilon: str = "1",
    delta: Fraction = DELTA,
    bound: int = K,
) -> Setting:
    weight = Fraction(43, 100) * bound if quantity is Quantity.JOINT else Fraction(0)
    return Setting(quantity, d, bound, Fraction(epsilon), delta, weight)


OFFERED = [(mechanism, quantity) for mechanism in PUBLISHED for quantity in sorted(mechanism.quantities)]


@pytest.mark.parametrize(("mechanism", "quantity"), OFFERED)
def test_every_mechanism_says_the_same_things_about_itself(mechanism: Any, quantity: Quantity) -> None:
    fitted = mechanism.calibrated(setting(quantity))
    assert fitted.claim.epsilon == 1
    assert "as published" in fitted.claim.basis
    assert fitted.guarantee.basis
    if isinstance(fitted.guarantee, NoGuarantee):
        assert str(fitted.guarantee).startswith("no differential privacy: ")
    else:
        assert fitted.guarantee.assumptions
        assert fitted.event.rho > 0
        assert fitted.guarantee.epsilon != fitted.claim.epsilon
        assert fitted.analytic_scale is None
    law = fitted.law(7)
    assert law.triangle_bound >= 13 * math.isqrt(int(law.diagonal))
    assert (law.sum_ > 0) == (quantity is Quantity.JOINT)
    lift = 49 if quantity is Quantity.SCATTER else 1
    assert law.off_diagonal == lift * fitted.law(1).off_diagonal
    draws = fitted.draw_triangle(5)
    assert len(draws) == 36
    assert {type(draw) for draw in draws} == {int}
    assert all(abs(draw) <= law.triangle_bound for draw in draws)


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
        assert 1 <= float(fitted.guarantee.epsilon) / fitted.real_epsilon < 1.25
        assert not fitted.guarantee.is_pure
        assert fitted.claim.epsilon == Fraction(claimed)
        assert fitted.law(1).diagonal == fitted.law(1).off_diagonal


@pytest.mark.parametrize(
    ("claimed", "delta", "tau", "moment", "scatter"),
    [
        ("1", "1e-5", 4.84481, 1.0982, 3.5112),
        ("0.3", "1e-5", 16.1494, 0.2948, 0.9169),
        ("1", "1e-6", 5.29880, 1.1383, 3.5582),
        ("0.5", "5.02e-6", 9.97004, 0.5231, 1.6259),
        ("1", "0.02", 2.87582, 0.7423, 3.2206),
        ("1", "0.1", 2.24754, 0.4787, 3.1302),
    ],
)
def test_the_real_epsilon_of_the_settings_of_the_papers(
    claimed: str, delta: str, tau: float, moment: float, scatter: float
) -> None:
    assert float(published_scale(Fraction(claimed), Fraction(delta))) == pytest.approx(tau, rel=4e-6)
    for quantity, real in ((Quantity.SECOND_MOMENT, moment), (Quantity.SCATTER, scatter)):
        fitted = PublishedGaussian.calibrated(unit_setting(quantity, 5, Fraction(claimed), Fraction(delta)))
        assert fitted.real_epsilon == pytest.approx(real, abs=6e-5)


def test_delta_of_one_standard_deviation() -> None:
    assert gaussian_delta(1, 1) == pytest.approx(0.126937, abs=6e-7)


def test_the_published_formula_is_too_small_for_large_epsilon() -> None:
    """At sensitivity 1 itself: true ε 10.39 for a claimed 10, 25.4 for 20; at δ = 0.01 already 8.60 for 8."""
    for claimed, delta, real in (("10", "1e-5", 10.39), ("20", "1e-5", 25.4), ("8", "0.01", 8.60)):
        tau = published_scale(Fraction(claimed), Fraction(delta))
        assert real_epsilon(1 / float(tau), float(Fraction(delta))) == pytest.approx(real, rel=2e-3)


def test_the_published_scale_is_for_parameters_in_range() -> None:
    for epsilon, delta in ((Fraction(0), DELTA), (Fraction(1), Fraction(1))):
        with pytest.raises(UsageError):
            published_scale(epsilon, delta)


def test_what_published_laplace_noise_gives() -> None:
    of_moment = PublishedLaplace.calibrated(setting(Quantity.SECOND_MOMENT, d=64))
    of_scatter = PublishedLaplace.calibrated(setting(Quantity.SCATTER, d=64))
    assert float(of_moment.guarantee.epsilon) == pytest.approx(46.304 / 128, rel=1e-3)
    assert float(of_scatter.guarantee.epsilon) == pytest.approx(math.sqrt(1 + 3 / 64), rel=1e-9)
    assert of_scatter.guarantee.epsilon > of_scatter.claim.epsilon
    assert of_scatter.event.pure_epsilon == of_scatter.guarantee.epsilon


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
    assert fitted.real_epsilon < float(fitted.guarantee.epsilon) < 1 / d
    assert fitted.claim.epsilon == 1


@pytest.mark.parametrize(
    ("d", "epsilon", "delta", "scale"),
    [
        (10, "1", "1e-6", 64.9589),
        (64, "1", "1e-6", 417.575),
        (300, "1", "1e-6", 2069.57),
        (10, "0.1", "0.05", 386.876),
        (116, "0.1", "0.01", 5855.23),
        (150, "0.1", "0.01", 7708.90),
    ],
)
def test_the_scale_of_modsulq(d: int, epsilon: str, delta: str, scale: float) -> None:
    assert float(modsulq_scale(Fraction(epsilon), Fraction(delta), d)) == pytest.approx(scale, rel=3e-6)


@pytest.mark.parametrize(
    ("d", "root", "real"), [(10, 63.9746, 0.0777), (64, 416.578, 0.01041), (300, 2068.57, 0.00178)]
)
def test_the_root_in_the_proof_of_modsulq_and_its_real_epsilon(d: int, root: float, real: float) -> None:
    assert modsulq_root(Fraction(1), DELTA, d) == pytest.approx(root, rel=3e-6)
    assert ModSulq.calibrated(unit_setting(Quantity.SECOND_MOMENT, d, Fraction(1), DELTA)).real_epsilon == (
        pytest.approx(real, rel=4e-3)
    )


def test_modsulq_is_sound_on_every_quantity() -> None:
    for quantity in ModSulq.quantities:
        assert ModSulq.calibrated(setting(quantity)).guarantee.epsilon < 1
    assert modsulq_scale(Fraction(1), Fraction(99, 100), 1) >= 1


def test_wishart_noise_has_no_guarantee_and_says_why() -> None:
    fitted = Wishart.calibrated(setting(epsilon="0.5"))
    assert isinstance(fitted.guarantee, NoGuarantee)
    assert "0.393" in str(fitted.guarantee)
    assert fitted.claim.is_pure
    for epsilon, lost in (("0.1", 0.0952), ("0.5", 0.3935), ("1", 0.6321), ("3", 0.9502)):
        assert impossible_probability(Fraction(epsilon), Fraction(1)) == pytest.approx(lost, abs=5e-5)


def test_the_size_of_wishart_noise() -> None:
    """E = (d+1)/(2ε)·I, and the deviations of both kinds of entries."""
    fitted = Wishart.calibrated(unit_setting(Quantity.SECOND_MOMENT, 54, Fraction(1)))
    bound, law = fitted.setting.record_bound, fitted.law(1)
    assert float(55 * fitted.scale**2 / bound) == pytest.approx(27.5)
    assert math.sqrt(law.diagonal) / bound == pytest.approx(5.2440, abs=6e-5)
    assert math.sqrt(law.off_diagonal) / bound == pytest.approx(3.7081, abs=6e-5)


def test_wishart_sums_are_the_same_beyond_64_bits() -> None:
    factors = [3, -5, 2**40, 1, 7, -(2**40), 2, 0, 11, 4, 4, 4]
    large = Wishart(setting(d=3), Fraction(2**40))
    assert large.draw_triangle(1, Samplers(gaussian=lambda variance, count, bound: factors)) == [
        sum(factors[3 * row + i] * factors[3 * row + j] for row in range(4))
        for i in range(3)
        for j in range(i, 3)
    ]


@pytest.mark.parametrize("mechanism", [*PUBLISHED, Gaussian])
def test_noise_as_a_matrix_is_the_noise_of_the_mechanism(mechanism: type[Mechanism]) -> None:
    """In units where rows have norm 1: the draws that the mechanism makes, on both sides of the diagonal."""
    fitted = mechanism.calibrated(unit_setting(Quantity.SECOND_MOMENT, 3, Fraction(1), DELTA))

    def counted(scale: Fraction, count: int, *bound: int) -> list[int]:
        return list(range(1, count + 1))

    noise = noise_matrix(fitted, Samplers(gaussian=counted, laplace=counted))
    expected = fitted.draw_triangle(1, Samplers(gaussian=counted, laplace=counted))
    assert noise[np.triu_indices(3)].tolist() == expected
    assert (noise == noise.T).all()


@pytest.mark.parametrize(
    ("quantity", "factor"), [(Quantity.SECOND_MOMENT, 0.35673), (Quantity.SCATTER, 1.0090)]
)
def test_the_laplace_noise_on_musk(quantity: Quantity, factor: float) -> None:
    fitted = PublishedLaplace.calibrated(unit_setting(quantity, 166, Fraction(1)))
    assert float(fitted.scale) / fitted.setting.record_bound / 6598 == pytest.approx(0.0503183, rel=1e-6)
    assert float(fitted.guarantee.epsilon) == pytest.approx(factor, abs=6e-6 if factor < 1 else 6e-5)


def test_the_published_table_in_one_norm() -> None:
    """2·sd·√d of three noises on R/n, n = 20,000, d = 54, ε = 1, δ = 1/n²; the paper mixes two norms."""
    n, d = 20_000, 54
    given = unit_setting(Quantity.SECOND_MOMENT, d, Fraction(1), Fraction(1, n**2))
    expected = ((PublishedGaussian, 0.00465), (ModSulq, 0.293), (PublishedLaplace, 0.112))
    for mechanism, norm in expected:
        deviation = math.sqrt(mechanism.calibrated(given).law(1).off_diagonal) / given.record_bound / n
        assert noise_norm(deviation, d) == pytest.approx(norm, rel=5e-3)


@pytest.mark.parametrize(
    ("d", "n", "eigenvalue", "least"),
    [
        (166, 6598, 0.118896, 7.71),
        (166, 6598, 0.085809, 10.7),
        (166, 3500, 0.118896, 14.5),
        (166, 3500, 0.085809, 20.1),
        (54, 20_000, 0.0855826, 0.656),
        (54, 580_000, 0.0855826, 0.0226),
        (10, 20_000, 0.0141865, 0.315),
        (10, 580_000, 0.0141865, 0.0109),
    ],
)
def test_where_a_component_is_lost_in_published_laplace_noise(
    d: int, n: int, eigenvalue: float, least: float
) -> None:
    assert least_laplace_epsilon(d, n, eigenvalue) == pytest.approx(least, rel=5e-3)
    fitted = PublishedLaplace.calibrated(
        unit_setting(Quantity.SECOND_MOMENT, d, Fraction(least_laplace_epsilon(d, n, eigenvalue)))
    )
    deviation = math.sqrt(fitted.law(1).off_diagonal) / fitted.setting.record_bound / n
    assert least_visible(deviation, d) == pytest.approx(eigenvalue, rel=1e-6)


@pytest.mark.parametrize(("d", "eigenvalue", "records"), [(116, 0.477638, 132_030), (150, 0.356, 265_209)])
def test_from_how_many_records_modsulq_sees_a_component(d: int, eigenvalue: float, records: int) -> None:
    scale = float(modsulq_scale(Fraction(1, 10), Fraction(1, 100), d))
    assert least_visible(scale, d) / eigenvalue == pytest.approx(records, rel=1e-5)


def test_the_published_discretizer_and_its_price() -> None:
    rows = np.array([[0.0, 10.0], [0.5, 20.0], [1.0, 40.0]])
    lower, upper = rows.min(axis=0), rows.max(axis=0)  # of the data, as the paper has them
    discretize = PublishedDiscretizer(lower, upper, 2**4 - 1)
    assert discretize(rows).tolist() == [[0, 0], [7, 5], [15, 15]]  # 7.5 becomes 7: the paper rounds down
    assert discretize(np.array([[-5.0, 99.0]])).tolist() == [[0, 15]]
    # Opposite corners of the cube move the scatter by 4K(N−1)/N; τ is not rescaled, so ε is beyond use.
    assert discretize.record_bound == Fraction(2 * 15**2, 4)
    assert discretize.real_epsilon(Fraction(1), Fraction(1, 10**5)) == pytest.approx(4710, rel=1e-3)
    unit = PublishedDiscretizer(np.zeros(1), np.ones(1), 15)
    assert unit(np.array([[0.5], [0.98], [1.0]])).ravel().tolist() == [7, 14, 15]
    whole = PublishedDiscretizer(np.zeros(1), np.full(1, 49.0), 49)
    steps = np.arange(50.0)[:, None]
    assert (whole(steps) == steps).all()  # what lies on a step keeps it
    for bits in (0, 32):
        with pytest.raises(UsageError):
            PublishedDiscretizer(lower, upper, 2**bits - 1)
    with pytest.raises(UsageError):
        PublishedDiscretizer(rows[0], rows[0], 2**4 - 1)


def test_a_study_without_clipping_encodes_as_the_published_discretizer(
    make_manifest: MakeManifest, draft: dict[str, Any]
) -> None:
    """Equation 5 between public bounds, in 2q steps, half a step higher: a study rounds to the nearest."""
    manifest = make_manifest(
        features=[{k: v for k, v in f.items() if k != "centre"} for f in draft["features"]],
        release="masked",
        clip_norm="1.7320508",
        fraction_bits=6,
    )
    features, q = manifest.features, manifest.figures.grid
    lower, upper = (np.array([float(getattr(f, end)) for f in features]) for end in ("lower", "upper"))
    shares = np.random.default_rng(5).uniform(0.05, 0.95, (500, 3))  # noqa: TID251 - data, not noise
    rows = lower + shares * (upper - lower)
    batch = RecordEncoder(manifest).encode({f.name: rows[:, i] for i, f in enumerate(features)})
    discretize = PublishedDiscretizer(lower, upper, 2 * q)
    half = (upper - lower) / (4 * q)
    assert (batch.z + q == discretize(rows + half)).all()
    assert 0 < (batch.z + q - discretize(rows)).mean() < 1
    assert batch.report.clipped == 0


@pytest.mark.parametrize("mechanism", [PublishedGaussian, PublishedLaplace, Wishart])
def test_a_quantity_that_a_mechanism_is_not_made_for_is_refused(mechanism: type[Mechanism]) -> None:
    with pytest.raises(UsageError, match="the joint release"):
        mechanism.calibrated(setting(Quantity.JOINT))


@pytest.mark.parametrize("mechanism", [PublishedGaussian, PublishedLaplace, ModSulq])
def test_less_noise_than_the_formula_gives_is_refused(mechanism: type[Mechanism]) -> None:
    fitted = mechanism.calibrated(setting())
    with pytest.raises(UsageError, match="noise scale"):
        mechanism(fitted.setting, fitted.scale * Fraction(999, 1000))
