"""Leases: one process works on a study; a dead or silent one loses it."""

import os
import subprocess
import sys
from datetime import timedelta

from proxy_world import OpenStudy, ProxyWorld

from dpdpca_proxy import leases
from dpdpca_proxy.leases import StudyLeases
from dpdpca_proxy.store.leases import find_lease, set_lease


def holder_of(study: OpenStudy) -> str | None:
    with study.world.proxy.database.reading("lease") as connection:
        lease = find_lease(connection, study.study)
    return None if lease is None else lease.holder


def lend(study: OpenStudy, holder: str, until: int) -> None:
    with study.world.proxy.database.transaction("lend") as connection:
        set_lease(connection, study.study, holder, until, find_lease(connection, study.study))


def test_a_lease_of_a_living_process_holds_until_it_ends(world: ProxyWorld) -> None:
    study, mine = world.open_study(3), StudyLeases(world.proxy)
    parent = f"{os.getppid()}-00"
    now = int(world.proxy.now().timestamp())
    lend(study, parent, now + 60)
    assert not mine.take(study.study)
    world.clock.ahead = timedelta(seconds=61)
    assert mine.take(study.study)
    assert holder_of(study) != parent
    mine.give_back(study.study)
    assert holder_of(study) is None


def test_a_lease_of_a_dead_process_is_taken_at_once(world: ProxyWorld) -> None:
    study = world.open_study(3)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    lend(study, f"{dead.pid}-00", int(world.proxy.now().timestamp()) + 60)
    assert StudyLeases(world.proxy).take(study.study)
    lend(study, f"{os.getpid()}-00", int(world.proxy.now().timestamp()) + 60)
    assert StudyLeases(world.proxy).take(study.study)  # our own number, in an earlier life


def test_only_the_holder_gives_back(world: ProxyWorld) -> None:
    study, mine = world.open_study(3), StudyLeases(world.proxy)
    lend(study, f"{os.getppid()}-00", int(world.proxy.now().timestamp()) + 60)
    mine.give_back(study.study)
    assert holder_of(study) == f"{os.getppid()}-00"


def test_long_steps_are_renewed(world: ProxyWorld) -> None:
    study, mine = world.open_study(3), StudyLeases(world.proxy)
    assert mine.take(study.study)
    for _ in range(4):
        world.clock.ahead += timedelta(seconds=leases._LEASE_SECONDS - 10)
        mine.renew()
        with world.proxy.database.reading("lease") as connection:
            lease = find_lease(connection, study.study)
        assert lease is not None
        assert lease.until >= int(world.proxy.now().timestamp()) + leases._LEASE_SECONDS - 1
    mine.give_back(study.study)
    mine.renew()
    assert holder_of(study) is None
