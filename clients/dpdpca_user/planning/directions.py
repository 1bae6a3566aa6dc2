"""How a chain of few records finds out whether its public centre is near the mean.

Records are scaled to one length. Their mean, a private sum, is long if all of them lie in one direction from
the centre. It needs no norms, and its square needs far fewer records than the mean itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, hypot, sqrt
from typing import Self

from dpdpca_user.planning.centre import Centre, about_mean, mean_noise, moved_by_mean
from dpdpca_user.planning.histograms import quantile
from dpdpca_user.planning.noise import usual_norm
from dpdpca_user.planning.prestudy import PreStudyResult

SHORT = 2.0**-10
"""A clip norm, in units of √d, that scales nearly all rows to one length."""

_SHARES = tuple(Fraction(share, 100) for share in range(3, 9))
_NEAR = 0.6
_NOISE = 0.15
_LONGEST = 0.98
_LEAST_LENGTHS, _MOST_LENGTHS = 2, 5
_LENGTHS_FROM = 15.0


def directions_share(d: int, records: int, rho_total: float, draws: float) -> Fraction | None:
    """The share of ρ for a mean of directions that tells a near centre from a distant one; None if records
    are too few."""
    for share in _SHARES:
        noise = mean_noise(records, d, float(share) * rho_total, draws)
        if hypot(noise**2 * sqrt(2 / d), 2 * sqrt(_NEAR / d) * noise) <= _NOISE:
            return share
    return None


def lengths_share(records: int, rho_total: float, draws: float) -> Fraction | None:
    """The share of ρ for a histogram of all records' norms; None if records are too few.

    If all norms were in one bin, it would have 15 times the noise of a count.
    """
    needed = ceil(100 * draws * (_LENGTHS_FROM / records) ** 2 / rho_total)
    return None if needed > _MOST_LENGTHS else Fraction(max(needed, _LEAST_LENGTHS), 100)


@dataclass(frozen=True, slots=True)
class MeanDirection:
    """The mean of records that were scaled to one length about the public centre.

    If the mean of the records is e times their usual distance away, and a share q of the values is present,
    its square is about q·e²/(1 + e²). A joint study of one length then has the signal q/(1 + e²), and pairs
    of one length have q²/2. So both are equal at about the same square, whatever q is.

    Attributes:
        result: of the study.
        square: its squared length without noise, from 0 to 1; by chance it may be a little outside.
        noise: the norm of its noise.
    """

    result: PreStudyResult
    square: float
    noise: float

    @classmethod
    def at_the_start(cls, results: Sequence[PreStudyResult]) -> Self | None:
        """The mean direction with which these results begin; None if they begin with something else."""
        result = results[0]
        total, d = result.total, result.encoded_features
        if total is None or total.clip_norm > SHORT * sqrt(d):
            return None
        noise = total.noise * sqrt(d) / total.clip_norm
        return cls(result, sum(value**2 for value in total.mean) / total.clip_norm**2 - noise**2, noise)

    @property
    def is_near(self) -> bool:
        """Whether the public centre may be near enough to move it to the mean."""
        return self.square < _NEAR

    @property
    def public_centre(self) -> Centre:
        """The public centre, with the usual length of records as far as bounds suggest it."""
        unit = usual_norm(self.result.encoded_features, 0)
        return about_mean(None, unit, 0.0, sqrt(self.length**2 / (1 - self.length**2)))

    @property
    def length(self) -> float:
        """Its length without noise, from 0 to 0.99."""
        return sqrt(min(max(self.square, 0.0), _LONGEST))

    def usual_distance(self, norm: float) -> float:
        """The usual distance of records from their mean, if half of them are within `norm` of the public
        centre."""
        return norm * sqrt(1 - self.length**2)

    def moved_centre(self, norm: float) -> Centre:
        """The centre after a step in this direction, if half of the records are within `norm` of the public
        centre."""
        assert self.result.total is not None
        return moved_by_mean(
            self.result,
            shift=norm * self.length,
            noise=norm * self.noise,
            unit=self.usual_distance(norm),
            unit_of_mean=norm / self.result.total.clip_norm,
        )


def records_norm(results: Sequence[PreStudyResult]) -> float | None:
    """The norm about the public centre within which half of the records are; None if nothing shows it."""
    norms = next((each.norms for each in results if each.norms is not None), None)
    return None if norms is None else quantile(norms, 0.5)
