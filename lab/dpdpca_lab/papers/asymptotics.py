"""The exponential mechanism in high dimension: errors of draws beside their limits.

All of it is about one data set as n and p grow. It is no promise about privacy.
"""

from itertools import islice

import numpy as np

from dpdpca_lab.central.asymptotic import Spectrum, draw_frames, utility
from dpdpca_lab.central.result import subspace_errors
from dpdpca_lab.papers.methods import Family
from dpdpca_lab.papers.prepared import Problem
from dpdpca_protocol.errors import UsageError

LINES = {
    "operator-measured": ("operator error², measured", Family.NO_GUARANTEE),
    "operator-predicted": ("operator error², in the limit", Family.BOUND),
    "frobenius-measured": ("Frobenius error², measured", Family.NO_GUARANTEE),
    "frobenius-predicted": ("Frobenius error², in the limit", Family.BOUND),
}


def subspace_error(line: str, table: Problem, k: int, ratio: float, count: int) -> tuple[float, ...]:
    """Errors of the leading subspace at β = ratio·H_k: of each draw, or the one in the limit.

    Args:
        line: one of `LINES`.
        table: rows of norm at most 1; the paper's are √p as long.
        k: number of components.
        ratio: β/H_k.
        count: number of draws.

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
    errors = [subspace_errors(frame, best) for frame in islice(draw_frames(levels, beta, k), count)]
    return tuple(each.operator_squared if by_operator else each.frobenius_squared for each in errors)
