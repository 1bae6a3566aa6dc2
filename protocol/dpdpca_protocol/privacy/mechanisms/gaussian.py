"""Gaussian noise in the Frobenius shape: an entry off the diagonal has half the variance of one on it.

All draws come from the exact discrete Gaussian. With D the Frobenius distance of neighbours, ρ = D²/(2t²).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from dpdpca_protocol.layout.blocks import TOLD, TRIANGLES, BlockName
from dpdpca_protocol.privacy.accounting import (
    TAIL_SIGMAS,
    analytic_gaussian_scale,
    ceil_sqrt,
    delta_of_tails,
    epsilon_of_rho,
)
from dpdpca_protocol.privacy.mechanisms.analytic import real_epsilon
from dpdpca_protocol.privacy.mechanisms.interface import (
    Guarantee,
    Mechanism,
    NoiseLaw,
    PrivacyEvent,
    Quantity,
    Setting,
    sqrt_up,
    upper_triangle,
)
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.privacy.sensitivity import (
    block_sensitivity_squared,
    joint_sensitivity_squared,
    lift_sensitivity_squared,
    nonnegative_scatter_sensitivity_squared_bound,
    scatter_sensitivity_bound,
    second_moment_sensitivity_squared,
)


def frobenius_sensitivity_squared(setting: Setting) -> Fraction:
    """D²: 2K² for R and for Σ y yᵀ over pairs; 16K² for S (times N² for N·S), and 6K² if no record has a
    coordinate below 0; (2K+a)²/2 for (R, αv); 4KB for (L, γG) of a lift; 1 for the blocks of a pre-study,
    whose noise has weights.

    Source: docs/claims.md, C1, C9 to C11, C19 and C20.
    """
    bound = setting.record_bound
    if setting.quantity is Quantity.JOINT:
        return joint_sensitivity_squared(bound, setting.alpha_squared)
    if setting.quantity is Quantity.SCATTER:
        if setting.nonnegative:
            return Fraction(nonnegative_scatter_sensitivity_squared_bound(bound))
        return Fraction(scatter_sensitivity_bound(bound) ** 2)
    if setting.quantity is Quantity.PRE_STUDY:
        return Fraction(1)
    if setting.quantity is Quantity.LIFT:
        return Fraction(lift_sensitivity_squared(bound, setting.score_bound))
    return Fraction(second_moment_sensitivity_squared(bound))


def weighted_sensitivity_squared(setting: Setting) -> Fraction:
    """D²/(1 − h·s): twice the ρ of the whole release at the scale t = 1.

    The h numbers that are told beside take the fraction s of ρ each, and matrix and sum have the rest.
    Source: docs/claims.md, C17.
    """
    return frobenius_sensitivity_squared(setting) / (1 - len(setting.told) * setting.clip_share)


def block_variance(setting: Setting, scale: Fraction, name: BlockName) -> Fraction:
    """σ² on each integer of a block of a flat release with Gaussian noise; 0 if the block has no noise.

    In the triangle of a matrix, σ² is the variance on the diagonal, and half of it is the variance off the
    diagonal.

    Source: docs/spec.md, section 3.
    """
    if name not in setting.noisy_blocks:
        return Fraction(0)
    if name is BlockName.GRAM:
        return scale**2 * Fraction(2 * setting.score_bound, setting.record_bound)
    if name in TRIANGLES or name is BlockName.LIFTED:
        return scale**2
    if name is BlockName.SUM and setting.quantity is Quantity.JOINT:
        return scale**2 / setting.alpha_squared
    share = setting.clip_share if name in TOLD else dict(setting.blocks)[name]
    moved = block_sensitivity_squared(
        name, setting.encoded_features, setting.record_bound, setting.clip_bound
    )
    return moved * scale**2 / (share * weighted_sensitivity_squared(setting))


@dataclass(frozen=True)
class Gaussian(Mechanism):
    """`scale` is t, the standard deviation of a diagonal entry of R or S: t² = D²/(2ρ), rounded up.

    If the release tells what clipping did, and how many values are missing, these h integers spend s·ρ each,
    and t² = D²/(2(1 − h·s)ρ). ρ comes from (ε, δ) by the tight conversion, rounded down.

    Attributes:
        off_diagonal_share: the variance off the diagonal divided by that on it.

    Source: Dwork, Talwar, Thakurta, Zhang 2014; Wang, Chang 2018; calibration Canonne, Kamath, Steinke 2020.
    """

    name = "gaussian"
    quantities = frozenset(Quantity) - {Quantity.PRE_STUDY, Quantity.LIFT}
    off_diagonal_share: ClassVar[Fraction] = Fraction(1, 2)
    basis: ClassVar[str] = (
        "discrete Gaussian on integers, ρ = D²/(2t²), tight conversion (Canonne, Kamath, Steinke 2020)"
    )

    @classmethod
    def least_scale(cls, setting: Setting) -> Fraction:
        return sqrt_up(weighted_sensitivity_squared(setting) / (2 * setting.rho))

    @property
    def rho(self) -> Fraction:
        """ρ = D²/(2(1 − h·s)t²), exact."""
        return weighted_sensitivity_squared(self.setting) / (2 * self.scale**2)

    @property
    def event(self) -> PrivacyEvent:
        return PrivacyEvent(self.rho, None, delta_of_tails(self.guarantee.epsilon))

    @property
    def real_epsilon(self) -> float:
        """The ε of continuous noise of this strength at the setting's δ; for display only, never promised."""
        ratio = math.sqrt(weighted_sensitivity_squared(self.setting)) / float(self.scale)
        return real_epsilon(ratio, float(self.setting.delta))

    @property
    def analytic_scale(self) -> float | None:
        unit = analytic_gaussian_scale(self.guarantee.epsilon, self.setting.delta)
        return unit * math.sqrt(weighted_sensitivity_squared(self.setting))

    @property
    def guarantee(self) -> Guarantee:
        if self.setting.rho_share < 1:
            return self.guarantee_of_rho
        # The scale is rounded up, so the requested ε is proved too. People expect to read this value.
        return self._promise(self.setting.epsilon)

    @property
    def guarantee_of_rho(self) -> Guarantee:
        """The (ε, δ) that ρ gives by the tight conversion at the setting's δ, with the tails added to δ."""
        return self._promise(epsilon_of_rho(self.rho, self.setting.delta))

    def _promise(self, epsilon: Fraction) -> Guarantee:
        delta = self.setting.delta + delta_of_tails(epsilon)
        return Guarantee(epsilon, delta, self.basis, self.assumptions)

    def law(self, count: int) -> NoiseLaw:
        variance = (self.lift(count) * self.scale) ** 2
        joint = self.setting.quantity is Quantity.JOINT
        sum_variance = self.scale**2 / self.setting.alpha_squared if joint else Fraction(0)
        return NoiseLaw(
            diagonal=variance,
            off_diagonal=variance * self.off_diagonal_share,
            sum_=sum_variance,
            triangle_bound=tail_bound(variance),
            sum_bound=tail_bound(sum_variance),
        )

    def draw_triangle(self, count: int, sample: Samplers = EXACT) -> list[int]:
        law = self.law(count)
        return gaussian_triangle(self.setting.encoded_features, law.diagonal, law.off_diagonal, sample)

    def draw_sum(self, sample: Samplers = EXACT) -> list[int]:
        law = self.law(1)
        return sample.gaussian(law.sum_, self.setting.encoded_features, law.sum_bound)

    def draw_told(self, sample: Samplers = EXACT) -> list[int]:
        variances = [self.variance(name) for name in self.setting.told]
        return [draw for each in variances for draw in sample.gaussian(each, 1, tail_bound(each))]

    def variance(self, name: BlockName, shares: int | None = None) -> Fraction:
        """σ² on each integer of a block of a flat release; 0 if the release has no noise on such a block.

        Args:
            name: of the block; for a matrix, σ² is the variance on the diagonal.
            shares: of how many shares the noise is the sum; None for as many as are assured.
        """
        variance = block_variance(self.setting, self.scale, name)
        return variance if shares is None else variance * shares / self.setting.shares


def gaussian_triangle(d: int, diagonal: Fraction, off_diagonal: Fraction, sample: Samplers) -> list[int]:
    """Independent draws with these variances as an upper triangle by rows."""
    on = sample.gaussian(diagonal, d, tail_bound(diagonal))
    off = sample.gaussian(off_diagonal, d * (d - 1) // 2, tail_bound(off_diagonal))
    return upper_triangle(d, on, off)


def tail_bound(variance: Fraction) -> int:
    """⌈κσ⌉: draws beyond it are redrawn, and their probability is part of δ."""
    return ceil_sqrt(TAIL_SIGMAS**2 * variance)
