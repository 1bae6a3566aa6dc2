"""The sizes and counts in the model of large studies are those of the product."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import wide_studies as wide
from model_service import made_model
from proxy_world import ProxyWorld
from study_parties import MakeManifest
from wide_world import WideChain

from dpdpca_lab.benchmarks.phases import Size
from dpdpca_lab.scale.model import QUESTIONS, Kind, Study, Units, most_published_to
from dpdpca_lab.scale.sizes import manifest_of, sizes
from dpdpca_protocol.errors import LimitError
from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.result.wide_publication import most_bytes
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.feature_list import encode_features
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_user.planning.wide import FEATURES_A_ROW, LEAST_ROWS, MOST_ROWS, SketchNoise, sketch_rows
from dpdpca_user.planning.wide_outlook import wide_share_bytes
from dpdpca_user_service.steps import publishable, release_limit

UNITS = Units(*[0.0] * len(fields(Units)))
USER = IdentityKey.generate()


def study_of(kind: Kind, d: int, owners: int = 3) -> Study:
    return Study(owners, d, kind, UNITS)


@pytest.mark.parametrize("d", [5_120, 20_480, 100_000])
def test_a_sketch_has_the_rows_that_the_planner_gives_to_many_records(d: int) -> None:
    study = study_of(Kind.SKETCH, d)
    assert study.rows == min(MOST_ROWS, d // FEATURES_A_ROW)
    assert 8 * max(study.rounds) == wide_share_bytes({}, d)
    assert sketch_rows(d, SketchNoise(1_000, 0.002)) == LEAST_ROWS


def test_a_chain_of_many_features_sends_what_its_manifests_say(make_manifest: MakeManifest) -> None:
    study = study_of(Kind.SKETCH, wide.D)
    m, k = study.rows, study.columns
    assert m == wide.M
    lifted: dict[str, Any] = {"columns": k, "matrix": [[1] * m] * k, "offset": [0] * k}
    lift = wide.lift(make_manifest, lift=lifted)
    named = {"columns": k, "study": lift.study_id.hex(), "components": "ab" * 32, "norm": "1.5"}
    before = [wide.sketch(make_manifest).study_id.hex(), lift.study_id.hex()]
    scores = wide.scores(make_manifest, pre_studies=before, scores=named)
    chain = [wide.sketch(make_manifest), lift, scores]
    assert study.rounds == tuple(each.figures.value_count for each in chain)
    _compare(study, chain)


@pytest.mark.parametrize("d", [3, 700])
def test_a_full_matrix_sends_what_its_manifest_says(d: int) -> None:
    _compare(study_of(Kind.FULL, d), [manifest_of(d, USER)])


def _compare(study: Study, rounds: list[Manifest]) -> None:
    s = sizes()
    chunks = sum(each.figures.chunk_count for each in rounds)
    statements = len(rounds) * s.share + chunks * s.digest
    assert study.owner_bytes == sum(each.figures.sealed_bytes for each in rounds) + statements


@pytest.mark.parametrize("d", [200, 1000])
def test_ciphertexts_are_as_many_as_in_a_study(d: int) -> None:
    size, study = Size(d, 2, 3072, ReleaseKind.JOINT, 1, 1), study_of(Kind.PAILLIER, d)
    assert isinstance(size.layout, BlockLayout)
    assert study.content_bytes == pytest.approx(size.figures.share_bytes, rel=0.05)


def test_a_manifest_and_a_list_grow_with_their_features() -> None:
    manifest = manifest_of(300, USER)
    study = study_of(Kind.FULL, 300)
    assert study.manifests[0] == pytest.approx(len(sign_manifest(manifest, USER).encoded), rel=0.001)
    assert len(encode_features(manifest.features)) == 300 * sizes().feature + 1


@pytest.mark.parametrize("owners", [1, 40])
def test_components_of_a_lift_are_sent_once_with_a_key_for_each_owner(owners: int) -> None:
    study = study_of(Kind.SKETCH, 5_120, owners)
    plain = bytes(most_bytes(study.features, study.columns))
    keys = {PartyId.of(b"%d" % number): USER.public.sealing_key for number in range(owners)}
    sent = SealedComponents.seal_once(StudyId.of(b"lift"), plain, keys).sign(USER).encoded
    assert study.components_bytes == pytest.approx(len(sent), rel=0.005)


def test_one_component_of_a_full_matrix_fits_up_to_the_wall() -> None:
    d = 300
    model = made_model([{"name": f"12:10000000:A:{n:03}", "lower": -1, "upper": 1} for n in range(d)])
    most = most_published_to(d)
    publishable(model.study, model.components, int(0.95 * most))
    with pytest.raises(LimitError):
        publishable(model.study, model.components, int(1.05 * most))


def test_the_data_user_accepts_a_release_of_as_many_owners_as_a_study_may_have() -> None:
    """Without the 48 MiB that a release may have besides its owners."""
    manifest, s = manifest_of(700, USER), sizes()
    few, many = (release_limit(_with_owners(manifest, owners)) for owners in (1_000, 2_000))
    assert (many - few) / 1_000 >= s.told + manifest.figures.chunk_count * s.digest


def _with_owners(manifest: Manifest, owners: int) -> Manifest:
    return replace(manifest, max_owners=owners)


def test_an_owner_asks_as_often_as_the_model_says_and_hears_as_much(
    world: ProxyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, answers = WideChain.make(world, tmp_path), list[tuple[str, bytes]]()
    real = httpx.Client.send

    def heard(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        response = real(client, request, **options)
        if request.method == "GET":
            answers.append((request.url.path, response.read()))
        return response

    sketch = chain.open("sketch", named=False, participants=[], closing=None)
    monkeypatch.setattr(httpx.Client, "send", heard)
    chain.join(sketch)
    assert len(answers) == QUESTIONS
    world.enrol(IdentityKey.generate(), "owner", "Owner 1,000,000")
    chain.join(sketch, 1)
    for path, size in (("/v1/parties", sizes().party), (sketch.path, sizes().seen)):
        first, second = (len(body) for asked, body in answers if asked == path)
        assert second - first == pytest.approx(size, abs=10), path


def test_a_blinded_study_asks_for_the_proof_of_each_partys_keys(world: ProxyWorld) -> None:
    def told() -> int:
        return len(world.request(world.user, "GET", "/v1/parties?statements=true").content)

    before = told()
    world.enrol(IdentityKey.generate(), "owner", "Owner 1,000,000")
    assert told() - before == sizes().proved
