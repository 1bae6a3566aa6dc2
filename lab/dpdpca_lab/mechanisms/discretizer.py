"""The discretizer of Wang and Chang 2018, and the ε of their noise on its output."""

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

    The paper rounds down, which moves every feature down by half a step on average. So v and R move, and the
    centred scatter hardly does. If a study's clip norm is √d, so that only the extreme corners are clipped,
    its encoding is the map to the nearest integer, with T = 2q between the public bounds and shifted by q so
    that the middle is 0.

    Attributes:
        lower, upper: (d,) ends. The paper takes these ends from the data, which leaks information.
        top: T, from 1 to 2³¹ − 1; 2^e − 1 in the paper.

    Source: Wang, Chang 2018, equation 5. Tested: tests/unit/lab/test_published_mechanisms.py.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    top: int

    def __post_init__(self) -> None:
        if not 1 <= self.top <= _MOST:
            raise UsageError("bad-argument", f"the top of the discretizer must be from 1 to {_MOST}")
        if (
            self.lower.shape != self.upper.shape
            or self.lower.ndim != 1
            or not (self.lower < self.upper).all()
        ):
            raise UsageError("bad-argument", "each feature must have a lower end below its upper end")

    @property
    def record_bound(self) -> Fraction:
        """dT²/4: squared distance between a corner and the middle of the cube that contains the records."""
        return Fraction(len(self.lower) * self.top**2, 4)

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.int64]:
        """Map (n, d) reals down to integers in 0 … T, (n, d); values beyond the ends are clipped."""
        within = np.clip(rows, self.lower, self.upper)
        # In this order, a value that lies on a step keeps its step.
        cut: NDArray[Any] = np.floor(self.top * (within - self.lower) / (self.upper - self.lower))
        return cut.astype(np.int64)

    def real_epsilon(self, epsilon: Fraction, delta: Fraction) -> float:
        """ε of the paper's noise on the scatter of discretized rows: τ is that for rows of norm 1, not
        rescaled.

        The centred scatter does not depend on the origin, so K is measured from the middle of the cube.
        Opposite corners reach D = 4K, times the factor (N−1)/N.
        """
        ratio = 4 * self.record_bound / published_scale(epsilon, delta)
        return real_epsilon(float(ratio), float(delta))
