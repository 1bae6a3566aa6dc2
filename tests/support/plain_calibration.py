"""The calibration of owners' noise once more, in decimals of 60 digits and straight from docs/claims.md.

Nothing here uses the product.
"""

from collections.abc import Mapping, Sequence

import mpmath

Part = tuple[int, mpmath.mpf]
"""How many integers a block has, and the least variance of one of them at scale 1, if one party drew."""


def rho_of(epsilon: str, delta: str) -> mpmath.mpf:
    """The largest ρ with inf e^((α−1)(αρ−ε))/(α−1)·(1−1/α)^α ≤ δ: the largest ρ(α), by golden section."""

    def rho_at(exponent: mpmath.mpf) -> mpmath.mpf:
        x = mpmath.power(2, exponent)
        moment = mpmath.log(x) + (1 + x) * mpmath.log1p(1 / x)
        return (mpmath.mpf(epsilon) + (mpmath.log(mpmath.mpf(delta)) + moment) / x) / (1 + x)

    low, high = mpmath.mpf(-20), mpmath.mpf(40)
    ratio = (mpmath.sqrt(5) - 1) / 2
    while high - low > mpmath.mpf(10) ** -20:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if rho_at(left) > rho_at(right) else (left, high)
    return rho_at(low)


def excess(shares: int, parts: Sequence[Part], scale: mpmath.mpf) -> mpmath.mpf:
    """Σ_b len_b·τ_b."""
    total = mpmath.mpf(0)
    for length, least in parts:
        parameter = least * scale**2 / shares
        for k in range(1, shares):
            total += 10 * length * mpmath.exp(-2 * mpmath.pi**2 * parameter * k / (k + 1))
    return total


def scale_of(moved: mpmath.mpf, rho: mpmath.mpf, shares: int, parts: Sequence[Part]) -> mpmath.mpf | None:
    """The scale; None if a share has a parameter below 1/4, or more than a 64th of ρ pays for the sum."""
    alone = mpmath.sqrt(moved / (2 * rho))
    lost = excess(shares, parts, alone)
    least = min(part for _, part in parts) * alone**2 / shares
    if least < mpmath.mpf("0.25") or lost > rho / 64:
        return None
    return mpmath.sqrt(moved / (2 * (rho - lost)))


def joint_parts(d: int, bound: int, weight: str) -> tuple[mpmath.mpf, list[Part]]:
    """D² and the blocks of (v, R) with a/K = `weight`."""
    a = mpmath.mpf(weight) * bound
    return (2 * bound + a) ** 2 / 2, [(d, 1 / a), (d * (d + 1) // 2, mpmath.mpf("0.5"))]


def pairs_parts(d: int, bound: int) -> tuple[mpmath.mpf, list[Part]]:
    return mpmath.mpf(2 * bound**2), [(d * (d + 1) // 2, mpmath.mpf("0.5"))]


def lift_parts(d: int, columns: int, bound: int, score_bound: int) -> tuple[mpmath.mpf, list[Part]]:
    """D² and the blocks of (L, G): d·k entries with the noise of the scale, and k(k+1)/2, the least of which
    have B/K of its variance."""
    gram = mpmath.mpf(score_bound) / bound
    return mpmath.mpf(4 * bound * score_bound), [(d * columns, 1), (columns * (columns + 1) // 2, gram)]


def block_parts(d: int, bound: int, blocks: Mapping[str, str]) -> tuple[mpmath.mpf, list[Part]]:
    """The blocks of a pre-study, each with its fraction of ρ. D² is 1, because it stands in the parts."""
    known = {
        "norms": (49, 2),
        "pair-norms": (49, 2),
        "sum": (d, 4 * bound),
        "octaves": (12 * d, 2 * d),
        "far-pairs": (1, 1),
    }
    parts = [(known[name][0], known[name][1] / mpmath.mpf(part)) for name, part in blocks.items()]
    return mpmath.mpf(1), parts
