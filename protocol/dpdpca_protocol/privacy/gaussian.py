"""The exact discrete Gaussian: OpenDP's integer sampler, and our own sampler for very many draws.

OpenDP needs 10 µs or more for a draw, which adds up to minutes for a matrix of thousands of features.
Importing OpenDP is slow, so it is imported only when noise is drawn. The randomness comes from the operating
system. Only the data user's second noise uses another source, and releases take noise as an argument.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import TAIL_SIGMAS
from dpdpca_protocol.privacy.gaussian_draws import draw_gaussians
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness

TAIL = TAIL_SIGMAS
"""κ: draws beyond κ scales are redrawn. Slots and the sampler's 64 bits are large enough for κ scales."""

MANY_DRAWS = 1_000_000
"""For so many draws or more, `draw_gaussians` is used. It has the same distribution and is about ten times
faster."""
_BATCH = 100_000
_SAMPLER_LIMIT = 2**63


def discrete_gaussian(
    variance: Fraction, count: int, bound: int, randomness: Randomness = OS_RANDOMNESS
) -> list[int]:
    """Independent draws of the discrete Gaussian N_ℤ(0, σ²), conditioned on |x| ≤ bound.

    Args:
        variance: the parameter σ² > 0, exact, in squared units of the quantity to which the noise is added.
        count: how many draws.
        bound: a larger draw is redrawn. The bound is ⌈κσ⌉ in the product, and its tail mass is part of δ.
        randomness: the operating system's. For any other source, `draw_gaussians` makes the draws, because
            OpenDP accepts no other source.

    Returns:
        `count` integers. P(x) ∝ exp(−x²/(2s²)), where s is the smallest double whose square is ≥ σ².

    Raises:
        UsageError: σ² ≤ 0; κσ or `bound` exceeds the 63 bits of the sampler, which would saturate silently;
            or the bound is below σ.

    Guarantee: on integers of ℓ₂ sensitivity D, D²/(2σ²)-zCDP before the redraws; exact, no rounding of reals.
    Source: Canonne, Kamath, Steinke 2020, theorem 4 and algorithm 3; docs/claims.md, C3 and C12.
    Tested: tests/unit/test_gaussian_draws.py, tests/statistical/test_discrete_gaussian.py.
    """
    if variance <= 0 or count < 0:
        raise UsageError("bad-argument", "noise must have a variance above 0 and a count of 0 or more")
    if TAIL**2 * variance >= _SAMPLER_LIMIT**2 or bound >= _SAMPLER_LIMIT - 1:
        raise UsageError("noise-too-large", "the noise exceeds the 63 bits of the sampler")
    scale = sampler_scale(variance)
    if bound < scale:
        raise UsageError("bad-argument", "the bound on the noise is below the scale of the noise")
    if count >= MANY_DRAWS or randomness is not OS_RANDOMNESS:
        many: list[int] = draw_gaussians(scale, count, bound, randomness).tolist()
        return many
    sample = _sampler(scale)
    draws: list[int] = []
    while len(draws) < count:
        drawn = sample([0] * min(_BATCH, count - len(draws)))
        draws += [value for value in drawn if -bound <= value <= bound]
    return draws


def sampler_scale(variance: Fraction) -> float:
    """The smallest double whose square, taken exactly, is at least `variance` > 0."""
    scale = math.sqrt(float(variance))
    while Fraction(scale) ** 2 < variance:
        scale = math.nextafter(scale, math.inf)
    while Fraction(below := math.nextafter(scale, 0.0)) ** 2 >= variance:
        scale = below
    return scale


@lru_cache(maxsize=16)
def _sampler(scale: float) -> Callable[[list[int]], list[int]]:
    # Only installed where noise is drawn. Its `prelude` also imports scikit-learn, which takes a second.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    measurement: Callable[[list[int]], list[int]] = make_gaussian(
        vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale=scale
    )
    return measurement
