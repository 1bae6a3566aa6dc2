"""An owner takes part in all rounds of a chain that it approved once, and in nothing else.

Three owners with homes, a real proxy and the data user's service, in one process.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from following_scene import (
    POLICY,
    PRE,
    TERMS,
    D,
    Killed,
    N,
    Scene,
    agent,
    has_sent,
    killed,
    refused,
    three_owners,
)
from proxy_world import ProxyWorld, wait_for
from rule_texts import key_line, rule_for

from dpdpca_owner.actions import withdraw
from dpdpca_owner.agent import only_agent
from dpdpca_owner.commands.joining import join_and_follow
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.following import Records, Result, follow
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.sources import RegisteredSource
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.errors import ConflictError, PolicyError
from dpdpca_proxy.studies import summaries
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_user_service.operations import cancel_study
from dpdpca_user_service.stages import Stage


@pytest.fixture
def scene(world: ProxyWorld, tmp_path: Path) -> Iterator[Scene]:
    with three_owners(world, tmp_path) as made:
        yield made


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
    # The agent asks often, and so the records are not read for a round that nobody approved.
    away = scene.chain.data[0].rename(scene.chain.data[0].with_name("away.csv"))
    assert refused(follower.advance) == "not-approved"
    away.rename(scene.chain.data[0])
    second = scene.chain.open(publish=True, release="joint", **TERMS | rounds)
    # The round that nobody approved does not hold up the one that was approved.
    assert refused(follower.advance) == "not-approved"
    assert has_sent(follower.desk.home, scene.address(second))
    assert not has_sent(follower.desk.home, scene.address(other))
    scene.chain.user.advance_to(scene.finish(second), Stage.PUBLISHED)
    result = follower.advance()
    assert result is not None
    assert result.address == scene.address(second)


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


def test_a_share_that_another_command_sends_meanwhile_counts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the last share, so the round is over before this run asks which rounds are open."""
    row = scene.chain.open(release="joint", **TERMS)
    ask = ProxyClient.inbox

    def late(client: ProxyClient) -> Any:
        monkeypatch.setattr(ProxyClient, "inbox", ask)
        assert scene.follower(row, is_approved=True).advance() is None
        scene.finish(row)
        return ask(client)

    monkeypatch.setattr(ProxyClient, "inbox", late)
    assert scene.follower(row, is_approved=True).advance() is None
    assert scene.shares() == 1


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


def test_a_chain_that_a_rule_approved_goes_on_and_counts_once(scene: Scene) -> None:
    """Also without the rule: its approval covers the later rounds. A month holds no second chain."""
    desk = scene.chain.desks[0]
    rule = rule_for(key_line(scene.chain.world.user.public.ed25519))
    desk.home.policy_path.write_text(POLICY + rule)
    first = scene.chain.open(**PRE, rho_share="0.2")
    works, told = agent(desk)
    works.look()
    assert "approved by the rule 'weekly'" in told[0]
    assert scene.shares() == 1
    scene.finish(first)
    desk.home.policy_path.write_text(POLICY)
    pre_studies = [first.known_study.hex()]
    second = scene.chain.open(release="joint", **TERMS, rho_share="0.5", pre_studies=pre_studies)
    works.look()
    ledger = desk.home.ledger.read()
    assert set(ledger.by_rule) == {first.known_study, second.known_study}
    assert ledger.approved_by_rule("weekly", ledger.entries[-1].time[:7])[0] == 4
    desk.home.policy_path.write_text(POLICY + rule)
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
