"""Reads quantiles, modes and the scale of a feature from the noisy histograms of a pre-study.

A bin with a noisy count below two standard deviations of its noise is treated as empty, because most such
bins are empty.
"""

from math import ceil, log2

from dpdpca_user.planning.prestudy import Histogram

_SIGMAS = 2.0
_APART = 4
_OCTAVE_MIDDLE = 0.72


def quantile(histogram: Histogram, level: float) -> float | None:
    """A quantile, interpolated within a bin. Bins below 2σ count as empty; None if all bins are empty."""
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
    """Whether two peaks are at least a factor 2 apart, with a clear valley between them.

    A valley is clear if it is below half of the smaller peak, and lower by more than six deviations of noise.
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
    """The scale s of a feature in its current unit, rounded up to a power of √2; None if the histogram shows
    only noise."""
    kept = _above_noise(histogram)
    square = sum(
        count * (_OCTAVE_MIDDLE * edge) ** 2 for count, edge in zip(kept, histogram.edges, strict=True)
    )
    if square <= 0 or pairs < 1:
        return None
    return float(2.0 ** (ceil(log2(square / pairs) - 1e-9) / 2))


def _above_noise(histogram: Histogram) -> list[int]:
    return [count if count >= _SIGMAS * histogram.noise else 0 for count in histogram.counts]
