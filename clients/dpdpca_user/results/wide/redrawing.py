"""How reliable the components of a lift are: intervals from drawing the known noise again.

The noise is the same in every basis. So it is drawn in the basis of the released components, where only k × k
numbers and the sums of squares of all others matter. The work grows with k³, whatever d is.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from dpdpca_protocol.privacy.mechanisms import NoiseLaw
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.result.components import Floats
from dpdpca_user.results.deviates import normal_deviates, symmetric_noise
from dpdpca_user.results.wide.choice import Visibility
from dpdpca_user.results.wide.estimates import WideComponents
from dpdpca_user.results.wide.lift import LiftReading

DRAWS = 200
_TAIL = 5.0
_FEW = 256
"""Degrees of freedom from which a sum of squares is drawn by an approximation."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """5 % and 95 % points for the k̂ components above the noise edge.

    Attributes:
        share_low, share_high: (k̂,) for k = 1 … k̂, the variance that the first k components capture, as a
            share of what the best k capture; empty if the lift gives no variances.
        overlap_low, overlap_high: (k̂,) the squared cosine of each component with the true one.
    """

    share_low: Floats
    share_high: Floats
    overlap_low: Floats
    overlap_high: Floats


@dataclass(frozen=True, slots=True)
class ScoresNoise:
    """The noise of a scores round on variances: its deviations on and off the diagonal of their matrix."""

    diagonal: float
    off_diagonal: float

    @classmethod
    def of(cls, law: NoiseLaw, degrees: int, of_pairs: bool) -> "ScoresNoise":
        """Args: the law of all draws on the released integers; the divisor that gives a covariance."""
        divisor = degrees * (2 if of_pairs else 1)
        return cls(float(law.diagonal) ** 0.5 / divisor, float(law.off_diagonal) ** 0.5 / divisor)


def redraw(
    components: WideComponents,
    seen: Visibility,
    lift: LiftReading,
    noise: ScoresNoise | None,
    randomness: Randomness,
    draws: int = DRAWS,
) -> Intervals:
    """Intervals for the components of a lift.

    Args:
        components, seen, lift: of the same chain, with variances in grid² units.
        noise: of the scores, in grid² units; None without scores.
        randomness: for the simulated noise, which is not part of a release.
        draws: how often the noise is drawn.

    Source: parametric bootstrap. A lift without noise has the k̂ signals σ, and its directions the variances
        that the release shows, divided by their overlaps; all other directions share what is left. A draw is
        the eigenproblem of TᵀT + t²W, where T is k̂ × k, the signals with noise, and W is a Wishart matrix of
        d − k̂ degrees, the sums of products of all other noise. Then the scores turn the directions found.
    Tested: tests/statistical/test_wide.py.
    """
    k, d = lift.vectors.shape
    above, trusted = lift.trusted_count, components.trusted_count
    nothing = np.zeros(0)
    if not trusted:
        return Intervals(nothing, nothing, nothing, nothing)
    within = np.ones(k)
    within[: len(seen.overlaps)] = seen.overlaps[:k]
    within = within[:trusted]
    known = components.variances is not None
    variances, rest = np.ones(trusted), 0.0
    if components.variances is not None:
        variances = np.maximum(components.variances[:trusted], 0) / components.overlaps[:trusted] * within
        rest = max(components.total_variance - float(variances.sum()), 0.0) / max(d - trusted, 1)
    best = np.cumsum(np.sort(variances / within)[::-1])
    shares, overlaps = np.zeros((draws, trusted)), np.zeros((draws, trusted))
    for index in range(draws):
        found = _directions(lift, trusted, randomness)
        held = (found * variances[:, None]).T @ found + rest * (np.eye(k) - found.T @ found)
        turn = np.eye(k)
        if noise is not None:
            drawn = held + symmetric_noise(k, noise.diagonal, noise.off_diagonal, randomness)
            turn[:above, :above] = np.linalg.eigh(drawn[:above, :above])[1][:, ::-1]
        shares[index] = np.cumsum(np.einsum("ij,ij->j", turn, held @ turn))[:trusted] / best
        overlaps[index] = np.diag(found @ turn)[:trusted] ** 2 * within
    overlap_low, overlap_high = np.percentile(overlaps, [_TAIL, 100 - _TAIL], axis=0)
    share_low, share_high = (
        np.percentile(shares, [_TAIL, 100 - _TAIL], axis=0) if known else (nothing, nothing)
    )
    return Intervals(share_low, np.minimum(share_high, 1.0), overlap_low, overlap_high)


def _directions(lift: LiftReading, trusted: int, randomness: Randomness) -> Floats:
    """(k̂, k) the coordinates of the directions of another release along the k̂ true ones."""
    k, d = lift.vectors.shape
    t = lift.noise_scale
    top = t * normal_deviates(trusted * k, randomness).reshape(trusted, k)
    top[:, :trusted] += np.diag(lift.signals[:trusted])
    root = t * _wishart_root(k, d - trusted, randomness)
    squares, right = np.linalg.eigh(top.T @ top + root.T @ root)
    found: Floats = top @ (right[:, ::-1] / np.sqrt(np.maximum(squares[::-1], np.finfo(float).tiny)))
    return found


def _wishart_root(k: int, degrees: int, randomness: Randomness) -> Floats:
    """(k, k) upper triangular R, so that RᵀR is a Wishart matrix; Bartlett's decomposition."""
    root = np.zeros((k, k))
    upper = np.triu_indices(k, 1)
    root[upper] = normal_deviates(len(upper[0]), randomness)
    for index in range(k):
        root[index, index] = sqrt(_sum_of_squares(degrees - index, randomness))
    return root


def _sum_of_squares(degrees: int, randomness: Randomness) -> float:
    """A chi-squared deviate; by Wilson and Hilferty's approximation where it is good to four digits."""
    if degrees <= 0:
        return 0.0
    if degrees < _FEW:
        return float((normal_deviates(degrees, randomness) ** 2).sum())
    ninth = 2 / (9 * degrees)
    deviate = float(normal_deviates(1, randomness)[0])
    return degrees * max(1 - ninth + sqrt(ninth) * deviate, 0.0) ** 3
