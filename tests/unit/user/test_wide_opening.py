"""What the data user opens of sketch, lift and scores, and which noise of its own is in it."""

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from cohorts import of_one_owner
from study_parties import PADS_SECRET, MakeManifest
from wide_studies import COMPONENTS, D, K, lift, records, scores, sketch

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.blocks import BlockName, cut_blocks
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.reference import owner_sums
from dpdpca_protocol.result.publication import encode_components, read_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.sealing import components_info, seal
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.planning.wide_chain import PublishedLift, scores_round
from dpdpca_user.results.model import Model, Provenance
from dpdpca_user.results.report import render_report
from dpdpca_user.results.wide.lift import GRAM_NOT_POSITIVE
from dpdpca_user.results.wide.notes import RoundCount, notes
from dpdpca_user.results.wide.rule import scores_norm
from dpdpca_user_service import work
from dpdpca_user_service.work import EarlierRounds, FittedModel, open_pre_study, open_wide

SECRET, N = PADS_SECRET.to_bytes(), 600
TERMS: dict[str, Any] = {"suite": "pads", "epsilon": "30", "delta": "0.00001"}


def sums(manifest: Manifest) -> list[int]:
    """The exact sums of all owners. The proxy knows its own draw, so to it the released values are these."""
    encoded = RecordEncoder(manifest).encode(records(1, N))
    return owner_sums(manifest.figures, encoded.z, encoded.long, projection_of(manifest, COMPONENTS))


def opened_sketch(manifest: Manifest) -> tuple[PreStudyResult, PreStudyResult]:
    """A sketch as it is opened twice."""
    chunks, cohort = of_one_owner(manifest, sums(manifest))
    first, second = (open_pre_study(SECRET, manifest.to_body(), chunks, cohort)[0] for _ in range(2))
    return first, second


def test_a_sketch_has_a_second_draw_which_a_repeated_opening_repeats(make_manifest: MakeManifest) -> None:
    """Without it the proxy would read the exact sums of the sketch out of the lift's matrix and offset."""
    manifest = sketch(make_manifest, **TERMS)
    first, second = opened_sketch(manifest)
    assert first.to_json() == second.to_json()
    assert first.sketch is not None
    exact = np.array(cut_blocks(manifest.figures.blocks, sums(manifest))[BlockName.SUM])
    drawn = first.sketch.reading.mean * first.sketch.reading.count - exact
    scale = float(manifest.figures.mechanism.variance(BlockName.SUM)) ** 0.5  # type: ignore[attr-defined]  # only Gaussian
    # 16 draws of the study's own strength: all of them this small has a chance below 10⁻²⁰
    assert np.abs(drawn).max() > 0.05 * scale
    assert np.abs(drawn).max() < 8 * scale
    assert first.noise_draws == 2


def test_a_sketch_whose_noise_the_owners_drew_is_read_as_it_is(
    make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(work, "own_samplers")
    manifest = sketch(make_manifest, **TERMS | {"noise_by": "owners"})
    first, _ = opened_sketch(manifest)
    assert first.sketch is not None
    exact = np.array(cut_blocks(manifest.figures.blocks, sums(manifest))[BlockName.SUM])
    found = first.sketch.reading.mean * first.sketch.reading.count
    assert found == pytest.approx(exact, abs=1e-6)


def opened(manifest: Manifest, before: EarlierRounds, in_clear: bool) -> FittedModel:
    chunks, cohort = of_one_owner(manifest, sums(manifest))
    return open_wide(SECRET, manifest.to_body(), chunks, cohort, in_clear, before)


@pytest.fixture
def seen(make_manifest: MakeManifest) -> bytes:
    """The stored result of a sketch that shows something."""
    first, _ = opened_sketch(sketch(make_manifest, **TERMS))
    told = first.to_json()
    told["sketch"] |= {"seen_count": K, "strengths": told["sketch"]["heights"][:K]}
    return json.dumps(told).encode()


def test_a_lift_and_scores_have_a_second_draw_only_in_clear(make_manifest: MakeManifest, seen: bytes) -> None:
    of_lift = lift(make_manifest, **TERMS)
    sealed, again, clear = (
        opened(of_lift, EarlierRounds(seen, None), in_clear) for in_clear in (False, False, True)
    )
    assert sealed.components == again.components
    assert sealed.components != clear.components
    components = read_components(sealed.components, of_lift)
    exact = np.array(cut_blocks(of_lift.figures.blocks, sums(of_lift))[BlockName.LIFTED]).reshape(D, K)
    spans = np.linalg.svd(exact.astype(float), full_matrices=False)
    assert components.lifted is not None
    assert components.lifted.singular_values == pytest.approx(spans[1])

    trail = Provenance("aa" * 32, "bb" * 32, "cc" * 32, (), (), {})
    model = Model(of_lift.study_id, of_lift, components, trail, False, sealed.reliability).to_bytes()
    of_scores = scores(make_manifest, **TERMS)
    before = EarlierRounds(seen, model)
    sealed, again, clear = (opened(of_scores, before, in_clear) for in_clear in (False, False, True))
    assert sealed.components == again.components
    assert sealed.components != clear.components


@pytest.mark.parametrize(
    ("before", "warns"), [(44, False), (45, True), (37, False), (36, True), (None, False)]
)
def test_rounds_with_other_records_are_pointed_out(
    make_manifest: MakeManifest, seen: bytes, before: int | None, warns: bool
) -> None:
    """The lift here has 40 records, or some number near it: what counts is whether they differ by 10 %."""
    manifest = lift(make_manifest, **TERMS)
    fitted = opened(manifest, EarlierRounds(seen, None), False)
    components = replace(read_components(fitted.components, manifest), count=40)
    rounds = () if before is None else (RoundCount("pre-study", 40), RoundCount("sketch", before))
    trail = Provenance("aa" * 32, "bb" * 32, "cc" * 32, (), (), {}, rounds=rounds)
    model = Model(manifest.study_id, manifest, components, trail, False, fitted.reliability)
    assert Model.from_bytes(model.to_bytes()).provenance == trail
    said = [line for line in model.facts()["notes"] if line.startswith("The rounds of this chain")]
    assert len(said) == warns
    for line in said:
        assert f"the sketch has {before}" in line
        assert line in render_report([model], "today")


@pytest.mark.parametrize("is_positive", [True, False])
def test_a_lift_that_gives_no_variances_says_so(
    make_manifest: MakeManifest, seen: bytes, is_positive: bool
) -> None:
    """Noise can make sums of products that no numbers have."""
    manifest = lift(make_manifest, **TERMS)
    values = sums(manifest)
    if not is_positive:
        values[-1] = -1
    chunks, cohort = of_one_owner(manifest, values)
    fitted = open_wide(SECRET, manifest.to_body(), chunks, cohort, False, EarlierRounds(seen, None))
    components = read_components(fitted.components, manifest)
    assert components.trusted_count > 0
    assert components.captured.any() == is_positive
    trail = Provenance("aa" * 32, "bb" * 32, "cc" * 32, (), (), {})
    model = Model(manifest.study_id, manifest, components, trail, False, fitted.reliability)
    for said in (" ".join(notes(components)), render_report([model], "today")):
        assert (GRAM_NOT_POSITIVE in said) == (not is_positive)
        assert ("The variances are lower bounds" in said) == is_positive


def test_numbers_that_no_records_give_are_refused(make_manifest: MakeManifest, seen: bytes) -> None:
    manifest = lift(make_manifest, **TERMS)
    values = sums(manifest)
    (_, block, _) = manifest.figures.blocks
    values[1] = block.bound + 3 * block.tail
    chunks, cohort = of_one_owner(manifest, values)
    with pytest.raises(CryptographicError, match="lifted is out of range") as refused:
        open_wide(SECRET, manifest.to_body(), chunks, cohort, False, EarlierRounds(seen, None))
    assert refused.value.slug == "release-implausible"


def test_the_size_of_what_is_sealed_shows_nothing_of_the_components(
    make_manifest: MakeManifest, seen: bytes
) -> None:
    manifest = lift(make_manifest, **TERMS)
    encoded = opened(manifest, EarlierRounds(seen, None), False).components
    found = read_components(encoded, manifest)
    assert found.lifted is not None
    for trusted, marks in ((0, [False, False]), (K, [True, False])):
        other = replace(found.lifted, trusted_count=trusted, above_count=K, of_span=np.array(marks))
        changed = encode_components(manifest.study_id, replace(found, lifted=other))
        assert changed != encoded
        assert len(changed) == len(encoded)
        again = read_components(changed, manifest).lifted
        assert again is not None
        assert (again.trusted_count, again.of_span.tolist()) == (trusted, marks)


def test_the_digest_that_scores_name_confirms_no_guess_of_the_components(
    make_manifest: MakeManifest, seen: bytes
) -> None:
    """The same components, sealed and signed twice, have two digests."""
    manifest, user, owner = lift(make_manifest, **TERMS), IdentityKey.generate(), IdentityKey.generate()
    plain = opened(manifest, EarlierRounds(seen, None), False).components
    digests = set()
    for _ in range(2):
        copy = seal(plain, owner.public.sealing_key, components_info(manifest.study_id))
        digests.add(SealedComponents(manifest.study_id, {owner.public.party_id: copy}).sign(user).digest)
    assert len(digests) == 2


def test_scores_take_nothing_from_the_lift_but_its_id_its_share_and_that_digest(
    make_manifest: MakeManifest, seen: bytes
) -> None:
    result = PreStudyResult.parse(json.loads(seen))
    study, digest = lift(make_manifest, **TERMS).study_id, Digest.of(b"sealed")
    chosen = scores_round([result], D, PublishedLift(study, Fraction(7, 10), K, digest))
    assert chosen.pre_studies == (result.study, study)
    assert result.sketch is not None
    norm = scores_norm(result.sketch.reading, K, 2.0, 2**result.sketch.fraction_bits, D)
    said = dict(chosen.members["scores"])
    assert float(said.pop("norm")) == pytest.approx(norm, abs=1e-6)
    assert said == {"columns": K, "study": study.hex(), "components": digest.hex()}
