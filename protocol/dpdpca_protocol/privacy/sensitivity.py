"""How far one record can change a release, exactly, in grid units.

`mechanisms` has the noise that hides this change. docs/claims.md (C1, C9 to C11) derives the constants.
tests/unit/test_sensitivity.py checks them by brute force: small neighbours reach them within one per cent and
never exceed them. All norms are ℓ₂; for a symmetric matrix, the Frobenius norm.
"""

from enum import StrEnum
from fractions import Fraction

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName, gap_bound


class NeighbouringRelation(StrEnum):
    """Who counts as neighbours."""

    REPLACE_ONE = "replace-one"


def second_moment_sensitivity_squared(record_bound: int) -> int:
    """2K²: the largest squared change of R = Σ z zᵀ when one record is replaced.

    Args:
        record_bound: K ≥ Σ z² of every record, in grid units².

    Source: docs/claims.md, C1: |z|⁴ + |x|⁴ − 2(z·x)² ≤ 2K², reached by orthogonal records on the bound.
    """
    return 2 * record_bound**2


def scatter_sensitivity_bound(record_bound: int) -> int:
    """4K: a bound, independent of N, on the change of S = R − v vᵀ/N when one of N records is replaced.

    Source: docs/claims.md, C1. S changes by at most 4K(N−1)/N. This is reached if all other records are at −r
        e and one record moves from −r e to r e.
    """
    return 4 * record_bound


def nonnegative_scatter_sensitivity_squared_bound(record_bound: int) -> int:
    """6K²: a bound on the squared change of S = R − v vᵀ/N if no coordinate of any record is below 0.

    Source: docs/claims.md, C9. The square is 6K²(N−1)²/N², reached by three orthogonal records on the bound:
        before, after, all others.
    """
    return 6 * record_bound**2


def joint_sensitivity_squared(record_bound: int, alpha_squared: Fraction) -> Fraction:
    """(2K + a)²/2: the largest squared change of (R, α·v) when one record is replaced, with a = α².

    Args:
        record_bound: K, in grid units².
        alpha_squared: a in (0, 2K], the weight of the sum relative to the second moment, in grid units².

    Raises:
        UsageError: a is out of range. If a is above 2K, the largest change has another formula.

    Source: docs/claims.md, C1, reached by two records on the bound at cosine −a/(2K).
    """
    if not 0 < alpha_squared <= 2 * record_bound:
        raise UsageError("bad-argument", "the weight of the sum must lie in (0, 2K]")
    return (2 * record_bound + alpha_squared) ** 2 / 2


def lift_sensitivity_squared(record_bound: int, score_bound: int) -> int:
    """4KB: the largest squared change of (L, γG) when one record is replaced, for any γ² ≤ K/(2B).

    L = Σ z aᵀ and G = Σ a aᵀ, where a may depend on z in any way.

    Args:
        record_bound: K ≥ Σ z² of every record, or of every difference, in grid units².
        score_bound: B ≥ Σ a².

    Source: docs/claims.md, C19 and C20. Reached by z = −x and a = b.
    """
    return 4 * record_bound * score_bound


def block_sensitivity_squared(
    name: BlockName, encoded_features: int, record_bound: int, clip_bound: int = 0
) -> int:
    """D²: the largest squared change of one block if one record is replaced and its owner's pairing is kept.

    Args:
        name: of the block.
        encoded_features: d.
        record_bound: K ≥ Σ z² of every record, or Σ y² of every difference, grid units².
        clip_bound: C, the largest term of the sum `CLIPPED_SQUARES`, in its units.

    Source: docs/claims.md, C1, C10, C11 and C17. Replacing a record does not change a count. A record, or its
        pair, leaves one bin and enters another, in each of d histograms of octaves. v changes by at most 2√K,
        between opposite records. A pair adds 0 or 1 to the number of far pairs. A record, or its pair, adds 0
        or 1 to the number of clipped rows, and 0 to C to the sum of their squares. A record adds 0 to G to
        the number of missing values.
    """
    if name is BlockName.COUNT:
        return 0
    if name in (BlockName.SECOND_MOMENT, BlockName.PAIR_MOMENT):
        return second_moment_sensitivity_squared(record_bound)
    if name is BlockName.SUM:
        return 4 * record_bound
    if name in (BlockName.FAR_PAIRS, BlockName.CLIPPED):
        return 1
    if name is BlockName.CLIPPED_SQUARES:
        return clip_bound**2
    if name is BlockName.GAPS:
        return gap_bound(encoded_features) ** 2
    return 2 * encoded_features if name is BlockName.OCTAVES else 2
