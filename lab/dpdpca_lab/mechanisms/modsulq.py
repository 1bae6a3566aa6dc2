"""MOD-SULQ of Chaudhuri, Sarwate and Sinha 2013, as published: far more noise than its claim needs.

Noise of the published size β does give the claimed (ε, δ). The published proof treats entries one at a time
and loses a factor of about d. This module proves the real ε of such noise: for d = 64 and a claimed ε of 1,
the real ε is about a hundredth of the claim. A comparison with MOD-SULQ therefore makes other mechanisms
look better than they are.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import gmpy2
from gmpy2 import mpfr

from dpdpca_lab.mechanisms.gaussian import TriangleGaussian
from dpdpca_lab.mechanisms.published import UNIT_ROWS
from dpdpca_protocol.privacy.mechanisms.interface import MATRICES, Guarantee, Setting


def modsulq_scale(epsilon: Fraction, delta: Fraction, encoded_features: int) -> Fraction:
    """nβ = (d+1)/ε·√(2 ln((d²+d)/(2√(2π)·δ))) + 1/√ε, per unit of record bound, rounded up.

    Source: Chaudhuri, Sarwate, Sinha 2013, equation 5. A negative logarithm is replaced by 0.
    """
    d = encoded_features
    with gmpy2.context(precision=128, round=gmpy2.RoundUp):
        eps, spent = mpfr(gmpy2.mpq(epsilon)), mpfr(gmpy2.mpq(delta))
        log = gmpy2.log((d * d + d) / (2 * gmpy2.sqrt(2 * gmpy2.const_pi()) * spent))
        beta = (d + 1) / eps * gmpy2.sqrt(2 * max(log, mpfr(0))) + 1 / gmpy2.sqrt(eps)
        numerator, denominator = (beta * (1 + mpfr(2) ** -100)).as_integer_ratio()
    return Fraction(int(numerator), int(denominator))


def modsulq_root(epsilon: Fraction, delta: Fraction, encoded_features: int) -> float:
    """nβ at the root of the quadratic inequality in the published proof. This is a little less than nβ.

    [(d+1)√(2L) + √(2(d+1)²L + 4ε)]/(2ε), L = ln((d²+d)/(2√(2π)·δ)) or 0.

    Source: Chaudhuri, Sarwate, Sinha 2013, proof of theorem 5.
    """
    d, eps = encoded_features, float(epsilon)
    log = max(math.log((d * d + d) / (2 * math.sqrt(2 * math.pi) * float(delta))), 0.0)
    half = (d + 1) * math.sqrt(2 * log)
    return (half + math.sqrt(half**2 + 4 * eps)) / (2 * eps)


@dataclass(frozen=True)
class ModSulq(TriangleGaussian):
    """`scale` is nβK, the standard deviation of every entry of the upper triangle."""

    name = "mod-sulq"
    quantities = MATRICES

    @classmethod
    def least_scale(cls, setting: Setting) -> Fraction:
        return modsulq_scale(setting.epsilon, setting.delta, setting.encoded_features) * setting.record_bound

    @property
    def claim(self) -> Guarantee:
        basis = "as published, entry by entry"
        return Guarantee(self.setting.epsilon, self.setting.delta, basis, (UNIT_ROWS,))
