"""The discretizer of Wang and Chang 2018, and the ε of their noise on what it gives."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.mechanisms.gaussian import published_scale
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms.analytic import real_epsilon

_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PublishedDiscretizer:
    """The paper's map of each feature to the integers 0 … T, linear between a lower and an upper end.

    Where a study's clip norm is √d, and so cuts nothing but the very corners, its encoding is this map with
    T = 2q between the public bounds, moved by q so that the middle is 0.

    Attributes:
        lower, upper: (d,) ends. Taken from the data, as the paper does, they are themselves a leak.
        top: T, from 1 to 2³¹ − 1; in the paper 2^e − 1.

    Source: Wang, Chang 2018, equation 5. Tested: tests/unit/lab/test_published_mechanisms.py.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    top: int

    def __post_init__(self) -> None:
        if not 1 <= self.top <= _MOST:
            raise UsageError("bad-argument", f"the top of the discretizer must be 1 to {_MOST}")
        if (
            self.lower.shape != self.upper.shape
            or self.lower.ndim != 1
            or not (self.lower < self.upper).all()
        ):
            raise UsageError("bad-argument", "each feature needs a lower end below its upper end")

    @property
    def record_bound(self) -> Fraction:
        """dT²/4: squared distance of a corner from the middle of the cube that records lie in."""
        return Fraction(len(self.lower) * self.top**2, 4)

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        """(n, d) reals → (n, d) integers in 0 … T, to the nearest; values outside the ends are cut."""
        share = (rows - self.lower) / (self.upper - self.lower)
        cut: NDArray[Any] = np.rint(np.clip(share, 0.0, 1.0) * self.top)
        return cut.astype(np.int64)

    def real_epsilon(self, epsilon: Fraction, delta: Fraction) -> float:
        """ε of the paper's noise on the scatter of discretized rows: τ for rows of norm 1, never rescaled.

        The centred scatter does not depend on the origin, so K is taken about the middle of the cube and
        D = 4K, less the factor (N−1)/N, is reached by opposite corners.
        """
        ratio = 4 * self.record_bound / published_scale(epsilon, delta)
        return real_epsilon(float(ratio), float(delta))
