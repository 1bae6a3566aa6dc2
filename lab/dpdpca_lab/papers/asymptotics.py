"""The exponential mechanism in high dimension: errors of draws beside their limits.

All of it is about one data set as n and p grow. It is no promise about privacy.
"""

import math
from dataclasses import dataclass
from itertools import islice

import numpy as np

from dpdpca_lab.central.asymptotic import (
    Spectrum,
    calibrate,
    draw_frames,
    loss_statistics,
    utility,
    worst_case_epsilon,
)
from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.central.result import subspace_errors
from dpdpca_lab.central.tradeoff import (
    approximate_tradeoff,
    gaussian_tradeoff,
    measured_tradeoff,
    tradeoff_errors,
)
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.prepared import Problem
from dpdpca_protocol.errors import PolicyError, UsageError

LINES = {
    "operator-measured": ("operator error², measured", Family.NO_GUARANTEE),
    "operator-predicted": ("operator error², in the limit", Family.BOUND),
    "frobenius-measured": ("Frobenius error², measured", Family.NO_GUARANTEE),
    "frobenius-predicted": ("Frobenius error², in the limit", Family.BOUND),
}

_PRINTED = {0.5: 1.2, 1.0: 3.97, 1.5: 8.47}
"""β of σ for k = 2, as the caption of figure 4 has them."""
_FITTED = {
    "add-or-remove": Spectrum(np.array([0.578554]), -2 * 0.213317, 0.898658),
    "replace-one": Spectrum(np.array([0.37]), 0.0, 3.6),
}
"""What gives the printed values at θ = 1. One relation has three unknowns and meets them all; the other has
two, and meets the last two values."""
CALIBRATIONS = {
    "limit": ("β of σ in the limit", Family.NO_GUARANTEE),
    "printed": ("printed in the caption, k = 2", Family.PUBLISHED),
    "fitted": ("curve fitted to the caption", Family.BOUND),
}


def calibrated_beta(line: str, table: Problem, k: int, sigma: float, relation: str) -> float | None:
    """β whose σ in the limit is this one; None where no β has it, or where the paper prints none.

    Args:
        line: one of `CALIBRATIONS`.
        table: rows of norm at most 1; the paper's are √p as long.
        k: number of components.
        sigma: the wanted σ.
        relation: "add-or-remove" or "replace-one".

    Raises:
        UsageError: there is no such line or relation.
    """
    if line not in CALIBRATIONS:
        raise UsageError(
            "unknown-method", f"there is no line {line!r}; the lines are {', '.join(CALIBRATIONS)}"
        )
    if line == "printed":
        return _PRINTED.get(sigma)
    try:
        if line == "fitted":
            return calibrate(_FITTED[relation], 1.0, sigma, relation)
        return calibrate(Spectrum.of(table.levels * table.d, k), _theta(table), sigma, relation)
    except PolicyError:
        return None


TRADE_OFFS = {
    "measured": ("measured, ± 2 standard errors", Family.NO_GUARANTEE),
    "predicted": ("σ-GDP, in the limit", Family.BOUND),
    "pure": ("pure ε of the worst case", Family.OURS),
}


def tradeoff_curve(
    line: str, table: Problem, k: int, sigma: float, levels: Floats, count: int, burn_in: int, every: int
) -> dict[str, Floats]:
    """`error` of type II at each type I error; for draws also `lower` and `upper`, two standard errors away.

    β has this σ in the limit, under add-or-remove. Nothing where no β has it.

    Args:
        line: one of `TRADE_OFFS`.
        table: rows of norm at most 1; the paper's are √p as long.
        k: number of components.
        sigma: the wanted σ.
        levels: type I errors.
        count: number of draws from each data set.
        burn_in, every: numbers of sweeps of the chain, for k > 1.

    Raises:
        UsageError: there is no such line.
    """
    if line not in TRADE_OFFS:
        raise UsageError(
            "unknown-method", f"there is no line {line!r}; the lines are {', '.join(TRADE_OFFS)}"
        )
    beta = calibrated_beta("limit", table, k, sigma, "add-or-remove")
    if beta is None:
        return {}
    if line == "predicted":
        return {"error": gaussian_tradeoff(levels, sigma)}
    if line == "pure":
        return {"error": approximate_tradeoff(levels, worst_case(table, k, sigma))}
    values = loss_statistics(table.levels * table.d, k, table.n, beta, count, burn_in=burn_in, every=every)
    measured, spread = measured_tradeoff(levels, *values), 2 * tradeoff_errors(levels, *values)
    return {
        "error": measured,
        "lower": np.maximum(measured - spread, 0),
        "upper": np.minimum(measured + spread, 1),
    }


def worst_case(table: Problem, k: int, sigma: float) -> float:
    """Pure ε of an exact draw at the β of σ, for any data of this size, under add-or-remove.

    Infinite where no β has this σ.
    """
    beta = calibrated_beta("limit", table, k, sigma, "add-or-remove")
    return math.inf if beta is None else float(worst_case_epsilon(table.d, table.n, beta, "add-or-remove"))


POPULATIONS = ("AFR", "AMR", "EAS", "EUR", "SAS")
"""Super-populations of 1000 Genomes, by class."""
_TWO = 2


@dataclass(frozen=True, slots=True)
class People:
    """Where people lie on two components.

    Attributes:
        beta: of the draw; None for the exact components.
        scores: (n, 2) in the paper's scale.
        captured: (2,) energy of one and of both components, over the most that as many can have.
    """

    beta: float | None
    scores: Floats
    captured: Floats


def people(table: Problem, ratio: float, burn_in: int = 30) -> People:
    """People on the first two components: exact ones, or those of a draw.

    The density of a draw is that of a subspace. Its axes are those of the people in it, largest variance
    first, with the signs of the exact ones. This reads the data, as do the scores.

    Args:
        table: rows of norm at most 1; the paper's are √p as long.
        ratio: β/H_2 of the draw; 0 for the exact components.
        burn_in: number of sweeps of the chain.
    """
    levels, beta, frame = table.levels * table.d, None, np.eye(table.d)[:_TWO]
    if ratio > 0:
        beta = ratio * Spectrum.of(levels, _TWO).last
        drawn = next(draw_frames(levels, beta, _TWO, burn_in=burn_in))
        _, turn = np.linalg.eigh((drawn * levels) @ drawn.T)
        frame = turn[:, ::-1].T @ drawn
        frame *= np.where(frame[np.arange(_TWO), np.arange(_TWO)] < 0, -1, 1)[:, None]
    scores = table.rows @ (frame @ table.axes).T * np.sqrt(table.d)
    energy = np.cumsum((frame**2 * levels).sum(axis=1))
    return People(beta, scores, energy / np.cumsum(levels[:_TWO]))


def _theta(table: Problem) -> float:
    return float(table.n / table.d**1.5)


def subspace_error(
    line: str, table: Problem, k: int, ratio: float, count: int, burn_in: int, every: int
) -> tuple[float, ...]:
    """Errors of the leading subspace at β = ratio·H_k: of each draw, or the one in the limit.

    Args:
        line: one of `LINES`.
        table: rows of norm at most 1; the paper's are √p as long.
        k: number of components.
        ratio: β/H_k.
        count: number of draws.
        burn_in, every: numbers of sweeps of the chain, for k > 1.

    Raises:
        UsageError: there is no such line.
    """
    if line not in LINES:
        raise UsageError("unknown-method", f"there is no line {line!r}; the lines are {', '.join(LINES)}")
    levels = table.levels * table.d
    spectrum = Spectrum.of(levels, k)
    beta = ratio * spectrum.last
    by_operator = line.startswith("operator")
    if line.endswith("predicted"):
        limit = utility(spectrum, beta)
        return (limit.operator_squared if by_operator else limit.frobenius_squared,)
    best = np.eye(table.d)[:k]
    frames = draw_frames(levels, beta, k, burn_in=burn_in, every=every)
    errors = [subspace_errors(frame, best) for frame in islice(frames, count)]
    return tuple(each.operator_squared if by_operator else each.frobenius_squared for each in errors)
