"""Leases: one process works on a study. A dead or silent one loses it, and commits nothing after that."""

from collections.abc import Callable
from typing import Any

import pytest
from proxy_world import InlineWorker, OpenStudy, ProxyWorld, values_of, wait_for

from dpdpca_proxy import leases
from dpdpca_proxy.leases import StudyLeases
from dpdpca_proxy.store.leases import Lease, end_lease, find_lease, take_lease
from dpdpca_proxy.store.studies import load_study
from dpdpca_runtime.database import seconds_now

ELSEWHERE = "0123456789abcdef.1"
"""A process with another home."""


def lease_of(study: OpenStudy) -> Lease:
    with study.world.proxy.database.reading("lease") as connection:
        lease = find_lease(connection, study.study)
    assert lease is not None
    return lease


def lend(study: OpenStudy, holder: str, seconds: int) -> None:
    with study.world.proxy.database.transaction("lend") as connection:
        take_lease(connection, study.study, holder, seconds, find_lease(connection, study.study))


def test_a_lease_holds_until_its_end_by_the_clock_of_the_database(world: ProxyWorld) -> None:
    study, mine = world.open_study(3), StudyLeases(world.proxy)
    lend(study, ELSEWHERE, leases._LEASE_SECONDS)
    assert not mine.take(study.study)
    assert lease_of(study) == Lease(ELSEWHERE, lease_of(study).until, 1)
    lend(study, ELSEWHERE, 0)
    assert mine.take(study.study)
    assert lease_of(study).holder != ELSEWHERE
    with world.proxy.database.reading("clock") as connection:
        now = seconds_now(connection)
    assert 0 <= now + leases._LEASE_SECONDS - lease_of(study).until <= 5
    mine.give_back(study.study)
    assert lease_of(study).is_free


def test_a_lease_of_a_process_that_ended_is_taken_at_once(world: ProxyWorld) -> None:
    study, first, second = world.open_study(3), StudyLeases(world.proxy), StudyLeases(world.proxy)
    assert first.take(study.study)
    assert not second.take(study.study)
    first.close()  # as the system does, whatever the process dies of
    assert second.take(study.study)
    second.close()
    third = StudyLeases(world.proxy)
    assert third.take(study.study)  # under the name of one of the two
    assert lease_of(study).number == 3


def test_a_copied_home_does_not_tell_who_has_ended(world: ProxyWorld) -> None:
    """Two machines with copies of one home have files of the same name, but each sees only its own locks."""
    study, elsewhere = world.open_study(3), StudyLeases(world.proxy)
    assert elsewhere.take(study.study)
    name = lease_of(study).holder.partition(".")[0]
    path = world.home / leases._PROCESSES_FOLDER / f"{name}.lock"
    path.rename(world.home / "elsewhere.lock")
    path.write_bytes(b"")
    mine = StudyLeases(world.proxy)
    assert not mine.take(study.study)


def test_the_number_rises_and_an_old_number_changes_nothing(world: ProxyWorld) -> None:
    study, mine = world.open_study(3), StudyLeases(world.proxy)
    for number in (1, 2):
        assert mine.take(study.study)
        assert lease_of(study).number == number
        mine.give_back(study.study)
    assert mine.take(study.study)
    lend(study, ELSEWHERE, 60)  # it seemed dead
    with world.proxy.database.reading("held") as connection:
        assert not mine.is_held(connection, study.study)
    mine.give_back(study.study)
    with world.proxy.database.transaction("old") as connection:
        end_lease(connection, study.study, 3)
    assert (lease_of(study).holder, lease_of(study).number, lease_of(study).is_free) == (ELSEWHERE, 4, False)


def test_long_steps_are_renewed(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_RENEWAL_SECONDS", 0.0)
    study, mine = world.open_study(3), StudyLeases(world.proxy)
    assert mine.take(study.study)
    monkeypatch.setattr(leases, "_LEASE_SECONDS", 1000)
    before = lease_of(study)
    mine.renew()
    after = lease_of(study)
    assert (after.holder, after.number) == (before.holder, before.number)
    assert after.until > before.until + 900
    lend(study, ELSEWHERE, 60)
    mine.renew()
    assert lease_of(study).until < after.until
    mine.give_back(study.study)
    mine.renew()
    assert lease_of(study).holder == ELSEWHERE


@pytest.mark.parametrize("step", ["multiply_chunks", "rerandomized_count", "draw", "make_release"])
def test_a_step_whose_study_was_taken_over_commits_nothing(
    stopped_world: ProxyWorld, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_LEASE_SECONDS", 3600)
    world, kept = stopped_world, dict[str, Any]()

    def committed(study: OpenStudy) -> dict[str, Any]:
        with world.proxy.database.reading("committed") as connection:
            tables = ("aggregate_chunks", "draws", "log")
            counts = {t: connection.exec_driver_sql(f"SELECT count(*) FROM {t}").scalar_one() for t in tables}
            return {**counts, "row": load_study(connection, study.study)}

    class TakenOver(InlineWorker):
        def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
            made = super().call(function, *args, **options)
            if function.__name__ == step and not kept:
                lend(study, ELSEWHERE, leases._LEASE_SECONDS)
                kept.update(committed(study))
            return made

    world.worker = TakenOver()
    world.start()
    world.enrol_all()
    study = world.open_study(3, release="masked")
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    study.close()
    if step in ("draw", "make_release"):
        world.client(world.user).answer_count(study.study, study.count_answer(study.challenge()))
    wait_for(lambda: bool(kept))
    world.restart()  # which lets the step end
    assert committed(study) == kept
    lend(study, ELSEWHERE, 0)
    if step in ("multiply_chunks", "rerandomized_count"):
        world.client(world.user).answer_count(study.study, study.count_answer(study.challenge()))
    study.wait_state("released")
