"""The Gaussian mechanism in shares: each owner adds its part before it encrypts, and nobody knows the sum.

A sum of discrete Gaussians is not exactly a discrete Gaussian. The difference costs additional ρ.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import rho_of_shares
from dpdpca_protocol.privacy.mechanisms.gaussian import Gaussian, frobenius_sensitivity_squared, tail_bound
from dpdpca_protocol.privacy.mechanisms.interface import NoiseLaw, Quantity, Setting, sqrt_up
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers

LEAST_SHARE_SCALE = 4
"""With a smaller scale the sum of the shares would be too far from a discrete Gaussian.

From this scale on, τ < m·2⁻²²⁴.
"""


@dataclass(frozen=True)
class SharedGaussian(Gaussian):
    """Noise in m = `setting.shares` shares. `scale` is the scale t of the sum of these m shares.

    Each share has variance t²/m on the diagonal and half of that off the diagonal.

    If all L owners of a cohort draw, the noise has L/m times the variance. The shares beyond m, and what
    colluding owners know of their own draws, only post-process the sum of the m assured shares.

    Guarantee: ρ = D²/(2t²) + τ(d(d+1)/2 + d), τ = 10·Σ_{k=1}^{m−1} exp(−2π²σ²k/(k+1)), where σ² is the least
        parameter of a share.
    Source: Kairouz, Liu, Steinke 2021, proposition 14; docs/claims.md, C7.
    Tested: tests/unit/test_mechanisms_shared.py, tests/statistical/test_mechanism_noise.py.
    """

    quantities = frozenset({Quantity.JOINT})
    in_shares = True
    basis = (
        "sum of discrete Gaussians on integers, ρ = D²/(2t²) + τ(d(d+1)/2 + d), tight conversion "
        "(Kairouz, Liu, Steinke 2021; Canonne, Kamath, Steinke 2020)"
    )

    @classmethod
    def least_scale(cls, setting: Setting) -> Fraction:
        """t.

        The scale is slightly above that of a single draw, because part of ρ pays for the sum's distance from
        a Gaussian.

        Raises:
            UsageError: a share would have a scale below 4 grid units.
        """
        cls.check_quantity(setting.quantity)
        whole = super().least_scale(setting)
        if _least_share_variance(setting, whole) < LEAST_SHARE_SCALE**2:
            raise UsageError(
                "bad-argument",
                f"an owner's share of the noise has a scale below {LEAST_SHARE_SCALE} grid units",
                "raise fraction_bits",
            )
        rho = setting.rho
        # τ is computed for this t, not for the final one. It falls as t rises, so it is never understated.
        left = rho - _excess(setting, whole)
        if 2 * left < rho:
            raise UsageError("bad-argument", "ε is too small for noise in shares")
        return sqrt_up(frobenius_sensitivity_squared(setting) / (2 * left))

    @property
    def rho(self) -> Fraction:
        return super().rho + _excess(self.setting, self.scale)

    @property
    def assumptions(self) -> tuple[str, ...]:
        draw = f"at least {self.setting.shares} owners draw their share of the noise and keep it secret"
        return (*super().assumptions, draw)

    def law(self, count: int) -> NoiseLaw:
        """The assured law of the noise: that of a sum of m shares."""
        return self.law_of(self.setting.shares)

    def law_of(self, shares: int) -> NoiseLaw:
        """The law of the sum of `shares` shares, for a cohort of that many owners."""
        variance = self.scale**2 * shares / self.setting.shares
        sum_variance = variance / self.setting.alpha_squared
        return NoiseLaw(
            diagonal=variance,
            off_diagonal=variance * self.off_diagonal_share,
            sum_=sum_variance,
            triangle_bound=tail_bound(variance),
            sum_bound=tail_bound(sum_variance),
        )

    def share(self, sample: Samplers = EXACT) -> Iterator[int]:
        """One owner's part in the order of a share: 0 for N, then v, then R by rows.

        Each number is drawn only when the caller reads it.
        """
        d, law = self.setting.encoded_features, self.law_of(1)
        yield 0
        yield from sample.gaussian(law.sum_, d, law.sum_bound)
        off_bound = tail_bound(law.off_diagonal)
        for row in range(d):
            yield from sample.gaussian(law.diagonal, 1, law.triangle_bound)
            yield from sample.gaussian(law.off_diagonal, d - 1 - row, off_bound)

    def draw(self, count: int, sample: Samplers = EXACT) -> list[int]:
        """The sum of m shares, for code that simulates all owners at once."""
        shares = (self.share(sample) for _ in range(self.setting.shares))
        return [sum(parts) for parts in zip(*shares, strict=True)]

    def draw_triangle(self, count: int, sample: Samplers = EXACT) -> list[int]:
        return self.draw(count, sample)[1 + self.setting.encoded_features :]

    def draw_sum(self, sample: Samplers = EXACT) -> list[int]:
        return self.draw(1, sample)[1 : 1 + self.setting.encoded_features]


def _least_share_variance(setting: Setting, scale: Fraction) -> Fraction:
    return scale**2 * min(Fraction(1, 2), 1 / setting.alpha_squared) / setting.shares


def _excess(setting: Setting, scale: Fraction) -> Fraction:
    d = setting.encoded_features
    return rho_of_shares(setting.shares, _least_share_variance(setting, scale), d * (d + 1) // 2 + d)
