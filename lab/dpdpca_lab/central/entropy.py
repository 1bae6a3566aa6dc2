"""Real-valued draws from the operating system's randomness, for mechanisms that need real numbers.

They assume idealised arithmetic. A uniform draw is one of 2⁵² midpoints, and a normal draw is its quantile.
So both draws differ from the exact distribution in the last bits, normals end at about 8.2 standard
deviations, and the low bits of a sum depend on its value. Guarantees based on these draws state this
assumption. Integer mechanisms do not need this assumption.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness

Floats = NDArray[np.float64]

IDEALISED = "idealised arithmetic: real numbers are drawn and compared in floating point"


class RealDraws:
    """Uniform, normal and Laplace draws.

    Args:
        randomness: that of the operating system, except in tests.
    """

    def __init__(self, randomness: Randomness = OS_RANDOMNESS) -> None:
        self._randomness = randomness

    def uniforms(self, *shape: int) -> Floats:
        """Uniform draws from the midpoints (k + ½)/2⁵². These are doubles, never 0 and never rounded to 1."""
        count = math.prod(shape)
        words = np.frombuffer(self._randomness.bytes(8 * count), dtype="<u8") >> np.uint64(12)
        return ((words.astype(np.float64) + 0.5) / 2**52).reshape(shape)

    def normals(self, *shape: int) -> Floats:
        """Standard normal draws: quantiles of uniform draws."""
        return np.asarray(ndtri(self.uniforms(*shape)))

    def laplaces(self, *shape: int) -> Floats:
        """Laplace draws of scale 1: quantiles of uniform draws."""
        centred = self.uniforms(*shape) - 0.5
        return np.asarray(-np.sign(centred) * np.log1p(-2 * np.abs(centred)))

    def signs(self, *shape: int) -> Floats:
        """±1 with equal probability."""
        return np.where(self.uniforms(*shape) < 0.5, -1.0, 1.0)
