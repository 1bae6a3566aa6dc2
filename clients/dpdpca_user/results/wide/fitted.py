"""Makes the components of a model from an opened lift, or from opened scores and the lift before them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from dpdpca_protocol.layout.blocks import BlockName, Values
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Components, EncodedSpace, Floats, Lifted
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.results.reliability import Reliability
from dpdpca_user.results.wide.choice import visibility
from dpdpca_user.results.wide.estimates import WideComponents, wide_components
from dpdpca_user.results.wide.lift import LiftReading, read_lift
from dpdpca_user.results.wide.redrawing import DRAWS, Intervals, ScoresNoise, redraw
from dpdpca_user.results.wide.scores import read_scores
from dpdpca_user.results.wide.sketch import SketchReading


@dataclass(frozen=True, slots=True)
class FittedLift:
    """The components of a lift, with or without scores, how reliable they are, and what the lift shows."""

    components: Components
    reliability: Reliability
    reading: LiftReading


def fit_lift(
    released: Mapping[BlockName, Values],
    manifest: Manifest,
    figures: Figures,
    sketch: SketchReading,
    owners: int,
    randomness: Randomness,
) -> FittedLift:
    """The components of an opened lift. Their variances are lower bounds.

    Args:
        released: the blocks of the lift.
        manifest: of the lift.
        figures: of the lift, with all draws of noise in `released`.
        sketch: what the sketch shows from which the lift was made.
        owners: how many are in the cohort.
        randomness: for drawing the noise again.
    """
    d, k = manifest.encoded_features, manifest.columns
    (count,) = np.asarray(released[BlockName.COUNT]).tolist()
    values = np.asarray(released[BlockName.LIFTED], dtype=np.int64).reshape(d, k)
    gram = _symmetric(released[BlockName.GRAM], k)
    lift, seen = read_lift(values, gram, lift_noise(figures, owners)), visibility(sketch)
    found = wide_components(sketch, seen, lift)
    return _fitted(found, redraw(found, seen, lift, None, randomness), lift, manifest, count)


def fit_scores(
    noisy: NoisyScatter,
    manifest: Manifest,
    figures: Figures,
    sketch: SketchReading,
    lift: LiftReading,
    owners: int,
    randomness: Randomness,
) -> FittedLift:
    """The components of a lift, turned within their span and with the variances that opened scores show.

    Args:
        noisy: the opened scores.
        manifest: of the scores.
        figures: of the scores, with all draws of noise in `noisy`.
        sketch, lift: what the rounds before show.
        owners: how many are in the cohort of the scores.
        randomness: for drawing the noise again.
    """
    seen, law = visibility(sketch), figures.law(noisy.count, owners)
    found = wide_components(sketch, seen, lift, read_scores(noisy, law, lift.trusted_count))
    noise = ScoresNoise.of(law, noisy.degrees, noisy.of_pairs)
    return _fitted(found, redraw(found, seen, lift, noise, randomness), lift, manifest, noisy.count)


def lift_noise(figures: Figures, owners: int) -> float:
    """t of all draws of noise on an entry of a lift."""
    return sqrt(figures.block_variance(BlockName.LIFTED, owners))


def _symmetric(upper: Values, size: int) -> Floats:
    """The symmetric matrix with this upper triangle, given by rows."""
    matrix = np.zeros((size, size))
    rows, columns = np.triu_indices(size)
    matrix[rows, columns] = matrix[columns, rows] = np.asarray(upper, dtype=np.float64)
    return matrix


def _fitted(
    found: WideComponents, intervals: Intervals, lift: LiftReading, manifest: Manifest, count: int
) -> FittedLift:
    space = EncodedSpace.of(manifest)
    found = found.in_units(space.unit / manifest.figures.grid)
    k, d = found.vectors.shape
    trusted = found.trusted_count
    variances = np.zeros(k) if found.variances is None else found.variances
    captured, signals = np.maximum(variances, 0.0), np.zeros(k)
    signals[:trusted] = captured[:trusted] / found.overlaps[:trusted]
    components = Components(
        space=space,
        count=count,
        vectors=found.vectors,
        eigenvalues=variances,
        noise_edges=_edges(found, variances),
        captured=captured,
        signals=signals,
        overlaps=found.overlaps,
        noise_scale=found.total_variance_deviation / sqrt(d),
        noise_edge=found.noise_edge,
        total_variance=found.total_variance,
        mean=None if found.mean is None else space.centre + space.scale * (found.mean @ found.vectors),
        lifted=Lifted(
            trusted_count=trusted,
            above_count=found.above_count,
            singular_values=found.singular_values,
            deviations=found.deviations,
            of_span=found.of_span,
            unseen_variance=found.unseen_variance,
        ),
    )
    return FittedLift(components, _reliability(intervals, found), lift)


def _edges(found: WideComponents, variances: Floats) -> Floats:
    """The noise edge of the lift as a variance: what a component would need to be just above it."""
    ratios = (found.noise_edge / found.singular_values) ** 2
    return np.where(variances > 0, variances * ratios, 2 * found.unseen_variance)


def _reliability(intervals: Intervals, found: WideComponents) -> Reliability:
    points = (intervals.share_low, intervals.share_high, intervals.overlap_low, intervals.overlap_high)
    drawn = all(len(each) for each in points)
    nothing = np.zeros(0)
    return Reliability(
        DRAWS if drawn else 0,
        *(points if drawn else (nothing,) * 4),
        of_unclipped=False,
        total_variance_deviation=found.total_variance_deviation,
        variances=nothing,
    )
