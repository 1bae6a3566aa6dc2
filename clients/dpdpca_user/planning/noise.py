"""Forecasts how useful a study will be in spite of its noise. The forecast uses public numbers only, and no
data.

Units are scaled: half-ranges are 1 (with common scaling, the largest half-range is 1). The noise of every
release is c·r²/√ρ, with clip norm r and budget ρ; only the factor c depends on the release. ν is the ratio of
the noise to the largest signal that N clipped records can have. The larger ν is, the lower the norm at which
to clip.

The rules (quantiles, the norm without data) were fitted to ten real tables and checked on three others.
docs/utility.md says how accurate the formulas are.
"""

from collections.abc import Sequence
from math import sqrt

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.result.components import finite_size_factor
from dpdpca_protocol.study import ReleaseKind

FIRST_SHARES = (0.5, 0.2, 0.1, 0.05)
"""Shares of the first component for which the smallest number of records is printed."""

SAFETY = 1.15
TOO_CLOSE = 0.8
"""If λ₂/λ₁ is above this, noise mixes the first two components, and the formula gives too few records."""
GOOD_CENTRE_WEIGHT = 0.05
"""a/K for a joint release whose centre is near the mean."""

NUMERIC_SPREAD, LEVELS_SPREAD = 0.35, 0.9
"""Root-mean-square distance from the mean, in scaled units, if nothing is known: of a numeric feature, and of
all levels of a category together."""

_NOISE_OF_SCATTER = sqrt(8)
_NOISE_NONNEGATIVE = sqrt(3)
_NOISE_OF_PAIRS = 2.0
_SPIKE = 2.24  # cos² = 0.9 where 1 − s²d/θ² = 0.9 and s = t/√2
_QUANTILES = ((0.0005, 0.99), (0.002, 0.95), (0.006, 0.75), (0.01, 0.5))
_LOWEST_QUANTILE = 0.1
_OFF_CENTRE = (0.15, 0.7, 0.4)


def relative_noise(release: ReleaseKind, sum_weight: float = 0.0, nonnegative: bool = False) -> float:
    """c: noise of a release on N·Σ in units of r²/√ρ, where r bounds records (for pairs, |y|/√2)."""
    if release is ReleaseKind.JOINT:
        return 1 + sum_weight / 2
    if release is ReleaseKind.MASKED:
        return _NOISE_NONNEGATIVE if nonnegative else _NOISE_OF_SCATTER
    if release is ReleaseKind.PAIRS:
        return _NOISE_OF_PAIRS
    raise UsageError("bad-argument", f"a {release} releases no second moments")


def noise_over_signal(noise: float, d: int, rho: float, records: int) -> float:
    """ν = c√(d/2ρ)/N."""
    return noise * sqrt(d / (2 * rho)) / records


def clip_quantile(nu: float) -> float:
    """The quantile at which to clip the records' norms relative to their mean.

    Clipping only biases the signal, while noise grows with r². So the larger the noise, the lower the
    quantile.
    """
    return next((quantile for limit, quantile in _QUANTILES if nu < limit), _LOWEST_QUANTILE)


def usual_norm(numeric: int, categorical: int) -> float:
    """The clip norm if nothing is known about the data except that the centre is near the mean."""
    return sqrt(NUMERIC_SPREAD**2 * numeric + LEVELS_SPREAD**2 * categorical)


def usual_offset(centred: int, other: int, categorical: int) -> float:
    """The distance of the mean from the public centre if nothing is known about the data.

    Args:
        centred: the number of numeric features with a centre of their own, or with bounds about 0.
        other: the number of other numeric features.
        categorical: the number of categories, with equal centres for all levels.
    """
    return sqrt(
        _OFF_CENTRE[0] ** 2 * centred + _OFF_CENTRE[1] ** 2 * other + _OFF_CENTRE[2] ** 2 * categorical
    )


def least_records(
    noise: float, first_share: float, d: int, rho: float, kappa: float = 1.0, offset: float = 0.0
) -> float:
    """N_min: the number of records from which cos² of a component is at least 0.9, if other variances are
    small.

    Args:
        noise: c of the release.
        first_share: φ, the component's share of the total variance; for component k, λ_k/tr Σ.
        d: number of encoded features.
        rho: ρ of the main study.
        kappa: as `Placement.kappa`; 1 if r is the root-mean-square norm relative to the mean, and 1 + m²/tr Σ
            relative to a centre at distance m from the mean.
        offset: m²/a for a joint release, with a in the unit of m².

    Source: cos² = 1 − s²Σ 1/(θ₁ − θ_j)² of one spike in symmetric noise; docs/claims.md has the noise.
    Tested: tests/statistical/test_planning.py.
    """
    return _SPIKE * noise * kappa / first_share * sqrt(d / rho) * sqrt(1 + 2 * offset / d)


def components_seen(
    spectrum: Sequence[float],
    noise: float,
    d: int,
    rho: float,
    records: int,
    kappa: float = 1.0,
    offset: float = 0.0,
) -> int:
    """How many components of a spectrum would be above the noise edge.

    Args:
        spectrum: variances in any unit; if they add up to at most 1, they are shares of the total.
        noise, d, rho, records, kappa, offset: as in the other functions.
    """
    if not spectrum or min(spectrum) < 0 or sum(spectrum) <= 0:
        raise UsageError("bad-argument", "a spectrum is a list of variances, none of them below 0")
    nu = noise_over_signal(noise, d, rho, records) * sqrt(1 + 2 * offset / d)
    least = 2 * finite_size_factor(d)
    heights = [share / (kappa * nu) for share in shares_of(spectrum)]
    return sum(height > 1 and height + 1 / height > least for height in heights)


def shares_of(spectrum: Sequence[float]) -> list[float]:
    """Shares of the total, largest first. A list that adds up to at most 1 already consists of shares."""
    total = max(sum(spectrum), 1.0)
    return sorted((value / total for value in spectrum), reverse=True)
