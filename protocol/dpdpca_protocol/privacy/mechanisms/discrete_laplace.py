"""The exact discrete Laplace distribution.

Only this module calls OpenDP's sampler for this distribution. OpenDP is imported only when noise is drawn.
OpenDP's randomness comes from the operating system.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from math import inf, nextafter

from dpdpca_protocol.errors import UsageError

LAPLACE_TAIL = 84
"""A draw exceeds 84 scales with a probability of at most 2·e⁻⁸⁴ < 2⁻¹²⁰. At least one of 2⁴⁰ draws exceeds 84
scales with a probability of at most 2⁻⁸⁰."""

_BATCH = 100_000
_SAMPLER_LIMIT = 2**63


def discrete_laplace(scale: Fraction, count: int) -> list[int]:
    """Independent draws of the discrete Laplace distribution, P(x) ∝ exp(−|x|/b).

    Args:
        scale: b > 0, exact, in units of the quantity to which the noise is added.
        count: how many draws.

    Returns:
        `count` integers; b is the smallest double that is at least `scale`.

    Raises:
        UsageError: b ≤ 0, or 84 b exceeds the 63 bits of the sampler.

    Guarantee: on integers of ℓ₁ sensitivity D, (D/b, δ) with δ = (2 + e^(D/b))·2⁻⁸⁰ for up to 2⁴⁰ draws. It
        is not pure: a draw beyond 64 bits saturates before it is added, so that the result is no function of
        sum plus noise. A draw that exceeds its slot overflows in the sum. The result is then still a function
        of sum plus noise, so this overflow costs nothing.
    Source: Canonne, Kamath, Steinke 2020, algorithm 2; Ghosh, Roughgarden, Sundararajan 2009.
    Tested: tests/statistical/test_mechanism_noise.py.
    """
    if scale <= 0 or count < 0:
        raise UsageError("bad-argument", "noise must have a scale above 0 and a count of 0 or more")
    if LAPLACE_TAIL * scale >= _SAMPLER_LIMIT:
        raise UsageError("noise-too-large", "the noise exceeds the 63 bits of the sampler")
    sample = _sampler(_double_up(scale))
    draws: list[int] = []
    while len(draws) < count:
        draws += sample([0] * min(_BATCH, count - len(draws)))
    return draws


def _double_up(value: Fraction) -> float:
    """The smallest double that is at least `value`. The comparison is exact."""
    double = float(value)
    return double if Fraction(double) >= value else nextafter(double, inf)


@lru_cache(maxsize=16)
def _sampler(scale: float) -> Callable[[list[int]], list[int]]:
    # Only installed where noise is drawn. Its `prelude` also imports scikit-learn, which takes a second.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    measurement: Callable[[list[int]], list[int]] = make_laplace(
        vector_domain(atom_domain(T="i64")), l1_distance(T="f64"), scale=scale
    )
    return measurement
