"""SeparateCov and AdaptiveCov: the scale of their noise, and the clip norm that a search finds."""

import numpy as np
import pytest

from dpdpca_lab.central.covariance import (
    adaptive_cov,
    entry_scale,
    gauss_cov,
    search_radius,
    separate_cov,
)
from dpdpca_lab.central.entropy import Floats, RealDraws


def entries(matrices: list[Floats]) -> Floats:
    upper = np.triu_indices(len(matrices[0]))
    return np.array([matrix[upper] for matrix in matrices])


def test_the_scale_is_that_of_zcdp() -> None:
    """ρ = D²/(2σ²) with D = √2·r² gives σ = r²/√ρ."""
    assert entry_scale(0.25) == pytest.approx(2)
    assert entry_scale(2.0, 0.5) == pytest.approx(0.25 / 2**0.5)


def test_noise_is_symmetric_and_independent_on_the_triangle(draws: RealDraws) -> None:
    moment = np.diag([5.0, 2.0, 1.0])
    noisy = [gauss_cov(moment, 0.25, draws) for _ in range(4000)]
    assert all(np.array_equal(matrix, matrix.T) for matrix in noisy)
    found = entries(noisy)
    assert found.mean(axis=0) == pytest.approx(moment[np.triu_indices(3)], abs=0.15)
    assert found.std(axis=0) == pytest.approx(2, rel=0.06)
    assert np.abs(np.corrcoef(found.T) - np.eye(6)).max() < 0.08


def test_separate_cov_spends_half_on_eigenvectors(draws: RealDraws) -> None:
    noisy = entries([separate_cov(np.zeros((3, 3)), 0.25, draws) for _ in range(4000)])
    assert noisy.std(axis=0) == pytest.approx(2 * 2**0.5, rel=0.06)


def test_adaptive_cov_clips_to_what_it_finds_and_adds_noise_for_it(draws: RealDraws) -> None:
    """¾ρ is left for the noise, which shrinks with the square of the radius."""
    rows = np.zeros((4000, 3))
    rows[:, 0], rows[0] = 0.1, [0.0, 1.0, 0.0]
    found = [adaptive_cov(rows, 4.0, draws) for _ in range(600)]
    assert len({each.radius for each in found}) > 2
    errors = []
    for each in found:
        clipped = np.diag([3999 * min(0.1, each.radius) ** 2, each.radius**2, 0])
        errors.append((each.matrix - clipped) / each.radius**2)
    noise = entries(errors)
    assert noise.mean(axis=0) == pytest.approx(0, abs=0.12)
    assert noise.std(axis=0) == pytest.approx(1 / 3**0.5, rel=0.15)


def test_the_search_finds_the_norm_of_the_rows(draws: RealDraws) -> None:
    """With next to no noise in the search: at 1/16 clipping takes more than noise, at 1/8 nothing."""
    assert search_radius(np.full(4000, 0.01), 3, 3.0, 1e9, draws) == 0.125


def test_the_search_never_gives_more_than_the_known_norm(draws: RealDraws) -> None:
    assert {search_radius(np.ones(1000), 3, 1.0, 1.0, draws) for _ in range(20)} == {1.0}


def test_the_search_ends_where_there_is_nothing_to_find(draws: RealDraws) -> None:
    radii = [search_radius(np.zeros(10), 3, 1.0, 1e6, draws) for _ in range(20)]
    assert all(0 < radius < 0.02 for radius in radii)
