"""A centre of the records of a chain, and how far it is from their mean."""

from dataclasses import dataclass
from math import hypot, sqrt

from dpdpca_protocol.study import ReleaseKind
from dpdpca_user.planning.noise import GOOD_CENTRE_WEIGHT, relative_noise
from dpdpca_user.planning.prestudy import PreStudyResult

_WEIGHT_OF_ERROR, _MOST_WEIGHT = 0.5, 0.2
_MISSING_LEFT = 0.5


@dataclass(frozen=True, slots=True)
class Centre:
    """A centre, and how far it is from the mean of the records.

    Attributes:
        where: (d,) in original units, or None for the public centre.
        unit: r, the median distance of records from their mean, in scaled units.
        noise: the norm of its noise, in units of r.
        offset: what else separates it from the mean, in units of r.
        missing: the share of values that are probably missing. A missing value counts as the centre, so a
            private mean leaves this share of the offset.
        clip: where to clip records about this centre for a mean, in scaled units.
    """

    where: tuple[float, ...] | None
    unit: float
    noise: float
    offset: float
    missing: float
    clip: float

    @property
    def error(self) -> float:
        """Its distance from the mean, in units of r."""
        return hypot(self.noise, self.offset)

    @property
    def distance_from_mean(self) -> float:
        """Its distance from the mean, in scaled units."""
        return self.unit * self.error

    @property
    def sum_weight(self) -> float:
        """a/K of a joint study about this centre.

        Along the mean, the variance of the noise is 1 + 2·error²·K/a times that in other directions. This
        is one direction of many, and a larger weight would add noise to all of them.
        """
        return round(max(GOOD_CENTRE_WEIGHT, min(_WEIGHT_OF_ERROR * self.error**2, _MOST_WEIGHT)), 3)

    @property
    def relative_noise(self) -> float:
        """c of a joint study about this centre, whose clip norm is widened by the error."""
        return relative_noise(ReleaseKind.JOINT, self.sum_weight) * (1 + self.error**2)

    def after_mean(self, noise: float) -> "Centre":
        """The centre after a mean about this one, if the norm of the mean's noise is `noise` in units of its
        clip norm."""
        left = noise_left(self.error, noise * self.clip / self.unit, self.missing)
        return about_mean(None, self.unit, left, _MISSING_LEFT * self.offset * self.missing, self.missing)


def about_mean(
    where: tuple[float, ...] | None, unit: float, noise: float, offset: float = 0.0, missing: float = 0.0
) -> Centre:
    """A centre that is this far from the mean; records about it have the usual norm unit·√(1 + error²)."""
    return Centre(where, unit, noise, offset, missing, unit * hypot(1, noise, offset))


def moved_by_mean(
    result: PreStudyResult,
    shift: float,
    noise: float,
    unit: float,
    missing: float = 0.0,
    unit_of_mean: float = 1.0,
) -> Centre:
    """The centre after a step towards a private mean.

    Args:
        result: of the mean study.
        shift: the distance of the mean from the centre before it, without its noise, in scaled units.
        noise: the norm of the mean's noise, in scaled units.
        unit: r, in scaled units.
        missing: the share of values that are probably missing.
        unit_of_mean: one unit of the released mean, in scaled units.
    """
    step = unit_of_mean * _step(shift, noise, missing)
    assert result.total is not None
    where = tuple(
        centre + half_range * step * mean
        for centre, half_range, mean in zip(result.centre, result.half_range, result.total.mean, strict=True)
    )
    left = noise_left(shift, noise, missing) / unit
    return about_mean(where, unit, left, _MISSING_LEFT * shift / unit * missing / (1 - missing), missing)


def mean_noise(records: int, d: int, rho: float, draws: float) -> float:
    """The norm of the noise of a private mean, in units of its clip norm (utility, T12)."""
    return sqrt(draws * 2 * d / rho) / records


def noise_left(shift: float, noise: float, missing: float) -> float:
    """The norm of the error that noise leaves after a step towards a private mean."""
    return noise * sqrt(_step(shift, noise, missing) / (1 - missing))


def _step(shift: float, noise: float, missing: float) -> float:
    """How far to move towards a private mean, as a multiple of the way.

    The centre before the mean has an error of its own, often no larger than the noise of the mean. A step of
    shift²/(shift² + noise²) weighs both, so that no earlier mean is forgotten. And if values are missing, the
    mean is only the part 1 − missing of the way.

    Args:
        shift: the distance of the mean from the centre before it, without its noise.
        noise: the norm of the mean's noise.
        missing: the share of values that are probably missing.

    Source: James and Stein 1961, for the weight.
    """
    return shift**2 / (shift**2 + noise**2) / (1 - missing) if shift else 0.0
