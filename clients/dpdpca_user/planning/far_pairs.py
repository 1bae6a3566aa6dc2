"""How a chain of few records counts the pairs that lie far from its public centre.

A count has far less noise than a histogram or a mean, so it needs the fewest records. It only chooses how the
chain ends: far from the mean, pairs have less noise than a joint study about the public centre.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Self

from dpdpca_user.planning.prestudy import NoisyCount

_SHARES = tuple(Fraction(share, 100) for share in range(1, 7))
_NOISE, _MOST_NOISE, _TOO_NOISY = 0.12, 0.17, 0.25
_FAR = 0.62


def far_pairs_share(records: int, rho_total: float, draws: float) -> Fraction | None:
    """The share of ρ for a count of far pairs that tells a near centre from a distant one; None if records
    are too few."""
    pairs = records // 2
    if not pairs:
        return None

    def noise(share: Fraction) -> float:
        """Of the share of far pairs."""
        return sqrt(draws / (2 * float(share) * rho_total)) / pairs

    enough = next((share for share in _SHARES if noise(share) <= _NOISE), _SHARES[-1])
    return enough if noise(enough) <= _MOST_NOISE else None


@dataclass(frozen=True, slots=True)
class FarShare:
    """The share of pairs that lie far from the public centre.

    Attributes:
        value: as released; by chance it may be outside 0 to 1.
        noise: its standard deviation.
    """

    value: float
    noise: float

    @classmethod
    def of(cls, far: NoisyCount, records: int) -> Self | None:
        """From a released count; None if the study had so few records that the count is mostly noise."""
        pairs = max(records // 2, 1)
        share = cls(far.count / pairs, far.noise / pairs)
        return None if share.noise > _TOO_NOISY else share

    @property
    def is_near(self) -> bool:
        """Whether a joint study about the public centre is probably better than pairs."""
        return self.value < _FAR

    def __str__(self) -> str:
        return f"{min(max(self.value, 0.0), 1.0):.0%} ± {self.noise:.0%}"
