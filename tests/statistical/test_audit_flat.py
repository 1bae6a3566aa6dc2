"""The audit finds nothing against pairs and pre-studies, and something against each planted fault."""

from dataclasses import replace
from fractions import Fraction

import pytest
from present import present
from study_parties import MakeManifest

from dpdpca_lab.audit.flat import FlatRelease, flat_pairs
from dpdpca_lab.audit.game import audit, audit_manifest
from dpdpca_lab.audit.releases import Integers, Totals, Views, integers
from dpdpca_lab.audit.report import Claim
from dpdpca_protocol.privacy.mechanisms import SharedGaussian
from dpdpca_protocol.terms.manifest import Manifest

from .alpha import level
from .test_audit_releases import DELTA, FEATURES, HONEST_RUNS, LEAK_RUNS, RECORDS, failed, weaker


@pytest.fixture(scope="module")
def pairs(make_manifest: MakeManifest) -> Manifest:
    return make_manifest(
        release="pairs", features=FEATURES, epsilon=2, delta=DELTA, max_records=RECORDS, min_records=RECORDS
    )


@pytest.fixture(scope="module")
def blocks(make_manifest: MakeManifest) -> Manifest:
    """A pre-study with every block, each at a fifth of ρ."""
    shares = dict.fromkeys(("norms", "pair-norms", "sum", "octaves", "far-pairs"), "0.2")
    return make_manifest(
        release="pre-study", blocks=shares, features=FEATURES, epsilon=2, delta=DELTA, max_records=RECORDS
    )


def test_pairs_hold_what_they_claim(pairs: Manifest) -> None:
    report = audit_manifest(pairs, HONEST_RUNS, alpha=level())
    assert report.holds, report.facts()
    assert 0.2 < report.epsilon <= 2
    assert max(pair.distance for pair in report.pairs) > 0.99 * present(report.claim.shift)


@pytest.fixture(scope="module")
def told(make_manifest: MakeManifest) -> Manifest:
    """Pairs that tell what clipping did and how many values are missing, for three tenths of ρ."""
    return make_manifest(
        release="pairs",
        features=FEATURES,
        epsilon=2,
        delta=DELTA,
        max_records=RECORDS,
        clip_share="0.1",
    )


def test_what_clipping_did_spends_its_share_and_no_more(told: Manifest) -> None:
    release = FlatRelease(told.figures, 2)
    pairs = [pair for pair in flat_pairs(told, release, RECORDS) if "cap" in pair.name]
    report = audit(release, pairs, Claim.of(told), 2_000, alpha=level())
    assert report.holds, report.facts()
    # A difference that is rotated and cut at the same time reaches all of ρ.
    assert report.pairs[0].distance > 0.99 * present(report.claim.shift)


@pytest.mark.parametrize("bare", [-1, -2, -3])
def test_what_clipping_did_without_noise_is_found(told: Manifest, bare: int) -> None:
    class Bare(FlatRelease):
        def draw_noise(self, runs: int) -> Integers:
            noise = super().draw_noise(runs)
            noise[:, bare] = 0
            return noise

    release = Bare(told.figures, 2)
    report = audit(release, flat_pairs(told, release, RECORDS), Claim.of(told), LEAK_RUNS, alpha=level())
    assert report.failed


@pytest.mark.nightly
def test_every_block_of_a_pre_study_spends_its_share_and_no_more(blocks: Manifest) -> None:
    report = audit_manifest(blocks, HONEST_RUNS, alpha=level())
    assert report.holds, report.facts()
    # The known worst case of each block alone reaches √(2ρ/5), 0.447 of what all of them may.
    known = [pair.distance for pair in report.pairs if "search" not in pair.name]
    assert len(known) == 5
    assert all(
        0.44 * present(report.claim.shift) < distance <= present(report.claim.shift) for distance in known
    )


@pytest.mark.parametrize(
    "name",
    [
        "sum",
        "octaves",
        "far-pairs",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("norms", "pair-norms")),
    ],
)
def test_one_block_alone_holds_what_it_claims(make_manifest: MakeManifest, name: str) -> None:
    manifest = make_manifest(
        release="pre-study",
        blocks={name: "1"},
        features=FEATURES,
        epsilon=2,
        delta=DELTA,
        max_records=RECORDS,
    )
    release = FlatRelease(manifest.figures, 2)
    report = audit(release, flat_pairs(manifest, release, RECORDS), Claim.of(manifest), 2_000, alpha=level())
    assert report.holds, report.facts()
    assert report.pairs[0].distance > 0.98 * present(report.claim.shift)
    assert report.pairs[0].encoded == (name != "pair-norms")


@pytest.mark.parametrize("kind", ["pairs", pytest.param("blocks", marks=pytest.mark.nightly)])
def test_blocks_with_half_their_noise_are_refuted(request: pytest.FixtureRequest, kind: str) -> None:
    manifest = request.getfixturevalue(kind)
    weak = FlatRelease(weaker(manifest.figures, Fraction(1, 2)), 2)
    honest = FlatRelease(manifest.figures, 2)
    report = audit(weak, flat_pairs(manifest, honest, RECORDS), Claim.of(manifest), LEAK_RUNS, alpha=level())
    assert "the pair lies no further apart than claimed" in failed(report) or report.failed


@pytest.mark.nightly
@pytest.mark.parametrize("bare", [0, -1])
def test_a_bin_without_noise_is_found(blocks: Manifest, bare: int) -> None:
    class Bare(FlatRelease):
        def play(self, totals: Totals, runs: int) -> Views:
            views = super().play(totals, runs)
            values = views.values.copy()
            values[:, bare] = self.truth(totals)[bare]
            return replace(views, values=values)

    release = Bare(blocks.figures, 2)
    report = audit(release, flat_pairs(blocks, release, RECORDS), Claim.of(blocks), LEAK_RUNS, alpha=level())
    assert "every number has noise" in failed(report)


@pytest.fixture
def shared(make_manifest: MakeManifest) -> Manifest:
    """A histogram of norms whose noise three owners draw, two of whom are assured."""
    return make_manifest(
        release="pre-study",
        blocks={"norms": "1"},
        features=FEATURES,
        epsilon=1,
        delta=DELTA,
        max_records=RECORDS,
        noise_by="owners",
    )


class OneShareMissing(FlatRelease):
    """One owner more than may collude brings no noise."""

    def draw_noise(self, runs: int) -> Integers:
        assert isinstance(self.mechanism, SharedGaussian)
        mechanism = self.mechanism
        return integers(list(mechanism.share(self.sample)) for _ in range(runs))


@pytest.mark.parametrize(
    ("kind", "holds"), [pytest.param(FlatRelease, True, marks=pytest.mark.nightly), (OneShareMissing, False)]
)
def test_a_histogram_with_owners_noise_holds_what_it_claims_unless_a_share_is_missing(
    shared: Manifest, kind: type[FlatRelease], holds: bool
) -> None:
    release = kind(shared.figures, 2)
    report = audit(release, flat_pairs(shared, release, RECORDS), Claim.of(shared), 2_000, alpha=level())
    assert report.holds == holds, report.facts()
    assert bool(failed(report)) != holds
