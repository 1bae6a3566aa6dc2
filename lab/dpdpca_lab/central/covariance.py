"""Private covariance matrices of Dong, Liang, Yi 2022, for their leading directions.

Rows have a norm of at most r, and neighbours differ in one replaced row. Then Σ x xᵀ moves by at most √2·r²
in the Frobenius norm, and its eigenvalues by at most √2·r² in ℓ₂. All noise is Gaussian, in floats.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.central.entropy import Floats, RealDraws

_SEPARATE_SHARE = 0.5
"""Of ρ for the eigenvectors. The other half pays for eigenvalues, which directions do not need."""
_SEARCH_SHARE = 0.25
"""Of ρ for the search of a clip norm."""
_RADII = 40
"""Powers of two that the search may go down."""


def entry_scale(rho: float, radius: float = 1.0) -> float:
    """The standard deviation of each entry of the triangle of Σ x xᵀ for ρ-zCDP: √2·r²/√(2ρ)."""
    return radius**2 / float(np.sqrt(rho))


def gauss_cov(moment: Floats, rho: float, draws: RealDraws, radius: float = 1.0) -> Floats:
    """Σ x xᵀ with independent normal noise on its triangle.

    Args:
        moment: (d, d) Σ x xᵀ over rows of norm at most `radius`.
        rho: of zCDP.
        draws: source of normal values.
        radius: r.
    """
    d = len(moment)
    noise = np.triu(draws.normals(d, d) * entry_scale(rho, radius))
    return np.asarray(moment + noise + np.triu(noise, 1).T)


def separate_cov(moment: Floats, rho: float, draws: RealDraws) -> Floats:
    """The matrix whose eigenvectors SeparateCov releases, for rows of norm at most 1: `gauss_cov` at ρ/2.

    Args:
        moment: (d, d) Σ x xᵀ.
        rho: of the whole release, with the eigenvalues.
        draws: source of normal values.
    """
    return gauss_cov(moment, _SEPARATE_SHARE * rho, draws)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A noisy Σ x xᵀ of rows that were clipped to `radius`."""

    matrix: Floats
    radius: float


def adaptive_cov(rows: NDArray[np.floating], rho: float, draws: RealDraws) -> Adaptive:
    """AdaptiveCov, for directions: a clip norm from a private search, then `gauss_cov` with the rest of ρ.

    The original then takes either GaussCov or SeparateCov, whichever it expects to be nearer to the matrix.
    SeparateCov would give half of what is left to eigenvalues, so we always take the former.

    Args:
        rows: (n, d) of norm at most 1.
        rho: of zCDP.
        draws: source of normal, uniform and Laplace values.
    """
    rest = (1 - _SEARCH_SHARE) * rho
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    radius = search_radius(squares, rows.shape[1], rest, np.sqrt(2 * _SEARCH_SHARE * rho), draws)
    shrunk = np.minimum(1, radius / np.sqrt(np.maximum(squares, 1e-300)))
    clipped = rows * shrunk[:, None]
    return Adaptive(gauss_cov(clipped.T @ clipped, rest, draws, radius), radius)


def search_radius(squares: Floats, d: int, rho: float, epsilon: float, draws: RealDraws) -> float:
    """Twice the first radius 1, ½, ¼ … at which clipping takes more than noise adds; never above 1.

    Clipping to r takes Σ (|x|² − r²)₊ from the trace. One row moves it by at most 1. The noise of `gauss_cov`
    has a Frobenius norm of about d·r²/√ρ. The sparse vector technique compares the two.

    Args:
        squares: (n,) squared norms of the rows, at most 1.
        d: number of columns.
        rho: of the release that follows.
        epsilon: of the search, which is pure; it costs ε²/2 in zCDP.
        draws: source of Laplace values.
    """
    threshold = 2 / epsilon * float(draws.laplaces(1)[0])
    for radius in 0.5 ** np.arange(_RADII):
        taken = float(np.maximum(squares - radius**2, 0).sum())
        noise = d * entry_scale(rho, radius)
        if taken - noise + 4 / epsilon * float(draws.laplaces(1)[0]) >= threshold:
            return min(1.0, 2 * float(radius))
    return float(radius)
