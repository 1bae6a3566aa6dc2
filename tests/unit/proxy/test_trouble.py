"""When the jobs call for an operator: while stored state contradicts itself, and no longer."""

from pathlib import Path

import pytest
from proxy_world import TOY_BITS, InlineWorker, OpenStudy, ProxyWorld, values_of

from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.study import StudyState
from dpdpca_proxy import jobs
from dpdpca_proxy.jobs import Jobs
from dpdpca_proxy.proxy import Proxy, open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.parties import PartyRow, find_party
from dpdpca_proxy.store.studies import load_study
from dpdpca_proxy.studies import cancel, close_by_user


def another(world: ProxyWorld) -> Proxy:
    """The proxy of this home in one more process, its jobs not started."""
    settings = load_settings(world.home, port=world.port)
    return open_proxy(settings, now=world.clock, key_rules=KeyRules(TOY_BITS))


def user_of(study: OpenStudy, proxy: Proxy) -> PartyRow:
    with proxy.database.reading("find user") as connection:
        row = find_party(connection, study.world.user.public.party_id)
    assert row is not None
    return row


def state_of(study: OpenStudy, proxy: Proxy) -> StudyState:
    with proxy.database.reading("state") as connection:
        return load_study(connection, study.study).state


def work(runner: Jobs) -> None:
    while runner._round(lambda: False):
        pass


@pytest.fixture
def closed(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> OpenStudy:
    """A closed study on a proxy that has stopped."""
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.0)
    study = world.open_study(3)
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    world.stop()
    proxy = another(world)
    close_by_user(
        proxy, user_of(study, proxy), study.study, StudyAct("close", study.study).sign(world.user).encoded
    )
    return study


def stored_chunks(world: ProxyWorld) -> list[Path]:
    return sorted((world.home / "studies").rglob("shares/*/*/0-*"))


def test_a_process_that_comes_second_calls_for_nobody(closed: OpenStudy) -> None:
    """Another process finishes the study and removes its sealed files while this one makes the release."""
    world = closed.world
    first, worker = Jobs(another(world), InlineWorker()), InlineWorker()
    slow_proxy = another(world)
    slow = Jobs(slow_proxy, worker)
    overtaken: list[str] = []

    def overtake(name: str) -> None:
        if name == "make_release" and not overtaken:
            overtaken.append(name)
            work(first)

    worker.before = overtake
    work(slow)
    assert overtaken
    assert state_of(closed, slow_proxy) == StudyState.RELEASED
    assert (first.trouble, slow.trouble) == (None, None)


def test_what_an_operator_restores_is_no_trouble_any_more(closed: OpenStudy) -> None:
    world = closed.world
    proxy = another(world)
    runner = Jobs(proxy, InlineWorker())
    chunk = stored_chunks(world)[0]
    content = chunk.read_bytes()
    chunk.unlink()
    work(runner)
    assert runner.trouble == "state-corrupt"
    work(runner)
    assert runner.trouble == "state-corrupt"
    chunk.write_bytes(content)
    work(runner)
    assert runner.trouble is None
    assert state_of(closed, proxy) == StudyState.RELEASED


def test_a_study_that_ended_is_no_trouble_any_more(closed: OpenStudy) -> None:
    world = closed.world
    proxy = another(world)
    runner = Jobs(proxy, InlineWorker())
    stored_chunks(world)[0].unlink()
    work(runner)
    assert runner.trouble == "state-corrupt"
    act = StudyAct("cancel", closed.study).sign(world.user).encoded
    cancel(proxy, user_of(closed, proxy), closed.study, act)
    work(runner)
    assert runner.trouble is None
