"""Makes the public rule of a lift from a sketch, and the bound on the records of a scores round.

A lift turns each record z into a = cut(⌊(C·P₀z + o + 2¹⁵)/2¹⁶⌋), k whole numbers with Σa² ≤ 2²⁰. C whitens
the directions of the sketch and makes a usual record twice as long as the cut allows, so that mostly the
direction of a is left. The offset o takes the mean out. No guarantee depends on C or o.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from operator import mul

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.records.projection import LIFT_BITS
from dpdpca_protocol.terms.terms import LIFT_BOUND
from dpdpca_protocol.terms.wide import ENTRY_LIMIT
from dpdpca_user.results.wide.sketch import SketchReading, check_seen

_CUT = 0.5
"""c: the length at which a is cut, in units of its usual length."""
_FLOOR = 0.7
"""The least height that a column is whitened by, in units of the edge. Any value from 0.3 to 2.5 would do."""
_ROOM = 3.0
"""The bound on squared scores, in units of what the sketch lets expect."""


@dataclass(frozen=True, slots=True)
class LiftRule:
    """The members `matrix` and `offset` of a lift's manifest.

    Attributes:
        matrix: (k, m) C, whole numbers below 2⁴⁰ in size.
        offset: (k,) o; all 0 in a lift of pairs.
    """

    matrix: NDArray[np.int64]
    offset: tuple[int, ...]


def lift_rule(reading: SketchReading, columns: int) -> LiftRule:
    """C and o for the strongest directions of a sketch.

    Args:
        reading: of a sketch that shows a component.
        columns: k.

    Raises:
        ConflictError: `nothing-in-the-sketch`.
        PolicyError: `manifest-refused`, an entry of C reaches 2⁴⁰: the sketch varies too little.
        UsageError: k is out of range.

    Source: C = 2¹⁶·√B/(c√k)·(varⱼ/N)^(−½)·Uⱼᵀ, varⱼ = max(2θⱼ − xⱼ, 0.7e) + b, rounded, ties to even;
        o = −C·ṽ/N rounded, computed exactly.
    """
    check_seen(reading)
    reading.check_columns(columns)
    directions = reading.directions[:columns]
    held = np.full(columns, -np.inf)
    k = min(columns, reading.seen_count)
    held[:k] = reading.captured(columns)[:k]
    # Σ y yᵀ over differences of pairs is twice their scatter
    moments = (np.maximum(held, _FLOOR * reading.edge) + reading.bulk) * (2 if reading.of_pairs else 1)
    spread = np.sqrt(moments / reading.count)
    real = np.rint(2.0**LIFT_BITS * sqrt(LIFT_BOUND) / (_CUT * sqrt(columns)) * directions / spread[:, None])
    largest = float(np.abs(real).max())
    if not largest < ENTRY_LIMIT:
        raise PolicyError(
            "manifest-refused",
            f"the records vary so little that an entry of the lift's matrix would be {largest:.3g}, but"
            f" entries are below {ENTRY_LIMIT:.3g}",
            "use more fraction bits, or narrower bounds for the features",
        )
    matrix = real.astype(np.int64)
    return LiftRule(matrix, _offset(matrix, reading))


def _offset(matrix: NDArray[np.int64], reading: SketchReading) -> tuple[int, ...]:
    if reading.of_pairs:
        return (0,) * len(matrix)
    return tuple(round(Fraction(-sum(map(mul, row, reading.sums)), reading.count)) for row in matrix.tolist())


def scores_norm(reading: SketchReading, columns: int, clip_norm: float, grid: int, d: int) -> float:
    """r′, the bound on the norm of a record of scores, in scaled units.

    Only the sketch and public numbers determine it, so that the manifest of the scores shows nothing of the
    lift.

    Args:
        reading: of the sketch.
        columns: k of the lift.
        clip_norm: r of the chain's records or differences, in scaled units.
        grid: q, grid units per scaled unit.
        d: number of encoded features.

    Source: three times the expected |Vz|², which is what the directions hold, plus 2r²/d for each of k
        directions that are noise, plus the squared length that the mean has along them; never more than r,
        since |Vz| ≤ |z|. Differences of pairs have twice the variance and no mean.
    """
    along = reading.directions[:columns] @ reading.mean
    held = float(reading.captured(columns).sum()) / reading.degrees * (2 if reading.of_pairs else 1)
    expected = (held + float(along @ along)) / (2 * grid**2) + 2 * columns * clip_norm**2 / d
    return min(sqrt(_ROOM * expected), clip_norm)
