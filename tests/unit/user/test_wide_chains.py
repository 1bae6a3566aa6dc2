"""Chains for many features at the data user's service. What counts as many is lowered: the tests are fast."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lethal_writes import finish_through_kills, make_writes_lethal
from proxy_world import ProxyWorld
from wide_chains import BASE, RECORDS, ROUNDS, D, N, WideWorld, few_are_many

from dpdpca_protocol.result.components import LOWER_BOUND, VARIANCE
from dpdpca_protocol.terms.feature_list import encode_features, reference_to
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_user.planning import wide, wide_chain
from dpdpca_user.planning.draft import tidied_features
from dpdpca_user.results.wide.choice import Choice, Visibility, choose_release, visibility
from dpdpca_user.results.wide.sketch import SketchReading
from dpdpca_user_service.chains import cancel_chain, chain_facts
from dpdpca_user_service.drafts import plan_draft
from dpdpca_user_service.operations import keep_list
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.chains import ChainRow, ChainState


@pytest.fixture
def user(world: ProxyWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WideWorld]:
    few_are_many(monkeypatch)
    made = WideWorld(world, tmp_path / "user")
    yield made
    made.service.close()


def kinds(chain: ChainRow) -> list[str]:
    """The releases of a chain's rounds; the norm study and the means count as one."""
    return list(dict.fromkeys(each.release for each in chain.rounds))


@pytest.fixture
def only_lifts(monkeypatch: pytest.MonkeyPatch) -> None:
    few_are_many(monkeypatch, only_lifts=True)


def test_a_chain_for_many_features_ends_with_scores(user: WideWorld, only_lifts: None) -> None:
    user.restarts = True
    chain = user.run_chain(RECORDS, BASE)
    facts = chain_facts(user.service, chain)
    assert chain.state is ChainState.DONE, chain.problem
    assert kinds(chain) == ROUNDS
    shares = [each["rho_share"] for each in facts["rounds"]]
    assert (shares[0], shares[-3], shares[-1]) == (0.05, 0.2, 0.05)
    assert sum(float(each.rho_share) for each in chain.rounds) == pytest.approx(1, abs=1e-12)
    model = user.service.model_of(chain.rounds[-1].row)
    assert model.components.variance_kind == VARIANCE
    values, axes = np.linalg.eigh(np.cov(RECORDS.T))
    assert np.abs((model.components.vectors @ axes[:, ::-1][:, :2]) ** 2 - np.eye(2)).max() < 0.05
    assert model.components.captured == pytest.approx(values[::-1][:2], rel=0.15)
    # `plan --from` makes the same drafts of the same rounds.
    ids = [user.row(each.row).known_study.hex() for each in chain.rounds]
    for before, member in ((ids[:-2], "lift"), (ids[:-1], "scores")):
        planned = plan_draft(
            user.service, json.dumps(BASE).encode(), "application/json", None, pre_studies=before
        )
        assert planned["draft"][member] == chain.rounds[len(before)].draft[member]
        assert planned["is_last"] == (member == "scores")
    # The lift is published, because the owners need it; nothing in a manifest comes from it.
    assert user.row(chain.rounds[-2].row).stage is Stage.PUBLISHED
    assert not model.has_second_noise
    kept = model.provenance.rounds
    assert [(each.release, each.records) for each in kept] == [
        (each.release, N) for each in chain.rounds[:-1]
    ]


@pytest.mark.parametrize(
    ("last", "stage", "left"),
    [("sketch", Stage.FITTED, (0.75, 0.65, 0.55)), ("lift", Stage.PUBLISHED, (0.05,))],
)
def test_a_chain_that_is_cancelled_between_two_rounds_asks_for_no_other(
    user: WideWorld, only_lifts: None, last: str, stage: Stage, left: tuple[float, ...]
) -> None:
    def has_ended(chain: ChainRow) -> bool:
        return any(row.release == last and row.stage is stage for row in user.service.store.all())

    chain = user.turn_until(user.begin_chain(RECORDS, BASE), has_ended)
    rounds = len(chain.rounds)
    facts = cancel_chain(user.service, chain.id)
    assert facts["state"] == "cancelled"
    assert any(1 - facts["spent_share"] == pytest.approx(share) for share in left)
    for _ in range(5):
        chain = user.turn(chain.id)
    assert chain.state is ChainState.CANCELLED
    assert chain_facts(user.service, chain)["spent_share"] == facts["spent_share"]
    assert len(chain.rounds) == rounds == len(user.world.client(user.world.user).studies())
    # What was released stays: no study is undone.
    assert [user.row(each.row).stage for each in chain.rounds] == [Stage.FITTED] * (rounds - 1) + [stage]


@pytest.mark.nightly
def test_a_chain_for_many_features_killed_at_every_step_spends_its_budget_once(
    user: WideWorld, only_lifts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_writes_lethal(monkeypatch)
    chain, kills = finish_through_kills(user, user.turn, user.begin_chain(RECORDS, BASE))
    assert chain.state is ChainState.DONE, chain.problem
    assert kinds(chain) == ROUNDS
    assert kills >= 50
    assert chain_facts(user.service, chain)["spent_share"] == pytest.approx(1, abs=1e-12)
    studies = user.world.client(user.world.user).studies()
    assert len(studies) == len(user.service.store.all()) == len(chain.rounds)


@pytest.mark.nightly
def test_without_scores_the_lift_takes_what_is_left(user: WideWorld, only_lifts: None) -> None:
    chain = user.run_chain(RECORDS, BASE | {"scores": False}, publish=False)
    assert chain.state is ChainState.DONE, chain.problem
    assert kinds(chain) == ROUNDS[:-1]
    assert chain.rounds[-1].rho_share in ("0.75", "0.65", "0.55")
    assert user.row(chain.rounds[-1].row).stage is Stage.FITTED
    assert user.service.model_of(chain.rounds[-1].row).components.variance_kind == LOWER_BOUND


def test_a_sketch_that_shows_nothing_ends_the_chain_before_the_lift(
    user: WideWorld, only_lifts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_nothing(reading: SketchReading) -> Visibility:
        return visibility(replace(reading, seen_count=0, strengths=np.zeros(0)))

    monkeypatch.setattr(wide_chain, "visibility", of_nothing)
    chain = user.run_chain(RECORDS, BASE)
    assert chain.state is ChainState.FAILED
    assert chain.problem_slug == "nothing-in-the-sketch"
    assert kinds(chain) == ROUNDS[:2]


@pytest.mark.nightly
def test_a_full_matrix_follows_the_sketch_where_it_shows_more(
    user: WideWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def a_poor_lift(*given: Any) -> Choice:
        return replace(choose_release(*given), lift=0.0)

    monkeypatch.setattr(wide_chain, "choose_release", a_poor_lift)
    chain = user.run_chain(RECORDS, BASE)
    assert chain.state is ChainState.DONE, chain.problem
    assert kinds(chain)[:2] == ROUNDS[:2]
    assert chain.rounds[-1].release in ("joint", "pairs")
    assert chain.rounds[-1].rho_share in ("0.75", "0.65", "0.55")


@pytest.mark.nightly
def test_a_draft_that_names_its_release_gets_a_full_matrix(user: WideWorld) -> None:
    chain = user.run_chain(RECORDS, BASE | {"release": "joint"})
    assert chain.rounds[0].release == "pre-study"
    assert "sketch" not in [each.release for each in chain.rounds]


@pytest.mark.nightly
def test_a_mean_far_from_the_centre_is_measured_first(user: WideWorld, only_lifts: None) -> None:
    chain = user.run_chain(RECORDS + 0.1, BASE)
    assert chain.state is ChainState.DONE, chain.problem
    means = [each for each in chain.rounds if each.draft.get("blocks", {}).keys() == {"sum"}]
    assert 1 <= len(means) <= 2
    assert {each.rho_share for each in means} == {"0.1"}
    model = user.service.model_of(chain.rounds[-1].row)
    assert model.components.space.centre.mean() == pytest.approx(0.1, abs=0.02)
    assert model.components.variance_kind == VARIANCE


@pytest.mark.nightly
def test_nothing_changes_for_few_features(user: WideWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "FULL_UP_TO", D)
    chain = user.run_chain(RECORDS, BASE)
    assert chain.state is ChainState.DONE, chain.problem
    assert "sketch" not in [each.release for each in chain.rounds]


@pytest.mark.nightly
def test_rounds_name_the_list_of_the_base_or_one_with_moved_centres(
    user: WideWorld, only_lifts: None
) -> None:
    features = [Feature.parse(body, "a") for body in tidied_features(BASE["features"], False)]
    content = encode_features(features)
    named = keep_list(user.service, Digest.of(content).hex(), content)
    base = {name: value for name, value in BASE.items() if name != "features"} | {"feature_list": named}
    user.restarts = True
    chain = user.run_chain(RECORDS, base)
    assert chain.state is ChainState.DONE, chain.problem
    assert kinds(chain) == ROUNDS
    manifests = [user.opened(user.row(each.row)).manifest for each in chain.rounds]
    assert manifests[0].feature_list == reference_to(content, features)
    # After the means, the centres are others: a new list, which all later rounds name.
    sketch, lift, scores = (each.feature_list for each in manifests[-3:])
    assert sketch == lift == scores is not None
    assert [each.name for each in manifests[-1].features] == [each.name for each in features]
