"""Gaussian noise on the blocks of a pre-study. Each block has its own share of ρ."""

from dataclasses import dataclass
from fractions import Fraction

from dpdpca_protocol.layout.blocks import BlockName, block_length
from dpdpca_protocol.privacy.mechanisms.gaussian import Gaussian, tail_bound
from dpdpca_protocol.privacy.mechanisms.interface import NoiseLaw, Quantity
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers


@dataclass(frozen=True)
class BlockGaussian(Gaussian):
    """`scale` is 1/√(2ρ), the noise of a quantity that one record changes by 1 and that spends all of ρ.

    Let a block have the share s of ρ, and let one record change it by at most D. The variance of its noise is
    D²·scale²/s, so it spends D²/(2·variance) = s/(2·scale²) = s·ρ. The shares add up to 1, so all blocks
    together spend ρ.

    Source: docs/claims.md, C11. Tested: tests/unit/test_mechanisms_blocks.py.
    """

    quantities = frozenset({Quantity.PRE_STUDY})

    def law(self, count: int) -> NoiseLaw:
        """The law of the noise on the sum. It states no noise on a matrix, because a pre-study has no
        matrix."""
        variance, none = self.variance(BlockName.SUM), Fraction(0)
        return NoiseLaw(none, none, variance, 0, tail_bound(variance))

    def draw(self, count: int, sample: Samplers = EXACT) -> list[int]:
        """0 for the count, then the noise of each block."""
        noise = [0]
        for name, _ in self.setting.blocks:
            variance = self.variance(name)
            length = block_length(name, self.setting.encoded_features)
            noise += sample.gaussian(variance, length, tail_bound(variance))
        return noise
