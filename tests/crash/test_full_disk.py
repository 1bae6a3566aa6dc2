"""A disk that takes no more: refused with a time to come back, nothing lost, no restart needed after it."""

import resource
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from promises import Promise
from proxy_process import ProcessWorld, started_world
from proxy_world import OpenStudy, dump, slug, values_of, wait_for
from study_parties import Parties

from dpdpca_protocol.wire.signing import Statement
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_runtime.http.retry import Patience


@pytest.fixture
def world(tmp_path: Path, parties: Parties) -> Iterator[ProcessWorld]:
    with started_world(tmp_path, parties, patience=Patience(seconds=0.0)) as world:
        yield world


def second_share(study: OpenStudy) -> tuple[list[bytes], Statement]:
    """The next owner's chunks and its statement on them."""
    chunks = study.plain_chunks(values_of(3, 1))
    return chunks, study.claim(study.world.owners[1], chunks)


def requests(study: OpenStudy, chunks: list[bytes], claim: Statement) -> list[httpx.Response]:
    """A chunk, a completion, a closing, and a question: each has to write at least its nonce."""
    world = study.world
    owner = world.owners[1]
    return [
        world.request(
            owner,
            "PUT",
            f"{study.path}/share/chunks/0?version=1",
            study.seal(owner, chunks[0], 1, 0),
            "application/octet-stream",
        ),
        world.request(owner, "POST", f"{study.path}/share/complete", claim.encoded),
        world.request(world.user, "GET", f"{study.path}/release"),
        world.request(owner, "GET", f"{study.path}/share"),
    ]


def limit_files(world: ProcessWorld, size: int) -> None:
    resource.prlimit(world.first.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_limit_on_file_sizes(world: ProcessWorld, promise: Promise) -> None:
    study = world.open_study(3)
    receipt = study.deliver(world.owners[0], values_of(3, 0))
    chunks, claim = second_share(study)
    pid = world.first.pid
    before = dump(world.proxy)
    limit_files(world, 4096)
    answers = requests(study, chunks, claim)
    assert {(answer.status_code, slug(answer)) for answer in answers} <= {
        (503, "storage-failing"),
        (507, "storage-full"),
    }
    assert all(answer.headers["retry-after"] for answer in answers)
    assert world.request(None, "GET", "/readyz").status_code == 503
    assert world.request(None, "GET", "/healthz").status_code == 200
    assert dump(world.proxy) == before
    with sqlite3.connect(world.home / "proxy.sqlite3") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    limit_files(world, resource.RLIM_INFINITY)
    client = world.client(world.owners[0])
    assert client.share(study.study).receipt == receipt.encoded
    wait_for(lambda: world.request(None, "GET", "/readyz").status_code == 200, 60)
    for seed, owner in enumerate(world.owners[1:], 1):
        study.deliver(owner, values_of(3, seed))
    study.close()
    study.wait_state("released")
    assert world.first.pid == pid
    assert world.first.is_alive
    wait_for(lambda: {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS})
    promise(
        "P18",
        counted=f"file-size limit: {len(answers)} requests of 4 kinds",
        result="503 or 507, readiness false, integrity ok, receipt valid, goes on without a restart",
    )


def test_a_limit_while_the_release_is_made(world: ProcessWorld, promise: Promise) -> None:
    study = world.open_study(3, closing="when-complete")
    for seed, owner in enumerate(world.owners[:-1]):
        study.deliver(owner, values_of(3, seed))
    last = world.owners[-1]
    chunks = study.plain_chunks(values_of(3, 2))
    study.upload(last, chunks)
    wal = (world.home / "proxy.sqlite3-wal").stat().st_size
    refused = 0
    claim = study.claim(last, chunks)
    # A little more room each time: the act is cut off at one write after the other.
    for room in range(0, 400_000, 20_000):
        limit_files(world, max(wal, 4096) + room)
        answer = world.request(last, "POST", f"{study.path}/share/complete", claim.encoded)
        refused += answer.status_code != 200
        assert answer.status_code in (200, 503, 507)
    limit_files(world, resource.RLIM_INFINITY)
    assert world.request(last, "POST", f"{study.path}/share/complete", claim.encoded).status_code == 200
    study.wait_state("released", seconds=60)
    wait_for(lambda: {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS})
    promise("P18", counted=f"file-size limit in 20 steps, {refused} refusals", result="released in the end")


def test_a_limit_on_pages(world: ProcessWorld, promise: Promise) -> None:
    """What SQLite itself calls a full disk; set on the file by another connection, it holds for none of ours,
    so the proxy of this process is asked."""
    from sqlalchemy import event

    from dpdpca_protocol.errors import UnavailableError
    from dpdpca_proxy.enrolment import invite

    study = world.open_study(3)
    study.deliver(world.owners[0], values_of(3, 0))

    def tight(connection: sqlite3.Connection, *_: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")

    engine = world.proxy.database._engine
    event.listen(engine, "checkout", tight)
    made = 0

    def go_on() -> None:
        nonlocal made
        while made < 1000:
            invite(world.proxy, "owner", f"Hospital {made}")
            made += 1

    with pytest.raises(UnavailableError) as refused:
        go_on()
    assert refused.value.slug == "storage-full"
    assert world.proxy.database.trouble == "storage-full"
    event.remove(engine, "checkout", tight)
    engine.dispose()
    invite(world.proxy, "owner", "Hospital Z")
    assert world.proxy.database.trouble is None
    with sqlite3.connect(world.home / "proxy.sqlite3") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM invitations").fetchone()[0] == 4 + made + 1
    promise("P18", counted=f"page limit: {made} acts, then full", result="refused whole, goes on after")
