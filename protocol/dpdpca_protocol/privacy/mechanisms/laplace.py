"""Laplace noise on the upper triangle: DPPCA of Huang et al. 2021, with a proved sensitivity.

The Laplace mechanism needs the ℓ₁ norm of the released entries, which are the upper triangle. By Cauchy and
Schwarz Σ|M_ii| + ½ Σ_{i≠j}|M_ij| ≤ √(d + d(d−1)/4)·‖M‖_F = √(d(d+3)/4)·‖M‖_F for symmetric M, so every
Frobenius sensitivity gives an ℓ₁ one. For R it is K√(d(d+3)/2), below the (d+1)K that follows from |x|₁² ≤
d|x|₂² and within 5 % of the largest value that optimisation finds.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpdpca_protocol.privacy.accounting import delta_of_tails
from dpdpca_protocol.privacy.mechanisms.discrete_laplace import LAPLACE_TAIL
from dpdpca_protocol.privacy.mechanisms.gaussian import frobenius_sensitivity_squared
from dpdpca_protocol.privacy.mechanisms.interface import (
    MATRICES,
    Guarantee,
    Mechanism,
    NoiseLaw,
    PrivacyEvent,
    Quantity,
    Setting,
    sqrt_up,
)
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers


def l1_sensitivity(setting: Setting) -> Fraction:
    """A bound on the ℓ₁ change of the released entries, rounded up.

    For a scatter, the bound is for S; that for N·S is N times as large. For (R, αv) it is the smaller of two
    bounds: Cauchy and Schwarz over all entries, √(d(d+7)/4)·(2K+a)/√2, and the sum of the parts, K√(d(d+3)/2)
    + 2√(a d K).

    Tested: tests/unit/test_mechanisms_laplace.py (optimisation over neighbours).
    """
    d, bound = setting.encoded_features, setting.record_bound
    frobenius_squared = frobenius_sensitivity_squared(setting)
    if setting.quantity is not Quantity.JOINT:
        return sqrt_up(Fraction(d * (d + 3), 4) * frobenius_squared)
    together = sqrt_up(Fraction(d * (d + 7), 4) * frobenius_squared)
    apart = sqrt_up(Fraction(d * (d + 3) * bound**2, 2)) + 2 * sqrt_up(setting.alpha_squared * d * bound)
    return min(together, apart)


@dataclass(frozen=True)
class Laplace(Mechanism):
    """`scale` is b = D₁/ε: entries of R or S get b, coordinates of v get b/α.

    Source: Huang et al. 2021 (DPPCA); sampler Canonne, Kamath, Steinke 2020.
    """

    name = "laplace"
    quantities = MATRICES
    basis: ClassVar[str] = "discrete Laplace on integers, ε = D₁/b"

    @classmethod
    def least_scale(cls, setting: Setting) -> Fraction:
        return l1_sensitivity(setting) / setting.epsilon

    @property
    def guarantee(self) -> Guarantee:
        # Pure only for draws without a limit: the sampler's end at 64 bits, before anything is added to them.
        epsilon = self.setting.epsilon
        return Guarantee(epsilon, delta_of_tails(epsilon), self.basis, self.assumptions)

    @property
    def event(self) -> PrivacyEvent:
        epsilon = self.guarantee.epsilon
        return PrivacyEvent(epsilon**2 / 2, epsilon, delta_of_tails(epsilon))

    def law(self, count: int) -> NoiseLaw:
        scale = self.lift(count) * self.scale
        sum_scale = self._sum_scale() if self.setting.quantity is Quantity.JOINT else Fraction(0)
        # 2b² is a close upper bound on the variance 2p/(1−p)², p = e^(−1/b), of the discrete law.
        return NoiseLaw(
            diagonal=2 * scale**2,
            off_diagonal=2 * scale**2,
            sum_=2 * sum_scale**2,
            triangle_bound=_ceil(LAPLACE_TAIL * scale),
            sum_bound=_ceil(LAPLACE_TAIL * sum_scale),
        )

    def draw_triangle(self, count: int, sample: Samplers = EXACT) -> list[int]:
        d = self.setting.encoded_features
        return sample.laplace(self.lift(count) * self.scale, d * (d + 1) // 2)

    def draw_sum(self, sample: Samplers = EXACT) -> list[int]:
        return sample.laplace(self._sum_scale(), self.setting.encoded_features)

    def _sum_scale(self) -> Fraction:
        """b/α, rounded up."""
        return sqrt_up(self.scale**2 / self.setting.alpha_squared)


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)
