"""Noise that a test knows: an argument, which no setting of the product reaches."""

from fractions import Fraction

from dpdpca_protocol.privacy.mechanisms.samplers import Samplers

SILENCE = Samplers(
    gaussian=lambda variance, count, bound: [0] * count, laplace=lambda scale, count: [0] * count
)
"""No noise at all."""


def _steps(count: int, most: int) -> list[int]:
    """Integers from −most to most (at least 1), never 0, that depend on nothing but their number."""
    most = max(most, 1)
    places = [(k * 7919 + 31) % (2 * most) - most for k in range(count)]
    return [place if place < 0 else place + 1 for place in places]


def _gaussian(variance: Fraction, count: int, bound: int) -> list[int]:
    return _steps(count, bound // 13)


def _laplace(scale: Fraction, count: int) -> list[int]:
    return _steps(count, int(scale))


STEPS = Samplers(gaussian=_gaussian, laplace=_laplace)
"""Noise of the right size that is the same whenever and wherever it is drawn."""
