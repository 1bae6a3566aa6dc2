"""Where records may lie about their centres, so that a forecast can say what is clipped and what is seen.

Nothing here comes from data. A forecast is made for two assumptions, which are good and bad guesses of the
centres. In both, a numeric feature has a standard deviation of 0.35 of its half-range, and the levels of a
category have a variance of 0.81 together. The public tables of docs/utility.md have 0.2 to 0.5 of the
half-range.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

from dpdpca_protocol.terms.features import Feature, feature_units
from dpdpca_user.planning.noise import LEVELS_SPREAD, NUMERIC_SPREAD, shares_of

FAR = 1.0
"""Distance of the means from the centres in the second assumption, in half-ranges: half a range, as for
counts and amounts whose centre is the middle of generous bounds."""

_CONCENTRATION = 0.15
"""Σφ² of a usual spectrum; 0.08 to 0.5 on the public tables."""


@dataclass(frozen=True, slots=True)
class Placement:
    """An assumption about records, in squared scaled units.

    Attributes:
        spread: tr Σ.
        offset: m², the squared distance of the mean from the centre.
        concentration: Σφ² of the spectrum's shares φ; the larger it is, the more the lengths differ.
    """

    spread: float
    offset: float = 0.0
    concentration: float = _CONCENTRATION

    def kappa(self, clip_norm: float) -> float:
        """κ: the largest signal that a release allows, divided by the signal that these records give it.

        Records longer than r are shortened to it, and their scatter shrinks by r²/(tr Σ + m²). If r is longer
        than the records, κ is r²/tr Σ.
        """
        return max(clip_norm**2, self.spread + self.offset) / self.spread

    def offset_left(self, clip_norm: float) -> float:
        """m² after clipping."""
        return self.offset * min(1.0, clip_norm**2 / (self.spread + self.offset))

    def share_longer(self, norm: float) -> float:
        """The share of records longer than `norm`, if the components are normal.

        Source: |u|² has the mean tr Σ + m² and the variance 2Σλ² + 4μᵀΣμ, with tr Σ·Σφ² for the variance
            along μ; Wilson and Hilferty's approximation of the gamma law with this mean and variance.
        """
        mean = self.spread + self.offset
        variance = 2 * self.concentration * self.spread * (self.spread + 2 * self.offset)
        ninth = variance / (9 * mean**2)
        return 1 - NormalDist(1 - ninth, sqrt(ninth)).cdf((norm**2 / mean) ** (1 / 3))


def placements(
    features: Sequence[Feature], scaling: str, spectrum: Sequence[float] = ()
) -> tuple[Placement, Placement]:
    """The two assumptions: centres at the means, and means half a range away from them.

    Args:
        features, scaling: of the manifest.
        spectrum: variances or shares of the components, if they are known.
    """
    units = feature_units(features, scaling)
    spread = offset = 0.0
    column = 0
    for feature in features:
        if feature.is_categorical:
            spread += LEVELS_SPREAD**2
            # About the centre 0, the columns of a category have length 1 in every record.
            offset += 0.0 if feature.level_centres else 1 - LEVELS_SPREAD**2
        else:
            half_range = float(feature.half_range / units[column][1])
            spread += (NUMERIC_SPREAD * half_range) ** 2
            offset += (FAR * half_range) ** 2
        column += feature.width
    shares = shares_of(spectrum) if spectrum else []
    square = sum(share**2 for share in shares) + max(1 - sum(shares), 0.0) ** 2 / len(units)
    concentration = square if shares else max(_CONCENTRATION, 1 / len(units))
    return Placement(spread, 0.0, concentration), Placement(spread, offset, concentration)
