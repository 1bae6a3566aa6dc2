"""What papers prove about utility, in closed form: how many records are enough, and how many are not.

The bounds of Chaudhuri, Sarwate, Sinha 2013 are for k = 1, q_A = |⟨v, v₁⟩|, rows of norm at most 1, and the
gap Δ = λ₁ − λ₂ of R/n. Those of Imtiaz, Sarwate 2016 are orders of magnitude without constants, for R.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.mechanisms.modsulq import modsulq_scale
from dpdpca_protocol.errors import UsageError


def ppca_records(d: int, epsilon: float, gap: float, overlap: float, failure: float, largest: float) -> float:
    """Theorem 7: with more records than this, PPCA has q_A > ρ with probability 1 − η or more.

    Args:
        d: number of features.
        epsilon: ε.
        gap: Δ.
        overlap: ρ in (0, 1).
        failure: η in (0, 1).
        largest: λ₁.
    """
    rate = d / (epsilon * gap * (1 - overlap))
    return rate * (4 * math.log(1 / failure) / d + 2 * math.log(8 * largest / ((1 - overlap**2) * gap)))


@dataclass(frozen=True, slots=True)
class LeastRecords:
    """Theorem 8: with fewer records, no algorithm of pure ε reaches the overlap on all data sets.

    Attributes:
        one_minus_phi: 1 − φ.
        least_overlap: the theorem holds for overlaps ρ from this one on.
        records: n.
    """

    one_minus_phi: float
    least_overlap: float
    records: float


def least_records(
    d: int, epsilon: float, gap: float, overlap: float, *, corrected: bool = False
) -> LeastRecords:
    """Theorem 8, as printed or with its proof corrected.

    The packing lemma gives ⅛(1 − φ²)^(−(d−2)/2) vectors, and the proof counts with 1 − φ instead. With
    1 − φ², the order of magnitude is the same.

    Args:
        d: number of features, 3 or more.
        epsilon: ε.
        gap: Δ, at most ½.
        overlap: ρ below 1.
        corrected: whether 1 − φ² is put where the paper has 1 − φ.

    Raises:
        UsageError: d or the gap is out of range.
    """
    if d < 3 or not 0 < gap <= 0.5:
        raise UsageError("bad-argument", "the bound is for 3 or more features and a gap of at most 1/2")
    value = math.exp(-2 * (math.log(8) + float(np.logaddexp(0, d))) / (d - 2))
    one_minus_phi = value / (1 + math.sqrt(1 - value)) if corrected else value
    times = max(1.0, math.sqrt(one_minus_phi / (80 * (1 - overlap))))
    return LeastRecords(one_minus_phi, 1 - one_minus_phi / 16, d / (epsilon * gap) * times)


def modsulq_records_order(d: int, epsilon: float, delta: float) -> float:
    """Theorem 9: MOD-SULQ needs records in proportion to d^1.5·√(ln(d/δ))/ε. Its constants are not given."""
    return float(d**1.5 * math.sqrt(math.log(d / delta)) / epsilon)


@dataclass(frozen=True, slots=True)
class OverlapBound:
    """Theorem 15: E q_A of MOD-SULQ is at most `overlap` on some data set, found at `phi`."""

    overlap: float
    phi: float


def modsulq_overlap_bound(d: int, records: int, epsilon: Fraction, delta: Fraction) -> OverlapBound:
    """Theorem 15, the least value over all φ.

    1 − (1−φ)/4·(1 − (1/β² + ln 2)/((d−1)·ln(1/√(1−φ²)) − ln 8))², with the deviation β of MOD-SULQ. It is
    never below ¾.

    Args:
        d: number of features, 2 or more.
        records: n.
        epsilon, delta: the claim of MOD-SULQ.
    """
    beta = float(modsulq_scale(epsilon, delta, d)) / records
    # 1 − φ² at each of the three lower ends of φ; with the third, the quotient is at most 1.
    ends = (
        1 - 1 / (2 * math.pi * d),
        math.exp(-2 * math.log(8 * d) / (d - 1)),
        math.exp(-(2 / beta**2 + math.log(256)) / (d - 1)),
    )
    least = max(min(ends), 1e-300)
    largest = least / (1 + math.sqrt(1 - least))
    # 1 − φ on a logarithmic grid, and again around the best point. Near φ = 1, the expression is flat.
    low, high = max(math.log(largest) - 60, -740.0), math.log(largest)
    for _ in range(6):
        grid = np.linspace(low, high, 2001)
        values = _overlaps(np.exp(grid), d, beta)
        best = int(np.argmin(values))
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    return OverlapBound(float(values[best]), 1 - math.exp(float(grid[best])))


def _overlaps(gaps: Floats, d: int, beta: float) -> Floats:
    """The expression of theorem 15 for 1 − φ."""
    logs = -np.log(gaps * (2 - gaps)) / 2
    quotient = (1 / beta**2 + math.log(2)) / ((d - 1) * logs - math.log(8))
    return np.asarray(1 - gaps / 4 * (1 - quotient) ** 2)


@dataclass(frozen=True, slots=True)
class WishartUtility:
    """Theorem 2 of Imtiaz and Sarwate, without its constants.

    Attributes:
        captured: k(d/ε)², by which q_F of R falls.
        subspace: d/(ε(λ_k − λ_{k+1})), the spectral norm of the difference of the projectors.
        approximation: d/ε, by which ‖R − R̂_k‖₂ exceeds ‖R − R_k‖₂.
    """

    captured: float
    subspace: float
    approximation: float


def wishart_utility(d: int, k: int, epsilon: float, gap: float) -> WishartUtility:
    """The claimed orders for SN.

    Args:
        d: number of features.
        k: number of components.
        epsilon: ε.
        gap: λ_k − λ_{k+1} of R, a sum over records.
    """
    return WishartUtility(k * (d / epsilon) ** 2, d / (epsilon * gap), d / epsilon)


def captured_loss_bound(noise: Floats, k: int) -> float:
    """k(λ_max(E) − λ_min(E)): the most by which q_F of k directions falls, for any symmetric noise E.

    q(V_k) − q(V̂) ≤ tr (P̂ − P)E, because V̂ captures most of the noisy matrix. Both projectors have k
    eigenvalues 1. For SN and large d, λ_max(E) is about 2d/ε.

    Args:
        noise: E, (d, d).
        k: number of components.
    """
    values = np.linalg.eigvalsh(noise)
    return float(k * (values[-1] - values[0]))
