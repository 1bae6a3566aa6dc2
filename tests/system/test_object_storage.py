"""A proxy whose files are in object storage, on a real S3 server: whole studies, kills and restarts.

A server that fails, is slow, lags behind or lies leads to a refusal or a retry, never to a wrong release.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from exact_studies import VALUES, answer, check_exact, deliver_all
from fault_plan import Point
from object_server import (
    Fault,
    ObjectServer,
    Relay,
    altering_uploads,
    behind,
    keeping,
    lead_to,
    object_server,
    relay_to,
    slow,
    swallowing,
    unavailable,
    wrong_bytes,
)
from promises import Promise
from proxy_process import started_world
from proxy_world import OpenStudy, ProxyWorld, refused, slug, wait_for
from quick_folder import quick_folder
from store_checks import check_store, check_sum, row_of
from study_parties import Parties

from dpdpca_protocol.errors import DpdpcaError, IntegrityError, UsageError
from dpdpca_proxy import app, jobs
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.store import objects
from dpdpca_proxy.store.objects import ObjectStore, open_objects
from dpdpca_proxy.worker import COURTESY
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.workers import BackgroundProcesses

RELEASES = ["joint", "masked"]


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with object_server() as server:
        server.make_bucket("files")
        yield server


@pytest.fixture
def address(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    lead_to(monkeypatch, server.url)
    address = f"s3://files/{abs(hash(request.node.nodeid))}/proxy"
    directly(address)
    return address


@cache
def directly(address: str) -> ObjectStore:
    """The store as it is: first opened before a relay stands in front of it, and kept."""
    return open_objects(address)


@pytest.fixture
def world(stopped_world: ProxyWorld, address: str, monkeypatch: pytest.MonkeyPatch) -> ProxyWorld:
    """Not started yet. Its jobs wait for a moment where they would wait for a minute."""
    monkeypatch.setattr(jobs, "_MOST_BACKOFF_SECONDS", 0.2)
    monkeypatch.setattr(jobs, "_TIDYING_SECONDS", 0.05)
    monkeypatch.setattr(app, "PROBE_SECONDS", 0.05)
    stopped_world.settings["store"] = address
    return stopped_world


def start(world: ProxyWorld) -> None:
    world.start()
    world.enrol_all()


def names_of(world: ProxyWorld) -> list[str]:
    found = directly(world.settings["store"])._objects.list()
    return [meta["path"] for page in found for meta in page if ".probe" not in meta["path"]]


def objects_of(world: ProxyWorld) -> dict[str, bytes]:
    return {name: directly(world.settings["store"]).read(name) for name in names_of(world)}


def check_end(study: OpenStudy) -> None:
    """Released exactly; nothing is left but the release; the audit holds."""
    study.wait_state("released")
    check_exact(study)
    wait_for(lambda: all("/release-" in name for name in names_of(study.world)))
    assert names_of(study.world)
    assert {check.outcome for check in audit_study(study.world.proxy, study.study)} == {HOLDS}


def readiness(world: ProxyWorld) -> tuple[int, str]:
    answer = world.request(None, "GET", "/readyz")
    return answer.status_code, answer.json().get("reason", "")


# Whole studies


@pytest.mark.parametrize("release", RELEASES)
def test_a_whole_study_leaves_nothing_in_the_home_and_only_a_release_in_the_bucket(
    world: ProxyWorld, noiseless: None, release: str
) -> None:
    start(world)
    study = world.open_study(3, release=release)
    chunks = study.plain_chunks(VALUES[0])
    study.upload(world.owners[0], chunks)
    stored = objects_of(world)
    assert len([name for name in stored if "/shares/" in name]) == len(chunks)
    assert not any(
        chunk[at : at + 32] in content
        for chunk in chunks
        for content in stored.values()
        for at in range(0, 64, 32)
    )
    world.restart()
    world.client(world.owners[0]).complete_share(study.study, study.claim(world.owners[0], chunks))
    for owner, values in zip(world.owners[1:], VALUES[1:], strict=True):
        study.deliver(owner, values)
    study.close()
    answer(study)
    check_end(study)
    world.restart()
    check_end(study)
    assert not [path for path in (world.home / "studies").rglob("*") if path.is_file()]
    assert readiness(world) == (200, "")


@pytest.mark.parametrize("release", RELEASES)
def test_real_workers_find_the_store_and_its_credentials_themselves(world: ProxyWorld, release: str) -> None:
    world.worker = BackgroundProcesses(keep=True, niceness=COURTESY)
    start(world)
    study = world.open_study(3, release=release, closing="when-complete")
    deliver_all(study)
    answer(study)
    study.wait_state("released")
    study.open_release()
    wait_for(study.is_swept)
    assert {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS}


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_replaced_and_a_withdrawn_share_are_gone_from_the_bucket(
    world: ProxyWorld, relay: Relay, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, also where lists are behind. Nothing looks for leftovers meanwhile."""
    monkeypatch.setattr(jobs, "_TIDYING_SECONDS", 3600.0)
    relay.fault = behind(times)
    start(world)
    study = world.open_study(3)
    first, second = world.owners[:2]
    study.deliver(first, VALUES[0])
    before = set(objects_of(world))
    study.deliver(first, VALUES[1], version=2)
    study.deliver(second, VALUES[2])
    study.withdraw(second, 2)
    left = set(objects_of(world))
    assert len(left) == 1
    assert not left & before


# Kills


POINTS = [Point(name, turn) for turn in (1, 2, 4, 5, 6) for name in ("put", "have put")]
POINTS += [Point(name) for name in ("delete", "deleted")]


@pytest.mark.parametrize("release", RELEASES)
def test_killed_at_any_object_it_goes_on_and_every_sum_is_exact(
    parties: Parties, address: str, release: str, promise: Promise
) -> None:
    """Before and after it writes each chunk, product, draw and release, and before and after it deletes."""
    deaths = 0
    with (
        quick_folder() as folder,
        started_world(folder, parties, settings={"store": address}, patience=Patience(seconds=0.0)) as world,
    ):
        for point in POINTS:
            world.with_new_key()
            study = world.open_study(3, release=release)
            world.first.arm(point)
            receipts, died = drive(study)
            deaths += died
            world.restart()
            check_store(study, world.owners, receipts)
            check_sum(study, VALUES)
    # After the last deletion it may die while nothing is left to do.
    assert deaths >= len(POINTS) - 1
    promise(
        "P2",
        counted=f"{release}: {deaths} kills before and after objects are written and deleted",
        result="0 receipts lost, every sum exact",
    )


def drive(study: OpenStudy) -> tuple[list[Any], int]:
    """Does what is left to do until the study is released; starts the proxy again whenever it has died.

    Returns:
        The receipts, and how often it had died.
    """
    world: Any = study.world
    deaths = 0
    shares = [study.plain_chunks(values) for values in VALUES]
    claims: list[Any] = [None] * len(shares)
    receipts: list[Any] = [None] * len(shares)

    def go_on() -> bool:
        nonlocal deaths
        if not world.is_running:
            deaths += 1
            world.restart()
        for place, owner in enumerate(world.owners):
            if receipts[place] is None:
                study.upload(owner, shares[place])
                claims[place] = claims[place] or study.claim(owner, shares[place])
                receipts[place] = world.client(owner).complete_share(study.study, claims[place])
        state = row_of(study).state
        if state == "open":
            study.close()
        elif state == "closed" and study.manifest.release == "masked":
            answer_if_asked(study)
        return state == "released" and study.is_swept()

    def is_over() -> bool:
        with suppress(DpdpcaError):
            return go_on()
        return False

    wait_for(is_over, 120)
    return receipts, deaths


# The store itself


def test_of_many_writers_of_one_name_one_wins(address: str) -> None:
    stores = [open_objects(address) for _ in range(8)]

    def write(number: int) -> bool:
        with suppress(IntegrityError):
            stores[number % len(stores)].write("a/1", bytes([number]) * 1000)
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(40)))
    assert sum(won) == 1
    assert stores[0].read("a/1") == bytes([won.index(True)]) * 1000


def test_lists_and_deletions_of_several_pages_are_whole(address: str) -> None:
    store = open_objects(address)
    names = [f"{number:04}" for number in range(1203)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store._objects.put(f"a/b/{name}", b"x"), names))
    assert store.entries("a/b") == names
    assert store.entries_of(["a/b", "a/c"]) == [names, []]
    store.remove("a")
    assert store.entries("a/b") == store.entries("a") == []


# Unfit stores


def test_a_bucket_with_versions_is_refused(server: ObjectServer, address: str) -> None:
    server.make_bucket("kept", versioned=True)
    error = refused(open_objects("s3://kept/proxy").check)
    assert (type(error), error.slug, "old versions" in error.problem) == (UsageError, "bad-settings", True)


@pytest.mark.parametrize("wrong", ["secret", "bucket", "port"])
def test_a_store_that_cannot_be_used_is_told(
    world: ProxyWorld, server: ObjectServer, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_RETRIES", 1)
    if wrong == "secret":
        lead_to(monkeypatch, server.url, secret="another-secret")
    elif wrong == "port":
        lead_to(monkeypatch, "http://127.0.0.1:1")
    else:
        world.settings["store"] = "s3://nowhere/proxy"
    start(world)
    study = world.open_study(3)
    error = refused(lambda: study.deliver(world.owners[0], VALUES[0]))
    assert (error.slug, "another-secret" in str(error)) == ("storage-failing", False)
    assert readiness(world)[0] == 503


# A relay in front of the server


@pytest.fixture
def relay(server: ObjectServer, address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    monkeypatch.setattr(objects, "_RETRIES", 2)
    monkeypatch.setattr(objects, "_REQUEST", timedelta(seconds=5))
    monkeypatch.setattr(objects, "_WAITS", (0.1, 0.2))
    with relay_to(server) as relay:
        lead_to(monkeypatch, relay.url)
        yield relay


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "fault", [slow(0.05), behind(1), behind(2)], ids=["slow", "behind once", "behind twice"]
)
def test_a_store_that_is_slow_or_behind_is_waited_for(
    world: ProxyWorld, relay: Relay, noiseless: None, fault: Fault, release: str
) -> None:
    relay.fault = fault
    start(world)
    study = world.open_study(3, release=release, closing="when-complete")
    deliver_all(study)
    answer(study)
    check_end(study)


BROKEN: dict[str, Fault] = {
    "fails": unavailable,
    "does not answer in time": slow(8.0),
    "loses what it accepted": swallowing(""),
    "gets other bytes than were sent": altering_uploads,
}


@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
def test_an_owner_s_chunk_is_refused_until_the_store_works(
    world: ProxyWorld, relay: Relay, noiseless: None, fault: Fault
) -> None:
    start(world)
    study = world.open_study(3, closing="when-complete")
    relay.fault = fault
    owner, chunks = world.owners[0], study.plain_chunks(VALUES[0])
    body = study.seal(owner, chunks[0], 1, 0)
    path = f"{study.path}/share/chunks/0?version=1"
    told = world.request(owner, "PUT", path, body, "application/octet-stream")
    assert (told.status_code, slug(told)) == (503, "storage-failing")
    assert told.headers["retry-after"]
    assert world.settings["store"] not in told.text
    assert readiness(world) == (503, "the storage cannot be written")
    assert world.client(owner).share(study.study).chunks == set()
    relay.mend()
    wait_for(lambda: readiness(world)[0] == 200)
    deliver_all(study)
    check_end(study)


LIES: dict[str, Fault] = {
    "wrong bytes in shares": wrong_bytes("/shares/"),
    "wrong bytes in products": wrong_bytes("/aggregate/"),
    "wrong bytes in the draw": wrong_bytes("/draw-"),
    "wrong bytes in the release": wrong_bytes("/release-"),
    "loses products": swallowing("/aggregate/"),
    "loses the draw": swallowing("/draw-"),
    "loses the release": swallowing("/release-"),
    "fails": unavailable,
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("fault", LIES.values(), ids=LIES)
def test_nothing_is_released_from_a_store_that_lies(
    world: ProxyWorld, relay: Relay, noiseless: None, fault: Fault, release: str
) -> None:
    start(world)
    study = world.open_study(3, release=release)
    deliver_all(study)
    relay.fault = fault
    study.close()
    trouble: list[str] = []

    def is_told() -> bool:
        trouble.extend(filter(None, [world.app.state.jobs.trouble]))
        if release == "masked" and row_of(study).state == "closed":
            with suppress(DpdpcaError):
                answer_if_asked(study)
        return bool(trouble)

    wait_for(is_told)
    assert trouble[0] in ("state-corrupt", "step-failing")
    assert row_of(study).state in ("closed", "counted")
    assert readiness(world)[0] == 503
    relay.mend()
    if release == "masked":
        answer(study)
    check_end(study)
    wait_for(lambda: world.app.state.jobs.trouble is None)  # the step ends after the release is there


def answer_if_asked(study: OpenStudy) -> None:
    """As soon as the proxy has asked for the count."""
    client = study.world.client(study.world.user)
    client.answer_count(study.study, study.count_answer(client.count_challenge(study.study)))


def test_a_release_that_changes_afterwards_is_not_given_out(
    world: ProxyWorld, relay: Relay, noiseless: None
) -> None:
    start(world)
    study = world.open_study(3, closing="when-complete")
    deliver_all(study)
    check_end(study)
    relay.fault = wrong_bytes("/release-")
    assert refused(study.open_release).slug == "state-corrupt"
    assert {check.outcome for check in audit_study(world.proxy, study.study)} != {HOLDS}
    relay.mend()
    check_exact(study)


def test_deletions_that_are_not_done_are_told_and_repeated(
    world: ProxyWorld, relay: Relay, noiseless: None
) -> None:
    start(world)
    study = world.open_study(3, closing="when-complete")
    relay.fault = keeping()
    deliver_all(study)
    study.wait_state("released")
    wait_for(lambda: readiness(world)[0] == 503)
    assert [name for name in objects_of(world) if "/sealed/" in name]
    relay.mend()
    check_end(study)
    wait_for(lambda: readiness(world)[0] == 200)
