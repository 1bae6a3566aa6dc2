"""Reads quantiles, modes and the scale of a feature from the noisy histograms of a pre-study.

Bins are believed where a peak stands out from the noise, and beside such a peak as far as counts are above
two standard deviations. All other bins are treated as empty: of 49 empty bins, one is above two standard
deviations more often than not, and would move a quantile far away.

Norms that are spread over many bins may show no peak in any of them. Then the neighbouring bins are believed
that stand out the most together.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, log2, sqrt

from dpdpca_user.planning.prestudy import Histogram

_SIGMAS = 2.0
_PEAK = 4.0
_GAP = 2
_APART = 4
_WIDEST = 8
_OCTAVE_MIDDLE = 0.72
_BIN_MIDDLE = 2.0**-0.125


def quantile(histogram: Histogram, level: float) -> float | None:
    """A quantile, interpolated within a bin; None if all bins are treated as empty."""
    counts = above_noise(histogram)
    total = sum(counts)
    if total <= 0:
        return None
    before, lower = 0.0, 0.0
    for count, upper in zip(counts, histogram.edges, strict=True):
        if count > 0 and before + count >= level * total:
            return lower + (upper - lower) * max(level * total - before, 0.0) / count
        before, lower = before + count, upper
    return histogram.edges[-1]


def mean_square(histogram: Histogram, most: float) -> float:
    """The mean of squared norms, in which a norm above `most` counts as `most`; 0 if all bins are treated as
    empty."""
    counts = above_noise(histogram)
    middles = (min(_BIN_MIDDLE * edge, most) for edge in histogram.edges)
    return sum(count * norm**2 for count, norm in zip(counts, middles, strict=True)) / max(sum(counts), 1)


def has_two_modes(histogram: Histogram) -> bool:
    """Whether two peaks are at least a factor 2 apart, with a clear valley between them.

    A valley is clear if it is below half of the smaller peak, and lower by more than six deviations of noise.
    """
    counts = above_noise(histogram)
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
    kept = above_noise(histogram)
    square = sum(
        count * (_OCTAVE_MIDDLE * edge) ** 2 for count, edge in zip(kept, histogram.edges, strict=True)
    )
    if square <= 0 or pairs < 1:
        return None
    return float(2.0 ** (ceil(log2(square / pairs) - 1e-9) / 2))


def above_noise(histogram: Histogram) -> list[int]:
    """The counts, with 0 in every bin that is treated as empty."""
    counts, noise = histogram.counts, histogram.noise
    runs: list[list[int]] = [[]]
    for bin in (bin for bin, count in enumerate(counts) if count >= _SIGMAS * noise):
        if runs[-1] and bin - runs[-1][-1] > _GAP:
            runs.append([])
        runs[-1].append(bin)
    kept = {
        bin for run in runs if max((counts[each] for each in run), default=0) >= _PEAK * noise for bin in run
    }
    kept = kept or set(_widespread(counts, noise))
    return [count if bin in kept else 0 for bin, count in enumerate(counts)]


def _widespread(counts: Sequence[int], noise: float) -> range:
    """The neighbouring bins, at most 8, whose sum is the largest in units of its noise; none if it is no
    peak."""
    sums = [0, *accumulate(counts)]
    windows = [
        range(start, start + width)
        for width in range(2, min(_WIDEST, len(counts)) + 1)
        for start in range(len(counts) - width + 1)
    ]
    found = max(windows, key=lambda bins: (sums[bins.stop] - sums[bins.start]) / sqrt(len(bins)))
    total = sums[found.stop] - sums[found.start]
    return found if total >= _PEAK * noise * sqrt(len(found)) else range(0)
