"""The Gaussian mechanism in shares: each owner adds its part to its sums, and nobody knows the whole noise.

A sum of discrete Gaussians is not exactly a discrete Gaussian. The difference costs additional ρ.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import floor, log10

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import COUNTED, TRIANGLES, BlockName, block_length, matrix_size
from dpdpca_protocol.privacy.accounting import epsilon_of_rho, rho_of_shares
from dpdpca_protocol.privacy.mechanisms.gaussian import (
    Gaussian,
    block_variance,
    tail_bound,
    weighted_sensitivity_squared,
)
from dpdpca_protocol.privacy.mechanisms.interface import NoiseLaw, Quantity, Setting, sqrt_up
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers

LEAST_PARAMETER = Fraction(1, 4)
"""The least parameter σ² of a share. The proof needs it."""
MOST_EXCESS = Fraction(1, 64)
"""The largest fraction of ρ that may pay for the distance from a Gaussian: at most 1 % more noise."""
_BATCH = 65_536
_STEPS = 20


@dataclass(frozen=True)
class SharedGaussian(Gaussian):
    """Noise in m = `setting.shares` shares. `scale` is the scale of the sum of these m shares.

    A block b whose noise would have the variance σ_b² if one party drew it gets shares of variance σ_b²/m.
    Off the diagonal of a matrix, the variance is half of that on the diagonal.

    If all L owners of a cohort draw, the noise has L/m times the variance. The shares beyond m, and what
    colluding owners know of their own draws, only post-process the sum of the m assured shares.

    Guarantee: ρ = D²/(2(1 − h·s)t²) + Σ_b len_b·τ_b, where block b has len_b integers with noise, its least
        share parameter is s_b², and τ_b = 10·Σ_{k=1}^{m−1} exp(−2π²s_b²k/(k+1)).
    Source: Kairouz, Liu, Steinke 2021, proposition 14; docs/claims.md, C7.
    Tested: tests/unit/test_mechanisms_shared.py, tests/statistical/test_owners_noise.py.
    """

    quantities = frozenset({Quantity.JOINT, Quantity.PAIRS, Quantity.PRE_STUDY, Quantity.LIFT})
    in_shares = True
    basis = (
        "sum of discrete Gaussians on integers, ρ = D²/(2t²) + Σ len·τ, tight conversion "
        "(Kairouz, Liu, Steinke 2021; Canonne, Kamath, Steinke 2020)"
    )

    @classmethod
    def least_scale(cls, setting: Setting) -> Fraction:
        """The scale is slightly above that of a single draw, because part of ρ pays for the sum's distance
        from a Gaussian.

        Raises:
            UsageError: a share is too small for the proof. The error names the ε, and in a chain the part of
                ρ, at which it would do.
        """
        cls.check_quantity(setting.quantity)
        rho = setting.rho
        # The excess is that of a single draw's scale, not of the final one. It falls as the scale rises, so
        # it is never understated.
        excess = _affordable_excess(setting, rho)
        if excess is None:
            raise _too_coarse(setting)
        return sqrt_up(weighted_sensitivity_squared(setting) / (2 * (rho - excess)))

    @property
    def rho(self) -> Fraction:
        return super().rho + _excess(self.setting, self.scale)

    def rho_among(self, honest: int) -> Fraction:
        """ρ if only so many owners keep their noise secret, and nobody but them is trusted.

        With h of them below m, the noise that they share has h/m of the variance.
        Source: docs/claims.md, C14.
        """
        most = max(Fraction(1), Fraction(self.setting.shares, honest))
        return super().rho * most + _excess(self.setting, self.scale)

    @property
    def assumptions(self) -> tuple[str, ...]:
        draw = f"at least {self.setting.shares} owners draw their share of the noise and keep it secret"
        return (*super().assumptions, draw)

    def law(self, count: int) -> NoiseLaw:
        """The assured law of the noise: that of a sum of m shares."""
        return self.law_of(self.setting.shares)

    def law_of(self, shares: int) -> NoiseLaw:
        """The law of the sum of `shares` shares, for a cohort of that many owners."""
        diagonal = sum((self.variance(name, shares) for name in TRIANGLES), Fraction(0))
        sum_ = sum((self.variance(name, shares) for name in (BlockName.SUM, BlockName.LIFTED)), Fraction(0))
        return NoiseLaw(
            diagonal=diagonal,
            off_diagonal=diagonal * self.off_diagonal_share,
            sum_=sum_,
            triangle_bound=tail_bound(diagonal),
            sum_bound=tail_bound(sum_),
        )

    def share(self, sample: Samplers = EXACT) -> Iterator[int]:
        """One owner's part in the order of a share: 0 for the count, then block by block, a matrix by rows.

        Numbers are drawn in batches when the caller reads them.
        """
        yield 0
        for name in self.setting.noisy_blocks:
            variance = self.variance(name, 1)
            if name not in TRIANGLES:
                yield from _draws(variance, _length(self.setting, name), sample)
                continue
            size = matrix_size(name, self.setting.encoded_features, self.setting.columns)
            diagonal = _draws(variance, size, sample)
            others = _draws(variance * self.off_diagonal_share, size * (size - 1) // 2, sample)
            for row in range(size):
                yield next(diagonal)
                yield from islice(others, size - 1 - row)

    def draw(self, count: int, sample: Samplers = EXACT) -> list[int]:
        """The sum of m shares, for code that simulates all owners at once."""
        shares = (self.share(sample) for _ in range(self.setting.shares))
        return [sum(parts) for parts in zip(*shares, strict=True)]

    def draw_triangle(self, count: int, sample: Samplers = EXACT) -> list[int]:
        d = self.setting.encoded_features
        start = 1 if self.setting.quantity is not Quantity.JOINT else 1 + d
        return self.draw(count, sample)[start : start + d * (d + 1) // 2]

    def draw_sum(self, sample: Samplers = EXACT) -> list[int]:
        return self.draw(1, sample)[1 : 1 + self.setting.encoded_features]

    def draw_told(self, sample: Samplers = EXACT) -> list[int]:
        count = len(self.setting.told)
        return self.draw(1, sample)[-count:] if count else []


def _length(setting: Setting, name: BlockName) -> int:
    return block_length(name, setting.encoded_features, setting.columns)


def _draws(variance: Fraction, count: int, sample: Samplers) -> Iterator[int]:
    bound = tail_bound(variance)
    for start in range(0, count, _BATCH):
        yield from sample.gaussian(variance, min(_BATCH, count - start), bound)


def _least_parameters(setting: Setting, scale: Fraction) -> Iterator[tuple[int, Fraction]]:
    """For each block, the number of its integers with noise and s_b²."""
    for name in setting.noisy_blocks:
        least = block_variance(setting, scale, name) / setting.shares
        if name in TRIANGLES:
            least *= Gaussian.off_diagonal_share
        yield _length(setting, name), least


def _excess(setting: Setting, scale: Fraction) -> Fraction:
    """Σ_b len_b·τ_b."""
    parts = _least_parameters(setting, scale)
    return sum((rho_of_shares(setting.shares, least, length) for length, least in parts), Fraction(0))


def _affordable_excess(setting: Setting, rho: Fraction) -> Fraction | None:
    """Σ_b len_b·τ_b of the noise that one party would draw for ρ; None if a share is too small."""
    scale = sqrt_up(weighted_sensitivity_squared(setting) / (2 * rho))
    if min(least for _, least in _least_parameters(setting, scale)) < LEAST_PARAMETER:
        return None
    excess = _excess(setting, scale)
    return excess if excess <= MOST_EXCESS * rho else None


def _too_coarse(setting: Setting) -> UsageError:
    # The more ρ, the smaller the shares, so a bisection finds the most that they allow.
    high = setting.rho
    low = high / 2
    while _affordable_excess(setting, low) is None:
        high, low = low, low / 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if _affordable_excess(setting, middle) is None else (middle, high)
    epsilon = _digits_down(epsilon_of_rho(low / setting.rho_share, setting.delta))
    ways = [f"lower epsilon to {epsilon}"]
    if setting.rho_share < 1:
        ways.insert(0, f"lower rho_share to {_digits_down(setting.rho_share * low / setting.rho)}")
    if setting.clip_share:
        ways.insert(0, "lower clip_share, or raise fraction_bits")
    elif not COUNTED & set(setting.noisy_blocks):
        ways.insert(0, "raise fraction_bits")
    return UsageError(
        "bad-argument",
        f"an owner's share of the noise is too small for the proof that {setting.shares} shares together are"
        " enough",
        " or ".join(ways),
    )


def _digits_down(value: Fraction) -> str:
    """A positive number rounded down to three significant digits."""
    places = 2 - floor(log10(value))
    return f"{floor(value * Fraction(10) ** places) / 10.0**places:.12g}"
