"""Normal deviates for simulations that draw the known noise of a release again.

This module never draws the noise of a real release. Simulations need only correct averages, for which doubles
are good enough. Privacy depends on exact integers, which OpenDP draws (see `privacy.gaussian`). The bytes
come from the given `Randomness`, which in the product is that of the operating system.
"""

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.randomness import Randomness

_UNIT = 2.0**-53


def uniforms(count: int, randomness: Randomness) -> NDArray[np.float64]:
    """(count,) doubles in (0, 1], 53 random bits each."""
    words = np.frombuffer(randomness.bytes(8 * count), dtype="<u8")
    return ((words >> np.uint64(11)).astype(np.float64) + 1.0) * _UNIT


def normal_deviates(count: int, randomness: Randomness) -> NDArray[np.float64]:
    """(count,) independent standard normal deviates, by Box and Muller's formula."""
    half = (count + 1) // 2
    radius = np.sqrt(-2.0 * np.log(uniforms(half, randomness)))
    angle = 2.0 * np.pi * uniforms(half, randomness)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def symmetric_noise(
    d: int, diagonal: float, off_diagonal: float, randomness: Randomness
) -> NDArray[np.float64]:
    """(d, d) symmetric, independent normal entries with these standard deviations on and off the diagonal."""
    upper = np.triu_indices(d, 1)
    noise = np.zeros((d, d))
    noise[upper] = off_diagonal * normal_deviates(len(upper[0]), randomness)
    noise += noise.T
    noise[np.diag_indices(d)] = diagonal * normal_deviates(d, randomness)
    return noise
