"""What noisy histograms of a pre-study say: quantiles, modes, and the scale of a feature.

Bins under two deviations of their noise count as empty: most of them are.
"""

from math import ceil, log2

from dpdpca_user.planning.prestudy import Histogram

_SIGMAS = 2.0
_APART = 4
_OCTAVE_MIDDLE = 0.72


def quantile(histogram: Histogram, level: float) -> float | None:
    """A quantile by interpolation within a bin, after bins under 2σ are emptied; None if nothing is left."""
    counts = _above_noise(histogram)
    total = sum(counts)
    if total <= 0:
        return None
    before, lower = 0.0, 0.0
    for count, upper in zip(counts, histogram.edges, strict=True):
        if count and before + count >= level * total:
            return lower + (upper - lower) * max(level * total - before, 0.0) / count
        before, lower = before + count, upper
    return histogram.edges[-1]


def has_two_modes(histogram: Histogram) -> bool:
    """Whether two peaks stand a factor 2 or more apart with a clear valley between them.

    Clear: below half of the smaller peak, and lower than it by more than six deviations of the noise.
    """
    counts = _above_noise(histogram)
    for i, left in enumerate(counts):
        for j in range(i + _APART, len(counts)):
            smaller = min(left, counts[j])
            valley = min(counts[i + 1 : j])
            if (
                smaller > 0.05 * sum(counts)
                and valley < smaller / 2
                and smaller - valley > 6 * histogram.noise
            ):
                return True
    return False


def feature_scale(histogram: Histogram, pairs: int) -> float | None:
    """s of a feature in its present unit, rounded up to a power of √2; None where nothing stands out."""
    kept = _above_noise(histogram)
    square = sum(
        count * (_OCTAVE_MIDDLE * edge) ** 2 for count, edge in zip(kept, histogram.edges, strict=True)
    )
    if square <= 0 or pairs < 1:
        return None
    return float(2.0 ** (ceil(log2(square / pairs) - 1e-9) / 2))


def _above_noise(histogram: Histogram) -> list[int]:
    return [count if count >= _SIGMAS * histogram.noise else 0 for count in histogram.counts]
