"""The audit finds nothing against sketch, lift and scores, and something against each planted fault."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import wide_studies as wide
from present import present
from reference_data import Seeded
from study_parties import MakeManifest

from dpdpca_lab.audit.game import LEAST_RUNS, audit, audit_manifest
from dpdpca_lab.audit.neighbours import Neighbours, worst_shapes
from dpdpca_lab.audit.releases import Integers, Totals
from dpdpca_lab.audit.report import AuditReport, Claim
from dpdpca_lab.audit.wide import WideRelease, wide_pairs, wide_release
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.records import projected_sums, scatter
from dpdpca_protocol.records.encoding import cut_to_bound
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.reference import owner_sums
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import LIFT_BOUND

from .alpha import level
from .test_audit_releases import LEAK_RUNS, weaker

EPSILON = {"epsilon": "2"}
_RUNS = 2_000


@pytest.mark.parametrize("of", ["records", pytest.param("pairs", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("release", ["sketch", "lift", pytest.param("scores", marks=pytest.mark.nightly)])
def test_a_round_holds_what_it_claims(release: str, of: str, make_manifest: MakeManifest) -> None:
    manifest = wide.CHAIN[release](make_manifest, of, **EPSILON)
    report = audit_manifest(manifest, _RUNS, alpha=level(), search=20)
    assert report.holds, report.facts()
    assert max(pair.distance for pair in report.pairs) > 0.99 * present(report.claim.shift)


def test_the_worst_pair_of_a_lift_reaches_the_claim_through_the_encoder(make_manifest: MakeManifest) -> None:
    """αe + βf and αe − βf have the same a: e is what C·P₀ sees best, and f is what it does not see."""
    manifest = steep(make_manifest)
    release = WideRelease(manifest.figures, wide.D, 1)
    pair = seen_alike(manifest)
    report = audit(release, [pair], Claim.of(manifest), 500, alpha=level())
    assert report.holds, report.facts()
    assert report.pairs[0].distance > 0.97 * present(report.claim.shift)


@pytest.mark.parametrize("of", ["records", "pairs"])
def test_the_worst_pair_of_a_sketch_reaches_the_claim_through_the_encoder(
    of: str, make_manifest: MakeManifest
) -> None:
    """P₀ makes records in its row space longer than the bound 2K, so that they are cut to it."""
    manifest = wide.sketch(make_manifest, of, **EPSILON)
    release = WideRelease(manifest.figures, wide.M)
    report = audit(release, [mixed_apart(manifest)], Claim.of(manifest), LEAST_RUNS, alpha=level())
    assert report.holds, report.facts()
    assert report.pairs[0].distance > 0.97 * present(report.claim.shift)


def bare(places: slice) -> Callable[[Integers], Integers]:
    def undo(noise: Integers) -> Integers:
        noise[:, places] = 0
        return noise

    return undo


def once_for_two_columns(noise: Integers) -> Integers:
    noise[:, 2:9:2] = noise[:, 1:9:2]
    return noise


# d = 4 and k = 2 in the game: the count, L in places 1 to 8, G in 9 to 11.
NOISES: dict[str, Callable[[Integers], Integers]] = {
    "no noise on G's diagonal": bare(slice(9, 10)),
    "no noise on an entry of L": bare(slice(3, 4)),
    "noise drawn once for two columns": once_for_two_columns,
}


@pytest.mark.parametrize("fault", NOISES)
def test_a_lift_with_a_fault_in_its_noise_is_found(fault: str, make_manifest: MakeManifest) -> None:
    class Faulty(WideRelease):
        def draw_noise(self, runs: int) -> Integers:
            return NOISES[fault](super().draw_noise(runs))

    manifest = wide.lift(make_manifest, **EPSILON)
    release = Faulty(manifest.figures, 4, 2)
    report = audit(release, wide_pairs(release, 9), Claim.of(manifest), LEAK_RUNS, alpha=level())
    assert report.failed


@pytest.mark.parametrize("release", wide.CHAIN)
def test_a_scale_for_half_the_sensitivity_is_refuted(release: str, make_manifest: MakeManifest) -> None:
    """√2·√(KB) in place of 2√(KB), and K in place of 2K in a sketch."""
    manifest = wide.CHAIN[release](make_manifest, **EPSILON)
    honest = wide_release(manifest)
    factor = Fraction(1, 2) if release == "sketch" else Fraction(7071, 10_000)
    weak = WideRelease(weaker(manifest.figures, factor), honest.d, honest.columns)
    report = audit(weak, wide_pairs(honest, 9), Claim.of(manifest), LEAK_RUNS, alpha=level())
    assert report.failed


def test_numbers_that_are_not_cut_are_found(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers half as long again as the bound allows, as if the owner neither cut nor checked."""
    manifest = wide.lift(make_manifest, **EPSILON)
    honest = wide_release(manifest)
    z = np.zeros((1, honest.d), dtype=np.int64)
    z[0, 0] = math.isqrt(honest.figures.record_bound)
    long = np.array([[3 * math.isqrt(LIFT_BOUND) // 2, 0]])

    def played() -> AuditReport:
        pair = Neighbours("not cut", False, honest.totals_of(z, long), honest.totals_of(-z, long))
        return audit(honest, [pair], Claim.of(manifest), LEAK_RUNS, alpha=level())

    assert played().holds
    monkeypatch.setattr(projected_sums, "cut_to_bound", lambda rows, _bound: (rows, 0))
    with pytest.raises(UsageError, match="exceeds the norm bound"):
        played()
    monkeypatch.setattr(scatter, "obeys_bound", lambda rows, _bound: np.ones(len(rows), dtype=bool))
    assert played().failed


def test_products_with_the_noise_of_the_lift_are_found(make_manifest: MakeManifest) -> None:
    """Where records are shorter than their numbers, K < 2B, the products need more noise than the lift."""
    manifest = wide.lift(make_manifest, clip_norm="0.25", **EPSILON)
    assert manifest.figures.record_bound == LIFT_BOUND // 4

    class Faulty(WideRelease):
        def draw_noise(self, runs: int) -> Integers:
            noise, other = super().draw_noise(runs), super().draw_noise(runs)
            noise[:, 9:] = other[:, 1:4]
            return noise

    reports = []
    for kind in (WideRelease, Faulty):
        release = kind(manifest.figures, 4, 2)
        pairs = wide_pairs(release, 9)
        reports.append(audit(release, pairs, Claim.of(manifest), LEAK_RUNS, alpha=level()))
    assert reports[0].holds, reports[0].facts()
    assert not reports[1].holds


def cut_before_rounding(rows: np.ndarray, bound: int) -> tuple[np.ndarray, int]:
    """As if the bound held for rows before they become whole numbers, and nobody looked again."""
    lengths = np.sqrt((rows.astype(float) ** 2).sum(axis=1, keepdims=True))
    return np.rint(rows * np.minimum(1, bound**0.5 / lengths)).astype(np.int64), 0


def rounded_outwards(bound: int, size: int) -> np.ndarray:
    """A long row that `cut_before_rounding` makes longer than the bound by as much as it can."""
    tried = np.array([Seeded(seed).below(2**20) for seed in range(400 * size)]).reshape(-1, size) + 2**20
    cut, _ = cut_before_rounding(tried, bound)
    return np.asarray(tried[np.argmax((cut**2).sum(axis=1))])


def test_numbers_that_are_cut_before_they_are_rounded_are_found(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums refuse such numbers. Without their check, the audit finds a pair too far apart."""
    manifest = wide.lift(make_manifest, **EPSILON)
    honest = wide_release(manifest)
    long = rounded_outwards(LIFT_BOUND, honest.columns)[None]
    z = np.zeros((1, honest.d), dtype=np.int64)
    z[0, 0] = math.isqrt(honest.figures.record_bound)
    monkeypatch.setattr(projected_sums, "cut_to_bound", cut_before_rounding)
    with pytest.raises(UsageError, match="exceeds the norm bound"):
        honest.totals_of(z, long)
    monkeypatch.setattr(scatter, "obeys_bound", lambda rows, _bound: np.ones(len(rows), dtype=bool))
    pair = Neighbours("cut", False, honest.totals_of(z, long), honest.totals_of(-z, long))
    report = audit(honest, [pair], Claim.of(manifest), LEAK_RUNS, alpha=level())
    assert [check.name for _, check in report.failed] == ["stated noise covers the distance"]


def steep(make_manifest: MakeManifest) -> Manifest:
    """A lift of one column, so steep that a small part of a record along it fills the bound on a."""
    matrix = [[2**20 * (1 + j % 3) for j in range(wide.M)]]
    return wide.lift(make_manifest, lift={"columns": 1, "matrix": matrix, "offset": [0]}, **EPSILON)


def seen_alike(manifest: Manifest) -> Neighbours:
    bound, rule = manifest.figures.record_bound, present(projection_of(manifest))
    p0 = np.array(wide.plain_sketch_matrix(bytes.fromhex(wide.SEED), wide.D, wide.M), dtype=float)
    row = np.array(present(manifest.lift).matrix[0], dtype=float) @ p0
    e = row / np.linalg.norm(row)
    f = np.roll(e, 1) - e * (e @ np.roll(e, 1))
    f /= np.linalg.norm(f)
    alpha, most = 0.1, bound**0.5 - wide.D**0.5
    sides = []
    for sign in (1, -1):
        z = np.rint(most * (alpha * e + sign * (1 - alpha**2) ** 0.5 * f)).astype(np.int64)[None]
        a, _ = cut_to_bound(rule(z), LIFT_BOUND)
        assert abs(a[0, 0]) > 0.99 * LIFT_BOUND**0.5
        count, *values = owner_sums(manifest.figures, z, projection=rule)
        sides.append(Totals(count, (), (), tuple(values)))
    return Neighbours("seen alike by the rule", True, *sides)


def mixed_apart(manifest: Manifest) -> Neighbours:
    """The worst pair of a sketch: what is mixed lies on the bound, in the plane that P₀ stretches most."""
    figures, rule = manifest.figures, present(projection_of(manifest))
    p0 = np.array(wide.plain_sketch_matrix(bytes.fromhex(wide.SEED), wide.D, wide.M), dtype=float)
    _, stretched, directions = np.linalg.svd(p0)
    kind = ReleaseKind.PAIRS if figures.rules.of_pairs else ReleaseKind.JOINT
    shape, *_ = worst_shapes(kind, 2, float(figures.alpha_squared / figures.summed_bound))
    most = figures.record_bound**0.5 - wide.D**0.5
    sides = []
    for mixed in (shape.before, shape.after):
        record = (mixed / stretched[:2]) @ directions[:2]
        z = np.rint(most * record / np.linalg.norm(record)).astype(np.int64)
        rows = np.array([z, 0 * z])  # a pair, or one record beside another at the centre
        assert (rule(rows)[0].astype(float) ** 2).sum() > 1.1 * figures.summed_bound
        count, *values = owner_sums(figures, rows, projection=rule)
        sides.append(Totals(count, (), (), tuple(values)))
    return Neighbours(shape.name, True, *sides)
