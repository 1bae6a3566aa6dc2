"""An agent takes over what a person approved, and notices what changes while it runs."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from following_scene import POLICY, TERMS, Scene, agent, has_sent, refused, three_owners
from proxy_world import ProxyWorld, wait_for

from dpdpca_owner import agent as agents
from dpdpca_owner.actions import withdraw
from dpdpca_owner.agent import Agent, is_agent_running, only_agent
from dpdpca_owner.commands.joining import join_and_follow
from dpdpca_owner.commands.serve import ended_by_signals, print_line
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.following import Joined, Records, Result, share_at
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.rotation import rotate_keys
from dpdpca_owner.sources import RegisteredSource
from dpdpca_protocol.result.components import Components
from dpdpca_protocol.study import ShareState
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_runtime.files import write_private
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient


@pytest.fixture
def scene(world: ProxyWorld, tmp_path: Path) -> Iterator[Scene]:
    with three_owners(world, tmp_path) as made:
        yield made


def open_study(scene: Scene, **changes: object) -> StudyAddress:
    return scene.address(scene.chain.open(publish=True, release="joint", **TERMS, **changes))


def approve(scene: Scene, place: StudyAddress) -> None:
    scene.chain.desks[0].home.followed.add(FollowedStudy(place, "patients", "people"))


def join(scene: Scene, place: StudyAddress, *, yes: bool = True, as_json: bool = True) -> None:
    """`dpdpca owner join PLACE --source patients --follow` of the first owner. It must not wait."""
    records = Records(DataLocation(str(scene.chain.data[0])), "people")
    join_and_follow(scene.chain.desks[0], place, records, "patients", yes, as_json, it_waited)


def look_until_sent(works: Agent, place: StudyAddress) -> None:
    """On a busy machine the proxy may close a connection. The agent tries again at its next look."""

    def is_sent() -> bool:
        works.look()
        return has_sent(works.desk.home, place)

    wait_for(is_sent)


def it_waited(_seconds: float) -> None:
    raise KeyboardInterrupt


def test_a_running_agent_takes_over(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    place = open_study(scene)
    home = scene.chain.desks[0].home
    works, _ = agent(scene.chain.desks[0])
    with only_agent(home):
        assert refused(lambda: join(scene, place, yes=False)) == "no-terminal"
        assert home.followed.all() == []
        join(scene, place)
        told = json.loads(capsys.readouterr().out)
        assert (told["agent"], told["already"], told["study"]) == (True, False, place.study.hex())
        assert scene.shares() == 0  # the command has sent nothing
        look_until_sent(works, place)
        join(scene, place, as_json=False)
    said = capsys.readouterr().out
    assert "the agent follows this study" in said
    assert f"dpdpca owner status {place}" in said
    assert home.followed.all() == [FollowedStudy(place, "patients", "people")]


def test_without_an_agent_the_command_does_it_itself(scene: Scene) -> None:
    place = open_study(scene)
    with pytest.raises(KeyboardInterrupt):
        join(scene, place)
    assert has_sent(scene.chain.desks[0].home, place)


def test_an_agent_that_ends_in_that_moment_leaves_the_consent(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consent is kept before the command looks for an agent. Then the next agent continues."""
    place = open_study(scene)
    seen: list[list[FollowedStudy]] = []

    def running(home: OwnerHome) -> bool:
        seen.append(home.followed.all())
        return True  # and now it ends

    monkeypatch.setattr(agents, "is_agent_running", running)
    join(scene, place)
    assert seen == [[FollowedStudy(place, "patients", "people")]]
    look_until_sent(agent(scene.chain.desks[0])[0], place)


def test_only_a_person_sends_a_withdrawn_share_again(scene: Scene) -> None:
    place = open_study(scene)
    desk = scene.chain.desks[0]
    approve(scene, place)
    works, _ = agent(desk)
    look_until_sent(works, place)
    withdraw(desk, place)
    with only_agent(desk.home):
        works.look()
        assert desk.home.followed.all() == []
        with pytest.raises(KeyboardInterrupt):
            join(scene, place)
    assert has_sent(desk.home, place)


def test_whether_an_agent_runs(scene: Scene) -> None:
    home, other = (desk.home for desk in scene.chain.desks[:2])
    assert not is_agent_running(home)
    with only_agent(home):
        assert is_agent_running(home)
        assert not is_agent_running(other)
    assert not is_agent_running(home)


@pytest.mark.parametrize("passphrase", [None, b"a passphrase"])
def test_it_goes_on_with_new_keys(scene: Scene, passphrase: bytes | None) -> None:
    desk = scene.chain.desks[0]
    write_private(desk.home.path / "identity.pem", desk.owner.key.to_pem(passphrase))
    works = Agent(desk, {}, passphrase)
    old, joined = desk.owner, open_study(scene)
    approve(scene, joined)
    look_until_sent(works, joined)
    new = rotate_keys(desk, passphrase)
    later = open_study(scene)
    approve(scene, later)
    look_until_sent(works, later)
    assert works.desk.owner.key.public == new.key.public != old.key.public
    # The study that it joined with the old key goes on.
    assert {each.address for each in desk.home.followed.all()} == {joined, later}


def test_keys_that_it_cannot_open_are_waited_for(scene: Scene) -> None:
    place = open_study(scene)
    desk = scene.chain.desks[0]
    approve(scene, place)
    works, told = agent(desk)
    write_private(desk.home.path / "identity.pem", desk.owner.key.to_pem(b"another"))
    for _ in range(2):
        assert works.look() == []
    assert len(told) == 1
    assert told[0].startswith("the agent does nothing until this is corrected: ")
    assert scene.shares() == 0
    write_private(desk.home.path / "identity.pem", desk.owner.key.to_pem())
    look_until_sent(works, place)


def refuse_by_policy(scene: Scene) -> Callable[[], object]:
    path = scene.chain.desks[0].home.policy_path
    path.write_text(POLICY.replace("epsilon = 9", "epsilon = 0.5"))
    return lambda: path.write_text(POLICY)


def take_the_records_away(scene: Scene) -> Callable[[], object]:
    sources, data = scene.chain.desks[0].home.sources, scene.chain.data[0]
    moved = shutil.move(data, data.with_name("moved.csv"))

    def register() -> None:
        sources.remove("patients")
        sources.add(RegisteredSource("patients", str(moved), data_set="people"), {})

    return register


def spend_the_budget(scene: Scene) -> Callable[[], object]:
    """Another study is joined by a command."""
    path = scene.chain.desks[0].home.policy_path
    path.write_text(POLICY.replace("epsilon = 9", "epsilon = 4"))
    scene.chain.join(scene.chain.open(release="joint", **TERMS), 0)
    return lambda: path.write_text(POLICY)


@pytest.mark.parametrize("change", [refuse_by_policy, take_the_records_away, spend_the_budget])
def test_it_notices_what_changes(scene: Scene, change: Callable[[Scene], Callable[[], object]]) -> None:
    place = open_study(scene)
    works, told = agent(scene.chain.desks[0])
    works.look()
    mend = change(scene)
    approve(scene, place)
    works.look()
    assert not has_sent(scene.chain.desks[0].home, place)
    assert told
    mend()
    look_until_sent(works, place)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_in_the_middle_of_sending_is_continued(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    place = open_study(scene)
    desk, before = scene.chain.desks[0], signal.getsignal(number)
    approve(scene, place)

    def stopped(*_: object) -> None:
        signal.raise_signal(number)

    def run() -> None:
        with ended_by_signals():
            look_until_sent(agent(desk)[0], place)

    with monkeypatch.context() as patch:
        patch.setattr(ProxyClient, "complete_share", stopped)
        with pytest.raises(SystemExit) as left:
            run()
    assert left.value.code == 0
    assert "it continues at its next start" in capsys.readouterr().err
    assert signal.getsignal(number) is before
    assert share_at(desk.home, place) is ShareState.PARTIAL
    look_until_sent(agent(desk)[0], place)


def test_it_prints_lines_for_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    place = StudyAddress("https://proxy.example", StudyId(bytes(32)))
    print_line(Joined(place, "A study", 5, 900, "2026-01-01T00:00:00Z", 0.25))
    print_line(Result(place, cast(Manifest, None), cast(Components, None), 12, Path("components.npz")))
    joined, result = map(json.loads, capsys.readouterr().out.splitlines())
    assert joined == {
        "event": "joined",
        "address": str(place),
        "title": "A study",
        "records": 5,
        "sent_bytes": 900,
        "receipt_time": "2026-01-01T00:00:00Z",
        "seconds": 0.25,
    }
    assert result == {
        "event": "components",
        "address": str(place),
        "records": 12,
        "out": "components.npz",
    }


def test_it_tells_of_each_share(scene: Scene) -> None:
    place, news = open_study(scene), list[Joined | Result]()
    approve(scene, place)
    look_until_sent(Agent(scene.chain.desks[0], {}, news=news.append), place)
    (joined,) = news
    assert isinstance(joined, Joined)
    assert (joined.address, joined.title) == (place, "What varies together")
    assert joined.records == len(scene.chain.data[0].read_text().splitlines()) - 1
    assert joined.sent_bytes > 0
