"""What the clip norm did to the records, and what variances were before it.

A release describes clipped records. If its study asks for it, the release also says how many rows were
clipped (records, or differences of pairs), and how long they were together before that. This is enough to
estimate the total before clipping, and by what factor it fell. That is exact for the total about the public
centre. Single variances are multiplied by this factor, and the first ones by slightly more, because long rows
lie along the first components more than others. That is an approximation. All of this is post-processing.

If the release also tells how many values are missing, the same figures allow for that (`gaps`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import hypot, isfinite, sqrt
from typing import Any, Self

import numpy as np

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.layout.blocks import CLIPPING
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Components, Floats, scatter_of
from dpdpca_protocol.terms.figures import Figures
from dpdpca_user.results.gaps import Gaps, within_features, without_gaps

MOST = 0.5
"""If more rows than this share were clipped, figures about clipped records say little about the data."""

_POINT = 1.645
"""Deviations between a normal estimate and its 5 % and 95 % points."""
_CHOSEN = 1.25
"""Components are the directions in which the noise happens to be large, so it counts for more."""
_SEEN = 3.0
"""Deviations of its noise above which the trace of a release says how long the clipped rows are."""
_MOST_UNSURE = 0.4
"""A factor with a larger relative deviation than this is not told, because noise alone may have made it."""
_UNEVEN, _UNEVEN_BEND = 1.0, 2.0
_UNSURE_TAKEN = 0.2
"""Clipped records with gaps are shortened less, so what is taken off for gaps is known to this part only."""
_LEAN, _LEAN_UNTIL = 0.1, 4.0
_SUM_BITS = 128
"""More than any released integer has."""
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
        total_variance, total_variance_deviation: of all features, before clipping and without gaps.
        variances, deviations: (k̂,) the variance, before clipping and without gaps, that each component above
            its noise edge captures. The deviations contain the noise, in a study of pairs the choice of the
            pairs, which values are missing, the uncertainty of the factor and of the share of gaps, and the
            uneven effect of clipping.
        low, high: (k̂,) 5 % and 95 % points of these variances.
        gaps: how many values are missing; None if the release does not tell.
        told: the released integers behind these figures, with noise, in the order of `TOLD` and in the units
            of their study. Those of several studies add up. Empty in older files.
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
    gaps: Gaps | None = None
    told: tuple[int, ...] = ()

    @property
    def is_most(self) -> bool:
        """Whether most rows were clipped."""
        return self.share > MOST

    @property
    def forbids_intervals(self) -> bool:
        """Whether intervals and bounds would describe clipped rows only: most rows were clipped, and noise
        hides what that took away."""
        return self.is_most and self.factor is None

    @property
    def lost(self) -> float | None:
        """The squared length that clipping took from all rows, divided by what it left; None if not known."""
        return None if self.factor is None else self.factor - 1

    @property
    def before(self) -> str:
        """What `variances` and `total_variance` are, for the heads of tables."""
        return "before clipping" if self.present == 1 else "before clipping, without gaps"

    @property
    def present(self) -> float:
        """The share of coordinates with a value, by which figures here were corrected; 1 if they were not."""
        return 1.0 if self.gaps is None or self.factor is None else self.gaps.present

    def sentences(self, rows: str) -> str:
        """What clipping did and how many values are missing, in words.

        Args:
            rows: what a row is: records, or differences of pairs.
        """
        return " ".join(filter(None, (self._about_clipping(rows), self._about_gaps())))

    def brief(self, rows: str) -> str:
        """The same in one line, without what follows from it; `rows` as for `sentences`."""
        said = [f"{self.share:.1%} ± {self.share_deviation:.1%} of the {rows} were clipped"]
        if self.factor is None:
            said.append("noise hides by how much that lowered the variances")
        else:
            factor = f"{self.factor:.3g} ± {self.factor_deviation:.2g}"
            said.append(f"before clipping, the total variance was {factor} times as large")
        if self.gaps is not None:
            said.append(f"{self.gaps.share:.1%} ± {self.gaps.share_deviation:.1%} of all values are missing")
        return "; ".join(said)

    def _about_gaps(self) -> str:
        gaps = self.gaps
        if gaps is None:
            return ""
        told = f"{gaps.share:.1%} ± {gaps.share_deviation:.1%}"
        if gaps.present == 1:
            return f"No missing values can be told from noise ({told} of all), so nothing allows for them."
        said = f"About {told} of all values are missing{', or more' if gaps.may_be_more else ''}."
        if self.factor is None:
            return f"{said} The variances here do not allow for that, so they are too low."
        return (
            f"{said} Variances before clipping also allow for that: they are as they would be without gaps."
            " This holds if values are missing at random, evenly over records and features; otherwise single"
            " variances may be too high or too low."
        )

    def _about_clipping(self, rows: str) -> str:
        said = f"About {self.share:.0%} ± {self.share_deviation:.2g} of the {rows} were clipped to the norm."
        if self.factor is None:
            return (
                f"{said} The release shows too little above its noise to tell by how much this lowered the"
                " variances, so every variance here is that of clipped records."
            )
        return (
            f"{said} Before clipping, the total variance was {self.factor:.3g} ± {self.factor_deviation:.2g}"
            " times as large. Variances before clipping are the released ones times this factor, the first"
            " ones times slightly more. This is an approximation, because clipping shortens some directions"
            " more than others; the deviations allow for that."
        )

    def to_body(self) -> dict[str, Any]:
        """Plain JSON, from which `parse` reads the same numbers."""
        numbers = {name: getattr(self, name) for name in (*_NUMBERS, *_CORRECTED)}
        gaps = None if self.gaps is None else asdict(self.gaps)
        arrays = {name: getattr(self, name).tolist() for name in _PER_COMPONENT}
        return numbers | arrays | {"gaps": gaps, "told": list(self.told)}

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
            stated = untrusted.get("gaps")  # absent from older files
            gaps = None if stated is None else Gaps.parse(stated)
            told = tuple(untrusted.get("told", ()))  # absent from older files
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed() from error
        corrected, arrays = (
            (factor, factor_deviation, total, total_deviation),
            (variances, deviations, low, high),
        )
        numbers = (share, share_deviation, *corrected)
        finite = all(value is None or isfinite(value) for value in numbers)
        finite &= all(np.isfinite(values).all() for values in arrays)
        shapes = {values.shape for values in arrays}
        if not finite or len({value is None for value in corrected}) != 1:
            raise _malformed()
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise _malformed()
        if told and (len(told) != (2 if gaps is None else 3) or not all(map(_is_sum, told))):
            raise _malformed()
        return cls(share, share_deviation, *corrected, *arrays, gaps, told)


def _is_sum(value: Any) -> bool:
    return type(value) is int and value.bit_length() <= _SUM_BITS


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
        The factors of single directions, and their uncertainty, were fitted to real tables (docs/utility.md).
        Gaps are undone after that, as if clipping had lowered everything by the one factor.
    Tested: tests/unit/user/test_clipping_figures.py, tests/statistical/test_clipping_figures.py.
    """
    if noisy.clipped is None:
        return None
    count, d = noisy.count, len(components.space.names)
    rows, squares = noisy.clipped[0], squared_lengths(noisy.clipped, figures.clip_shift)
    row_noise, square_noise = (sqrt(figures.block_variance(name, owners)) for name in CLIPPING)
    square_noise *= 1 << figures.clip_shift
    share = min(max(rows / count, 0.0), 1.0)
    share_deviation = row_noise / count
    length = _clipped_length_squared(figures, d)
    trace, trace_noise = _trace_about_centre(noisy, figures, owners)
    total, noise = components.total_variance, components.noise_scale * sqrt(d)
    none, gaps = np.zeros(0), Gaps.of(noisy, figures, owners)
    told = noisy.clipped if noisy.gaps is None else (*noisy.clipped, noisy.gaps)
    unknown = ClippingFigures(
        share, share_deviation, None, None, None, None, none, none, none, none, gaps, told
    )
    if trace < _SEEN * trace_noise or total < _SEEN * noise:
        return unknown
    measured = (squares - rows * length) / trace, hypot(square_noise, row_noise * length) / trace
    excess, deviation = max(measured[0], 0.0), measured[1]
    factor = 1 + excess
    deviation = hypot(deviation, excess * trace_noise / trace)
    if deviation > _MOST_UNSURE * factor:
        return unknown
    k = components.trusted_count
    captured, released = components.captured[:k], components.eigenvalues[:k]
    lost = 1 - 1 / (factor + deviation)
    uneven = _UNEVEN * lost / (1 + _UNEVEN_BEND * lost)
    factors = 1 + excess * _lean(captured, total, excess)
    noisy_part = _CHOSEN * components.noise_scale * factors * _steepness(released, components.signals[:k])
    total, unsure_total, variances, unsure = _whole(
        noisy, figures, components, gaps, total * factor, captured * factors, factor
    )
    # Without gaps, the total is the released one divided by q, and a covariance by q².
    present = 1.0 if gaps is None else gaps.present
    noise, noisy_part, captured = noise / present, noisy_part / present**2, variances / factors
    chance = (1 / count if noisy.of_pairs else 0) + 2 * (1 / present**2 - 1) / count  # pairs, and gaps
    chance_part = variances * chance**0.5
    # Never squared: variances may be near the largest double.
    deviations = np.hypot(
        np.hypot(np.hypot(noisy_part, chance_part), unsure),
        np.hypot(captured * deviation, variances * uneven),
    )
    return ClippingFigures(
        share=share,
        share_deviation=share_deviation,
        factor=factor,
        factor_deviation=deviation,
        total_variance=total,
        total_variance_deviation=hypot(noise * factor, total / factor * deviation, unsure_total),
        variances=variances,
        deviations=deviations,
        low=np.maximum(variances - _POINT * deviations, 0.0),
        high=variances + _POINT * deviations,
        gaps=gaps,
        told=told,
    )


def squared_lengths(clipped: tuple[int, int], clip_shift: int) -> int:
    """Q in grid units², from the numbers n and Q of a release.

    Each of the n lengths was rounded down to a multiple of 2^e, which takes (2^e − 1)/2 away on average.
    """
    rows, squares = clipped
    unit = 1 << clip_shift
    return squares * unit + (unit - 1) * rows // 2


def _whole(
    noisy: NoisyScatter,
    figures: Figures,
    components: Components,
    gaps: Gaps | None,
    total: float,
    variances: Floats,
    factor: float,
) -> tuple[float, float, Floats, Floats]:
    """Total and variances without gaps, each with the deviation that the number of gaps gives it.

    Args:
        total, variances: before clipping, with gaps.
        factor: by which clipping lowered the total.
    """
    if gaps is None or gaps.present_deviation == 0:
        return total, 0.0, variances, np.zeros_like(variances)
    space, vectors = components.space, components.vectors[: len(variances)]
    within = within_features(noisy, space)
    unit = factor * scatter_of(noisy, figures, space)[1]
    along = np.einsum("ki,ij,kj->k", vectors, within, vectors) * unit
    released, within_all = np.append(variances, total), np.append(along, float(np.trace(within)) * unit)

    def whole(present: float) -> Floats:
        return np.maximum(without_gaps(released, within_all, min(present, 1.0)), 0.0)

    values = whole(gaps.present)
    unsure = np.abs(whole(gaps.present - gaps.present_deviation) - values)
    taken = np.abs((1 - gaps.present) * within_all / gaps.present**2)
    unsure = np.hypot(unsure, _UNSURE_TAKEN * (1 - 1 / factor) * taken)
    return float(values[-1]), float(unsure[-1]), values[:-1], unsure[:-1]


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


def _lean(captured: Floats, total: float, excess: float) -> Floats:
    """By how much more a component lost than the total did, because long rows lie along the first components.

    No component can have lost more than all that was lost. Where nearly all rows have one length, directions
    kept their shares.
    """
    if not len(captured):
        return captured
    most = np.maximum(total, captured) / captured
    return np.asarray(np.minimum(1 + _LEAN * captured / captured[0] / (1 + excess / _LEAN_UNTIL), most))


def _steepness(released: Floats, signals: Floats) -> Floats:
    """By how much 2θ̂ − l moves if the released eigenvalue l moves by 1; l = θ̂ + g/θ̂."""
    gap = np.maximum(2 * signals - released, 1e-3 * released)  # √(l² − 4g)
    return np.asarray(released / gap)
