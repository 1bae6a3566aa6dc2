"""How reliable a release's components are: intervals from drawing the known noise again.

This is post-processing: the distribution of the noise is public, and the signal is what the release itself
shows above it. The bootstrap assumes the estimated eigenvalues θ̂ and a flat remainder, so it applies only to
components above their noise edge. For components below the edge, `Components.captured_share` gives a lower
bound. If a release tells how much length clipping took away, the intervals are about the records before
clipping. Otherwise the effect of clipping cannot be seen, and no figure here includes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

import numpy as np

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Components, Floats, leading_pairs, scatter_of
from dpdpca_protocol.terms.figures import Figures
from dpdpca_user.results.clipping import ClippingFigures, assess_clipping
from dpdpca_user.results.deviates import normal_deviates, symmetric_noise
from dpdpca_user.results.gaps import within_features, without_gaps

CLIPPING_IS_NOT_SEEN = (
    "The effect of clipping the records cannot be seen after the release, and no figure here includes it:"
    " shares, cos² and their percentiles are about the clipped records, and are usually too high for the"
    " records before clipping."
)
CLIPPING_IS_ALLOWED_FOR = (
    "The percentiles of shares and cos² are about the records before clipping: they allow for the length that"
    " clipping took away, and for missing values where variances do. The estimates of shares and cos² are"
    " about the clipped records, with their gaps."
)

ABOUT_CLIPPED = "Shares and cos², with their percentiles, are about the clipped records."
NO_INTERVALS = (
    "Most of them were clipped, so no figure here has an interval or a lower bound: these would describe"
    " clipped records only. The estimates of shares and cos² do."
)

_MOST_DRAWS, _LEAST_DRAWS = 200, 40
_WORK = 2 * 10**8
_MOST_FEATURES = 1000
_TAIL = 5.0
_LUMPS = 3
"""In how many directions clipping is assumed to have taken length away; the fewer, the wider the intervals.
The value was fitted to real tables; docs/utility.md says which."""
_UPWARD = 0.2
"""By how much of what it lacks to 1 the 95 % point of a share is raised. Below the noise edge, S₀ has the
same variance in all directions, so mixing with these costs drawn components more than real ones, because real
variances decline steadily. The value was fitted to tables; docs/utility.md says which."""
_LEAST_PRESENT = 0.1
_POINTS = ("share_low", "share_high", "overlap_low", "overlap_high")


@dataclass(frozen=True, slots=True)
class Reliability:
    """Figures about the reliability of one release's components; variances in the metric's units.

    Attributes:
        draws: how often the noise was drawn again; 0 if that was not done.
        share_low, share_high: (k̂,) for k = 1 … k̂, 5 % and 95 % points of the variance that the first k
            released components capture, as a share of what the best k capture; empty without draws.
        overlap_low, overlap_high: (k̂,) the same points of each squared cosine with the true component.
        of_unclipped: whether these points are about the records before clipping.
        total_variance_deviation: standard deviation of `Components.total_variance`.
        variances: (d,) of the features as released, with noise: the diagonal of S̃/(N − 1). Empty for the
            components of a lift, which has no variances of features.
        clipping: what clipping did, and variances before it; None if the release does not tell.
        of_pairs: whether differences of pairs were clipped instead of records.
        told_apart: for several studies whose numbers about clipping do not add up, what is told instead.
    """

    draws: int
    share_low: Floats
    share_high: Floats
    overlap_low: Floats
    overlap_high: Floats
    of_unclipped: bool
    total_variance_deviation: float
    variances: Floats
    clipping: ClippingFigures | None = None
    of_pairs: bool = False
    told_apart: str = ""

    @property
    def about_clipping(self) -> str:
        """What clipping did, and which records the figures are about, as sentences for people."""
        if self.clipping is None:
            return self.told_apart or CLIPPING_IS_NOT_SEEN
        said = self.clipping.sentences(rows_in_words(self.of_pairs))
        if self.of_unclipped:
            return f"{said} {CLIPPING_IS_ALLOWED_FOR}"
        return f"{said} {ABOUT_CLIPPED if self.has_intervals else NO_INTERVALS}"

    @property
    def has_intervals(self) -> bool:
        """Whether figures may be shown with intervals and bounds."""
        return self.clipping is None or not self.clipping.forbids_intervals

    def to_body(self) -> dict[str, Any]:
        """Plain JSON, from which `parse` reads the same numbers."""
        arrays = {name: getattr(self, name).tolist() for name in (*_POINTS, "variances")}
        return {
            "draws": self.draws,
            "of_unclipped": self.of_unclipped,
            "total_variance_deviation": self.total_variance_deviation,
            "clipping": None if self.clipping is None else self.clipping.to_body(),
            "of_pairs": self.of_pairs,
            **arrays,
        }

    @classmethod
    def parse(cls, untrusted: Mapping[str, Any], d: int) -> Self:
        """The reverse of `to_body` for d features.

        Raises:
            MessageError: a shape does not match, or a number is not finite.
        """
        try:
            points: dict[str, Any] = {name: np.array(untrusted[name], dtype=np.float64) for name in _POINTS}
            variances = np.array(untrusted["variances"], dtype=np.float64)
            draws, deviation = int(untrusted["draws"]), float(untrusted["total_variance_deviation"])
            of_unclipped = bool(untrusted.get("of_unclipped", False))  # absent from older files
            told, of_pairs = untrusted.get("clipping"), bool(untrusted.get("of_pairs", False))
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed() from error
        shapes = {values.shape for values in points.values()}
        finite = isfinite(deviation) and all(
            np.isfinite(each).all() for each in (*points.values(), variances)
        )
        if (
            len(shapes) != 1
            or len(next(iter(shapes))) != 1
            or variances.shape not in ((d,), (0,))
            or not finite
        ):
            raise _malformed()
        clipping = None if told is None else ClippingFigures.parse(told)
        return cls(
            draws=draws,
            of_unclipped=of_unclipped,
            total_variance_deviation=deviation,
            variances=variances,
            clipping=clipping,
            of_pairs=of_pairs,
            **points,
        )


def rows_in_words(of_pairs: bool) -> str:
    """What was clipped."""
    return "differences of pairs" if of_pairs else "records"


def _malformed() -> MessageError:
    return MessageError("malformed", "the reliability figures have a wrong shape or are not finite")


def assess_release(
    noisy: NoisyScatter,
    figures: Figures,
    components: Components,
    randomness: Randomness,
    owners: int | None = None,
    lost: float | None = None,
    intervals: bool = True,
) -> Reliability:
    """Intervals for the components of a release.

    Args:
        noisy, figures, owners: as they were given to `fit_components`.
        components: what it returned; at least the k̂ components above their edges.
        randomness: for the simulated noise, which is not part of the release.
        lost: the squared length that clipping took from all rows, divided by what it left; None for what
            the release tells. If it tells nothing, the intervals are about the clipped rows.
        intervals: whether there may be any. None are made either if most rows were clipped and nothing is
            known about them before that.

    Source: parametric bootstrap from S₀ = Σ θ̂ᵢvᵢvᵢᵀ + (tr S̃ − Σ θ̂)/(d − k̂) on the rest. The noise of the
        Gaussian mechanism is the same in every basis, so it is drawn in the basis of the components. For
        other mechanisms only the variances are used. In a joint release, the noise also contains
        −(μeᵀ + eμᵀ) − eeᵀ/N. A release of pairs also depends on who was paired with whom: this adds
        −½Σ(zz′ᵀ + z′zᵀ) over the pairs (z, z′), whose entry (i, j) has variance λᵢλⱼn/2 for n pairs, or twice
        that on the diagonal. The true scatter is S₀ + lost·tr S₀·Σ yyᵀ/Σ|y|², with three y from a normal
        distribution with covariance S₀. So what clipping took away is spread like the rest, but in lumps. If
        values are missing, S₀ here is the one without gaps (`without_gaps`), with their share drawn anew.
    Tested: tests/statistical/test_reliability.py and test_percentiles.py, against the true values.
    """
    law, factor = figures.law(noisy.count, owners), figures.mechanism.factor(noisy.count)
    scatter, unit = scatter_of(noisy, figures, components.space)
    d, trusted = len(scatter), components.trusted_count
    mean, on_sum = np.zeros(d), 0.0
    if noisy.sum is not None:
        mean, on_sum = np.array([entry / noisy.count for entry in noisy.sum]), float(law.sum_) ** 0.5
    axes = components.vectors[:trusted]
    source = _Source(
        eigenvalues=_start(components.signals[:trusted] / unit, float(np.trace(scatter)), d),
        count=noisy.count,
        of_pairs=noisy.of_pairs,
        diagonal=float(law.diagonal / factor**2) ** 0.5,
        off_diagonal=float(law.off_diagonal / factor**2) ** 0.5,
        on_sum=on_sum,
        mean=_turned(axes @ mean, float(mean @ mean), d),
    )
    clipping = assess_clipping(noisy, figures, components, owners)
    deviation = 0.0
    if lost is None and clipping is not None and clipping.lost is not None:
        lost, deviation = clipping.lost, clipping.factor_deviation or 0.0
    gaps = None
    if clipping is not None and clipping.present < 1:
        gaps = _GapsAlong.of(noisy, components, axes, mean, clipping)
    draws = 0
    describes_all = lost is not None or clipping is None or not clipping.forbids_intervals
    if intervals and trusted and d <= _MOST_FEATURES and describes_all:
        draws = min(_MOST_DRAWS, max(_LEAST_DRAWS, _WORK // d**3))
    best = np.cumsum(np.sort(source.eigenvalues)[::-1])[:trusted]
    drawn = np.zeros((2, 2, draws, trusted))
    for index in range(draws):
        found = leading_pairs(source.release(randomness), trusted)[1]
        drawn[:, :, index] = np.cumsum(found**2 @ source.eigenvalues) / best, np.diag(found**2)
        if lost is not None and (lost + deviation > 0 or gaps is not None):
            taken = max(lost + deviation * float(normal_deviates(1, randomness)[0]), 0.0)
            kept = np.diag(source.eigenvalues)
            if gaps is not None:
                kept = gaps.filled(kept, randomness)
            drawn[1, :, index] = _against(
                kept + source.taken(taken * float(np.trace(kept)), randomness), found
            )
    # Clipping may have changed nothing, so no upper point is below that for clipped rows.
    (_, share_most), (_, overlap_most) = map(_points, drawn[0])
    (share_low, share_high), (overlap_low, overlap_high) = map(_points, drawn[1])
    share_high = np.maximum(share_high, share_most)
    return Reliability(
        draws=draws,
        share_low=share_low,
        share_high=share_high + _UPWARD * (1 - share_high),
        overlap_low=overlap_low,
        overlap_high=np.maximum(overlap_high, overlap_most),
        of_unclipped=lost is not None,
        total_variance_deviation=(d * source.diagonal**2 + 4 * on_sum**2 * float(mean @ mean)) ** 0.5 * unit,
        variances=np.diag(scatter) * unit,
        clipping=clipping,
        of_pairs=noisy.of_pairs,
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """What releases are drawn from, in the basis of the components and in grid² units.

    Attributes:
        eigenvalues: (d,) of S₀.
        diagonal, off_diagonal, on_sum: deviations of the noise.
        mean: (d,) the mean of the rows; 0 without a sum.
    """

    eigenvalues: Floats
    count: int
    of_pairs: bool
    diagonal: float
    off_diagonal: float
    on_sum: float
    mean: Floats

    def release(self, randomness: Randomness) -> Floats:
        """(d, d) another scatter as it might have been released."""
        d, root = len(self.mean), np.sqrt(self.eigenvalues)
        drawn = np.diag(self.eigenvalues) + symmetric_noise(d, self.diagonal, self.off_diagonal, randomness)
        if self.of_pairs:
            pairing = symmetric_noise(d, self.count**-0.5, (2 * self.count) ** -0.5, randomness)
            drawn += root[:, None] * pairing * root
        if self.on_sum:
            error = self.on_sum * normal_deviates(d, randomness)
            drawn -= np.outer(self.mean, error) + np.outer(error, self.mean)
            drawn -= np.outer(error, error) / self.count
        return drawn

    def taken(self, lost: float, randomness: Randomness) -> Floats:
        """(d, d) a scatter with the trace `lost` that clipping might have taken away."""
        d = len(self.mean)
        rows = np.sqrt(self.eigenvalues) * normal_deviates(_LUMPS * d, randomness).reshape(_LUMPS, d)
        scatter: Floats = rows.T @ rows
        return scatter * (lost / float(np.trace(scatter)))


@dataclass(frozen=True, slots=True)
class _GapsAlong:
    """The gaps of a release, in the basis of the components.

    Attributes:
        within: (d, d) see `without_gaps`.
        present, deviation: q and its deviation.
    """

    within: Floats
    present: float
    deviation: float

    @classmethod
    def of(
        cls,
        noisy: NoisyScatter,
        components: Components,
        axes: Floats,
        mean: Floats,
        clipping: ClippingFigures,
    ) -> Self | None:
        if clipping.gaps is None:
            return None
        # The axes are followed by the rest of the mean, as in `_turned`.
        others = np.linalg.qr(np.vstack([axes, mean]).T, mode="complete")[0].T[len(axes) :]
        basis = np.vstack([axes, others])
        within = basis @ within_features(noisy, components.space) @ basis.T
        return cls(within, clipping.gaps.present, clipping.gaps.present_deviation)

    def filled(self, scatter: Floats, randomness: Randomness) -> Floats:
        """(d, d) the scatter without gaps, with another share of them within its uncertainty."""
        drawn = self.present + self.deviation * float(normal_deviates(1, randomness)[0])
        return without_gaps(scatter, self.within, min(max(drawn, _LEAST_PRESENT), 1.0))


def _against(truth: Floats, found: Floats) -> tuple[Floats, Floats]:
    """What found components capture of the best, for k = 1 …, and the squared cosine of each with the true
    one.

    Args:
        truth: (d, d) the true scatter.
        found: (k, d) orthonormal rows.
    """
    values, vectors = leading_pairs(truth, len(found))
    captured = np.einsum("ki,ki->k", found @ truth, found)
    return np.cumsum(captured) / np.cumsum(values), np.einsum("ki,ki->k", found, vectors) ** 2


def _turned(seen: Floats, square: float, d: int) -> Floats:
    """(d,) a mean of this squared length in the basis of the components, of which `seen` are its first
    entries. What is not along the components is put into one further entry."""
    turned = np.zeros(d)
    turned[: len(seen)] = seen
    if len(seen) < d:
        turned[len(seen)] = max(square - float(seen @ seen), 0.0) ** 0.5
    return turned


def _start(signals: Floats, trace: float, d: int) -> Floats:
    """(d,) eigenvalues of S₀: first the signals, then the rest of the trace, spread evenly."""
    k = len(signals)
    rest = max(trace - float(signals.sum()), 0.0) / (d - k) if k < d else 0.0
    return np.concatenate([signals, np.full(d - k, rest)])


def _points(drawn: Floats) -> tuple[Floats, Floats]:
    if not len(drawn):
        return np.zeros(0), np.zeros(0)
    low, high = np.percentile(drawn, [_TAIL, 100 - _TAIL], axis=0)
    return np.asarray(low), np.asarray(high)
