"""The Gaussian noise of the literature, and its real ε.

Wang & Chang 2018 (like Imtiaz & Sarwate 2016) draw i.i.d. Gaussians on the upper triangle with
τ = √(2 ln(1.25/δ))/ε times a sensitivity of 1. One replaced record moves R by up to √2 and the centred
scatter by up to 4 in units of the record bound. Outputs state the real ε.
"""

from dataclasses import dataclass
from fractions import Fraction

import gmpy2
from gmpy2 import mpfr

from dpdpca_lab.mechanisms.published import UNIT_ROWS, Published
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Gaussian, Guarantee, Quantity, Setting


def published_scale(epsilon: Fraction, delta: Fraction) -> Fraction:
    """τ = √(2 ln(1.25/δ))/ε per unit of sensitivity, rounded up.

    Args:
        epsilon: ε > 0. The formula is proved for ε < 1 only (Dwork, Roth 2014, theorem A.1).
        delta: δ in (0, 1).

    Raises:
        UsageError: ε or δ is out of range.
    """
    if epsilon <= 0 or not 0 < delta < 1:
        raise UsageError("bad-argument", "ε must be above 0 and δ between 0 and 1")
    with gmpy2.context(precision=128, round=gmpy2.RoundUp):
        tau = gmpy2.sqrt(2 * gmpy2.log(mpfr(gmpy2.mpq(Fraction(5, 4) / delta)))) / mpfr(gmpy2.mpq(epsilon))
        numerator, denominator = (tau * (1 + mpfr(2) ** -100)).as_integer_ratio()
    return Fraction(int(numerator), int(denominator))


@dataclass(frozen=True)
class TriangleGaussian(Published, Gaussian):
    """I.i.d. noise on the upper triangle, with the scale that a paper states.

    The norm of a triangle is at most that of the whole matrix, so ρ = D²/(2t²) is proved here too.
    """

    off_diagonal_share = Fraction(1)

    @property
    def guarantee(self) -> Guarantee:
        return self.guarantee_of_rho

    @property
    def analytic_scale(self) -> None:
        return None


@dataclass(frozen=True)
class PublishedGaussian(TriangleGaussian):
    """AG (on R) and DPDPCA (on the centred scatter) as published: sensitivity 1.

    `scale` is τK, added to a sum over records. The papers state τ for rows of norm 1. Wang and Chang do not
    mention the rescaling to grid units. AG-SVM adds the same noise: Huang et al. use a sensitivity of 1/n on
    R/n.

    Source: Imtiaz, Sarwate 2016; Wang, Chang 2018, theorem 2 and algorithm 2; Huang et al. 2021.
    """

    quantities = frozenset({Quantity.SECOND_MOMENT, Quantity.SCATTER})

    @classmethod
    def least_scale(cls, setting: Setting) -> Fraction:
        return published_scale(setting.epsilon, setting.delta) * setting.record_bound

    @property
    def claim(self) -> Guarantee:
        return Guarantee(
            self.setting.epsilon, self.setting.delta, "as published: sensitivity 1", (UNIT_ROWS,)
        )
