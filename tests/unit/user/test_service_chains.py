"""A chain of studies against a real proxy: it goes by what was released, and no kill makes it pay twice."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lethal_writes import finish_through_kills, make_writes_lethal
from proxy_world import TOY_BITS, OpenStudy, ProxyWorld, wait_for
from sqlalchemy import update
from tampering import tampering_at
from user_world import InlineWorkers, UserWorld

from dpdpca_protocol.errors import ConflictError, PolicyError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.privacy.mechanisms import BlockGaussian, Mechanism, SharedGaussian
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.reference import owner_sums
from dpdpca_protocol.terms.signed_manifest import open_manifest
from dpdpca_protocol.wire.signing import IdentityKey, verify_statement
from dpdpca_user_service.chains import (
    _chain_id,
    _results,
    advance_chain,
    cancel_chain,
    chain_facts,
    create_chain,
)
from dpdpca_user_service.operations import cancel_study
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.chains import ChainRow, ChainState, ChainStore
from dpdpca_user_service.store.studies import StudyRow, StudyStore
from dpdpca_user_service.store.tables import chains
from dpdpca_user_service.work import make_key

BASE: dict[str, Any] = {
    "title": "What varies together",
    "purpose": "A test.",
    "participants": "enrolled",
    "features": [{"name": f"f{i}", "lower": 0, "upper": 10} for i in range(3)],
    "epsilon": 4.0,
    "max_records": 5000,
    "min_records": 10,
    "min_owners": 2,
    "closing": "when-complete",
}


class KeyMakers(InlineWorkers):
    """A fresh toy key for every study, as in the product."""

    def call(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        if function is make_key:
            return make_key(TOY_BITS, args[1], KeyRules(TOY_BITS))
        return super().call(function, *args, **options)


class ChainWorld(UserWorld):
    """A service with a chain, and owners that join every study as soon as it is open."""

    delivered: set[str]

    def new_workers(self) -> KeyMakers:
        return KeyMakers([])

    def run_chain(self, draft: dict[str, Any] = BASE, /, **options: Any) -> str:
        return str(
            create_chain(self.service, json.dumps(draft).encode(), "application/json", None, **options)["id"]
        )

    def turn(self, chain_id: str) -> ChainRow:
        """One turn of everybody."""
        self.driver.advance_chain(self.service.chains.find(chain_id))
        for row in self.service.store.unfinished():
            self.driver.advance(row)
            self.join(self.row(row.id))
        return self.service.chains.find(chain_id)

    def join(self, row: StudyRow) -> None:
        if row.stage is not Stage.OPEN or row.id in self.delivered:
            return
        encoded = self.service.store.need(row.id, "manifest")
        signed = open_manifest(encoded, key_rules=KeyRules(TOY_BITS))
        study = OpenStudy(self.world, signed.study_id, signed.manifest, verify_statement("manifest", encoded))
        for seed, owner in enumerate(self.world.owners):
            values = owner_sums(
                signed.manifest.figures, RecordEncoder(signed.manifest).encode(records(seed)).z
            )
            chunks, pad = study.padded_chunks(owner, values)
            study.upload(owner, chunks)
            study.complete(owner, chunks, pad=pad)
        self.delivered.add(row.id)

    def finish(self, chain_id: str, turns: int = 400) -> ChainRow:
        for _ in range(turns):
            chain = self.turn(chain_id)
            if chain.state is not ChainState.RUNNING:
                return chain
        raise AssertionError("the chain did not end")


def records(seed: int, count: int = 1500) -> dict[str, Any]:
    source = random.Random(seed)
    shared = [source.gauss(0, 1) for _ in range(count)]
    return {
        f"f{i}": np.array([2 + (0.8 - 0.3 * i) * part + source.gauss(0, 0.2) for part in shared])
        for i in range(3)
    }


@pytest.fixture
def user(world: ProxyWorld, tmp_path: Path) -> Iterator[ChainWorld]:
    made = ChainWorld(world, tmp_path / "home")
    made.delivered = set()
    yield made
    made.service.close()


def spent(user: ChainWorld) -> list[float]:
    """Parts of the budget in all studies that the proxy has of this data user."""
    studies = [row for row in user.service.store.all() if row.study is not None]
    manifests = [user.service.store.need(row.id, "manifest") for row in studies]
    return [float(open_manifest(each, key_rules=KeyRules(TOY_BITS)).manifest.rho_share) for each in manifests]


def test_a_chain_goes_from_a_draft_to_a_model_and_spends_its_budget_once(user: ChainWorld) -> None:
    chain_id = user.run_chain()
    chain = user.finish(chain_id)
    assert chain.state is ChainState.DONE, chain.problem
    facts = chain_facts(user.service, chain)
    releases = [each["release"] for each in facts["rounds"]]
    assert releases == ["pre-study"] * (len(releases) - 1) + ["joint"]
    assert len(releases) >= 3
    assert facts["spent_share"] == pytest.approx(1)
    assert sum(spent(user)) == pytest.approx(1)
    main = user.service.store.find(facts["study"])
    assert main.stage is Stage.PUBLISHED
    model = user.service.model_of(main.id)
    assert [study.hex() for study in model.manifest.pre_studies] == [
        each["study"] for each in facts["rounds"][:-1]
    ]
    centres = [float(feature.origin) for feature in model.manifest.features]
    assert centres == pytest.approx([2, 2, 2], abs=0.5)
    assert float(model.manifest.clip_norm) < 0.7
    assert user.run_chain() == chain_id
    again = user.run_chain(again=True)
    assert again != chain_id
    assert cancel_chain(user.service, again)["state"] == "cancelled"
    assert cancel_chain(user.service, again)["state"] == "cancelled"
    with pytest.raises(ConflictError):
        cancel_chain(user.service, chain_id)


OF_THREE = {member: value for member, value in BASE.items() if member != "min_owners"}


@pytest.mark.parametrize(
    "draft",
    [BASE | {"noise_by": "owners"}, OF_THREE | {"blinding": "pairwise"}],
    ids=["owners' noise", "blinded"],
)
def test_a_chain_with_owners_noise_needs_no_draw_by_proxy_or_data_user(
    user: ChainWorld, monkeypatch: pytest.MonkeyPatch, draft: dict[str, Any]
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("somebody besides the owners drew noise")

    for mechanism in (Mechanism, BlockGaussian, SharedGaussian):
        monkeypatch.setattr(mechanism, "draw", forbidden)
    chain = user.finish(user.run_chain(draft))
    assert chain.state is ChainState.DONE, chain.problem
    assert sum(spent(user)) == pytest.approx(1)
    results = _results(user.service, replace(chain, rounds=chain.rounds[:-1]))
    assert len(results) >= 1
    for row, result in zip(chain.rounds, results, strict=False):
        found = user.service.store.find(row.row)
        manifest = open_manifest(
            user.service.store.need(found.id, "manifest"), key_rules=KeyRules(TOY_BITS)
        ).manifest
        assert manifest.is_blinded == ("blinding" in draft)
        # Three owners drew, of whom min_owners − 1 are assured.
        assert result.noise_draws == 3 / manifest.terms.assured_shares
        assert result.noise_by == "owners"
        if result.norms is not None:
            variance = manifest.figures.block_variance(BlockName.NORMS, owners=3)
            assert result.norms.noise == pytest.approx(float(variance) ** 0.5)
            assert sum(result.norms.counts) == pytest.approx(result.records, abs=8 * 7 * result.norms.noise)
    main = user.service.store.find(chain_facts(user.service, chain)["study"])
    model = user.service.model_of(main.id)
    assert not model.has_second_noise
    assert model.privacy["noise_draws"] == 1
    assert model.manifest.is_blinded == ("blinding" in draft)


def test_all_rounds_name_the_owners_that_the_first_answer_showed(user: ChainWorld) -> None:
    chain_id = user.run_chain()
    shown = chain_facts(user.service, user.service.chains.find(chain_id))["participants"]
    assert sorted(owner["name"] for owner in shown) == ["Hospital A", "Hospital B", "Hospital C"]
    user.world.enrol(IdentityKey.generate(), "owner", "Hospital D")
    wait_for(lambda: len(user.turn(chain_id).rounds) > 1)
    assert user.run_chain() == chain_id
    for each in user.service.store.all():
        if each.study is not None:
            encoded = user.service.store.need(each.id, "manifest")
            manifest = open_manifest(encoded, key_rules=KeyRules(TOY_BITS)).manifest
            assert [party.ed25519.hex() for party in manifest.participants] == [
                owner["ed25519"] for owner in shown
            ]


def test_a_chain_of_before_the_address_had_one_form_is_found_again(user: ChainWorld) -> None:
    """Asking twice does not spend twice, though the proxy's address was spelled otherwise the first time."""
    user.run_chain()
    old_url = user.world.url.replace(":", ":0").replace("http:0", "HTTP:")
    old_id = _chain_id(BASE, old_url, None, False, 0)
    user.service.close()
    with tampering_at(user.place) as database:
        database.execute(update(chains).values(id=old_id, proxy_url=old_url))
    user.open()
    assert user.run_chain() == old_id
    assert [chain.id for chain in user.service.chains.all()] == [old_id]
    assert user.run_chain(again=True) != old_id


def test_a_chain_killed_at_every_step_spends_its_budget_once(
    user: ChainWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_writes_lethal(monkeypatch)
    chain, kills = finish_through_kills(user, user.turn, user.run_chain())
    assert chain.state is ChainState.DONE, chain.problem
    assert kills >= 40
    assert len(chain.rounds) == len(user.service.store.all()) >= 3
    assert sum(spent(user)) == pytest.approx(1)
    listed = user.world.client(user.world.user).studies()
    assert len(listed) == len(chain.rounds)


def test_a_chain_ends_with_its_study(user: ChainWorld) -> None:
    chain_id = user.run_chain()
    user.driver.advance_chain(user.service.chains.find(chain_id))
    (row,) = user.service.store.all()
    cancel_study(user.service, row.id)
    chain = user.finish(chain_id)
    assert chain.state is ChainState.CANCELLED
    assert len(user.service.store.all()) == 1


@pytest.mark.parametrize("moment", ["before the study is made", "after the look for it"])
def test_a_chain_that_is_cancelled_while_a_round_is_made_leaves_no_study(
    user: ChainWorld, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    chain_id = user.run_chain()
    user.driver.advance_chain(user.service.chains.find(chain_id))
    for row in user.service.store.all():
        cancel_study(user.service, row.id)
    monkeypatch.setattr("dpdpca_user_service.chains.secrets.token_hex", lambda size: "5" * 2 * size)
    chain_id = user.run_chain(again=True)
    chain = user.service.chains.find(chain_id)
    while not chain.rounds:
        advance_chain(user.service, chain)
        chain = user.service.chains.find(chain_id)
    ended, added = ChainStore.end, StudyStore.add
    if moment == "before the study is made":

        def add(store: StudyStore, *given: Any, **named: Any) -> None:
            cancel_chain(user.service, chain_id)
            added(store, *given, **named)

        monkeypatch.setattr(StudyStore, "add", add)
        advance_chain(user.service, chain)
    else:

        def end(store: ChainStore, *given: Any, **named: Any) -> None:
            monkeypatch.setattr(ChainStore, "end", ended)
            advance_chain(user.service, chain)
            ended(store, *given, **named)

        monkeypatch.setattr(ChainStore, "end", end)
        cancel_chain(user.service, chain_id)
    assert user.service.chains.find(chain_id).state is ChainState.CANCELLED
    assert {row.stage for row in user.service.store.all()} == {Stage.CANCELLED}
    assert user.service.store.find("5" * 32).stage is Stage.CANCELLED


def test_a_chain_that_is_asked_twice_at_once_is_one(
    user: ChainWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpdpca_user_service.chains._known", lambda service, chain_ids: None)
    assert user.run_chain() == user.run_chain()
    assert len(user.service.chains.all()) == 1


def test_a_chain_of_other_options_is_not_taken_for_the_one_that_is_asked(user: ChainWorld) -> None:
    chain_id = user.run_chain(publish=False)
    assert user.run_chain(publish=False) == chain_id
    for options in ({}, {"in_clear": True}):
        with pytest.raises(ConflictError, match="other publication options"):
            user.run_chain(**options)
    assert len(user.service.chains.all()) == 1


@pytest.mark.parametrize("change", [{"missing": "reject"}, {"release": "masked"}, {"epsilon": 0}])
def test_what_can_be_no_base_is_refused_at_once(user: ChainWorld, change: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        create_chain(user.service, json.dumps(BASE | change).encode(), "application/json", None)
    assert user.service.chains.all() == []
