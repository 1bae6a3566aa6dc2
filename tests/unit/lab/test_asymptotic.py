"""Yun and Dudeja: formulas against their own derivation, calibration both ways, what is refused."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from present import present

from dpdpca_lab.central.asymptotic import (
    RELATIONS,
    Spectrum,
    calibrate,
    draw_frames,
    kernel_basis,
    loss_statistics,
    privacy_sigma,
    utility,
    utility_curve,
    worst_case_epsilon,
    worst_record,
)
from dpdpca_lab.central.entropy import RealDraws
from dpdpca_lab.central.tradeoff import (
    approximate_tradeoff,
    gaussian_tradeoff,
    measured_tradeoff,
    renyi_tradeoff,
    tradeoff_errors,
)
from dpdpca_protocol.errors import PolicyError, UsageError


def levels(p: int) -> NDArray[np.float64]:
    """Two spikes, 3 and 2, above a bulk whose H comes out as in the notes' runs."""
    return np.concatenate([[3.0, 2.0], np.linspace(0.895, 1.495, p - 2)])


NOTES = [
    (100, 2000, 4, 0.1390, 0.476, 0.928),
    (400, 16000, 2, 0.2796, 0.320, 0.600),
    (400, 16000, 4, 0.1398, 0.476, 0.927),
    (400, 16000, 10, 0.0559, 0.775, 1.536),
]


@pytest.mark.parametrize(("p", "n", "beta", "lost", "add", "replace"), NOTES)
def test_the_formulas_give_the_notes_figures(
    p: int, n: int, beta: int, lost: float, add: float, replace: float
) -> None:
    spectrum = Spectrum.of(levels(p), 1)
    theta = n / p**1.5
    assert utility(spectrum, beta).operator_squared == pytest.approx(lost, rel=5e-3)
    assert privacy_sigma(spectrum, beta, theta, "add-or-remove") == pytest.approx(add, rel=7e-3)
    assert privacy_sigma(spectrum, beta, theta) == pytest.approx(replace, rel=2e-3)


def test_sigma_is_the_largest_over_all_records() -> None:
    """θ²σ² against a grid over the derivation's own angles: t for one record, (a, b) for a pair."""
    spectrum = Spectrum.of(levels(100), 1)
    own = -spectrum.slope / 2
    for beta in (0.6, 0.7, 0.9, 2.0, 10.0):
        cross = (beta - spectrum.last) / spectrum.gap
        t = np.linspace(0, 1, 4001)
        added = (t**2 * own + t * (1 - t) * cross).max()
        a, b = np.meshgrid(np.linspace(0, 2 * np.pi, 401), np.linspace(0, 2 * np.pi, 401))
        half, other = (a + b) / 2, (a - b) / 2
        replaced = (np.sin(half) ** 2 * (own * np.sin(other) ** 2 + cross * np.cos(other) ** 2)).max()
        assert privacy_sigma(spectrum, beta, 1.0, "add-or-remove") ** 2 == pytest.approx(added, rel=1e-5)
        assert privacy_sigma(spectrum, beta, 1.0) ** 2 == pytest.approx(replaced, rel=1e-4)


@pytest.mark.parametrize("relation", RELATIONS)
def test_calibration_is_the_inverse(relation: str) -> None:
    spectrum = Spectrum.of(levels(100), 1)
    plateau = np.sqrt(-spectrum.slope / 2) / 2.0
    for target in (1.001 * plateau, 0.3, 1.0, 5.0):
        beta = calibrate(spectrum, 2.0, target, relation)
        assert beta > spectrum.last
        assert privacy_sigma(spectrum, beta, 2.0, relation) == pytest.approx(target)
        assert privacy_sigma(spectrum, beta * 1.01, 2.0, relation) > target


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_target_below_the_plateau_is_refused(relation: str) -> None:
    """Clamping the root at 0 there would return a β that is calibrated to nothing."""
    spectrum = Spectrum.of(levels(100), 1)
    least = np.sqrt(-spectrum.slope / 2) / 2.0
    with pytest.raises(PolicyError, match="least of this data set"):
        calibrate(spectrum, 2.0, 0.999 * least, relation)
    assert privacy_sigma(spectrum, spectrum.last * 1.0001, 2.0, relation) == pytest.approx(least, rel=1e-6)


def test_directions_appear_one_after_another() -> None:
    spectrum = Spectrum.of(levels(100), 2)
    first, second = spectrum.sums
    assert first < second == spectrum.last
    between = utility(spectrum, (first + second) / 2)
    assert between.lost_overlaps[0] < 1 == between.lost_overlaps[1]
    assert between.frobenius_squared == pytest.approx(2 * (between.lost_overlaps[0] + 1))
    assert utility(spectrum, first / 2).frobenius_squared == 4


def test_the_curve_lists_what_is_out_of_reach() -> None:
    curve = utility_curve(levels(100), 1, 2000, [0.01, 0.5, 2.0])
    assert curve[0]["beta"] is None
    assert curve[0]["operator_squared"] is None
    assert present(curve[1]["operator_squared"]) > present(curve[2]["operator_squared"])
    assert curve[1]["frobenius_squared"] == pytest.approx(2 * present(curve[1]["operator_squared"]))


def test_the_worst_case_is_another_matter() -> None:
    assert worst_case_epsilon(400, 16000, 4) == 40
    assert worst_case_epsilon(400, 16000, 4, "add-or-remove") == 20
    assert worst_case_epsilon(100, 2000, 4) == 20


def test_every_figure_of_one_spectrum() -> None:
    values = levels(100)
    one, two = Spectrum.of(values, 1), Spectrum.of(values, 2)
    assert (one.last, one.slope, one.gap) == pytest.approx((0.558127, -0.319522, 1), abs=6e-7)
    assert two.sums == pytest.approx([0.548127, 1.280360], abs=6e-7)
    assert (two.slope, two.gap) == pytest.approx((-1.762047, 0.505), abs=6e-7)
    theta = 2000 / 100**1.5
    assert theta == 2
    assert privacy_sigma(one, 0.8, theta, "add-or-remove") == pytest.approx(0.199851, abs=6e-7)
    assert privacy_sigma(one, 0.877649, theta, "add-or-remove") == pytest.approx(0.199851, abs=2e-6)
    assert privacy_sigma(one, 4, theta, "add-or-remove") == pytest.approx(0.474961, abs=6e-7)
    assert privacy_sigma(one, 4, theta) == pytest.approx(0.927614, abs=6e-7)
    assert worst_record(one, 4) == pytest.approx(0.524338, abs=6e-7)
    assert worst_record(one, 0.8) == 1
    assert utility(one, 4).operator_squared == pytest.approx(0.139532, abs=6e-7)
    assert calibrate(one, theta, 0.5, "add-or-remove") == pytest.approx(4.391418, abs=6e-7)
    assert calibrate(one, theta, 0.5) == pytest.approx(1.558127, abs=6e-7)


def test_the_betas_of_the_captions_lie_on_one_curve() -> None:
    """β of σ = 0.5, 1 and 1.5 in the caption, with three unknowns fitted to three values."""
    fitted = Spectrum(np.array([0.578554]), -2 * 0.213317, 0.898658)
    for sigma, beta in ((0.5, 1.2), (1.0, 3.97), (1.5, 8.47)):
        assert calibrate(fitted, 1.0, sigma, "add-or-remove") == pytest.approx(beta, rel=1e-4)
    with pytest.raises(PolicyError):
        calibrate(fitted, 1.0, 0.4618, "add-or-remove")


@pytest.mark.parametrize("k", [1, 2])
def test_draws_are_frames_in_the_eigenbasis(draws: RealDraws, k: int) -> None:
    frames = list(islice(draw_frames(levels(20)[::-1], 40.0, k, draws), 30))
    assert all(frame.shape == (k, 20) for frame in frames)
    assert all(np.allclose(frame @ frame.T, np.eye(k)) for frame in frames)
    assert np.mean([(frame[:, 20 - k :] ** 2).sum() for frame in frames]) > 0.9 * k


def test_rows_in_the_eigenbasis_of_a_wide_table(draws: RealDraws) -> None:
    rows = draws.normals(6, 15)
    values, coordinates = kernel_basis(rows)
    assert values == pytest.approx(np.linalg.eigvalsh(rows.T @ rows / 6)[::-1], abs=1e-9)
    assert np.allclose(coordinates.T @ coordinates / 6, np.diag(values[:6]))
    assert np.allclose(coordinates @ coordinates.T, rows @ rows.T)
    tall, turned = kernel_basis(rows.T)
    assert tall == pytest.approx(np.linalg.eigvalsh(rows @ rows.T / 15)[::-1])
    assert turned.shape == (15, 6)


@pytest.mark.parametrize("k", [1, 2])
def test_the_measured_loss_is_about_the_predicted_one(draws: RealDraws, k: int) -> None:
    """Seeded, so it always gives the same; the statistical tests and experiments draw afresh."""
    spectrum, count = Spectrum.of(levels(60), k), 400 if k == 1 else 60
    n = round(2 * 60**1.5)
    absent, present = loss_statistics(levels(60), k, n, 4.0, count, draws)
    sigma = privacy_sigma(spectrum, 4.0, n / 60**1.5, "add-or-remove")
    assert absent.std() == pytest.approx(sigma, rel=0.3)
    assert present.std() == pytest.approx(sigma, rel=0.3)
    # The Gaussian pair N(0, 1) and N(σ, 1), in units of σ: the means lie σ² apart.
    assert present.mean() - absent.mean() == pytest.approx(sigma**2, abs=4 * sigma * (2 / count) ** 0.5)


TRADE_OFFS = [
    (lambda a: gaussian_tradeoff(a, 0.5), 0.873865),
    (lambda a: gaussian_tradeoff(a, 1.0), 0.740489),
    (lambda a: gaussian_tradeoff(a, 1.5), 0.557587),
    (lambda a: approximate_tradeoff(a, 1.0), 0.864086),
    (lambda a: approximate_tradeoff(a, 1.0, 0.01), 0.854086),
    (lambda a: renyi_tradeoff(a, 2.0, 1.0), 0.664311),
    (lambda a: approximate_tradeoff(a, 20.0), 1.96e-9),
]


@pytest.mark.parametrize(("function", "value"), TRADE_OFFS)
def test_trade_off_functions(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]], value: float
) -> None:
    assert function(np.array([0.05]))[0] == pytest.approx(value, rel=3e-3 if value < 1e-6 else 1e-6)
    grid = np.linspace(0, 1, 201)
    errors = function(grid)
    assert errors.shape == grid.shape
    assert errors[-1] == 0
    assert (errors <= 1 - grid + 1e-12).all()
    assert (np.diff(errors) <= 1e-12).all()
    assert (np.diff(errors, 2) >= -1e-9).all()  # convex
    # Between symmetric pairs, exchanging the errors gives the same curve.
    inside = (errors > 1e-3) & (grid > 0.01)
    assert np.allclose(function(errors[inside]), grid[inside], atol=1e-6)


def test_renyi_bounds_of_any_order_stay_below_the_exact_curve() -> None:
    """A Gaussian pair of σ has divergence ασ²/2 at every order, so its curve obeys every bound."""
    grid = np.linspace(0.001, 0.999, 50)
    for order in (1.01, 1.5, 3.0, 50.0):
        assert (renyi_tradeoff(grid, order, order / 2) <= gaussian_tradeoff(grid, 1.0) + 1e-9).all()
    assert renyi_tradeoff(grid, 2.0, 0.0) == pytest.approx(1 - grid)
    assert renyi_tradeoff(np.array([0.0, 1.0]), 2.0, 1.0).tolist() == [1, 0]


def test_a_measured_trade_off() -> None:
    absent, present = np.arange(100.0), np.arange(100.0) + 30
    measured = measured_tradeoff(np.array([0.0, 0.1, 0.5]), absent, present)
    assert measured == pytest.approx([0.7, 0.6, 0.2], abs=0.011)


def test_the_errors_of_a_measured_trade_off(draws: RealDraws) -> None:
    """They are about the spread of many measurements, also where draws depend on their neighbours."""
    grid, runs, count = np.array([0.1, 0.3, 0.5]), 60, 400
    for repeated in (1, 4):
        measured, errors = [], []
        for _ in range(runs):
            absent, present = draws.normals(count // repeated), draws.normals(count // repeated) + 1
            sides = np.repeat(absent, repeated), np.repeat(present, repeated)
            measured.append(measured_tradeoff(grid, *sides))
            errors.append(tradeoff_errors(grid, *sides))
        # Seeded, so it always gives the same. Errors that took all draws for independent would be half of it.
        assert np.mean(errors, axis=0) / np.std(measured, axis=0) == pytest.approx(1, abs=0.35)


def test_a_pure_bound_of_any_size_has_a_curve() -> None:
    assert approximate_tradeoff(np.array([0.0, 0.01, 1.0]), 5000.0) == pytest.approx([1, 0, 0])


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (Spectrum.of, (levels(10), 0)),
        (Spectrum.of, (levels(10), 10)),
        (Spectrum.of, (np.ones(4), 1)),
        (Spectrum.of, (np.array([np.inf, 1.0]), 1)),
        (utility, (Spectrum.of(levels(10), 1), 0.0)),
        (privacy_sigma, (Spectrum.of(levels(10), 1), 0.01, 1.0)),
        (privacy_sigma, (Spectrum.of(levels(10), 1), 9.0, 0.0)),
        (privacy_sigma, (Spectrum.of(levels(10), 1), 9.0, 1.0, "adjacent")),
        (calibrate, (Spectrum.of(levels(10), 1), 1.0, float("nan"))),
        (calibrate, (Spectrum.of(levels(10), 1), 1.0, 1.0, "adjacent")),
        (worst_case_epsilon, (0, 1, 1.0)),
        (worst_case_epsilon, (1, 1, -1.0)),
        (worst_case_epsilon, (1, 1, 1.0, "adjacent")),
        (draw_frames, (levels(10), 1.0, 0)),
        (draw_frames, (levels(10), 0.0, 1)),
        (gaussian_tradeoff, (np.array([1.1]), 1.0)),
        (tradeoff_errors, (np.array([0.5]), np.zeros(9), np.zeros(3), 4)),
        (renyi_tradeoff, (np.array([0.5]), 1.0, 1.0)),
        (renyi_tradeoff, (np.array([0.5]), 2.0, -1.0)),
    ],
)
def test_what_is_out_of_range_is_refused(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError):
        function(*arguments)
