"""A receipt means on disk: by the system calls, all that it stands for was synced before it left."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from promises import Promise
from proxy_process import ProcessWorld, started_world
from proxy_world import values_of
from study_parties import Parties
from syscall_trace import Trace, tracing

RECEIPTS = 100


@pytest.fixture
def own_world(tmp_path: Path, parties: Parties) -> Iterator[ProcessWorld]:
    with started_world(tmp_path, parties) as world:
        yield world


def test_everything_is_synced_before_a_receipt_leaves(
    own_world: ProcessWorld, tmp_path: Path, promise: Promise
) -> None:
    world, log = own_world, tmp_path / "calls"
    study, owners = world.open_study(3), world.owners[:2]
    with tracing(world.first.pid, log):
        for version in range(1, RECEIPTS // len(owners) + 1):
            for owner in owners:
                study.deliver(owner, values_of(3, version), version)
    trace = Trace(world.home)
    trace.read(log.read_text(errors="replace").splitlines())
    assert trace.early == []
    assert trace.answers.count(200) == 2 * RECEIPTS  # a receipt, and before it the log's head for the share
    assert trace.answers.count(204) == RECEIPTS  # chunks
    # For a chunk: the nonce, the file, its folder, the row. For a receipt: the nonce, the rows.
    assert trace.syncs >= 6 * RECEIPTS
    promise(
        "P3",
        counted=f"{RECEIPTS} receipts and as many chunks, {trace.syncs} syncs in the system calls",
        result=f"{RECEIPTS} of {RECEIPTS} after their last sync",
    )


HOME = Path("/home/proxy")
GOOD = """\
7 write(9</home/proxy/studies/.0.part>, "abc", 3) = 3
7 fsync(9</home/proxy/studies/.0.part>) = 0
7 rename("/home/proxy/studies/.0.part", "/home/proxy/studies/0") = 0
7 fsync(9</home/proxy/studies>) = 0
8 pwrite64(5</home/proxy/proxy.sqlite3-wal>, "x"..., 4096, 0) = 4096
8 fdatasync(5</home/proxy/proxy.sqlite3-wal> <unfinished ...>
7 pwrite64(6</home/proxy/proxy.sqlite3-shm>, "x"..., 4096, 0) = 4096
8 <... fdatasync resumed>) = 0
6 sendto(4<socket:[12]>, "HTTP/1.1 200 OK\\r\\n"..., 300, 0, NULL, 0) = 300
""".splitlines()


def test_a_trace_in_order_has_nothing_early() -> None:
    trace = Trace(HOME)
    trace.read(GOOD)
    assert (trace.answers, trace.early, trace.syncs) == ([200], [], 3)


@pytest.mark.parametrize("missing", [1, 3, 5, 7])
def test_a_sync_that_is_missing_or_late_is_seen(missing: int) -> None:
    trace = Trace(HOME)
    trace.read([line for place, line in enumerate(GOOD) if place != missing])
    assert len(trace.early) == 1
