"""Noise as a symmetric matrix of floats, and settings for rows of real numbers.

The papers state their noise for real rows of norm at most 1. Here a row of norm 1 is 2¹² grid units long, so
that a mechanism's integer noise, divided by the record bound, is the paper's noise on a grid that nobody can
see.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.mechanisms.wishart import Wishart
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.gaussian import sampler_scale
from dpdpca_protocol.privacy.gaussian_draws import draw_gaussians
from dpdpca_protocol.privacy.mechanisms import Mechanism, Quantity, Setting
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers

UNIT = 2**24
"""The record bound K of rows of norm at most 1."""

_NO_DELTA = Fraction(1, 2**40)
"""Laplace and Wishart noise spend no δ, but a setting must have one."""


def unit_setting(
    quantity: Quantity, features: int, epsilon: Fraction, delta: Fraction | None = None
) -> Setting:
    """The setting of a mechanism for real rows of norm at most 1.

    Args:
        quantity: what the noise is added to: R or S.
        features: d.
        epsilon: ε > 0.
        delta: δ in (0, 1); None for mechanisms that spend none.
    """
    return Setting(quantity, features, UNIT, epsilon, _NO_DELTA if delta is None else delta)


def _gaussian(variance: Fraction, count: int, bound: int) -> list[int]:
    if bound >= 2**63 - 1:
        raise UsageError("noise-too-large", "the noise exceeds the 63 bits of the sampler")
    drawn: list[int] = draw_gaussians(sampler_scale(variance), count, bound).tolist()
    return drawn


FAST = Samplers(gaussian=_gaussian)
"""The exact distributions, with the faster sampler for any number of Gaussian draws."""


def noise_matrix(mechanism: Mechanism | Wishart, sample: Samplers = FAST) -> NDArray[np.float64]:
    """One draw of the noise on R or S, (d, d) symmetric, in grid units.

    For rows of real numbers, divide by the record bound: that is the noise on a sum over rows of norm at most
    1. Divide by n as well for the noise on R/n.
    """
    d = mechanism.setting.encoded_features
    noise = np.zeros((d, d))
    noise[np.triu_indices(d)] = np.array(mechanism.draw_triangle(1, sample), dtype=np.float64)
    return noise + np.triu(noise, 1).T
