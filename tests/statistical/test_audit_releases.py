"""The audit finds nothing against the releases as they are, and something against each planted fault.

The faults live here: each is the audited release with one method changed, under the claim of the real one.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from present import present
from promises import Promise
from study_parties import MakeManifest

from dpdpca_lab.audit.game import ALPHA, audit, audit_manifest, whole_checks
from dpdpca_lab.audit.mechanisms import MechanismRelease
from dpdpca_lab.audit.neighbours import arena_of, worst_pairs
from dpdpca_lab.audit.releases import (
    Integers,
    JointRelease,
    MaskedRelease,
    Release,
    Totals,
    integers,
    release_of,
)
from dpdpca_lab.audit.report import AuditReport, Claim
from dpdpca_lab.mechanisms import Wishart
from dpdpca_protocol.privacy.mechanisms import Quantity, Setting, SharedGaussian
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest

from .alpha import level

RECORDS = 10
DELTA = "0.09"
LEAK_RUNS = 600  # what always differs shows at once
HONEST_RUNS = 5_000
HALF_RUNS = 20_000  # half the noise at ε = 2: the bound is 2.84 ± 0.12, seven deviations above the claim
FEATURES = [{"name": "age", "lower": 0, "upper": 100}, {"name": "weight", "lower": 0, "upper": 200}]


@pytest.fixture(scope="module")
def masked(make_manifest: MakeManifest) -> Manifest:
    return make_manifest(
        release="masked", features=FEATURES, epsilon=2, delta=DELTA, max_records=RECORDS, min_records=RECORDS
    )


@pytest.fixture(scope="module")
def joint(make_manifest: MakeManifest) -> Manifest:
    return make_manifest(
        release="joint", features=FEATURES, epsilon=2, delta=DELTA, max_records=RECORDS, min_records=RECORDS
    )


@pytest.fixture(scope="module")
def owners(make_manifest: MakeManifest) -> Manifest:
    """A joint study of three owners, two of whom are assured; they draw the noise."""
    return make_manifest(
        release="joint",
        features=FEATURES,
        epsilon=2,
        delta=DELTA,
        max_records=RECORDS,
        min_records=RECORDS,
        noise_by="owners",
    )


@pytest.fixture(scope="module")
def told(make_manifest: MakeManifest) -> Manifest:
    """A joint study that tells what clipping did and how many values are missing, for three tenths of ρ."""
    return make_manifest(
        release="joint",
        features=FEATURES,
        epsilon=2,
        delta=DELTA,
        max_records=RECORDS,
        min_records=RECORDS,
        missing="midpoint",
        clip_norm="0.7",
        clip_share="0.1",
        clip_cap="0.99",
    )


def against(
    manifest: Manifest,
    release: Release,
    runs: int,
    claim: Claim | None = None,
    alpha: float | None = None,
    most_pairs: int = 2,
) -> AuditReport:
    """The audit of a release that is not what `manifest` says, on the pairs of `manifest`."""
    pairs = worst_pairs(manifest, arena_of(manifest), RECORDS)[:most_pairs]
    return audit(release, pairs, claim or Claim.of(manifest), runs, alpha=alpha or level())


def failed(report: AuditReport) -> set[str]:
    return {check.name for _, check in report.failed}


# --- nothing is planted -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["masked", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("joint", "owners"))]
)
def test_the_release_holds_what_it_claims(
    kind: str, request: pytest.FixtureRequest, promise: Promise
) -> None:
    manifest = request.getfixturevalue(kind)
    report = audit_manifest(manifest, HONEST_RUNS, alpha=level())
    assert report.holds, report.facts()
    # and the audit is no formality: so few runs show 0.55 ± 0.05
    assert 0.2 < report.epsilon <= 2
    assert max(pair.distance for pair in report.pairs) > 0.89 * present(report.claim.shift)  # (N − 1)/N of it
    assert all(pair.runs == HONEST_RUNS for pair in report.pairs)
    promise(
        "P15",
        counted=f"{kind}: {HONEST_RUNS:,} runs for each of {len(report.pairs)} pairs",
        result=f"ε at least {report.epsilon:.3f}, below the claim",
    )


def test_what_clipping_did_spends_its_share_and_no_more(told: Manifest) -> None:
    release = release_of(told.figures, 2)
    report = audit(release, worst_pairs(told, arena_of(told), RECORDS), Claim.of(told), 2_000, alpha=level())
    assert report.holds, report.facts()
    assert report.pairs[0].encoded
    # A record that is rotated, becomes too long and loses its gaps at the same time reaches all of ρ.
    assert report.pairs[0].distance > 0.99 * present(report.claim.shift)


@pytest.mark.parametrize("bare", [-1, -2])
def test_what_clipping_did_or_gaps_without_noise_are_found(told: Manifest, bare: int) -> None:
    class Bare(JointRelease):
        def draw_noise(self, count: int, runs: int) -> Integers:
            noise = super().draw_noise(count, runs)
            noise[:, bare] = 0
            return noise

    assert against(told, Bare(told.figures, 2), LEAK_RUNS).failed


# --- less noise -------------------------------------------------------------------------------------------


def weaker(figures: Figures, factor: Fraction) -> Figures:
    """The figures of a study whose mechanism states, and draws, `factor` times the noise that it needs."""

    kind: Any = type(figures.mechanism)

    class Weaker(kind):  # type: ignore[misc] # which class it is, the study says
        @classmethod
        def least_scale(cls, setting: Setting) -> Fraction:
            needed: Fraction = super().least_scale(setting)
            return needed * factor

    return replace(figures, mechanism=Weaker.calibrated(figures.mechanism.setting))


def with_noise_of(release: JointRelease | MaskedRelease, factor: Fraction) -> JointRelease | MaskedRelease:
    """`release` with the noise of a weaker mechanism, of which it says nothing."""
    release.mechanism = type(release)(weaker(release.figures, factor), release.d).mechanism
    stated = type(release)(release.figures, release.d).mechanism
    vars(release)["stated"] = stated.law
    return release


@pytest.mark.parametrize(
    ("kind", "release"),
    [pytest.param("masked", MaskedRelease, marks=pytest.mark.nightly), ("joint", JointRelease)],
)
def test_half_the_noise_is_refuted(
    kind: str, release: type[JointRelease | MaskedRelease], request: pytest.FixtureRequest, promise: Promise
) -> None:
    manifest = request.getfixturevalue(kind)
    fault = with_noise_of(release(manifest.figures), Fraction(1, 2))
    report = against(manifest, fault, HALF_RUNS, alpha=ALPHA, most_pairs=1)
    assert report.is_refuted
    assert failed(report) >= {"noise has the stated deviation", "measured shift"}
    promise("P15", counted=f"{kind}: half the noise (planted), {HALF_RUNS:,} runs", result="refuted")


class OneShareMissing(JointRelease):
    """One owner more than may collude brings no noise."""

    def draw_noise(self, count: int, runs: int) -> Integers:
        assert isinstance(self.mechanism, SharedGaussian)
        mechanism = self.mechanism
        return integers(list(mechanism.share(self.sample)) for _ in range(runs))


def test_a_share_of_the_owners_noise_that_is_missing_is_seen(owners: Manifest) -> None:
    report = against(owners, OneShareMissing(owners.figures), LEAK_RUNS)
    assert failed(report) >= {"noise has the stated deviation"}


def test_nine_tenths_of_the_noise_are_seen_by_their_deviation_not_by_the_bound(masked: Manifest) -> None:
    report = against(masked, with_noise_of(MaskedRelease(masked.figures), Fraction(9, 10)), 3000)
    assert not report.is_refuted
    assert failed(report) == {"noise has the stated deviation"}


def test_sensitivity_one_for_the_centred_scatter_is_refuted(masked: Manifest) -> None:
    """The paper's constant: the mechanism says itself that its noise is a quarter, and draws that."""
    report = against(masked, MaskedRelease(weaker(masked.figures, Fraction(1, 4))), 2000)
    assert report.is_refuted
    assert failed(report) == {"stated noise covers the distance", "measured shift"}


# --- leaks that no amount of noise covers -----------------------------------------------------------------


class NoiseOnScatter(MaskedRelease):
    """Noise on S instead of N·S: multiples of N, of the same size."""

    def draw_noise(self, count: int, runs: int) -> Integers:
        noise: Integers = count * super().draw_noise(1, runs)
        return noise


def test_noise_on_s_leaks_the_fractional_part(masked: Manifest) -> None:
    report = against(masked, NoiseOnScatter(masked.figures), LEAK_RUNS)
    assert report.is_refuted
    assert report.pairs[0].bound.event.startswith("residues ")
    assert failed(report) == {"noise covers all residues", "noise moves in steps of 1"}


class EvenNoise(JointRelease):
    """A sampler that loses the lowest bit: no residue modulo a number that the audit looks at by itself."""

    def draw_noise(self, count: int, runs: int) -> Integers:
        noise = super().draw_noise(count, runs)
        noise[:, 3] += noise[:, 3] % 2
        return noise


def test_noise_in_larger_steps_is_seen(joint: Manifest) -> None:
    report = against(joint, EvenNoise(joint.figures), LEAK_RUNS)
    assert "noise moves in steps of 1" in failed(report)


class MaskOfMultiples(MaskedRelease):
    def draw_mask(self, runs: int) -> Integers:
        mask: Integers = super().draw_mask(runs) // RECORDS * RECORDS
        return mask


def test_a_mask_of_multiples_of_n_leaks_the_sums(masked: Manifest) -> None:
    report = against(masked, MaskOfMultiples(masked.figures), LEAK_RUNS)
    assert report.is_refuted
    assert report.pairs[0].bound.event.startswith("residues of the masked sums ")
    assert failed(report) == {"mask covers all residues"}


class ShortMask(MaskedRelease):
    """Three bits less than promised: far too little for sampling to see in v′, and it still hides v."""

    def draw_mask(self, runs: int) -> Integers:
        mask: Integers = super().draw_mask(runs) // 8
        return mask


def test_a_short_mask_is_seen_by_its_range(masked: Manifest) -> None:
    report = against(masked, ShortMask(masked.figures), LEAK_RUNS)
    assert not report.is_refuted
    assert failed(report) == {f"mask covers its {masked.figures.mask_bits} bits"}


class TinyMask(MaskedRelease):
    def draw_mask(self, runs: int) -> Integers:
        mask: Integers = super().draw_mask(runs) % 4096
        return mask


def test_a_mask_no_larger_than_a_record_is_refuted(masked: Manifest) -> None:
    report = against(masked, TinyMask(masked.figures), 4 * LEAK_RUNS)
    assert report.is_refuted
    assert report.pairs[0].bound.event.startswith("furthest masked sum ")


class OneBareEntry(MaskedRelease):
    """The off-diagonal entry of the first two features has no noise."""

    def draw_noise(self, count: int, runs: int) -> Integers:
        noise = super().draw_noise(count, runs)
        noise[:, 1] = 0
        return noise


def test_one_off_diagonal_without_noise_is_refuted(masked: Manifest) -> None:
    report = against(masked, OneBareEntry(masked.figures), LEAK_RUNS)
    assert report.is_refuted
    assert report.pairs[0].bound.event.startswith("entries without noise ")
    assert "every number has noise" in failed(report)


class LateBareEntry(JointRelease):
    """As above, where no pair is played: the last off-diagonal entry of many features."""

    def draw_noise(self, count: int, runs: int) -> Integers:
        noise = super().draw_noise(count, runs)
        noise[:, -2] = 0
        return noise


@pytest.mark.parametrize(
    ("release", "fails"),
    [
        (JointRelease, set()),
        (LateBareEntry, {"every number has noise", "noise has the stated deviation"}),
    ],
)
def test_a_bare_entry_anywhere_is_seen_in_whole_releases(
    make_manifest: MakeManifest, release: type[JointRelease], fails: set[str]
) -> None:
    features = [{"name": f"x{i}", "lower": -1, "upper": 1} for i in range(30)]
    figures = make_manifest(release="joint", features=features).figures
    z = np.ones((3, 30), dtype=np.int64)
    found = whole_checks(release(figures), Totals.of(z, figures.record_bound))
    limit = 1e-12 if fails else level() / len(found)
    assert {check.name for check in found if check.p_value < limit} == fails


# --- copies and reuse -------------------------------------------------------------------------------------


class FreshLeft(MaskedRelease):
    """Entries left of the diagonal get draws of their own."""

    def draw_noise(self, count: int, runs: int) -> Integers:
        return np.hstack([super().draw_noise(count, runs), super().draw_noise(count, runs)])

    def place_noise(self, drawn: Sequence[int]) -> Sequence[Sequence[int]]:
        honest, fresh = (
            super(FreshLeft, self).place_noise(list(part)) for part in np.split(np.asarray(drawn), 2)
        )
        return [[fresh[i][j] if j < i else honest[i][j] for j in range(self.d)] for i in range(self.d)]


def test_fresh_noise_left_of_the_diagonal_is_seen(masked: Manifest) -> None:
    report = against(masked, FreshLeft(masked.figures), LEAK_RUNS)
    assert failed(report) == {"copies of an entry carry the same noise"}


class BareLeft(FreshLeft):
    def draw_noise(self, count: int, runs: int) -> Integers:
        noise = super().draw_noise(count, runs)
        noise[:, noise.shape[1] // 2 :] = 0
        return noise


def test_no_noise_left_of_the_diagonal_is_refuted(masked: Manifest) -> None:
    report = against(masked, BareLeft(masked.figures), LEAK_RUNS)
    assert report.is_refuted
    assert report.pairs[0].bound.event.startswith("entries without noise ")


class DrawnOnce(JointRelease):
    """The noise of the first release serves for all."""

    kept = None

    def draw_noise(self, count: int, runs: int) -> Integers:
        if self.kept is None:
            self.kept = super().draw_noise(count, 1)
        return np.repeat(self.kept, runs, axis=0)


def test_noise_that_is_reused_for_another_release_is_refuted(joint: Manifest) -> None:
    report = against(joint, DrawnOnce(joint.figures), LEAK_RUNS)
    assert report.is_refuted
    assert "noise is drawn anew for each release" in failed(report)


class SharedEntries(JointRelease):
    """One draw for both diagonal entries: their difference is bare."""

    def draw_noise(self, count: int, runs: int) -> Integers:
        noise = super().draw_noise(count, runs)
        noise[:, -1] = noise[:, -3]
        return noise


def test_noise_that_is_shared_by_two_entries_is_refuted(joint: Manifest) -> None:
    """A pair that moves the two apart, as a right angle does, shows it with certainty."""
    report = against(joint, SharedEntries(joint.figures), LEAK_RUNS)
    assert report.is_refuted
    assert "noise is independent" in failed(report)
    ones = Totals.of(np.ones((3, 2), dtype=np.int64), joint.figures.record_bound)
    found = whole_checks(SharedEntries(joint.figures), ones)
    assert (
        min(check.p_value for check in found if check.name == "noise is drawn anew for each number") < 1e-100
    )


# --- a claim that no noise of this kind can keep ----------------------------------------------------------


def test_wishart_noise_is_not_pure(joint: Manifest) -> None:
    """SN's claim of ε without a δ: impossible outputs are seen at the least eigenvalue."""
    figures = joint.figures
    setting = Setting(Quantity.SECOND_MOMENT, 2, figures.record_bound, Fraction(1), Fraction(1, 10**6))
    release = MechanismRelease(Wishart.calibrated(setting))
    claim = Claim(Fraction(1), Fraction(0), None, {"mechanism": "wishart, as published"})
    report = against(joint, release, 1000, claim)
    assert report.is_refuted
    assert any(pair.bound.event.startswith("least eigenvalue ") for pair in report.pairs)
    assert not math.isfinite(report.facts()["pairs"][0]["epsilon_if_gaussian"] or math.inf)


# --- manifest variants ------------------------------------------------------------------------------------


def test_a_study_of_one_feature_and_one_record_can_be_played(make_manifest: MakeManifest) -> None:
    one = [{"name": "age", "lower": 0, "upper": 100}]
    for kind in ("masked", "joint"):
        manifest = make_manifest(release=kind, features=one, min_records=1, max_records=1, delta="0.5")
        report = audit_manifest(manifest, 200, alpha=level())
        assert report.holds, report.facts()
        assert release_of(manifest.figures).d == 1
