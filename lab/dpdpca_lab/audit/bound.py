"""A lower bound on ε from samples of two distributions, with a stated confidence and without assumptions.

(ε, δ)-DP means P(E) ≤ e^ε Q(E) + δ for every event E. One half of the samples is used to choose an event.
With the other half, the two probabilities of this event are bounded exactly (Clopper, Pearson 1934), so ε ≥
log((P̲ − δ)/Q̄).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Sample = NDArray[np.float64]

_THRESHOLDS = 256


@dataclass(frozen=True, slots=True)
class EpsilonBound:
    """The lower bound on ε that one event proves.

    Attributes:
        epsilon: the lower bound; 0 if the event proves nothing.
        event: the event, in words.
        runs: number of samples from each side on which it was counted.
        likelier, rarer: how often it happened on the side where it is more likely, and on the other side.
    """

    epsilon: float
    event: str
    runs: int
    likelier: int
    rarer: int


def epsilon_bound(
    first: Mapping[str, Sample], second: Mapping[str, Sample], delta: float, alpha: float
) -> EpsilonBound:
    """A lower bound on ε at δ that is false with a probability of at most α, whatever the mechanism.

    Args:
        first, second: for each statistic, its (n,) values in independent runs on the first and on the second
            data set. Both sides have the same statistics and the same even n ≥ 2.
        delta: the claimed δ.
        alpha: false-alarm rate of the bound.
    """
    half = len(next(iter(first.values()))) // 2
    best: tuple[float, str, bool, bool, float] | None = None
    for name in first:
        for above in (True, False):
            thresholds, counts = _counts(first[name][:half], second[name][:half], above)
            for swapped in (False, True):
                scores = _bounds(counts[swapped], counts[not swapped], half, delta, alpha)
                index = int(np.argmax(scores))
                if best is None or scores[index] > best[0]:
                    best = (float(scores[index]), name, above, swapped, float(thresholds[index]))
    assert best is not None
    _, name, above, swapped, threshold = best
    hits = [
        int(np.count_nonzero(sample[name][half:] >= threshold if above else sample[name][half:] <= threshold))
        for sample in (first, second)
    ]
    likelier, rarer = hits[swapped], hits[not swapped]
    runs = len(first[name]) - half
    epsilon = float(_bounds(np.array([likelier]), np.array([rarer]), runs, delta, alpha)[0])
    sign = "≥" if above else "≤"
    return EpsilonBound(max(0.0, epsilon), f"{name} {sign} {threshold:.4g}", runs, likelier, rarer)


def largest_bound(runs: int, delta: float, alpha: float) -> float:
    """The largest ε that `runs` samples of each side can prove.

    They prove it if an event happens in all samples of one side and in no sample of the other side.
    """
    counted = runs - runs // 2
    return max(0.0, float(_bounds(np.array([counted]), np.array([0]), counted, delta, alpha)[0]))


def _counts(first: Sample, second: Sample, above: bool) -> tuple[Sample, list[NDArray[np.int64]]]:
    """Thresholds, and how many values of each side are at or beyond each of them."""
    pooled = np.sort(np.concatenate([first, second]))
    last = len(pooled) - 1
    tail = np.geomspace(1, last, _THRESHOLDS // 4)  # for a large ε, rare events show the most
    positions = np.concatenate([np.linspace(0, last, _THRESHOLDS // 2), tail, last - tail])
    thresholds = np.unique(pooled[np.unique(positions.astype(int))])
    counts = []
    for sample in (first, second):
        ordered = np.sort(sample)
        if above:
            counts.append(len(ordered) - np.searchsorted(ordered, thresholds, side="left"))
        else:
            counts.append(np.searchsorted(ordered, thresholds, side="right"))
    return thresholds, counts


def _bounds(
    likelier: NDArray[np.int64], rarer: NDArray[np.int64], runs: int, delta: float, alpha: float
) -> Sample:
    """log((P̲ − δ)/Q̄) for each pair of counts, −∞ if P̲ ≤ δ; each side has the error rate α/2."""
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(likelier > 0, stats.beta.ppf(alpha / 2, likelier, runs - likelier + 1), 0.0)
        high = np.where(rarer < runs, stats.beta.isf(alpha / 2, rarer + 1, runs - rarer), 1.0)
        gap = low - delta
        return np.where(gap > 0, np.log(np.maximum(gap, math.ulp(0.0)) / high), -np.inf)
