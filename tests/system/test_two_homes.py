"""Two live proxies that share a database, a bucket and a generation file, and nothing else: each has a home.

So it is on two machines. Neither sees the locks of the other, so a dead process is noticed when its lease
ends.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fault_plan import Point
from object_server import ObjectServer, lead_to, object_server
from postgres_server import PostgresServer, programs, running_server
from proxy_process import ProcessWorld, RoundRobin, released_noise
from proxy_world import OpenStudy, copy_home, values_of, wait_for
from store_checks import check_store, check_sum
from study_parties import Parties

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.wire.signing import Statement
from dpdpca_proxy.store.leases import Lease, find_lease
from dpdpca_runtime.database import seconds_now

VALUES = [values_of(3, seed) for seed in range(3)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server(programs()) as server:
        yield server


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectServer]:
    with object_server() as objects:
        objects.make_bucket("files")
        yield objects


@pytest.fixture
def world(
    parties: Parties,
    server: PostgresServer,
    objects: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RoundRobin]:
    lead_to(monkeypatch, objects.url)
    database = server.new_database()
    settings = {
        "database": server.url(database),
        "store": f"s3://files/{database}",
        "generation_file": tmp_path / "generation" / "generation.json",
    }
    people = (parties.user, list(parties.owners), parties.secret, parties.proof)
    world = RoundRobin(tmp_path / "here" / "proxy", *people, settings=settings)
    try:
        world.start(processes=2)
        world.enrol_all()
        live_apart(world, tmp_path / "there" / "proxy")
        yield world
    finally:
        world.end()


def live_apart(world: ProcessWorld, other: Path) -> None:
    """The second process gets a copy of the home, as an operator makes one: while nothing runs."""
    world.stop()
    other.parent.mkdir()
    world.served[1].home = copy_home(world.home, other)
    for served in world.served:
        served.start()


def noise(world: ProcessWorld, study: OpenStudy) -> list[int]:
    """The one noise that went into the release, whichever process made it."""
    drawn = {
        token: values
        for served in world.served
        for token, values in released_noise(served.home, study.study.hex()).items()
    }
    assert len(drawn) == 1
    return next(iter(drawn.values()))


def lease_of(study: OpenStudy) -> tuple[Lease, int]:
    """The last lease, and the time by the clock of the database."""
    with study.world.proxy.database.reading("test: lease") as connection:
        lease = find_lease(connection, study.study)
        assert lease is not None
        return lease, seconds_now(connection)


def check_end(world: ProcessWorld, study: OpenStudy, receipts: list[Statement]) -> None:
    study.wait_state("released")
    check_sum(study, VALUES, noise(world, study))
    check_store(study, world.owners, receipts)


@pytest.mark.parametrize("release", ["joint", "masked"])
def test_a_whole_study(world: RoundRobin, release: str) -> None:
    study = world.open_study(3, release=release, closing="when-complete")
    receipts = [study.deliver(owner, values) for owner, values in zip(world.owners, VALUES, strict=True)]
    if release == "masked":
        answer = study.count_answer(study.challenge())
        world.client(world.user).answer_count(study.study, answer)
    check_end(world, study, receipts)
    assert not [
        path for served in world.served for path in (served.home / "studies").rglob("*") if path.is_file()
    ]


def test_the_work_of_a_killed_process_is_taken_over_when_its_lease_ends(world: RoundRobin) -> None:
    """The other one goes on, but not before. The killed one comes back, and both serve the release."""
    here, there = world.served
    study = world.open_study(3)
    receipts = [study.deliver(owner, values) for owner, values in zip(world.owners, VALUES, strict=True)]
    there.kill()
    world.served = [here]
    here.arm(Point("put"))  # the product of the shares
    with suppress(DpdpcaError):
        study.close()
    assert here.wait_dead(60)
    there.start()
    world.served = [there]
    left, _ = lease_of(study)
    assert not left.is_free
    wait_for(lambda: lease_of(study)[0].number > left.number)
    _, now = lease_of(study)
    assert now >= left.until
    study.wait_state("released")
    here.kill()
    here.start()
    world.served = [here, there]
    check_end(world, study, receipts)
    clients = [world.client_of(served, world.user) for served in world.served]
    assert len({client.release(study.study).release for client in clients}) == 1
