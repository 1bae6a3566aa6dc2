"""Components in clear would undo the noise towards the proxy, who knows its own draw; sealed ones do not, and
neither do those under a second noise that it does not know."""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import wide_studies as wide
from cohorts import of_one_owner
from present import present
from reference_data import Seeded
from scipy import stats
from study_parties import PADS_SECRET, MakeManifest

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.blocks import BlockName, Values, cut_blocks
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.privacy.mechanisms import BlockGaussian
from dpdpca_protocol.records.encoding import Integers, cut_to_bound
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.reference import owner_sums
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, Floats, fit_components
from dpdpca_protocol.result.publication import encode_components, read_components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures, figures_of
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import Terms
from dpdpca_protocol.terms.wide import LiftTerms
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.sealing import components_info, open_sealed, seal
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_user.planning.prestudy import PreStudyResult, ReleasedSketch
from dpdpca_user.planning.rounds import round_draft
from dpdpca_user.planning.wide_chain import PublishedLift, scores_round
from dpdpca_user.results.second_noise import with_second_draw, with_second_noise
from dpdpca_user.results.wide.rule import lift_rule
from dpdpca_user_service.work import EarlierRounds, open_wide

D, N = 12, 400
STUDY = StudyId(bytes(range(32)))
SKETCHED, GAMES = 4000, 300
CHAIN: dict[str, Any] = {"suite": "pads", "delta": "0.00001", "max_records": 2 * SKETCHED}


def masked_release() -> tuple[Floats, Floats, NoisyScatter, EncodedSpace, Figures]:
    figures = figures_of(
        Terms(
            ReleaseKind.MASKED, D, Fraction(1), 12, Fraction(1), Fraction(1, 10**7), Fraction(0), 1000, 3072
        )
    )
    source = random.Random(1)
    z = np.array([[round(source.gauss(0, 300)) for _ in range(D)] for _ in range(N)], dtype=object)
    total = z.sum(axis=0)
    scaled = N * z.T.dot(z) - np.outer(total, total)
    noise = np.zeros((D, D), dtype=object)
    noise[np.triu_indices(D)] = figures.mechanism.draw(N)
    noise = noise + np.triu(noise, 1).T
    noisy = NoisyScatter(N, tuple(tuple(int(entry) for entry in row) for row in scaled + noise), None)
    space = EncodedSpace(tuple("abcdefghijkl"), np.zeros(D), np.ones(D), False)
    return scaled.astype(float) / N, noise.astype(float) / N, noisy, space, figures


def test_components_in_clear_give_the_proxy_exact_sums() -> None:
    """The attack: S·V = V·Λ − H·V/N. It must work, or the sealing would stop nothing."""
    scatter, own_noise, noisy, space, figures = masked_release()
    published = fit_components(noisy, figures, space, 3)
    unit = published.noise_scale / float(figures.noise_scale)
    vectors, values = published.vectors.T, published.eigenvalues / unit
    found = vectors * values - own_noise @ vectors
    truth = scatter @ vectors
    assert np.abs(found - truth).max() < 1e-9 * np.abs(own_noise).max()
    assert np.abs(own_noise @ vectors).max() > 1e3 * np.abs(found - truth).max()


def test_a_second_noise_of_the_data_users_own_stops_the_same_attack() -> None:
    """In clear the proxy finds the sums no better than under fresh noise of the study's own strength."""
    scatter, own_noise, noisy, space, figures = masked_release()
    again, both = with_second_noise(noisy, figures)
    published = fit_components(again, both, space, 3)
    unit = published.noise_scale / (2**0.5 * float(figures.noise_scale))
    vectors, values = published.vectors.T, published.eigenvalues / unit
    error = vectors * values - own_noise @ vectors - scatter @ vectors
    # |E u|² for a unit vector u: about t²(d + 1)/2, E the noise that the proxy does not know
    expected = float(figures.noise_scale) * ((D + 1) / 2) ** 0.5
    assert (np.linalg.norm(error, axis=0) > expected / 5).all()
    drawn = np.array(again.scaled_scatter, dtype=object) - np.array(noisy.scaled_scatter, dtype=object)
    assert np.abs(error - drawn.astype(float) / N @ vectors).max() < 1e-9 * np.abs(own_noise).max()


def test_what_passes_through_the_proxy_opens_for_owners_alone() -> None:
    _, _, noisy, space, figures = masked_release()
    published = fit_components(noisy, figures, space, 3)
    plain = encode_components(STUDY, published)
    user, proxy, owners = (
        IdentityKey.generate(),
        IdentityKey.generate(),
        [IdentityKey.generate() for _ in range(3)],
    )
    info = components_info(STUDY)
    sealed = {owner.public.party_id: seal(plain, owner.public.sealing_key, info) for owner in owners}
    wire = SealedComponents(STUDY, sealed).sign(user).encoded
    for number in (*published.vectors.ravel(), *published.eigenvalues, *published.captured):
        assert np.float64(number).tobytes().hex().encode() not in wire
    for copy in sealed.values():
        with pytest.raises(CryptographicError):
            open_sealed(copy, proxy.opening_key, info)
    assert open_sealed(sealed[owners[1].public.party_id], owners[1].opening_key, info) == plain
    with pytest.raises(CryptographicError):
        open_sealed(sealed[owners[1].public.party_id], owners[0].opening_key, info)


def pre_study_sum(make_manifest: MakeManifest) -> tuple[Manifest, list[int], list[int]]:
    """A pre-study's manifest, its exact sum, and the noise that the proxy drew for it."""
    manifest = make_manifest(release="pre-study", blocks={"sum": "1"})
    return manifest, [123_456, -7_890, 0], manifest.figures.mechanism.draw(1)[1:]


def denoised(manifest: Manifest, released: Mapping[BlockName, Values], own: list[int]) -> list[float]:
    """The attack: the next manifest's centres are a pre-study's mean, and the proxy reads manifests."""
    mean = PreStudyResult.of(manifest, released, 3).total
    assert mean is not None
    return [value * N * manifest.figures.grid - noise for value, noise in zip(mean.mean, own, strict=True)]


def test_centres_out_of_the_first_noise_alone_would_give_the_proxy_the_exact_sum(
    make_manifest: MakeManifest,
) -> None:
    manifest, total, own = pre_study_sum(make_manifest)
    noisy = [value + noise for value, noise in zip(total, own, strict=True)]
    found = denoised(manifest, {BlockName.COUNT: [N], BlockName.SUM: noisy}, own)
    assert found == pytest.approx(total, abs=1e-3)


def test_the_data_users_own_noise_hides_it(make_manifest: MakeManifest) -> None:
    manifest, total, own = pre_study_sum(make_manifest)
    noisy = [value + noise for value, noise in zip(total, own, strict=True)]
    released, _ = with_second_draw({BlockName.COUNT: [N], BlockName.SUM: noisy}, manifest.figures)
    found = denoised(manifest, released, own)
    mechanism = manifest.figures.mechanism
    assert isinstance(mechanism, BlockGaussian)
    # As far off as under fresh noise of the study's own strength; all three close by has a chance of 10⁻¹².
    assert np.abs(np.subtract(found, total)).max() > 1e-4 * float(mechanism.variance(BlockName.SUM)) ** 0.5


# --- a sketch, whose reading stands in the manifest of the lift ---------------------------------------------


@dataclass(frozen=True)
class Neighbours:
    """Sketches of two data sets that differ in one record, both under the noise that the proxy drew.

    Attributes:
        manifest: of the sketch.
        records: what the proxy wants to tell apart, (n, d) each.
        exact: the blocks of both sketches before noise.
        own: the proxy's draw.
    """

    manifest: Manifest
    records: tuple[Integers, Integers]
    exact: tuple[Mapping[BlockName, Values], Mapping[BlockName, Values]]
    own: Mapping[BlockName, Values]

    @classmethod
    def make(cls, make_manifest: MakeManifest) -> "Neighbours":
        """Records that vary most along the direction that P₀ stretches most. One becomes its opposite."""
        manifest = wide.sketch(make_manifest, sum_weight="2", **CHAIN)
        figures, rule = manifest.figures, projection_of(manifest)
        p0 = np.array(wide.plain_sketch_matrix(bytes.fromhex(wide.SEED), wide.D, wide.M), dtype=np.float64)
        best = np.linalg.svd(p0)[2][0]
        rng = np.random.default_rng(3)  # noqa: TID251  # data, not noise
        rows = 0.8 * rng.uniform(-1, 1, (SKETCHED, 1)) * best + 0.14 * rng.normal(size=(SKETCHED, wide.D))
        rows[0] = best
        most = figures.record_bound**0.5 - wide.D**0.5
        first, _ = cut_to_bound(np.rint(most * rows).astype(np.int64), figures.record_bound)
        second = np.vstack([-first[:1], first[1:]])

        def exact(records: Integers) -> Mapping[BlockName, Values]:
            return cut_blocks(figures.blocks, owner_sums(figures, records, projection=rule))

        own = cut_blocks(figures.blocks, figures.mechanism.draw(1))
        return cls(manifest, (first, second), (exact(first), exact(second)), own)

    def released(self, side: int) -> Mapping[BlockName, Values]:
        """The sketch as the data user opens it, with the first draw alone."""
        return {
            name: [value + draw for value, draw in zip(values, self.own[name], strict=True)]
            for name, values in self.exact[side].items()
        }

    def lift(self, side: int, *, drawn_twice: bool) -> LiftTerms:
        """What the manifest of the lift says that follows."""
        blocks, figures = self.released(side), self.manifest.figures
        if drawn_twice:
            blocks, figures = with_second_draw(blocks, figures)
        return terms_of(ReleasedSketch.of(self.manifest, blocks, figures, 1), 1)

    def misses(self, lift: LiftTerms) -> tuple[float, float]:
        """The attack: o = −C·ṽ/N, so −N·o less the proxy's own C·e is C·v, but for what it does not know.

        Returns:
            For either data set, how far its sum along C is from what was found, in grid units.
        """
        (row,), (offset,) = lift.matrix, lift.offset
        found = -SKETCHED * offset - dot(row, self.own[BlockName.SUM])
        first, second = (
            abs(found - dot(row, exact[BlockName.SUM])) / dot(row, row) ** 0.5 for exact in self.exact
        )
        return first, second


def terms_of(sketch: ReleasedSketch, columns: int) -> LiftTerms:
    rule = lift_rule(sketch.reading, columns)
    return LiftTerms(columns, tuple(map(tuple, rule.matrix.tolist())), rule.offset)


def dot(row: Iterable[int], other: Iterable[int]) -> int:
    return sum(x * y for x, y in zip(row, other, strict=True))


@pytest.mark.parametrize("truth", [0, 1])
def test_a_lift_that_was_made_of_the_first_draw_alone_would_tell_two_data_sets_apart(
    truth: int, make_manifest: MakeManifest
) -> None:
    scene = Neighbours.make(make_manifest)
    manifest = wide.lift(make_manifest, lift=scene.lift(truth, drawn_twice=False).to_body(), **CHAIN)
    misses = scene.misses(present(manifest.lift))
    assert misses[truth] < 1  # the exact sum, but for the rounding of the offset
    assert misses[1 - truth] > 5_000


def test_after_a_second_draw_the_lift_shows_no_more_of_a_record_than_its_rho_allows(
    make_manifest: MakeManifest,
) -> None:
    """A guess under Gaussian noise is right with a probability of Φ(√(2ρ)/2) at most."""
    scene, source = Neighbours.make(make_manifest), Seeded(4)
    scale = float(scene.manifest.figures.block_variance(BlockName.SUM, 1)) ** 0.5
    most = float(stats.norm.cdf((2 * float(scene.manifest.figures.rho)) ** 0.5 / 2))
    right, errors = 0, []
    for _ in range(GAMES):
        truth = source.below(2)
        misses = scene.misses(scene.lift(truth, drawn_twice=True))
        right += misses[truth] < misses[1 - truth]
        errors.append(misses[truth])
        assert abs(misses[0] - misses[1]) < 2.9 * scene.manifest.figures.record_bound**0.5
    enough = float(stats.binom.isf(1e-7, GAMES, most))
    assert right <= enough < GAMES  # without the second draw all guesses are right
    # What hides the record is of the study's own strength. The mean of so many misses has 4 % of it as error.
    assert 0.5 * scale < np.mean(errors) < 1.2 * scale


# --- lift and scores, of which no manifest says anything ----------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """What the data user makes of a lift: sealed components, and the draft of the scores."""

    components: bytes
    statement: bytes
    scores: dict[str, Any]


@dataclass(frozen=True)
class AfterOneSketch:
    """Two data sets whose sketches were opened with the same numbers, and so got the same lift."""

    scene: Neighbours
    sketch: PreStudyResult
    lift: Manifest
    user: IdentityKey
    owner: IdentityKey

    @classmethod
    def make(cls, make_manifest: MakeManifest) -> "AfterOneSketch":
        scene = Neighbours.make(make_manifest)
        opened, _ = with_second_draw(scene.released(0), scene.manifest.figures)
        sketch = PreStudyResult.of(scene.manifest, opened, 1)
        rule = terms_of(present(sketch.sketch), 2)
        before = [sketch.study.hex()]
        lift = wide.lift(make_manifest, lift=rule.to_body(), pre_studies=before, **CHAIN)
        return cls(scene, sketch, lift, IdentityKey.generate(), IdentityKey.generate())

    def open(self, records: Integers) -> Opened:
        """A lift of these records. The proxy knows its own draw, so to it this is the release."""
        values = owner_sums(self.lift.figures, records, projection=projection_of(self.lift))
        chunks, cohort = of_one_owner(self.lift, values)
        before = EarlierRounds(json.dumps(self.sketch.to_json()).encode(), None)
        fitted = open_wide(PADS_SECRET.to_bytes(), self.lift.to_body(), chunks, cohort, False, before)
        study, key = self.lift.study_id, self.owner.public
        sealed = SealedComponents.seal_once(study, fitted.components, {key.party_id: key.sealing_key})
        statement = sealed.sign(self.user)
        published = PublishedLift(study, self.lift.rho_share, 2, statement.digest)
        chosen = scores_round([self.sketch], wide.D, published)
        return Opened(fitted.components, statement.encoded, round_draft(wide.TERMS | CHAIN, chosen))


def members_of(manifest: Manifest) -> dict[str, Any]:
    """All members of a manifest, those of `scores` one by one."""
    body = manifest.to_body()
    return body | {f"scores.{name}": value for name, value in body.pop("scores").items()}


def differing(first: Manifest, second: Manifest) -> set[str]:
    left, right = members_of(first), members_of(second)
    assert left.keys() == right.keys()
    return {name for name in left if left[name] != right[name]}


def test_the_manifest_of_scores_is_the_same_whatever_the_lift_has_shown(make_manifest: MakeManifest) -> None:
    """But for a digest of what was sealed with random bytes, which differs for one data set as for two."""
    after = AfterOneSketch.make(make_manifest)
    here = after.scene.records[0]
    lifts = [after.open(records) for records in (here, here, here[:, ::-1].copy())]
    once, again, elsewhere = (make_manifest(**lift.scores) for lift in lifts)
    assert lifts[0].components == lifts[1].components != lifts[2].components
    assert differing(once, elsewhere) == differing(once, again) == {"scores.components"}
    assert len({members_of(each)["scores.components"] for each in (once, again, elsewhere)}) == 3
    assert len({len(each.statement) for each in lifts}) == 1
    # The components must differ so much that a number made of them would show it.
    leaky = [make_manifest(**with_norm_of_the_lift(lift, after.lift)) for lift in lifts]
    assert differing(leaky[0], leaky[1]) == {"scores.components"}
    assert "scores.norm" in differing(leaky[0], leaky[2])


def with_norm_of_the_lift(opened: Opened, lift: Manifest) -> dict[str, Any]:
    """A draft whose bound on scores was computed from the lift, as no chain may compute it."""
    first = present(read_components(opened.components, lift).lifted).singular_values[0]
    return opened.scores | {"scores": opened.scores["scores"] | {"norm": f"{first / 2**30:.9f}"}}
