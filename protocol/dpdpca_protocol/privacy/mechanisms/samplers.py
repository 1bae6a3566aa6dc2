"""The source of the noise: the exact samplers, unless a caller passes its own.

An audit simulates thousands of releases and passes noise that it drew for all releases in advance. All other
code uses `EXACT`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dpdpca_protocol.privacy.gaussian import discrete_gaussian
from dpdpca_protocol.privacy.mechanisms.discrete_laplace import discrete_laplace


@dataclass(frozen=True, slots=True)
class Samplers:
    """Sources of independent integers.

    Attributes:
        gaussian: (variance, count, bound) → draws, as `discrete_gaussian`.
        laplace: (scale, count) → draws, as `discrete_laplace`.
    """

    gaussian: Callable[[Fraction, int, int], list[int]] = discrete_gaussian
    laplace: Callable[[Fraction, int], list[int]] = discrete_laplace


EXACT = Samplers()
