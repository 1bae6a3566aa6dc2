"""DPPCA of Huang et al. 2021 as published.

The paper's 2d exceeds the ℓ₁ sensitivity of R, but it is less than that of the centred scatter.
"""

from dataclasses import dataclass
from fractions import Fraction

from dpdpca_lab.mechanisms.published import Published
from dpdpca_protocol.privacy.accounting import delta_of_tails
from dpdpca_protocol.privacy.mechanisms import Guarantee, Laplace, Quantity, Setting
from dpdpca_protocol.privacy.mechanisms.laplace import l1_sensitivity


@dataclass(frozen=True)
class PublishedLaplace(Published, Laplace):
    """b = 2dK/ε as published (2d/(nε) on the covariance matrix of rows of norm at most 1).

    For R the constant is larger than needed, so less than ε is spent. For the centred scatter, the proved ε
    is larger than the claim by a factor of √(1 + 3/d).
    """

    quantities = frozenset({Quantity.SECOND_MOMENT, Quantity.SCATTER})

    @classmethod
    def least_scale(cls, setting: Setting) -> Fraction:
        return 2 * setting.encoded_features * setting.record_bound / setting.epsilon

    @property
    def claim(self) -> Guarantee:
        return Guarantee(self.setting.epsilon, Fraction(0), "as published: ℓ₁ sensitivity 2d")

    @property
    def guarantee(self) -> Guarantee:
        """ε = D₁/b, where only D₁ is rounded. δ is that of draws that are cut at 64 bits."""
        epsilon = l1_sensitivity(self.setting) / self.scale
        return Guarantee(epsilon, delta_of_tails(epsilon), self.basis, self.assumptions)
