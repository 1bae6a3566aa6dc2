"""Sketch, lift and scores at the data user's service, with a real proxy and owners made for the test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from proxy_world import ProxyWorld
from starlette.testclient import TestClient
from user_world import TOKEN, UserWorld
from wide_rounds import Floats, factor_records, run_round, terms

from dpdpca_protocol.errors import ConflictError, PolicyError
from dpdpca_protocol.result.components import LOWER_BOUND, VARIANCE
from dpdpca_user.commands.numbers import show_numbers
from dpdpca_user.estimator import FederatedPCA
from dpdpca_user.planning.prestudy import PreStudyResult
from dpdpca_user.results.model import Model
from dpdpca_user.results.wide.rule import lift_rule, scores_norm
from dpdpca_user_service.app import make_app
from dpdpca_user_service.bodies import ModelBody, ResultBody
from dpdpca_user_service.earlier_rounds import published_components
from dpdpca_user_service.operations import model_facts, report_of, result_of
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow

D, M, K, N = 60, 32, 2, 2400
TERMS = terms(D)
SKETCH: dict[str, Any] = {"rows": M, "seed": bytes(range(32)).hex()}


@pytest.fixture
def user(world: ProxyWorld, tmp_path: Path) -> Iterator[UserWorld]:
    made = UserWorld(world, tmp_path / "user")
    yield made
    made.service.close()


@pytest.fixture(scope="module")
def records() -> Floats:
    return factor_records(N, D, (0.3, 0.15))


def sketched(user: UserWorld, records: Floats, of: str = "records") -> StudyRow:
    return run_round(user, records, release="sketch", of=of, rho_share="0.2", sketch=SKETCH, **TERMS)


def lift_draft(user: UserWorld, before: StudyRow, **changes: Any) -> dict[str, Any]:
    result = PreStudyResult.parse(result_of(user.service, before.id))
    assert result.sketch is not None
    rule = lift_rule(result.sketch.reading, K)
    return {
        "release": "lift",
        "of": "pairs" if result.sketch.reading.of_pairs else "records",
        "rho_share": "0.7",
        "sketch": SKETCH,
        "lift": {"columns": K, "matrix": rule.matrix.tolist(), "offset": list(rule.offset)},
        "pre_studies": [before.known_study.hex()],
        **TERMS,
        **changes,
    }


def scores_draft(user: UserWorld, sketch: StudyRow, lift: StudyRow) -> dict[str, Any]:
    result = PreStudyResult.parse(result_of(user.service, sketch.id))
    assert result.sketch is not None
    digest = published_components(user.service, lift)
    assert digest is not None
    norm = scores_norm(result.sketch.reading, K, 0.8, 2**result.sketch.fraction_bits, D)
    before = [sketch.known_study.hex(), lift.known_study.hex()]
    return {
        "release": "scores",
        "of": "pairs" if result.sketch.reading.of_pairs else "records",
        "rho_share": "0.1",
        "scores": {"columns": K, "study": before[1], "components": digest.hex(), "norm": f"{norm:.6f}"},
        "pre_studies": before,
        **TERMS,
    }


def of_rest(user: UserWorld, sketch: StudyRow, scores: StudyRow, records: Floats) -> None:
    """What applications read of a sketch and of scores."""
    client = TestClient(make_app(user.service, drive=False), headers={"authorization": f"Bearer {TOKEN}"})
    told = client.get(f"/v1/studies/{sketch.known_study.hex()}/result")
    assert ResultBody.model_validate(told.json()).release == "sketch"
    show_numbers(told.json())
    assert client.get(f"/v1/models/{sketch.known_study.hex()}").status_code == 409
    model = f"/v1/models/{scores.known_study.hex()}"
    assert ModelBody.model_validate(client.get(model).json()).variance_kind == VARIANCE
    rows = {"rows": [dict(zip(names(user, scores), row, strict=True)) for row in records[:20].tolist()]}
    answer = client.post(f"{model}/transform", json=rows)
    components = user.service.model_of(scores.id).components
    assert np.array(answer.json()["scores"]) == pytest.approx(components.scores(records[:20]))
    for table in ("covariance", "correlation", "mean"):
        refused = client.get(f"{model}/{table}")
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (409, "no-correlation")


def names(user: UserWorld, row: StudyRow) -> tuple[str, ...]:
    return user.service.model_of(row.id).components.space.names


@pytest.mark.parametrize("of", ["records", "pairs"])
def test_a_sketch_a_lift_and_scores_give_components_and_their_variances(
    user: UserWorld, records: Floats, tmp_path: Path, of: str
) -> None:
    service = user.service
    sketch = sketched(user, records, of)
    shown = PreStudyResult.parse(result_of(service, sketch.id))
    assert shown.records == N
    assert shown.sketch is not None
    assert shown.sketch.reading.seen_count >= K
    assert shown.noise_draws == 2

    lift = run_round(user, records, publish=True, **lift_draft(user, sketch))
    lifted = service.model_of(lift.id)
    values, axes = np.linalg.eigh(np.cov(records.T))
    best = axes[:, ::-1][:, :K]
    assert np.linalg.norm(lifted.components.vectors @ best, axis=1) == pytest.approx(1, abs=0.01)
    assert lifted.components.variance_kind == LOWER_BOUND
    assert (lifted.components.captured < 1.15 * values[::-1][:K]).all()
    assert lifted.components.mean is None
    assert not lifted.has_second_noise

    vectors = lifted.components.vectors
    scores = run_round(user, records, vectors, **scores_draft(user, sketch, lift))
    model = service.model_of(scores.id)
    assert Model.from_bytes(model.to_bytes()).facts() == model.facts()
    found = model.components
    assert found.variance_kind == VARIANCE
    assert np.abs((found.vectors @ best) ** 2 - np.eye(K)).max() < 0.05
    # Records beyond the clip norm and beyond r′ are cut; pairs are a sample.
    assert found.captured == pytest.approx(values[::-1][:K], rel=0.12 if of == "records" else 0.25)
    assert found.total_variance == pytest.approx(values.sum(), rel=0.5)
    if of == "records":
        assert found.mean is not None
        along = found.vectors @ (found.mean - records.mean(axis=0))
        assert np.abs(along).max() < 0.02
    facts = model_facts(service, scores.id)
    assert facts["correlation"] is None
    assert facts["variance_deviations"] is not None
    assert any("no matrix of features" in line for line in facts["notes"])
    assert "Scree plot" in report_of(service, scores.id)

    of_rest(user, sketch, scores, records)

    path = tmp_path / "model.npz"
    path.write_bytes(model.to_bytes())
    pca = FederatedPCA.from_model(path)
    assert pca.explained_variance_kind_ == VARIANCE
    assert pca.transform(records[:50]).shape == (50, K)
    assert np.array_equal(pca.mean_, np.zeros(D))
    with pytest.raises(ConflictError) as refused:
        pca.get_covariance()
    assert refused.value.slug == "no-correlation"
    with pytest.raises(ConflictError) as refused:
        FederatedPCA.from_model(path, metric="correlation")
    assert refused.value.slug == "no-correlation"


def test_a_lift_that_does_not_fit_its_sketch_is_refused_before_it_is_created(
    user: UserWorld, records: Floats
) -> None:
    sketch = sketched(user, records)
    for changes in (
        {"clip_norm": "0.7"},
        {"sketch": SKETCH | {"seed": "ff" * 32}},
        {"pre_studies": ["ab" * 32]},
    ):
        with pytest.raises(PolicyError) as refused:
            user.create(**lift_draft(user, sketch, **changes))
        assert refused.value.slug == "wrong-round"
    assert len(user.service.store.all()) == 1


def test_scores_must_name_what_the_owners_got(user: UserWorld, records: Floats) -> None:
    sketch = sketched(user, records)
    lift = run_round(user, records, publish=True, **lift_draft(user, sketch))
    draft = scores_draft(user, sketch, lift)
    with pytest.raises(PolicyError) as refused:
        user.create(**draft | {"scores": draft["scores"] | {"components": "ab" * 32}})
    assert refused.value.slug == "wrong-round"
    assert user.create(**draft).stage is Stage.DRAFTED
