"""Deviates of simulations: repeatable from their source, and of the right law."""

import numpy as np
from reference_data import Seeded

from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_user.results.deviates import normal_deviates, symmetric_noise, uniforms


def test_the_source_alone_decides() -> None:
    np.testing.assert_array_equal(normal_deviates(7, Seeded(1)), normal_deviates(7, Seeded(1)))
    assert not np.array_equal(normal_deviates(7, OS_RANDOMNESS), normal_deviates(7, OS_RANDOMNESS))


def test_uniforms_reach_one_but_not_zero() -> None:
    class Constant:
        def __init__(self, byte: bytes) -> None:
            self.byte = byte

        def bytes(self, count: int) -> bytes:
            return self.byte * count

        def below(self, bound: int) -> int:
            return 0

    assert uniforms(1, Constant(b"\xff"))[0] == 1.0
    assert uniforms(1, Constant(b"\x00"))[0] > 0


def test_moments_are_those_of_the_normal_law() -> None:
    drawn = normal_deviates(200_001, Seeded(2))
    assert drawn.shape == (200_001,)
    for power, expected in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert abs(np.mean(drawn**power) - expected) < 0.1


def test_symmetric_noise_has_its_two_deviations() -> None:
    noise = symmetric_noise(300, 2.0, 0.5, Seeded(3))
    np.testing.assert_array_equal(noise, noise.T)
    assert 1.6 < np.diag(noise).std() < 2.4
    assert 0.49 < noise[np.triu_indices(300, 1)].std() < 0.51
