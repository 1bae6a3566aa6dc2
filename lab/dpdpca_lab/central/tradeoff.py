"""Trade-off functions: the least type II error of a test whose type I error is a.

The test tells one data set from its neighbour by what a mechanism releases. The larger the function, the
better the privacy; 1 − a is perfect.

Source: Dong, Roth, Su 2022; Rényi: the two-point inequality of the Rényi divergence.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from dpdpca_lab.central.entropy import Floats
from dpdpca_protocol.errors import UsageError

_SMALLEST = -700.0
"""The logarithm of errors that count as 0."""


def gaussian_tradeoff(levels: Floats, sigma: float) -> Floats:
    """σ-GDP: Φ(Φ⁻¹(1 − a) − σ), exact for continuous Gaussian noise whose D/sd is σ.

    Args:
        levels: a, any shape, each in [0, 1].
        sigma: σ ≥ 0.
    """
    return np.asarray(ndtr(ndtri(1 - _checked(levels)) - sigma))


def approximate_tradeoff(levels: Floats, epsilon: float, delta: float = 0.0) -> Floats:
    """(ε, δ)-DP: max(0, 1 − δ − e^ε a, e^(−ε)(1 − δ − a)). δ = 0 is pure ε."""
    a = _checked(levels)
    growth = math.exp(min(epsilon, -_SMALLEST))
    lines = (1 - delta - growth * a, (1 - delta - a) / growth)
    return np.asarray(np.maximum(0, np.maximum(*lines)))


def renyi_tradeoff(levels: Floats, order: float, bound: float) -> Floats:
    """A Rényi divergence of order α of at most r, in both directions.

    The least b for which (1−b)^α a^(1−α) + b^α (1−a)^(1−α) ≤ e^((α−1)r), and the same with the two
    distributions exchanged.

    Args:
        levels: a, any shape, each in [0, 1].
        order: α > 1.
        bound: r ≥ 0.
    """
    if order <= 1 or bound < 0:
        raise UsageError("bad-argument", "the order must be above 1 and the bound 0 or more")
    a = _checked(levels)
    return np.reshape([_least_error(float(each), order, bound) for each in a.ravel()], a.shape)


def _least_error(level: float, order: float, bound: float) -> float:
    if level in (0.0, 1.0):
        return 1 - level
    most, a = (order - 1) * bound, (math.log(level), math.log1p(-level))

    def excess(log_b: float, forwards: bool) -> float:
        """The logarithm of one of the two sums, less what is allowed. It falls in b up to b = 1 − a."""
        b = (math.log(-math.expm1(log_b)), log_b)
        above, below = (b, a) if forwards else (a, b)
        first, second = (order * above[i] + (1 - order) * below[i] for i in range(2))
        return float(np.logaddexp(first, second)) - most

    high, found = a[1], _SMALLEST
    for forwards in (True, False):
        if excess(_SMALLEST, forwards) > 0:
            inside = excess(high, forwards) < 0
            found = max(found, brentq(excess, _SMALLEST, high, (forwards,)) if inside else high)
    return math.exp(found)


def measured_tradeoff(levels: Floats, absent: Floats, present: Floats) -> Floats:
    """The type II error of thresholds on a statistic, measured on draws of both sides.

    Args:
        levels: a, any shape, each in [0, 1].
        absent, present: (m,) and (n,) values of the statistic without and with the record. A test that says
            "present" does so above a threshold.
    """
    thresholds = np.quantile(absent, 1 - _checked(levels))
    return np.asarray(np.searchsorted(np.sort(present), thresholds, side="right") / len(present))


def tradeoff_errors(levels: Floats, absent: Floats, present: Floats, blocks: int = 20) -> Floats:
    """Standard errors of `measured_tradeoff`, by leaving out one block of both sides after another.

    Consecutive draws are in one block, so that those of a chain may depend on their neighbours.

    Args:
        levels, absent, present: as there.
        blocks: 2 or more, and at most the number of draws of either side.
    """
    if not 2 <= blocks <= min(len(absent), len(present)):
        raise UsageError("bad-argument", "blocks must be from 2 to the number of draws")
    places = [np.arange(len(side)) * blocks // len(side) for side in (absent, present)]
    without = [
        measured_tradeoff(levels, absent[places[0] != block], present[places[1] != block])
        for block in range(blocks)
    ]
    return np.asarray(np.std(without, axis=0) * np.sqrt(blocks - 1))


def _checked(levels: Floats) -> Floats:
    a = np.asarray(levels, dtype=np.float64)
    if not ((a >= 0) & (a <= 1)).all():
        raise UsageError("bad-argument", "a type I error must be from 0 to 1")
    return a
