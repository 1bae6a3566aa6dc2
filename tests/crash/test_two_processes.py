"""Two proxy processes on one database act as one."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
import pytest
from promises import Promise
from proxy_process import RoundRobin, ServedProxy, released_noise
from proxy_world import PATIENCE_SECONDS, OpenStudy, slug, values_of, wait_for
from study_parties import Parties

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.http.signature import RequestSigner

STUDIES = 2


@pytest.fixture
def world(tmp_path: Path, parties: Parties) -> Iterator[RoundRobin]:
    world = RoundRobin(
        tmp_path / "proxy",
        parties.user,
        list(parties.owners),
        parties.secret,
        parties.proof,
        patience=Patience(seconds=5.0),
    )
    try:
        world.start(processes=2)
        world.enrol_all()
        yield world
    finally:
        world.end()


def finished(study: OpenStudy) -> None:
    world = study.world
    if study.manifest.release == "masked":
        answer = study.count_answer(study.challenge())
        world.client(world.user).answer_count(study.study, answer)
    study.wait_state("released")


def holds(study: OpenStudy) -> bool:
    """What is stored of it is in order; the last files are removed just after the release."""
    return {check.outcome for check in audit_study(study.world.proxy, study.study)} == {HOLDS}


def test_whole_studies_by_round_robin(world: RoundRobin, promise: Promise) -> None:
    draws: set[str] = set()
    digests, owners = 0, 0
    for number in range(STUDIES):
        if number:
            world.with_new_key()
        study = world.open_study(3, release="joint" if number % 2 else "masked", closing="when-complete")
        receipts = [study.deliver(owner, values_of(3, seed)) for seed, owner in enumerate(world.owners)]
        finished(study)

        def ask(_turn: int, study: OpenStudy = study) -> bytes:
            bundle = world.client(world.user).release(study.study)
            return bundle.release + world.client(world.user).release_chunk(study.study, 0, 2_000_000)

        with ThreadPoolExecutor(16) as pool:
            seen = {Digest.of(answer) for answer in pool.map(ask, range(50))}
        assert len(seen) == 1
        digests += len(seen)
        members = world.client(world.user).study(study.study).cohort_members
        assert {str(member.statement) for member in members} == {r.body["statement"] for r in receipts}
        owners += len(members)
        noise = released_noise(world.home, study.study.hex())
        assert len(noise) == 1
        draws |= noise.keys()
        wait_for(partial(holds, study))
    assert len(draws) == STUDIES
    promise("P8", counted=f"{STUDIES} studies, {owners} shares, round robin", result="0 lost, 0 doubled")
    promise("P9", counted=f"50 reads of each of {STUDIES} releases, two processes", result="1 digest each")


def test_the_first_fifty_requests_get_one_release(world: RoundRobin, promise: Promise) -> None:
    """They ask while it is being made, and go on asking."""
    study = world.open_study(3, release="joint", closing="when-complete")
    for seed, owner in enumerate(world.owners[:-1]):
        study.deliver(owner, values_of(3, seed))
    last, chunks = world.owners[-1], study.plain_chunks(values_of(3, 2))
    study.upload(last, chunks)

    def ask(_turn: int) -> bytes:
        client = world.client(world.user)
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return client.release(study.study).release + client.release_chunk(study.study, 0, 2_000_000)
            except ConflictError as error:
                if error.slug != "not-ready" or time.monotonic() > end:
                    raise

    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(ask, turn) for turn in range(50)]
        world.client(last).complete_share(study.study, study.claim(last, chunks))
        seen = {Digest.of(one.result(60)) for one in asked}
    assert len(seen) == 1
    assert len(released_noise(world.home, study.study.hex())) == 1
    promise("P9", counted="50 first requests at once, two processes", result=f"{len(seen)} digest, 1 draw")


def test_a_process_that_dies_leaves_its_work_to_the_other(world: RoundRobin) -> None:
    study = world.open_study(3, release="joint", closing="when-complete")
    for seed, owner in enumerate(world.owners[:-1]):
        study.deliver(owner, values_of(3, seed))
    study.deliver(world.owners[-1], values_of(3, 2))
    world.served[1].kill()
    world.served = world.served[:1]
    study.wait_state("released")
    assert len(released_noise(world.home, study.study.hex())) == 1


@pytest.mark.parametrize(("first", "then"), [(0, 1), (1, 0)])
def test_a_request_that_one_process_took_is_refused_by_the_other(
    world: RoundRobin, first: int, then: int
) -> None:
    study = world.open_study(3)
    request = httpx.Request("GET", world.url + study.path)
    RequestSigner(world.owners[0]).sign(request, None, datetime.now(UTC))
    assert sent_to(world.served[first], request).status_code == 200
    again = sent_to(world.served[then], request)
    assert (again.status_code, slug(again)) == (401, "replayed-request")


def sent_to(served: ServedProxy, request: httpx.Request) -> httpx.Response:
    """The answer to the same bytes, whatever port they were signed for."""
    url = request.url.copy_with(port=served.port)
    with httpx.Client(trust_env=False) as client:
        return client.send(httpx.Request(request.method, url, headers=request.headers))


def test_a_stream_of_one_process_shows_what_the_other_does(world: RoundRobin) -> None:
    here, there = world.served
    study = world.open_study(3)
    owner, chunks = world.owners[0], study.plain_chunks(values_of(3, 0))
    study.upload(owner, chunks)
    with world.client_of(here, world.user) as follower, world.client_of(there, owner) as sender:
        updates = follower.events(study.study)
        assert next(updates).detail["owners_complete"] == 0
        sender.complete_share(study.study, study.claim(owner, chunks))
        assert next(update for update in updates if update.kind == "state").detail["owners_complete"] == 1
