"""Gaussian noise on a lift: L = Σ z aᵀ, which is no symmetric matrix, and the Gram matrix G = Σ a aᵀ."""

from dataclasses import dataclass

from dpdpca_protocol.layout.blocks import BlockName, block_length
from dpdpca_protocol.privacy.mechanisms.gaussian import Gaussian, gaussian_triangle, tail_bound
from dpdpca_protocol.privacy.mechanisms.interface import NoiseLaw, Quantity
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers


@dataclass(frozen=True)
class LiftGaussian(Gaussian):
    """`scale` is t, the standard deviation on each of the d·k entries of L: t² = 2KB/ρ.

    With γ² = K/(2B), (L, γG) changes by no more than L alone. So G is released at no further cost: its noise
    has the variance 2t²B/K on the diagonal and half of it off the diagonal.

    Source: docs/claims.md, C19 and C20. Tested: tests/unit/test_mechanisms_lift.py.
    """

    quantities = frozenset({Quantity.LIFT})

    def law(self, count: int) -> NoiseLaw:
        """The law of the noise on G; `sum_` is that on each entry of L."""
        gram, lifted = self.variance(BlockName.GRAM), self.variance(BlockName.LIFTED)
        return NoiseLaw(gram, gram * self.off_diagonal_share, lifted, tail_bound(gram), tail_bound(lifted))

    def draw(self, count: int, sample: Samplers = EXACT) -> list[int]:
        """0 for the count, the noise of L by features, and that of the upper triangle of G by rows."""
        law, setting = self.law(count), self.setting
        length = block_length(BlockName.LIFTED, setting.encoded_features, setting.columns)
        lifted = sample.gaussian(law.sum_, length, law.sum_bound)
        return [0, *lifted, *gaussian_triangle(setting.columns, law.diagonal, law.off_diagonal, sample)]
