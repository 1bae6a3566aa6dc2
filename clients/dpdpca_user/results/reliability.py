"""How reliable a release's components are: intervals from drawing the known noise again.

This is post-processing: the distribution of the noise is public, and the signal is what the release itself
shows above it. The bootstrap assumes the estimated eigenvalues θ̂ and a flat remainder, so it applies only to
components above their noise edge. For components below the edge, `Components.captured_share` gives a lower
bound. The effect of clipping is only known if the study asks for it (`clipping`).
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

CLIPPING_IS_NOT_SEEN = (
    "The effect of clipping the records cannot be seen after the release, and no figure here includes it."
)

ABOUT_CLIPPED = "Shares and cos², with their percentiles, are about the clipped records."
NO_INTERVALS = (
    "Most of them were clipped, so shares and cos² have no percentiles: these would describe clipped records"
    " only."
)

_MOST_DRAWS, _LEAST_DRAWS = 200, 40
_WORK = 2 * 10**8
_MOST_FEATURES = 1000
_TAIL = 5.0
_POINTS = ("share_low", "share_high", "overlap_low", "overlap_high")


@dataclass(frozen=True, slots=True)
class Reliability:
    """Figures about the reliability of one release's components; variances in the metric's units.

    Attributes:
        draws: how often the noise was drawn again; 0 if that was not done.
        share_low, share_high: (k̂,) for k = 1 … k̂, 5 % and 95 % points of the variance that the first k
            released components capture, as a share of what the best k capture; empty without draws.
        overlap_low, overlap_high: (k̂,) the same points of each squared cosine with the true component.
        total_variance_deviation: standard deviation of `Components.total_variance`.
        variances: (d,) of the features as released, with noise: the diagonal of S̃/(N − 1).
        clipping: what clipping did, and variances before it; None if the release does not tell.
        of_pairs: whether differences of pairs were clipped instead of records.
    """

    draws: int
    share_low: Floats
    share_high: Floats
    overlap_low: Floats
    overlap_high: Floats
    total_variance_deviation: float
    variances: Floats
    clipping: ClippingFigures | None = None
    of_pairs: bool = False

    @property
    def about_clipping(self) -> str:
        """What clipping did, and which records the figures are about, as sentences for people."""
        if self.clipping is None:
            return CLIPPING_IS_NOT_SEEN
        said = self.clipping.sentences("differences of pairs" if self.of_pairs else "records")
        if self.clipping.is_most:
            return f"{said} {NO_INTERVALS}"
        return f"{said} {ABOUT_CLIPPED}"

    def to_body(self) -> dict[str, Any]:
        """Plain JSON, from which `parse` reads the same numbers."""
        arrays = {name: getattr(self, name).tolist() for name in (*_POINTS, "variances")}
        return {
            "draws": self.draws,
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
            points = {name: np.array(untrusted[name], dtype=np.float64) for name in _POINTS}
            variances = np.array(untrusted["variances"], dtype=np.float64)
            draws, deviation = int(untrusted["draws"]), float(untrusted["total_variance_deviation"])
            told, of_pairs = untrusted.get("clipping"), bool(untrusted.get("of_pairs", False))
        except (KeyError, TypeError, ValueError) as error:
            raise _malformed() from error
        shapes = {values.shape for values in points.values()}
        finite = isfinite(deviation) and all(
            np.isfinite(each).all() for each in (*points.values(), variances)
        )
        if len(shapes) != 1 or len(next(iter(shapes))) != 1 or variances.shape != (d,) or not finite:
            raise _malformed()
        clipping = None if told is None else ClippingFigures.parse(told)
        return cls(
            draws=draws,
            total_variance_deviation=deviation,
            variances=variances,
            clipping=clipping,
            of_pairs=of_pairs,
            **points,
        )


def _malformed() -> MessageError:
    return MessageError("malformed", "the reliability figures have a wrong shape or are not finite")


def assess_release(
    noisy: NoisyScatter,
    figures: Figures,
    components: Components,
    randomness: Randomness,
    owners: int | None = None,
) -> Reliability:
    """Intervals for the components of a release.

    Args:
        noisy, figures, owners: as they were given to `fit_components`.
        components: what it returned; at least the k̂ components above their edges.
        randomness: for the simulated noise, which is not part of the release.

    Source: parametric bootstrap from S₀ = Σ θ̂ᵢvᵢvᵢᵀ + (tr S̃ − Σ θ̂)/(d − k̂) on the rest. The noise of the
        Gaussian mechanism is the same in every basis, so it is drawn in the basis of the components. For
        other mechanisms only the variances are used. In a joint release, the noise also contains
        −(μeᵀ + eμᵀ) − eeᵀ/N.
    Tested: tests/statistical/test_reliability.py, against the true values.
    """
    law, factor = figures.law(noisy.count, owners), figures.mechanism.factor(noisy.count)
    scatter, unit = scatter_of(noisy, figures, components.space)
    d, trusted = len(scatter), components.trusted_count
    diagonal = float(law.diagonal / factor**2) ** 0.5
    mean, on_sum = np.zeros(d), 0.0
    if noisy.sum is not None:
        mean, on_sum = np.array([entry / noisy.count for entry in noisy.sum]), float(law.sum_) ** 0.5
    clipping = assess_clipping(noisy, figures, components, owners)
    draws = 0
    if trusted and d <= _MOST_FEATURES and (clipping is None or not clipping.is_most):
        draws = min(_MOST_DRAWS, max(_LEAST_DRAWS, _WORK // d**3))
    signals = components.signals[:trusted] / unit
    shares, overlaps = np.zeros((draws, trusted)), np.zeros((draws, trusted))
    if draws:
        start = _start(signals, float(np.trace(scatter)), d)
        axes = components.vectors[:trusted]
        seen = axes @ mean
        turned = np.zeros(d)
        turned[:trusted] = seen
        if trusted < d:
            turned[trusted] = max(float(mean @ mean - seen @ seen), 0.0) ** 0.5
        best = np.cumsum(np.sort(start)[::-1])[:trusted]
        for index in range(draws):
            drawn = np.diag(start) + symmetric_noise(
                d, diagonal, float(law.off_diagonal / factor**2) ** 0.5, randomness
            )
            if on_sum:
                error = on_sum * normal_deviates(d, randomness)
                drawn -= np.outer(turned, error) + np.outer(error, turned)
                drawn -= np.outer(error, error) / noisy.count
            squares = leading_pairs(drawn, trusted)[1] ** 2
            shares[index] = np.cumsum(squares @ start) / best
            overlaps[index] = np.diag(squares)
    share_low, share_high = _points(shares)
    overlap_low, overlap_high = _points(overlaps)
    return Reliability(
        draws=draws,
        share_low=share_low,
        share_high=share_high,
        overlap_low=overlap_low,
        overlap_high=overlap_high,
        total_variance_deviation=(d * diagonal**2 + 4 * on_sum**2 * float(mean @ mean)) ** 0.5 * unit,
        variances=np.diag(scatter) * unit,
        clipping=clipping,
        of_pairs=noisy.of_pairs,
    )


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
