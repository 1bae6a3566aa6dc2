"""The components of a study with many features, and what is known about each of them.

Everything comes from released numbers: the sketch says how strong components are and how well its directions
follow them, the lift has the directions themselves, and the scores have their variances. Without scores the
variances are lower bounds. Units are grid² per record, as in `read_scores`; `in_units` changes them.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.result.components import (
    BELOW_THE_EDGE,
    LOWER_BOUND,
    MIXTURE,
    OF_THE_SPAN,
    VARIANCE,
    Floats,
)
from dpdpca_user.results.wide.choice import Visibility
from dpdpca_user.results.wide.lift import LiftReading
from dpdpca_user.results.wide.scores import ScoresReading
from dpdpca_user.results.wide.sketch import SketchReading

_CLOSE = 0.8


@dataclass(frozen=True, slots=True)
class WideComponents:
    """Components of a lift, best first.

    Attributes:
        vectors: (k, d) orthonormal rows; the loading with the largest absolute value is positive.
        variances: (k,) what each component captures, or a lower bound; None if the lift gives none.
        deviations: (k,) standard deviations of their noise; None without scores.
        above_count: the number of leading directions above the noise edge of the lift.
        trusted_count: k̂, the number of these that the sketch shows too, so that they are components.
        overlaps: (k,) the expected squared cosine with the true component; 0 from k̂ on.
        of_span: (k,) whether this is about the span with a neighbour of nearly the same variance.
        singular_values: (k,) of the lift, descending; `noise_edge` is about these.
        noise_edge: the level that noise alone passes in at most one of 100 releases.
        total_variance, total_variance_deviation: of the sketch.
        unseen_variance: what a component may have without showing in the sketch.
        mean: (k,) the mean of the scores; None for pairs and without scores.
    """

    vectors: Floats
    variances: Floats | None
    deviations: Floats | None
    above_count: int
    trusted_count: int
    overlaps: Floats
    of_span: NDArray[np.bool_]
    singular_values: Floats
    noise_edge: float
    total_variance: float
    total_variance_deviation: float
    unseen_variance: float
    mean: Floats | None

    @property
    def kind(self) -> str:
        """What `variances` are."""
        return LOWER_BOUND if self.deviations is None else VARIANCE

    def label(self, index: int) -> str:
        """The label of component `index` (from 0)."""
        if index >= self.above_count:
            return BELOW_THE_EDGE
        if index >= self.trusted_count:
            return MIXTURE
        return OF_THE_SPAN if self.of_span[index] else ""

    def in_units(self, unit: float) -> Self:
        """The same with variances in another unit.

        Args:
            unit: the size of one grid step in the metric.
        """

        def squared(values: Floats | None) -> Floats | None:
            return None if values is None else values * unit**2

        return replace(
            self,
            variances=squared(self.variances),
            deviations=squared(self.deviations),
            total_variance=self.total_variance * unit**2,
            total_variance_deviation=self.total_variance_deviation * unit**2,
            unseen_variance=self.unseen_variance * unit**2,
            mean=None if self.mean is None else self.mean * unit,
        )

    def captured_share(self, k: int) -> tuple[float, bool] | None:
        """The fraction of the variance of the best k components that these k capture.

        Returns:
            The fraction in [0, 1], and whether it is an estimate or only a lower bound. It is an estimate for
            k ≤ k̂ with scores. None if the lift gives no variances.

        Raises:
            UsageError: k is out of range.

        Source: a true component has at least the variance that its direction captures. It has at most that
            divided by the overlap, and a component that is not found has at most `unseen_variance`.
        """
        if not 1 <= k <= len(self.vectors):
            raise UsageError(
                "wrong-shape", f"{k} components were requested, but there are {len(self.vectors)}"
            )
        if self.variances is None:
            return None
        trusted = min(k, self.trusted_count)
        found = self.variances[:trusted]
        best = float((found / self.overlaps[:trusted]).sum()) + (k - trusted) * self.unseen_variance
        captured = max(float(self.variances[:k].sum()), 0.0)
        share = captured / best if best > 0 else 0.0
        return min(share, 1.0), k <= self.trusted_count and self.deviations is not None


def wide_components(
    sketch: SketchReading, seen: Visibility, lift: LiftReading, scores: ScoresReading | None = None
) -> WideComponents:
    """The components of a chain of sketch, lift and scores.

    Args:
        sketch, seen: what the sketch shows.
        lift: what the lift shows.
        scores: of exactly the directions of `lift`; None if the chain has no scores.

    Source: a turn E of directions with squared cosines c has the squared cosines (Σᵢ Eⱼᵢ²√cᵢ)². A lift
        without noise has the overlaps of `Visibility` with the true components, and both are multiplied.
    """
    vectors, k = lift.vectors, len(lift.vectors)
    trusted = min(lift.trusted_count, seen.seen_count)
    overlaps, mean = lift.overlaps, None
    variances, deviations = _bounds_of(lift, sketch), None
    if scores is not None:
        vectors, signs = lift.turned(scores.rotation)
        overlaps = (scores.rotation**2 @ np.sqrt(lift.overlaps)) ** 2
        variances, deviations = scores.variances, scores.deviations
        mean = None if scores.mean is None else scores.mean * signs
    within = np.ones(k)
    within[: len(seen.overlaps)] = seen.overlaps[:k]
    return WideComponents(
        vectors=vectors,
        variances=variances,
        deviations=deviations,
        above_count=lift.trusted_count,
        trusted_count=trusted,
        overlaps=np.where(np.arange(k) < trusted, overlaps * within, 0.0),
        of_span=_close(variances, trusted, k),
        singular_values=lift.singular_values,
        noise_edge=lift.edge,
        total_variance=sketch.total_variance,
        total_variance_deviation=sketch.total_variance_deviation,
        unseen_variance=sketch.edge / (2 * sketch.degrees),
        mean=mean,
    )


def _bounds_of(lift: LiftReading, sketch: SketchReading) -> Floats | None:
    """The lower bounds per record. Σ y yᵀ over differences of pairs is twice their scatter."""
    if lift.lower_bounds is None:
        return None
    return lift.lower_bounds / (sketch.degrees * (2 if sketch.of_pairs else 1))


def _close(variances: Floats | None, trusted: int, k: int) -> NDArray[np.bool_]:
    close = np.zeros(k, dtype=np.bool_)
    if variances is not None and trusted > 1:
        ordered = np.sort(variances[:trusted])[::-1]
        near = ordered[1:] > _CLOSE * ordered[:-1]
        close[: trusted - 1] |= near
        close[1:trusted] |= near
    return close
