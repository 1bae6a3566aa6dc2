"""Yun and Dudeja: formulas against their own derivation, calibration both ways, what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from present import present

from dpdpca_lab.central.asymptotic import (
    RELATIONS,
    Spectrum,
    calibrate,
    draw_direction,
    privacy_sigma,
    utility,
    utility_curve,
    worst_case_epsilon,
)
from dpdpca_lab.central.entropy import RealDraws
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


def test_a_draw_is_a_unit_vector(draws: RealDraws) -> None:
    vectors = draw_direction(np.diag(levels(20)), 4.0, draws, count=5)
    assert vectors.shape == (5, 20)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)


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
    ],
)
def test_what_is_out_of_range_is_refused(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError):
        function(*arguments)
