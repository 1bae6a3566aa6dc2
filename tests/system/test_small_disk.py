"""A disk that is really full: the proxy's home on a file system of a few megabytes (needs root)."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from promises import Promise
from proxy_process import ProcessWorld, started_world
from proxy_world import dump, slug, values_of, wait_for
from study_parties import Parties

from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_runtime.http.retry import Patience

MEGABYTES = 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m,mode=0700", "tmpfs", place], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def world(small_disk: Path, parties: Parties) -> Iterator[ProcessWorld]:
    with started_world(small_disk, parties, patience=Patience(seconds=0.0)) as world:
        yield world


def fill(disk: Path, leave: int) -> Path:
    """Takes all room but `leave` bytes."""
    ballast = disk / "ballast"
    room = os.statvfs(disk)
    with ballast.open("wb") as file:
        file.write(bytes(max(0, room.f_bavail * room.f_frsize - leave)))
    return ballast


def test_a_full_disk_hurts_nobody(small_disk: Path, world: ProcessWorld, promise: Promise) -> None:
    study = world.open_study(3, closing="when-complete")
    receipt = study.deliver(world.owners[0], values_of(3, 0))
    pid, owner = world.first.pid, world.owners[1]
    chunks = study.plain_chunks(values_of(3, 1))
    body = study.seal(owner, chunks[0], 1, 0)
    statuses = set()
    asked = 0
    for leave in range(0, 200_000, 20_000):
        ballast = fill(small_disk, leave)
        before = dump(world.proxy, without=("nonces", "leases", "forgotten", "chunks", "shares", "studies"))
        for method, path, content, media in (
            ("PUT", "share/chunks/0?version=1", body, "application/octet-stream"),
            ("POST", "share/complete", b"{}", "application/json"),
            ("GET", "share", None, ""),
        ):
            answer = world.request(owner, method, f"{study.path}/{path}", content, media)
            statuses.add(answer.status_code)
            asked += 1
            if answer.status_code >= 500:
                assert slug(answer) in ("storage-full", "storage-failing")
                assert answer.headers["retry-after"]
        if leave == 0:
            assert world.request(None, "GET", "/readyz").status_code == 503
        without = ("nonces", "leases", "forgotten", "chunks", "shares", "studies")
        assert dump(world.proxy, without=without) == before
        ballast.unlink()
    assert statuses & {503, 507}
    assert statuses <= {200, 204, 400, 409, 503, 507}
    with sqlite3.connect(world.home / "proxy.sqlite3") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert world.client(world.owners[0]).share(study.study).receipt == receipt.encoded
    wait_for(lambda: world.request(None, "GET", "/readyz").status_code == 200, 60)
    world.client(owner).put_chunk(study.study, 1, 0, body)
    world.client(owner).complete_share(study.study, study.claim(owner, chunks))
    study.deliver(world.owners[2], values_of(3, 2))
    study.wait_state("released", seconds=60)
    assert (world.first.pid, world.first.is_alive) == (pid, True)
    wait_for(lambda: {check.outcome for check in audit_study(world.proxy, study.study)} == {HOLDS})
    promise(
        "P18",
        counted=f"a disk of {MEGABYTES} MB filled 10 times, {asked} requests",
        result="503 or 507, integrity ok, receipt valid, released without a restart",
    )
