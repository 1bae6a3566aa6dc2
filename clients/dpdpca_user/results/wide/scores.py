"""Reads opened scores: the variances of the released directions, their order, and the mean along them.

The scores are k × k sums of y = Vz, whose noise is known and far below the variances. So the eigenvalues of
their scatter estimate the variances that the directions really have, and need no shrinking.
"""

from dataclasses import dataclass

import numpy as np

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import NoiseLaw
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Floats, leading_pairs, scatter_matrix


@dataclass(frozen=True, slots=True)
class ScoresReading:
    """What opened scores show, in grid² units.

    Attributes:
        count: N, or the number of pairs.
        variances: (k,) of the turned directions, descending where they were turned; may be below 0 where
            noise dominates.
        deviations: (k,) standard deviations of the noise in them; for pairs, of their choice too.
        rotation: (k, k) orthonormal rows; `LiftReading.turned` applies them. Only directions above the noise
            edge of the lift are turned, among themselves.
        mean: (k,) the mean of the scores along the turned directions in grid units; None for pairs.
        mean_deviation: the standard deviation of the noise in each of its coordinates.
    """

    count: int
    variances: Floats
    deviations: Floats
    rotation: Floats
    mean: Floats | None
    mean_deviation: float


def read_scores(noisy: NoisyScatter, law: NoiseLaw, trusted: int) -> ScoresReading:
    """What opened scores show.

    Args:
        noisy: the opened scores with all draws of noise, k × k, in grid units.
        law: of the noise of all these draws, on the released integers.
        trusted: k̂ of the lift.

    Raises:
        UsageError: the sums have another length than the matrix, or k̂ is above k.

    Source: a turn of all k directions would sort noise: the largest of several noisy variances is too high,
        and directions of pure noise would come before weak components. So those below the edge keep their
        place and their own unbiased variance. The deviations are those of w·H·w for noise H, and of
        −2(w·μ)(w·e) for the noise e of the mean. The choice of n pairs moves a variance λ by λ/√n.
    Tested: tests/unit/user/test_wide_lift.py.
    """
    scatter = scatter_matrix(noisy)
    k = len(scatter)
    if trusted > k or (noisy.sum is not None and len(noisy.sum) != k):
        raise UsageError(
            "wrong-shape", f"scores of {k} columns do not fit their sums or {trusted} components"
        )
    factor = 2 if noisy.of_pairs else 1
    rotation = np.eye(k)
    if trusted:
        rotation[:trusted, :trusted] = leading_pairs(scatter[:trusted, :trusted], trusted)[1]
    variances = np.einsum("ji,il,jl->j", rotation, scatter, rotation) / noisy.degrees
    fourth = (rotation**4).sum(axis=1)
    energy = (fourth * float(law.diagonal) + 2 * (1 - fourth) * float(law.off_diagonal)) / factor**2
    mean, on_mean = None, 0.0
    if noisy.sum is not None:
        mean = rotation @ np.array([entry / noisy.count for entry in noisy.sum])
        energy += 4 * mean**2 * float(law.sum_)
        on_mean = float(law.sum_) ** 0.5 / noisy.count
    spread = energy / noisy.degrees**2
    if noisy.of_pairs:
        spread += variances**2 / noisy.count
    return ScoresReading(noisy.count, variances, np.sqrt(spread), rotation, mean, on_mean)
