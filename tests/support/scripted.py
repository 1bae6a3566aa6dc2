"""Noise that a test knows: an argument, which no setting of the product reaches."""

from fractions import Fraction

from dpdpca_protocol.privacy.mechanisms.samplers import Samplers

SILENCE = Samplers(
    gaussian=lambda variance, count, bound: [0] * count, laplace=lambda scale, count: [0] * count
)
"""No noise at all."""


def _steps(count: int, most: int) -> list[int]:
    """Integers between −most and most that depend on nothing but their number."""
    return [(k * 7919 + 31) % (2 * most + 1) - most for k in range(count)]


def _gaussian(variance: Fraction, count: int, bound: int) -> list[int]:
    return _steps(count, bound // 13)


def _laplace(scale: Fraction, count: int) -> list[int]:
    return _steps(count, int(scale))


STEPS = Samplers(gaussian=_gaussian, laplace=_laplace)
"""Noise of the right size that is the same whenever and wherever it is drawn."""
