"""An owner takes part in all rounds of a chain that it approved once, and in nothing else.

Three owners with homes, a real proxy and the data user's service, in one process.
"""

import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from chain_world import Chain
from proxy_world import ProxyWorld, wait_for
from user_world import TOY_BITS, InlineWorkers, UserWorld

from dpdpca_owner.actions import Desk, withdraw
from dpdpca_owner.agent import Agent, only_agent
from dpdpca_owner.commands.joining import join_and_follow
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.following import Follower, Records, Result, follow, has_sent
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.sources import RegisteredSource
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.errors import ConflictError, DpdpcaError, PolicyError
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_proxy.studies import summaries
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_user_service.chains import create_chain
from dpdpca_user_service.operations import cancel_study
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.chains import ChainState
from dpdpca_user_service.store.studies import StudyRow
from dpdpca_user_service.work import make_key

N, D = 1800, 3
TERMS: dict[str, Any] = {
    "epsilon": 4,
    "delta": "0.00001",
    "max_records": 5000,
    "min_records": 10,
    "missing": "midpoint",
    "clip_norm": "1.73",
}
PRE: dict[str, Any] = {"release": "pre-study", "blocks": {"norms": "1"}, **TERMS}
POLICY = "[study]\nmax_delta = 1e-5\nmin_owners = 2\n[budget]\nepsilon = 9\ndelta = 1e-4\n"


class KeyMakers(InlineWorkers):
    """A fresh toy key for every study, as in the product."""

    def call(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        if function is make_key:
            return make_key(TOY_BITS, args[1], KeyRules(TOY_BITS))
        return super().call(function, *args, **options)


class ManyKeys(UserWorld):
    def new_workers(self) -> InlineWorkers:
        return KeyMakers([])


@dataclass
class Scene:
    """The three owners, each with its records registered as "patients"."""

    chain: Chain

    def address(self, row: StudyRow) -> StudyAddress:
        return self.chain.address(row)

    def follower(self, row: StudyRow, owner: int = 0, *, is_approved: bool = False) -> Follower:
        records = Records(DataLocation(str(self.chain.data[owner])), "people")
        return Follower(self.chain.desks[owner], self.address(row), records, is_approved=is_approved)

    def turn(self, row: StudyRow) -> StudyRow:
        self.chain.user.driver.advance(self.chain.user.row(row.id))
        return self.chain.user.row(row.id)

    def finish(self, row: StudyRow) -> StudyRow:
        """The other owners join, and the data user has its result."""
        for owner in (1, 2):
            self.chain.join(row, owner)
        return self.chain.user.advance_to(row, Stage.FITTED, Stage.PUBLISHED)

    def shares(self, owner: int = 0) -> int:
        """How many studies have a share of this owner."""
        return len(self.chain.desks[owner].home.joined())


@pytest.fixture
def scene(world: ProxyWorld, tmp_path: Path) -> Iterator[Scene]:
    user = ManyKeys(world, tmp_path / "user")
    rng = np.random.default_rng(5)  # noqa: TID251  # data, not noise
    shared = rng.normal(0, 0.25, (N, 1))
    records = shared * [1.0, -0.7, 0.2] + rng.normal(0, 0.03, (N, D)) + [0.1, 0.2, 0.3]
    made = Chain.make(world, user, tmp_path, np.clip(records, -1, 1))
    for desk, data in zip(made.desks, made.data, strict=True):
        desk.home.policy_path.write_text(POLICY)
        desk.home.sources.add(RegisteredSource("patients", str(data), data_set="people"), {})
    yield Scene(made)
    user.service.close()


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(DpdpcaError) as caught:
        act()
    return caught.value.slug


def test_a_study_that_was_approved_is_joined_and_its_components_are_fetched(scene: Scene) -> None:
    row = scene.chain.open(publish=True, release="joint", **TERMS)
    follower = scene.follower(row, is_approved=True)
    assert not has_sent(follower.desk.home, follower.address)
    assert follower.advance() is None
    assert has_sent(follower.desk.home, follower.address)
    scene.finish(row)
    result = follow(follower, lambda seconds: scene.turn(row))
    assert result.records == N
    assert np.load(result.path)["components"].shape[1] == D


def test_what_nobody_approved_is_not_joined(scene: Scene) -> None:
    row = scene.chain.open(release="joint", **TERMS)
    first = scene.chain.open(**PRE, rho_share="0.2")
    for each in (row, first):
        assert refused(scene.follower(each).advance) == "not-approved"
    assert scene.shares() == 0
    assert not scene.chain.desks[0].home.ledger.read().spends


def test_later_rounds_are_joined_if_the_approval_covers_them(scene: Scene) -> None:
    first = scene.chain.open(**PRE, rho_share="0.2")
    follower = scene.follower(first, is_approved=True)
    assert follower.advance() is None
    scene.finish(first)
    rounds = {"rho_share": "0.3", "pre_studies": [first.known_study.hex()]}
    other = scene.chain.open(release="joint", **TERMS | rounds | {"purpose": "Something else."})
    assert refused(follower.advance) == "not-approved"
    assert scene.shares() == 1
    second = scene.chain.open(publish=True, release="joint", **TERMS | rounds)
    # The round that nobody approved does not hold up the one that was approved.
    assert refused(follower.advance) == "not-approved"
    assert has_sent(follower.desk.home, scene.address(second))
    assert not has_sent(follower.desk.home, scene.address(other))


@pytest.mark.parametrize("data_set", ["people", None])
def test_no_value_in_the_records_stops_a_round(scene: Scene, data_set: str | None) -> None:
    """Without a name, changed records would be a new data set, for which nothing was approved."""
    first = scene.chain.open(**PRE, rho_share="0.2")
    follower = scene.follower(first, is_approved=True)
    follower.records = replace(follower.records, data_set=data_set)
    follower.advance()
    scene.finish(first)
    rounds = {"rho_share": "0.3", "pre_studies": [first.known_study.hex()]}
    second = scene.chain.open(release="joint", **TERMS | rounds)
    scene.chain.data[0].write_text("f0,f1,f2\nnonsense,1e999,-77\n" + ",,\n" * 5)
    follower.advance()
    assert has_sent(follower.desk.home, scene.address(second))


@pytest.mark.parametrize("arrived", [True, False])
def test_a_share_that_arrived_without_its_receipt_counts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    """The agent ends before or after the statement reaches the proxy. Then the study closes at its time."""
    row = scene.chain.open(release="joint", closing="at-time", **TERMS)
    follower, world = scene.follower(row, is_approved=True), scene.chain.world
    place: tuple[type, str] = (StudyFolder, "save_receipt") if arrived else (ProxyClient, "complete_share")
    with monkeypatch.context() as patch:
        patch.setattr(*place, killed)
        with pytest.raises(Killed):
            follower.advance()
    assert not has_sent(follower.desk.home, follower.address)
    for owner in (1, 2):
        scene.chain.join(row, owner)
    world.clock.ahead = timedelta(days=60)
    world.proxy.wake()
    name = row.known_study.hex()
    wait_for(lambda: {each["study"]: each["state"] for each in summaries(world.proxy)}[name] != "open")
    world.clock.ahead = timedelta()
    again = scene.follower(row, is_approved=True)
    if arrived:
        assert again.advance() is None
    else:
        assert refused(again.advance) == "followed-study-ended"
    assert has_sent(again.desk.home, again.address) == arrived


def test_a_withdrawn_share_is_not_sent_again(scene: Scene) -> None:
    first = scene.chain.open(**PRE, rho_share="0.2")
    follower = scene.follower(first, is_approved=True)
    follower.advance()
    withdraw(follower.desk, follower.address)
    for again in (follower, scene.follower(first, is_approved=True)):
        assert refused(again.advance) == "share-withdrawn"
    second = scene.chain.open(
        release="joint", **TERMS, rho_share="0.3", pre_studies=[first.known_study.hex()]
    )
    assert refused(follower.advance) == "share-withdrawn"
    assert not has_sent(follower.desk.home, scene.address(second))


def test_a_cancelled_study_ends_it(scene: Scene) -> None:
    row = scene.chain.open(release="joint", **TERMS)
    follower = scene.follower(row, is_approved=True)
    follower.advance()
    cancel_study(scene.chain.user.service, row.id)
    scene.turn(row)
    assert refused(follower.advance) == "followed-study-ended"
    assert refused(scene.follower(row, 1, is_approved=True).advance) == "followed-study-ended"
    assert scene.shares(1) == 0
    # The data user has signed the cancellation, so the cost is refunded.
    assert not follower.desk.home.ledger.read().live_rho


def test_a_network_that_is_gone_is_waited_for(scene: Scene) -> None:
    row = scene.chain.open(publish=True, release="joint", **TERMS)
    world, waits = scene.chain.world, []
    told: list[str] = []
    follower = scene.follower(row, is_approved=True)
    follower.desk = replace(follower.desk, say=told.append)
    world.stop()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            world.start()
        if len(waits) == 4:
            scene.finish(row)

    assert follow(follower, sleep).records == N
    assert len(waits) >= 4
    assert sum(text.startswith("waiting:") for text in told) == 1  # the same reason is told once


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 20))])
def test_a_whole_chain_survives_interruptions_at_random_points(
    scene: Scene, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three owners approve the first round. Every later run may end at any request or write."""
    user, source = scene.chain.user, random.Random(seed)
    base = {name: TERMS[name] for name in ("epsilon", "max_records", "min_records")} | {
        "title": "A chain",
        "purpose": "A test.",
        "participants": "enrolled",
        "min_owners": 2,
        "features": [{"name": f"f{i}", "lower": -1, "upper": 1} for i in range(D)],
        "closing": "when-complete",
    }
    service = user.service
    chain_id = str(create_chain(service, json.dumps(base).encode(), "application/json", None)["id"])
    interruptions = Interruptions(source, monkeypatch)
    first: StudyAddress | None = None
    results: dict[int, Result] = {}
    for _ in range(600):
        user.driver.advance_chain(service.chains.find(chain_id))
        for row in service.store.unfinished():
            user.driver.advance(row)
        opened = [row for row in service.store.all() if row.stage is Stage.OPEN]
        if first is None and opened:
            first = scene.address(opened[0])
            for desk in scene.chain.desks:
                desk.home.followed.add(FollowedStudy(first, "patients", "people"))
        is_done = service.chains.find(chain_id).state is ChainState.DONE
        for owner, desk in enumerate(scene.chain.desks):
            # There is little to see while the proxy and the data user work.
            if first is not None and owner not in results and (opened or is_done or source.random() < 0.1):
                # Each run is a new agent that knows nothing but the home.
                with interruptions, suppress(Killed):
                    for result in Agent(desk, {}).look():
                        results[owner] = result
        if is_done and len(results) == 3:
            break
    assert len(results) == 3, service.chains.find(chain_id).problem
    assert interruptions.count >= 10
    assert len({result.components.vectors.tobytes() for result in results.values()}) == 1
    rounds = [row.known_study for row in service.store.all()]
    assert len(rounds) >= 3
    for desk in scene.chain.desks:
        ledger = desk.home.ledger.read()
        assert {spend.charge.study for spend in ledger.spends} <= set(rounds)
        assert ledger.spent("people").releases == len(ledger.spends) == len(rounds)
        assert desk.home.followed.all() == []


class Killed(BaseException):
    """The owner's process ended."""


def killed(*_: object, **__: object) -> None:
    raise Killed


class Interruptions:
    """Within this context the code ends, or its network, at a random request or write."""

    def __init__(self, source: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._source, self._left, self._monkeypatch = source, -1, monkeypatch
        self._owner = threading.current_thread()

    def __enter__(self) -> None:
        self._left = self._source.randrange(40)
        with_network = self._source.random() < 0.3

        def point(is_request: bool) -> None:
            # The proxy writes in threads of its own, and must not die.
            if is_request or threading.current_thread() is self._owner:
                self._left -= 1
                if self._left == 0:
                    self.count += 1
                    raise httpx.ConnectError("gone") if with_network and is_request else Killed

        for place, name in ((os, "fsync"), (Path, "replace"), (httpx.Client, "send")):
            act = getattr(place, name)

            def acting(*args: Any, _act: Callable[..., Any] = act, _name: str = name, **options: Any) -> Any:
                point(_name == "send")
                return _act(*args, **options)

            self._monkeypatch.setattr(place, name, acting)

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()


def test_the_command_keeps_the_consent_and_continues_without_a_new_one(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    row = scene.chain.open(publish=True, release="joint", **TERMS)
    desk, place = scene.chain.desks[0], scene.address(row)
    records = Records(DataLocation(str(scene.chain.data[0])), "people")

    def run(yes: bool, sleep: Callable[[float], object]) -> None:
        join_and_follow(desk, place, records, "patients", yes, True, sleep)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    assert refused(lambda: run(False, interrupted)) == "no-terminal"
    assert (scene.shares(), desk.home.followed.all()) == (0, [])
    with pytest.raises(KeyboardInterrupt):
        run(True, interrupted)
    assert desk.home.followed.all() == [FollowedStudy(place, "patients", "people")]
    scene.finish(row)
    capsys.readouterr()
    run(False, lambda seconds: scene.turn(row))
    told = json.loads(capsys.readouterr().out)
    assert (told["already"], told["result"]["records"]) == (True, N)
    assert Path(told["result"]["out"]).exists()
    assert desk.home.followed.all() == []


def test_a_refused_join_leaves_no_approval(scene: Scene) -> None:
    row = scene.chain.open(release="joint", **TERMS)
    desk, place = scene.chain.desks[0], scene.address(row)
    records = Records(DataLocation(str(scene.chain.data[0])), "people")
    desk.home.policy_path.write_text(POLICY.replace("epsilon = 9", "epsilon = 0.5"))

    def act() -> None:
        join_and_follow(desk, place, records, "patients", True, True, lambda seconds: None)

    assert refused(act) == "budget-exceeded"
    assert desk.home.followed.all() == []


def agent(desk: Desk) -> tuple[Agent, list[str]]:
    told: list[str] = []
    return Agent(replace(desk, say=told.append), {}), told


RULE = """
[[rule]]
name = "the institute"
source = "patients"
max_epsilon = 4
max_delta = 1e-5
month_epsilon = 4
month_delta = 1e-5
[[rule.user]]
name = "Institute"
ed25519 = "KEY"
"""


def test_a_chain_that_a_rule_approved_goes_on_and_counts_once(scene: Scene) -> None:
    """Also without the rule: its approval covers the later rounds. A month holds no second chain."""
    desk = scene.chain.desks[0]
    user = scene.chain.world.user.public.ed25519.hex()
    desk.home.policy_path.write_text(POLICY + RULE.replace("KEY", user))
    first = scene.chain.open(**PRE, rho_share="0.2")
    works, told = agent(desk)
    works.look()
    assert "approved by the rule 'the institute'" in told[0]
    assert scene.shares() == 1
    scene.finish(first)
    desk.home.policy_path.write_text(POLICY)
    pre_studies = [first.known_study.hex()]
    second = scene.chain.open(release="joint", **TERMS, rho_share="0.5", pre_studies=pre_studies)
    works.look()
    ledger = desk.home.ledger.read()
    assert set(ledger.by_rule) == {first.known_study, second.known_study}
    assert ledger.approved_by_rule("the institute", ledger.entries[-1].time[:7])[0] == 4
    desk.home.policy_path.write_text(POLICY + RULE.replace("KEY", user))
    scene.chain.open(release="joint", **TERMS | {"title": "Too much for this month"})
    works.look()
    assert scene.shares() == 2
    assert "would have approved" in told[-1]


def test_the_agent_runs_what_a_person_approved_and_nothing_else(scene: Scene) -> None:
    approved = scene.chain.open(publish=True, release="joint", **TERMS)
    scene.chain.open(release="joint", **TERMS | {"title": "Nobody approved this"})
    desk = scene.chain.desks[0]
    works, told = agent(desk)
    assert works.look() == []
    assert scene.shares() == 0
    desk.home.followed.add(FollowedStudy(scene.address(approved), "patients", "people"))
    works.look()
    assert [folder.study for folder in desk.home.joined()] == [approved.known_study]
    scene.finish(approved)
    results: list[Result] = []

    def has_result() -> bool:
        scene.turn(approved)
        results.extend(works.look())
        return bool(results)

    wait_for(has_result)
    assert results[0].records == N
    assert desk.home.followed.all() == []
    assert str(results[0].path) in told[-1]


def test_the_agent_uses_only_records_of_the_approved_data_set(scene: Scene) -> None:
    row = scene.chain.open(release="joint", **TERMS)
    desk = scene.chain.desks[0]
    desk.home.followed.add(FollowedStudy(scene.address(row), "patients", "people"))
    works, told = agent(desk)
    desk.home.sources.remove("patients")
    works.look()
    works.look()
    assert len(told) == 1  # the same problem is told once
    assert "no source of records is registered as 'patients'" in told[0]
    data = str(scene.chain.data[0])
    desk.home.sources.add(RegisteredSource("patients", data, data_set="others"), {})
    works.look()
    assert "now counts in the data set 'others'" in told[-1]
    assert scene.shares() == 0


def test_two_agents_do_not_work_in_one_home(scene: Scene) -> None:
    home = scene.chain.desks[0].home
    with only_agent(home):
        with pytest.raises(ConflictError, match="another agent"), only_agent(home):
            pass
        with only_agent(scene.chain.desks[1].home):
            pass
    with only_agent(home):
        pass


def test_the_agent_forgets_what_has_ended(scene: Scene) -> None:
    row = scene.chain.open(release="joint", **TERMS)
    desk = scene.chain.desks[0]
    desk.home.followed.add(FollowedStudy(scene.address(row), "patients", "people"))
    works, told = agent(desk)
    works.look()
    withdraw(desk, scene.address(row))
    works.look()
    assert "you withdrew your share" in told[-1]
    assert desk.home.followed.all() == []


def test_another_data_user_cannot_stop_a_chain(scene: Scene) -> None:
    """It names the chain's first round in a study of its own."""
    first = scene.chain.open(**PRE, rho_share="0.2")
    follower = scene.follower(first, is_approved=True)
    follower.advance()
    world = scene.chain.world
    stranger = replace(world, user=world.owners[1].generate("user"))
    stranger.proxy = world.proxy
    stranger.enrol(stranger.user, "user", "Institute")
    stranger.with_new_key()
    manifest = {"pre_studies": [first.known_study.hex()], "rho_share": "0.3", "delta": "0.00001"}
    study = stranger.open_study(3, **manifest)
    assert study.study in {facts.study for facts in world.client(world.owners[0]).inbox()}
    assert follower.advance() is None
    assert scene.shares() == 1


def test_an_unknown_policy_error_is_not_passed_over(scene: Scene) -> None:
    row = scene.chain.open(release="joint", **TERMS)
    scene.chain.desks[0].home.policy_path.write_text(POLICY.replace("epsilon = 9", "epsilon = 0.5"))
    with pytest.raises(PolicyError) as caught:
        follow(scene.follower(row, is_approved=True), lambda seconds: pytest.fail("it waited"))
    assert caught.value.slug == "budget-exceeded"
