"""The complete distinguishing game."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpdpca_lab.audit import checks
from dpdpca_lab.audit.bound import epsilon_bound, largest_bound
from dpdpca_lab.audit.checks import Check
from dpdpca_lab.audit.flat import (
    FlatRelease,
    cut_records,
    flat_pairs,
    played_features,
    searched_flat_pair,
)
from dpdpca_lab.audit.neighbours import (
    Neighbours,
    arena_of,
    distance,
    hard_records,
    searched_pair,
    worst_pairs,
)
from dpdpca_lab.audit.observe import Lens, Observed, likelihood_shift, own_coordinates
from dpdpca_lab.audit.releases import Law, Release, Totals, release_of
from dpdpca_lab.audit.report import AuditReport, Claim, PlayedPair
from dpdpca_lab.audit.wide import WideRelease, searched_wide_pair, wide_pairs, wide_release
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms.analytic import real_epsilon
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.records.encoding import cut_to_bound
from dpdpca_protocol.records.pairing import differences
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest

ALPHA = 1e-6
"""The largest rate at which an audit refutes a true claim: half for the bounds, half for the checks."""

LEAST_RUNS = 200

_BATCH = 2_000
_RECORDS = 1_000
_SEARCH = 400
_WHOLE_VALUES = 60_000  # noise draws spent on releases of full size
_WHOLE_RUNS = (4, 64)
_WHOLE_FEATURES = 400


def audit_manifest(
    manifest: Manifest,
    runs: int,
    *,
    alpha: float = ALPHA,
    search: int = _SEARCH,
    out_of_time: Callable[[], bool] = lambda: False,
    randomness: Randomness = OS_RANDOMNESS,
) -> AuditReport:
    """Play the game on a study's terms: the known worst pairs, one found by a search, and whole releases.

    Args:
        manifest: the terms.
        runs: number of releases for each data set of each pair, unless time runs out.
        alpha: how often an audit may refute a true claim.
        search: steps of the search for another pair; 0 means no search.
        out_of_time: asked between batches; runs that are complete count.
        randomness: for the search and for the records of the whole releases.
    """
    figures = manifest.figures
    records = min(manifest.max_records, max(manifest.min_records, _RECORDS))
    hard = hard_records(manifest, randomness)
    whole_features = min(figures.encoded_features, _WHOLE_FEATURES)
    release: Release
    if figures.rules.is_wide:
        return _audit_wide(manifest, runs, records, alpha, search, out_of_time, randomness)
    if figures.release in (ReleaseKind.PAIRS, ReleaseKind.PRE_STUDY):
        release = FlatRelease(figures, played_features(manifest))
        pairs = flat_pairs(manifest, release, max(records, 2))
        if search:
            pairs.append(searched_flat_pair(release, manifest, search, randomness))
        hard = cut_records(manifest, hard)
        flat = FlatRelease(figures, whole_features)
        extra = whole_checks(flat, flat.totals(_any_records(flat.d, figures.record_bound, randomness)))
    else:
        arena = arena_of(manifest)
        release = release_of(figures, len(arena.columns))
        pairs = worst_pairs(manifest, arena, records)
        if search and records > 1:
            pairs.append(searched_pair(release, figures.record_bound, records, search, randomness))
        whole = release_of(figures, whole_features)
        some = _any_records(whole.d, figures.record_bound, randomness)
        extra = whole_checks(whole, Totals.of(some, figures.record_bound))
    extra.insert(0, checks.records_bounded(hard, figures.record_bound))
    report = audit(
        release, pairs, Claim.of(manifest), runs, alpha=alpha, extra=extra, out_of_time=out_of_time
    )
    return replace(report, whole_features=whole_features)


def _audit_wide(
    manifest: Manifest,
    runs: int,
    records: int,
    alpha: float,
    search: int,
    out_of_time: Callable[[], bool],
    randomness: Randomness,
) -> AuditReport:
    """The game for a sketch, a lift or scores, whose records have many features and few numbers."""
    release = wide_release(manifest)
    pairs = wide_pairs(release, records)
    if search:
        pairs.append(searched_wide_pair(release, search, randomness))
    figures = manifest.figures
    hard = hard_records(manifest, randomness)
    if figures.rules.of_pairs:
        hard = cut_to_bound(np.concatenate(list(differences([hard]))), figures.record_bound)[0]
    whole_features = min(figures.summed_features, _WHOLE_FEATURES)
    columns = figures.mechanism.setting.columns
    whole = WideRelease(figures, whole_features, columns)
    some = _any_records(whole_features, figures.record_bound, randomness)
    numbers = _any_records(columns, figures.mechanism.setting.score_bound, randomness) if columns else some
    extra = whole_checks(whole, whole.totals_of(some, numbers))
    extra.insert(0, checks.records_bounded(hard, figures.record_bound))
    report = audit(
        release, pairs, Claim.of(manifest), runs, alpha=alpha, extra=extra, out_of_time=out_of_time
    )
    return replace(report, whole_features=whole_features)


def audit(
    release: Release,
    pairs: Sequence[Neighbours],
    claim: Claim,
    runs: int,
    *,
    alpha: float = ALPHA,
    extra: Sequence[Check] = (),
    out_of_time: Callable[[], bool] = lambda: False,
) -> AuditReport:
    """Play the game with `release` on `pairs`, and compare with `claim`. Arguments are as in
    `audit_manifest`.

    Raises:
        UsageError: there are too few runs to show anything, or there is no pair.
    """
    if runs < LEAST_RUNS or not pairs:
        raise UsageError("bad-argument", f"an audit needs at least one pair and {LEAST_RUNS} runs")
    found = [("whole releases", check) for check in extra]
    share = alpha / 2 / len(pairs)
    played = []
    for pair, sides in zip(pairs, _play(release, pairs, runs, out_of_time), strict=True):
        lens = Lens(release, pair)
        first, second = lens.statistics(*sides)
        estimate, error = likelihood_shift(first, second)
        apart = distance(release, pair.first, pair.second)
        asked = checks.pair_checks(lens, *sides)
        if claim.shift is not None:
            asked.append(checks.pair_distance(apart, claim.shift))
            asked.append(checks.measured_shift(estimate, error, claim.shift))
        found += [(pair.name, check) for check in asked]
        played.append(
            PlayedPair(
                pair.name,
                pair.encoded,
                sides[0].runs,
                apart,
                epsilon_bound(first, second, float(claim.delta), share),
                estimate,
                error,
                epsilon_if_gaussian(estimate - error * float(stats.norm.isf(share)), float(claim.delta))
                if release.law is Law.GAUSSIAN
                else None,
            )
        )
    return AuditReport(
        claim,
        pairs[0].first.count,
        release.d,
        0,
        tuple(played),
        tuple(found),
        alpha,
        largest_bound(played[0].runs, float(claim.delta), share),
    )


def whole_checks(release: Release, totals: Totals) -> list[Check]:
    """Checks on a few releases with all features, for faults that a pair in a few columns cannot show."""
    coordinates = release.coordinates(totals.count)
    own = own_coordinates(coordinates)
    scales = np.array([coordinates[k].scale for k in own])
    runs = max(_WHOLE_RUNS[0], min(_WHOLE_RUNS[1], _WHOLE_VALUES // len(own)))
    lens = Lens(release, Neighbours("whole", False, totals, totals))
    views = release.play(totals, runs)
    seen = lens.read(views, 0)
    integers = (views.values - np.array(release.truth(totals), dtype=object))[:, own]
    found = [
        checks.noise_present(seen.zeros[own], runs, scales),
        checks.noise_distinct(integers, scales),
        checks.noise_fresh([seen.seen[:, own]], scales),
    ]
    if release.law is Law.GAUSSIAN:
        found.append(checks.noise_scale(seen.seen[:, own], scales))
    if len(own) < len(coordinates):
        found.append(checks.copies_equal(seen.asymmetric, runs))
    return found


def epsilon_if_gaussian(shift: float, delta: float) -> float:
    """ε ≥ 0 at δ of a Gaussian mechanism whose two sides are `shift` standard deviations apart."""
    if math.isinf(shift) or delta == 0:
        return math.inf if shift > 0 else 0.0
    return real_epsilon(shift, delta) if shift > 0 else 0.0


def _play(
    release: Release, pairs: Sequence[Neighbours], runs: int, out_of_time: Callable[[], bool]
) -> list[tuple[Observed, Observed]]:
    """Play both sides of all pairs in turn, batch by batch. At a deadline, all pairs have equally many
    runs."""
    lenses = [Lens(release, pair) for pair in pairs]
    parts: list[tuple[list[Observed], list[Observed]]] = [([], []) for _ in pairs]
    done = 0
    while done < runs and (done < LEAST_RUNS or not out_of_time()):
        batch = min(_BATCH if done else LEAST_RUNS, runs - done)
        for pair, lens, seen in zip(pairs, lenses, parts, strict=True):
            for side, totals in enumerate((pair.first, pair.second)):
                seen[side].append(lens.read(release.play(totals, batch), side))
        done += batch
    return [(Observed.joined(first), Observed.joined(second)) for first, second in parts]


def _any_records(d: int, record_bound: int, randomness: Randomness) -> NDArray[np.int64]:
    """A few records within the bound; no entry of their totals is 0."""
    side = math.isqrt(record_bound // d)
    return np.array(
        [[randomness.below(2 * side + 1) - side for _ in range(d)] for _ in range(7)], dtype=np.int64
    )
