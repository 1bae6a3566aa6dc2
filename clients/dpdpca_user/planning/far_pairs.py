"""How a chain of few records counts the pairs that lie far from its public centre.

A count has far less noise than a histogram or a mean, so it needs the fewest records. It only chooses how the
chain ends: far from the mean, pairs have less noise than a joint study about the public centre.
"""

from fractions import Fraction
from math import sqrt

from dpdpca_user.planning.prestudy import NoisyCount

_SHARES = tuple(Fraction(share, 100) for share in range(1, 7))
_NOISE, _MOST_NOISE = 0.12, 0.17
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


def far_share(far: NoisyCount, records: int) -> float:
    """The share of pairs that lie far from the public centre; by chance it may be a little outside 0 to 1."""
    return far.count / (records // 2)


def is_near(share: float) -> bool:
    """Whether a joint study about the public centre is better than pairs if this share of pairs lies far
    from it."""
    return share < _FAR
