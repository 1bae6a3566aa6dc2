"""Reads an opened sketch: which directions of it vary, how strongly, and how far they can be trusted.

A sketch is the scatter of y = P₀z, m numbers for each record, with noise. It costs no budget to read. Besides
the noise, every direction of a sketch contains about tr Σ/m of ordinary variance of the d features that are
mixed in it. So the law of the noise alone cannot tell components from the rest. The spectrum of the sketch
itself can: the middle and the quartiles of its bulk show how wide the bulk is. Noise alone would make it a
half circle. Mixed features reach further up than down, and with the noise's known part the upper end follows.

Units: a scatter here is a sum over records in grid² units, as in `NoisyScatter`. Since E|P₀z|² = 2|z|², a
variance of λ grid² in the direction of a component gives 2λ·degrees in the sketch. This holds for pairs too,
where the scatter is half the second moment of differences.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from dpdpca_protocol.errors import ConflictError, UsageError
from dpdpca_protocol.privacy.mechanisms import NoiseLaw
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Floats, finite_size_factor, leading_pairs, scatter_matrix

MOST_COLUMNS = 100
"""The largest number of columns of a lift, and so of directions that are read."""

_QUARTILE = 0.404
"""The quartile of a half circle of radius 1."""
_STEPS = np.linspace(0, 1, 4096, endpoint=False)[1:]


@dataclass(frozen=True, slots=True)
class SketchReading:
    """What an opened sketch shows.

    Attributes:
        count: N, or the number of pairs.
        of_pairs: whether differences of pairs were summed instead of records.
        trace: tr S̃.
        bulk: b, the median eigenvalue.
        half_width: R, half the width of the bulk: noise and mixed features together.
        edge: e, the height above the bulk from which a direction can be told from it.
        noise_energy: m·v, with v the known variance of the noise off the diagonal of S̃; all draws.
        sums: (m,) ṽ in grid units, exact; all 0 for pairs.
        mean: (m,) ṽ/N.
        mean_square: |Σy/N|² without what noise adds to it.
        directions: (w, m) orthonormal rows Uⱼᵀ, strongest first; w is min(m, 100).
        heights: (w,) xⱼ = lⱼ − b.
        widths: (w,) Rⱼ; above R along the mean, where the noise of the sum adds to that of the matrix.
        seen_count: k₊, the number of leading directions above their edges.
        strengths: (k₊,) θⱼ, the estimated eigenvalue without noise and mixed features.
        trace_noise: the standard deviation of the noise in `trace`.
    """

    count: int
    of_pairs: bool
    trace: float
    bulk: float
    half_width: float
    edge: float
    noise_energy: float
    sums: tuple[int, ...]
    mean: Floats
    mean_square: float
    directions: Floats
    heights: Floats
    widths: Floats
    seen_count: int
    strengths: Floats
    trace_noise: float

    @property
    def rows(self) -> int:
        """m, the number of rows of the sketch."""
        return len(self.mean)

    @property
    def degrees(self) -> int:
        """The divisor of a scatter that gives a covariance: N − 1, or the number of pairs."""
        return self.count if self.of_pairs else max(self.count - 1, 1)

    @property
    def unseen_share(self) -> float:
        """The share of the total variance that a component below the edge is assumed to have: e/2."""
        return self.edge / 2 / self.trace

    @property
    def total_variance(self) -> float:
        """tr Σ in grid² units, of the cut records; usually a few per cent low, since the sketch cuts too."""
        return self.trace / (2 * self.degrees)

    @property
    def total_variance_deviation(self) -> float:
        """Standard deviation of `total_variance`, from the noise and from the mixing of features.

        Source: |P₀u|² has the relative variance 2/m, so the trace has (2/m)·Σφ² for shares φ of the
            components. The shares that are not seen are at most `unseen_share` each.
        """
        seen = self.strengths / self.trace
        squares = float(seen @ seen) + max(1 - float(seen.sum()), 0.0) * self.unseen_share
        mixed = self.trace * sqrt(2 / self.rows * min(squares, 1.0))
        return float(np.hypot(self.trace_noise, mixed)) / (2 * self.degrees)

    def strength(self, columns: int) -> Floats:
        """(columns,) θⱼ, and e/2 where a direction is below its edge."""
        self.check_columns(columns)
        unseen = np.full(max(columns - self.seen_count, 0), self.edge / 2)
        return np.concatenate([self.strengths[:columns], unseen])

    def captured(self, columns: int) -> Floats:
        """(columns,) what each direction holds above the bulk, 2θⱼ − xⱼ; e/2 below the edge."""
        found = self.strength(columns)
        k = min(columns, self.seen_count)
        found[:k] = 2 * found[:k] - self.heights[:k]
        return found

    def check_columns(self, columns: int) -> None:
        """Raises UsageError unless 1 ≤ columns ≤ w."""
        if not 1 <= columns <= len(self.directions):
            raise UsageError(
                "bad-argument",
                f"{columns} columns were requested",
                f"request 1 to {len(self.directions)} columns",
            )


def read_sketch(noisy: NoisyScatter, law: NoiseLaw) -> SketchReading:
    """What an opened sketch shows.

    Args:
        noisy: the opened sketch with all draws of its noise, the data user's own among them; m × m.
        law: of the noise of all these draws, on the released integers.

    Returns:
        The reading. `check_seen` refuses it if it shows no component.

    Raises:
        UsageError: the sketch has fewer than 4 rows, or sums of another length.

    Source: R is (quartile − median)/0.404 as a half circle has it, on the side where it is larger; `bulk_end`
        has the edge, with a factor 1 + m^(−2/3). One spike θ in symmetric noise of half-width R has its
        eigenvalue at θ + R²/(4θ), and a squared cosine of 1 − R²/(4θ²) with its eigenvector. The joint
        release subtracts ṽṽᵀ/N, whose noise adds 4·m·var(e)·(μ·u)² to R² in the direction u (see
        `fit_components`).
    Tested: tests/unit/user/test_wide_sketch.py, tests/statistical/test_wide.py.
    """
    scatter = scatter_matrix(noisy)
    m = len(scatter)
    if m < 4 or (noisy.sum is not None and len(noisy.sum) != m):
        raise UsageError("wrong-shape", f"a sketch of {m} rows, or with sums of another length, is no sketch")
    factor = 2 if noisy.of_pairs else 1
    on_sum = 0.0 if noisy.sum is None else float(law.sum_)
    mean = np.zeros(m) if noisy.sum is None else np.array([entry / noisy.count for entry in noisy.sum])
    square = float(mean @ mean)
    values, vectors = leading_pairs(scatter, m)
    bulk = float(np.median(values))
    lower, upper = np.percentile(values, [25, 75])
    half_width = max(bulk - float(lower), float(upper) - bulk) / _QUARTILE
    noise_energy = m * float(law.off_diagonal) / factor**2 + on_sum * square
    edge = bulk_end(bulk, half_width, noise_energy) * finite_size_factor(m)
    directions = vectors[: min(m, MOST_COLUMNS)]
    heights = values[: len(directions)] - bulk
    widths = np.sqrt(half_width**2 + 4 * m * on_sum * (directions @ mean) ** 2)
    below = np.flatnonzero(heights <= edge + (widths - half_width) * finite_size_factor(m))
    seen = int(below[0]) if len(below) else len(directions)
    tall, wide = heights[:seen], widths[:seen]
    return SketchReading(
        count=noisy.count,
        of_pairs=noisy.of_pairs,
        trace=float(np.trace(scatter)),
        bulk=bulk,
        half_width=half_width,
        edge=edge,
        noise_energy=noise_energy,
        sums=noisy.sum or (0,) * m,
        mean=mean,
        mean_square=max(square - m * on_sum / noisy.count**2, 0.0),
        directions=directions,
        heights=heights,
        widths=widths,
        seen_count=seen,
        strengths=(tall + np.sqrt(tall**2 - wide**2)) / 2,
        trace_noise=sqrt(m * float(law.diagonal) / factor**2 + 4 * on_sum * square),
    )


def bulk_end(bulk: float, half_width: float, noise_energy: float) -> float:
    """How far the bulk of a sketch reaches above its middle: R for noise alone, and more for mixed features.

    Args:
        bulk: b.
        half_width: R.
        noise_energy: m·v; what R²/4 has above it is due to mixed features.

    Source: mixed features of equal variance and independent noise have the R-transform b/(1 − λg) + m·v·g,
        with λ = (R²/4 − m·v)/b, so the bulk ends at the least value of 1/g + b/(1 − λg) + m·v·g. Where d is
        only four times m, R alone would show components that are none in most sketches. λ is at most b: a
        larger one means that R was measured too large, or that few features vary, which are components.
    Tested: tests/statistical/test_wide.py, tests/unit/user/test_wide_sketch.py.
    """
    energy = half_width**2 / 4
    mixed = min(energy - noise_energy, bulk**2)
    if mixed <= 0 or bulk <= 0:
        return half_width
    width, noise_energy = mixed / bulk, energy - mixed
    g = _STEPS * min(1 / sqrt(energy), 1 / width)
    return float((1 / g + bulk / (1 - width * g) + noise_energy * g).min()) - bulk


def check_seen(reading: SketchReading) -> None:
    """Refuses to go on with a sketch that shows no component.

    Raises:
        ConflictError: `nothing-in-the-sketch`.
    """
    if reading.seen_count and reading.trace > 0:
        return
    raise ConflictError(
        "nothing-in-the-sketch",
        f"the sketch of {reading.count:,} {'pairs' if reading.of_pairs else 'records'} shows no component,"
        " so the lift would release noise; what the lift would have spent is not spent",
        "use more records, or a larger ε",
    )
