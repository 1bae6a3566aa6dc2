"""The exact discrete Laplace distribution: OpenDP's integer sampler, and the only door to it.

OpenDP is imported only where noise is drawn; its randomness is the operating system's.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import inf, nextafter

from dpdpca_protocol.errors import UsageError

LAPLACE_TAIL = 84
"""A draw beyond 84 scales has probability 2·e⁻⁸⁴ < 2⁻¹²⁰: one in 2⁸⁰ releases of 2⁴⁰ draws has one."""

_BATCH = 100_000
_SAMPLER_LIMIT = 2**63


def discrete_laplace(scale: Fraction, count: int) -> list[int]:
    """Independent draws of the discrete Laplace distribution, P(x) ∝ exp(−|x|/b).

    Args:
        scale: b > 0, exact, in units of what the noise is added to.
        count: how many draws.

    Returns:
        `count` integers; b is the smallest double that is at least `scale`.

    Raises:
        UsageError: b ≤ 0, or 84 b at the 63 bits of the sampler.

    Guarantee: on integers of ℓ₁ sensitivity D, pure D/b. Nothing is redrawn, which would cost a δ: a draw
        beyond the 64 bits saturates, and one beyond a slot overflows, both functions of the private result.
    Source: Canonne, Kamath, Steinke 2020, algorithm 2; Ghosh, Roughgarden, Sundararajan 2009.
    Tested: tests/statistical/test_mechanism_noise.py.
    """
    if scale <= 0 or count < 0:
        raise UsageError("bad-argument", "noise needs a scale above 0 and a count of 0 or more")
    if LAPLACE_TAIL * scale >= _SAMPLER_LIMIT:
        raise UsageError("noise-too-large", "the noise passes the 63 bits of the sampler")
    sample = _sampler(_double_up(scale))
    draws: list[int] = []
    while len(draws) < count:
        draws += sample([0] * min(_BATCH, count - len(draws)))
    return draws


def _double_up(value: Fraction) -> float:
    """The smallest double that is at least `value`, exactly compared."""
    double = float(value)
    return double if Fraction(double) >= value else nextafter(double, inf)


@lru_cache(maxsize=16)
def _sampler(scale: float) -> Callable[[list[int]], list[int]]:
    import opendp.prelude as dp  # takes seconds, and only the party that draws noise has it installed

    dp.enable_features("contrib")
    measurement: Callable[[list[int]], list[int]] = dp.m.make_laplace(
        dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="f64"), scale=scale
    )
    return measurement
