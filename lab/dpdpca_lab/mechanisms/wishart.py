"""SN of Imtiaz and Sarwate 2016: Wishart noise, claimed to have pure ε, but without differential privacy.

The reason: let E ~ W_d(I/(2ε), d+1) and Y = XᵀX + E, and add one record x to the data. With this record, Y is
impossible unless E − xxᵀ is positive semidefinite, that is, xᵀE⁻¹x ≤ 1. Since 2ε|x|²/(xᵀE⁻¹x) is chi-squared
with (d+1) − d + 1 = 2 degrees of freedom, P(impossible) = P(χ²₂ < 2ε|x|²) = 1 − exp(−ε|x|²), for any d. This
event has probability 0 for one data set and 1 − exp(−ε|x|²) for the other. So (ε′, δ)-DP fails for every ε′
if δ < 1 − exp(−ε|x|²). If one record is replaced by an orthogonal one, this probability is about 0.063,
0.295, 0.52 and 0.91 at ε = 0.1, 0.5, 1 and 3. The published proof omits the indicator of this support. The
authors retracted the proof in 2017.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import ClassVar, Self

import gmpy2
import numpy as np
from gmpy2 import mpfr

from dpdpca_lab.mechanisms.published import NoGuarantee, Published
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import TAIL_SIGMAS, ceil_sqrt
from dpdpca_protocol.privacy.mechanisms.interface import Guarantee, NoiseLaw, Quantity, Setting, sqrt_up
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers

_TAIL_EXPONENT = 84
"""P(χ²_p ≥ p + 2√(84p) + 168) ≤ e⁻⁸⁴: Laurent, Massart 2000; sub-Gaussian: Hsu, Kakade, Zhang 2012."""


def impossible_probability(epsilon: Fraction, squared_norm: Fraction) -> float:
    """1 − exp(−ε|x|²): how often an output proves that record x was not in the data.

    Args:
        epsilon: the claimed ε.
        squared_norm: |x|², in units where the record bound is 1.
    """
    with gmpy2.context(precision=128):
        return float(-gmpy2.expm1(mpfr(gmpy2.mpq(-epsilon * squared_norm))))


@dataclass(frozen=True)
class Wishart(Published):
    """E = Σ g gᵀ over d+1 factors; `scale` is the standard deviation √(K/(2ε)) of a factor's coordinates.

    SN has everything that a mechanism has except a privacy event: nothing is proved, so no cost would be
    right in a ledger.

    The published distribution has real normal factors, which no integer sampler can draw. In this class the
    factors are discrete Gaussians. So E is a positive semidefinite integer matrix with the published mean. If
    the scale is about 10 grid units or more, its distribution cannot be distinguished from the published one
    rounded to the grid.
    """

    name: ClassVar[str] = "wishart"
    quantities: ClassVar[frozenset[Quantity]] = frozenset({Quantity.SECOND_MOMENT, Quantity.SCATTER})

    setting: Setting
    scale: Fraction

    @classmethod
    def calibrated(cls, setting: Setting) -> Self:
        """The paper's noise for `setting`.

        Raises:
            UsageError: the mechanism is not defined for this quantity.
        """
        if setting.quantity not in cls.quantities:
            offered = " and ".join(sorted(cls.quantities))
            raise UsageError(
                "bad-argument",
                f"mechanism {cls.name} supports {offered}, not the {setting.quantity} release",
            )
        return cls(setting, sqrt_up(setting.record_bound / (2 * setting.epsilon)))

    @property
    def claim(self) -> Guarantee:
        return Guarantee(self.setting.epsilon, Fraction(0), "as published; retracted by its authors")

    @property
    def guarantee(self) -> NoGuarantee:
        lost = impossible_probability(self.setting.epsilon, Fraction(1))
        return NoGuarantee(
            f"with probability 1 − exp(−ε) = {lost:.3f}, an output is impossible with one more record, "
            "so no ε holds for a smaller δ"
        )

    def law(self, count: int) -> NoiseLaw:
        """Variances and bounds for N = `count` records. The mean of a diagonal entry is not 0."""
        variance, factors = self._factor_variance(count), self.setting.encoded_features + 1
        root = isqrt(_TAIL_EXPONENT * factors) + 1
        return NoiseLaw(
            diagonal=2 * factors * variance**2,
            off_diagonal=factors * variance**2,
            sum_=Fraction(0),
            # In a positive semidefinite matrix, no entry is larger than the largest diagonal entry.
            triangle_bound=int(variance * (factors + 2 * root + 2 * _TAIL_EXPONENT)) + 1,
            sum_bound=0,
        )

    def draw_triangle(self, count: int, sample: Samplers = EXACT) -> list[int]:
        """E as an upper triangle by rows, for N = `count` records."""
        d, variance = self.setting.encoded_features, self._factor_variance(count)
        rows = d + 1
        bound = ceil_sqrt(TAIL_SIGMAS**2 * variance)
        drawn = sample.gaussian(variance, rows * d, bound)
        # Sums that do not fit into 64 bits are sums of Python's integers.
        factors = np.array(drawn, dtype=np.int64 if rows * bound**2 < 2**63 else object).reshape(rows, d)
        entries: list[int] = (factors.T @ factors)[np.triu_indices(d)].tolist()
        return entries

    def _factor_variance(self, count: int) -> Fraction:
        """N·E is distributed like a Wishart matrix whose factors have N times the variance."""
        return (count if self.setting.quantity is Quantity.SCATTER else 1) * self.scale**2
