"""Rehearses a whole chain of studies in this process, with made-up records but real encoding, sums and noise.

Nothing is encrypted and no owner takes part. Every step that affects utility runs the same code as a real
study. The result depends on the made-up records, so a rehearsal shows how a chain proceeds and whether its
manifests work. A rehearsal does not predict what a study of other records will find.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.reference import Records, run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED, Cipher
from dpdpca_protocol.release.release import NoisyScatter, flat_scatter
from dpdpca_protocol.result.components import Components, EncodedSpace, Floats, fit_components
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import NoiseBy
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_user.planning.choice import NextRound
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.rounds import begin_chain, chosen_round, encoded_features, round_draft
from dpdpca_user.planning.wide_chain import PublishedLift, scores_round
from dpdpca_user.results.deviates import normal_deviates, uniforms
from dpdpca_user.results.second_noise import with_second_draw
from dpdpca_user.results.tables import rows_of_table
from dpdpca_user.results.wide.fitted import FittedLift, fit_lift, fit_scores

_FACTORS = (0.25, 0.15, 0.1, 0.06)
_OWN_NOISE = 0.1
_OFF_CENTRE = 0.25


@dataclass(frozen=True, slots=True)
class Played:
    """One rehearsed round: its terms, why it was chosen, and what it released."""

    chosen: NextRound
    manifest: Manifest
    result: PreStudyResult | NoisyScatter | FittedLift


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """All rounds, and the components from the last one."""

    rounds: tuple[Played, ...]
    components: Components

    @property
    def main(self) -> Manifest:
        return self.rounds[-1].manifest


def play_chain(
    base: Mapping[str, Any],
    complete: Callable[[Mapping[str, Any]], Manifest],
    owners: Sequence[Records],
    randomness: Randomness,
    unknown_scales: bool = False,
    noise: Samplers = EXACT,
    cipher: Cipher[Any] = UNENCRYPTED,
) -> Rehearsal:
    """Rehearse a chain from its first round to its components.

    Args:
        base: the chain's draft.
        complete: makes the manifest of a draft.
        owners: the records of each owner, by column.
        randomness: for the pairing and the seed of a sketch; the noise has its own.
        unknown_scales: begin with a study of every feature's scale.
        noise: draws the noise of the studies.
        cipher: carries the sums of the owners.
    """
    count = sum(len(next(iter(records.values()))) for records in owners)
    played: list[Played] = []
    results: list[PreStudyResult] = []
    chosen = begin_chain(base, complete, count, unknown_scales)
    while True:
        manifest = complete(round_draft(base, chosen))
        lift = played[-1].result if played else None
        released = play_round(manifest, owners, randomness, results, lift, noise, cipher)
        played.append(Played(chosen, manifest, released))
        if isinstance(released, NoisyScatter):
            space = EncodedSpace.of(manifest)
            fitted = fit_components(released, manifest.figures, space, owners=len(owners))
            return Rehearsal(tuple(played), fitted)
        if isinstance(released, PreStudyResult):
            results.append(released)
            chosen = chosen_round(base, results, randomness)
        elif chosen.is_followed:
            components = Digest.of(encode_components(manifest.study_id, released.components))
            lifted = PublishedLift(manifest.study_id, manifest.rho_share, manifest.columns, components)
            chosen = scores_round(results, encoded_features(base), lifted)
        else:
            return Rehearsal(tuple(played), released.components)


def play_round(
    manifest: Manifest,
    owners: Sequence[Records],
    randomness: Randomness,
    results: Sequence[PreStudyResult] = (),
    lift: object = None,
    noise: Samplers = EXACT,
    cipher: Cipher[Any] = UNENCRYPTED,
) -> PreStudyResult | NoisyScatter | FittedLift:
    """The release of one study of these records, in exact integers.

    Args:
        manifest: of the study.
        owners: the records of each owner, by column.
        randomness: for the pairing, and for drawing the noise of a result again.
        results: of the rounds before a lift or scores.
        lift: that the scores follow.
        noise: draws the study's own noise.
        cipher: carries the sums of the owners.
    """
    figures, count = manifest.figures, len(owners)
    before = lift.components.vectors if isinstance(lift, FittedLift) and manifest.scores else None
    projection = projection_of(manifest, before)
    released = run_study(manifest, owners, randomness, noise, cipher, projection)
    if isinstance(released, NoisyScatter):
        return released
    if not manifest.release.has_components:
        if manifest.noise_by is NoiseBy.PROXY:
            released = with_second_draw(released, figures, noise)[0]
        return PreStudyResult.of(manifest, released, count)
    sketch = results[-1].sketch
    assert sketch is not None, "a sketch comes before a lift and its scores"
    if manifest.scores is None:
        return fit_lift(released, manifest, figures, sketch.reading, count, randomness)
    assert isinstance(lift, FittedLift)
    noisy = flat_scatter(released, manifest.columns)
    return fit_scores(noisy, manifest, figures, sketch.reading, lift.reading, count, randomness)


def made_up_records(features: Sequence[Feature], count: int, randomness: Randomness) -> dict[str, Column]:
    """Random records: numeric columns have four factors of decreasing strength, and levels are not equally
    likely.

    Means are about a quarter of a half-range away from the public centres, as if bounds were fair guesses.
    """
    columns: dict[str, Column] = {}
    factors = normal_deviates(len(_FACTORS) * count, randomness).reshape(len(_FACTORS), count)
    for feature in features:
        if feature.is_categorical:
            weights = np.cumsum(1.0 / np.arange(1, len(feature.levels) + 1))
            drawn = np.searchsorted(weights / weights[-1], uniforms(count, randomness))
            columns[feature.name] = np.array(feature.levels, dtype=object)[
                np.minimum(drawn, len(feature.levels) - 1)
            ]
        else:
            loadings = normal_deviates(len(_FACTORS), randomness) * np.array(_FACTORS)
            offset = _OFF_CENTRE * float(normal_deviates(1, randomness)[0])
            values = offset + loadings @ factors + _OWN_NOISE * normal_deviates(count, randomness)
            columns[feature.name] = float(feature.origin) + float(feature.half_range) * values
    return columns


def captured(components: Components, manifest: Manifest, records: Records, k: int) -> float:
    """Variance of these records that the first k components capture, relative to the best k components."""
    rows = rows_of_table(records, manifest)
    lower = [-np.inf if each.lower is None else float(each.lower) for each in manifest.features]
    upper = [np.inf if each.upper is None else float(each.upper) for each in manifest.features]
    widths = [feature.width for feature in manifest.features]
    rows = np.clip(rows, np.repeat(lower, widths), np.repeat(upper, widths)) / components.space.scale
    scatter: Floats = np.atleast_2d(np.cov(rows, rowvar=False))
    best = np.linalg.eigvalsh(scatter)[::-1][:k].sum()
    vectors = components.vectors[:k]
    return float(np.einsum("ki,ij,kj->", vectors, scatter, vectors) / best)
