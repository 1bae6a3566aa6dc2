"""What the clip norm did to the records, and what variances were before it.

A release describes clipped records. If its study asks for it, the release also says how many rows were
clipped (records, or differences of pairs), and how long they were together before that. This is enough to
estimate the total before clipping, and by what factor it fell. Every variance is multiplied by this factor.
That is exact for the total about the public centre. For single directions it is an approximation, because
clipping shortens some directions more than others. All of this is post-processing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, isfinite, sqrt
from typing import Any, Self

import numpy as np

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.layout.blocks import CLIPPING
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Components, Floats
from dpdpca_protocol.terms.figures import Figures

MOST = 0.5
"""If more rows than this share were clipped, figures about clipped records say little about the data."""

_POINT = 1.645
"""Deviations between a normal estimate and its 5 % and 95 % points."""
_CHOSEN = 1.25
"""Components are the directions in which the noise happens to be large, so it counts for more."""
_SEEN = 3.0
"""Deviations of its noise above which the trace of a release says how long the clipped rows are."""
_MOST_UNSURE = 0.5
"""A factor with a larger relative deviation than this is not told."""
_USUAL_EXCESS, _USUAL_SPREAD = 0.2, 0.6
_UNEVEN, _UNEVEN_BEND = 0.9, 4.0
_NUMBERS = ("share", "share_deviation")
_CORRECTED = ("factor", "factor_deviation", "total_variance", "total_variance_deviation")
_PER_COMPONENT = ("variances", "deviations", "low", "high")


@dataclass(frozen=True, slots=True)
class ClippingFigures:
    """What clipping did, and figures that describe the data before it; variances in the metric's units.

    Attributes:
        share, share_deviation: estimate of the clipped share of all rows, from 0 to 1, and the standard
            deviation of its noise.
        factor, factor_deviation: estimate of variances before clipping divided by those after it, at least 1.
            None, like all that follows, if noise hides it.
        total_variance, total_variance_deviation: of all features, before clipping.
        variances, deviations: (k̂,) the variance before clipping that each component above its noise edge
            captures. The deviations contain the noise, in a study of pairs the choice of the pairs, the
            uncertainty of the factor, and the uneven effect of clipping.
        low, high: (k̂,) 5 % and 95 % points of these variances.
    """

    share: float
    share_deviation: float
    factor: float | None
    factor_deviation: float | None
    total_variance: float | None
    total_variance_deviation: float | None
    variances: Floats
    deviations: Floats
    low: Floats
    high: Floats

    @property
    def is_most(self) -> bool:
        """Whether most rows were clipped, so that no interval may describe clipped rows only."""
        return self.share > MOST

    @property
    def lost(self) -> float | None:
        """The squared length that clipping took from all rows, divided by what it left; None if not known."""
        return None if self.factor is None else self.factor - 1

    def sentences(self, rows: str) -> str:
        """What clipping did, in words.

        Args:
            rows: what a row is: records, or differences of pairs.
        """
        said = f"About {self.share:.0%} ± {self.share_deviation:.2g} of the {rows} were clipped to the norm."
        if self.factor is None:
            return (
                f"{said} The release shows too little above its noise to tell by how much this lowered the"
                " variances, so every variance here is that of clipped records."
            )
        return (
            f"{said} Before clipping, the total variance was {self.factor:.3g} ± {self.factor_deviation:.2g}"
            " times as large. Variances before clipping are the released ones times this factor. This is an"
            " approximation where clipping shortened some directions more than others; their deviations allow"
            " for that."
        )

    def to_body(self) -> dict[str, Any]:
        """Plain JSON, from which `parse` reads the same numbers."""
        numbers = {name: getattr(self, name) for name in (*_NUMBERS, *_CORRECTED)}
        return numbers | {name: getattr(self, name).tolist() for name in _PER_COMPONENT}

    @classmethod
    def parse(cls, untrusted: Mapping[str, Any]) -> Self:
        """The reverse of `to_body`.

        Raises:
            MessageError: shapes do not match, or a number is not finite.
        """
        try:
            share, share_deviation = (float(untrusted[name]) for name in _NUMBERS)
            factor, factor_deviation, total, total_deviation = (
                None if untrusted[name] is None else float(untrusted[name]) for name in _CORRECTED
            )
            variances, deviations, low, high = (
                np.array(untrusted[name], dtype=np.float64) for name in _PER_COMPONENT
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed() from error
        corrected, arrays = (
            (factor, factor_deviation, total, total_deviation),
            (variances, deviations, low, high),
        )
        finite = all(value is None or isfinite(value) for value in (share, share_deviation, *corrected))
        finite &= all(np.isfinite(values).all() for values in arrays)
        shapes = {values.shape for values in arrays}
        if not finite or len({value is None for value in corrected}) != 1:
            raise _malformed()
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise _malformed()
        return cls(share, share_deviation, *corrected, *arrays)


def _malformed() -> MessageError:
    return MessageError("malformed", "the figures about clipping have a wrong shape or are not finite")


def assess_clipping(
    noisy: NoisyScatter, figures: Figures, components: Components, owners: int | None = None
) -> ClippingFigures | None:
    """What clipping did in a release, and the variances of its components before it.

    Args:
        noisy, figures, owners: as they were given to `fit_components`.
        components: what it returned.

    Returns:
        The figures, or None if the release does not tell what clipping did.

    Source: about the public centre, rows have the total T before clipping and T − (Q − n·r²) after it, where
        n rows had the squared lengths Q in all and have length r now. The factor is the ratio of the two.
        The uncertainty of single directions, and the usual factor for a share of clipped rows, were fitted
        to real tables (docs/utility.md).
    Tested: tests/unit/user/test_clipping_figures.py, tests/statistical/test_clipping_figures.py.
    """
    if noisy.clipped is None:
        return None
    count, d = noisy.count, len(components.space.names)
    rows, squares = noisy.clipped
    row_noise, square_noise = (sqrt(figures.block_variance(name, owners)) for name in CLIPPING)
    unit = 1 << figures.clip_shift
    squares, square_noise = squares * unit + (unit - 1) * rows // 2, square_noise * unit
    share = min(max(rows / count, 0.0), 1.0)
    share_deviation = row_noise / count
    length = _clipped_length_squared(figures, d)
    trace, trace_noise = _trace_about_centre(noisy, figures, owners)
    total, noise = components.total_variance, components.noise_scale * sqrt(d)
    none = np.zeros(0)
    unknown = ClippingFigures(share, share_deviation, None, None, None, None, none, none, none, none)
    if trace < _SEEN * trace_noise or total < _SEEN * noise:
        return unknown
    measured = (squares - rows * length) / trace, hypot(square_noise, row_noise * length) / trace
    excess, deviation = _combined(measured, _usual_excess(rows / count, share_deviation))
    factor = 1 + excess
    deviation = hypot(deviation, excess * trace_noise / trace)
    if deviation > _MOST_UNSURE * factor:
        return unknown
    k = components.trusted_count
    captured, released = components.captured[:k], components.eigenvalues[:k]
    lost = 1 - 1 / (factor + deviation)
    uneven = _UNEVEN * lost / (1 + _UNEVEN_BEND * lost)
    variances = captured * factor
    deviations = np.sqrt(
        (_CHOSEN * components.noise_scale * factor * _steepness(released, components.signals[:k])) ** 2
        + variances**2 * (1 / count if noisy.of_pairs else 0)
        + (captured * deviation) ** 2
        + (variances * uneven) ** 2
    )
    return ClippingFigures(
        share=share,
        share_deviation=share_deviation,
        factor=factor,
        factor_deviation=deviation,
        total_variance=total * factor,
        total_variance_deviation=hypot(noise * factor, total * deviation),
        variances=variances,
        deviations=deviations,
        low=np.maximum(variances - _POINT * deviations, 0.0),
        high=variances + _POINT * deviations,
    )


def _clipped_length_squared(figures: Figures, d: int) -> float:
    """The mean of Σ z² over clipped rows: norm √K − √d/2, then a rounding error of 1/12 on each entry."""
    return max(sqrt(figures.record_bound) - sqrt(d) / 2, 0.0) ** 2 + d / 12


def _trace_about_centre(noisy: NoisyScatter, figures: Figures, owners: int | None) -> tuple[float, float]:
    """The trace of R̃ or P̃ in grid² units, and the standard deviation of its noise."""
    law, d = figures.law(noisy.count, owners), len(noisy.scaled_scatter)
    trace = sum(row[index] for index, row in enumerate(noisy.scaled_scatter))
    if noisy.sum is not None:
        # N·S̃ = N·R̃ − ṽ ṽᵀ
        return (trace + sum(value**2 for value in noisy.sum)) / noisy.count, sqrt(d * law.diagonal)
    return float(trace), sqrt(d * law.diagonal)


def _usual_excess(share: float, deviation: float) -> tuple[float, float]:
    """What the clipped share alone says about the factor minus 1, with its standard deviation.

    It says something only if part of the rows was clipped. A share that may be 1 may stand for any factor.
    """
    if share + _SEEN * deviation >= 1:
        return 0.0, float("inf")
    share = max(share, 0.0)
    usual = _USUAL_EXCESS * share / (1 - share)
    spread = hypot(_USUAL_SPREAD * usual, _USUAL_EXCESS * deviation / (1 - share) ** 2)
    return usual, spread


def _combined(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """The mean of two independent estimates at least 0, weighted by their precision, and its deviation.

    The second one is left out if it says nothing, or if the first one contradicts it.
    """
    (one, one_spread), (two, two_spread) = first, second
    if not isfinite(two_spread) or one - two > _SEEN * hypot(one_spread, two_spread):
        return max(one, 0.0), one_spread
    weight = two_spread**2 / (one_spread**2 + two_spread**2)
    spread = one_spread * two_spread / hypot(one_spread, two_spread)
    return max(weight * one + (1 - weight) * two, 0.0), spread


def _steepness(released: Floats, signals: Floats) -> Floats:
    """By how much 2θ̂ − l moves if the released eigenvalue l moves by 1; l = θ̂ + g/θ̂."""
    gap = np.maximum(2 * signals - released, 1e-3 * released)  # √(l² − 4g)
    return np.asarray(released / gap)
