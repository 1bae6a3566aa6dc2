"""Thousands of requests that no honest client sends: no answer 5xx, no row changed, nothing kept."""

import http.client
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from malformed import Forge, Malformed
from promises import Promise
from proxy_process import ProcessWorld, started_world
from proxy_world import dump, values_of, wait_for
from quick_folder import quick_folder
from study_parties import Parties

_COUNT = 10_000
_WARM = 2_000
_SENDERS = 4
_SEED = 20261127
_ANSWER_SECONDS = 20.0
_DRIFT = 1.05


@pytest.fixture
def world(parties: Parties) -> Iterator[ProcessWorld]:
    with quick_folder() as folder, started_world(folder, parties) as world:
        yield world


class Sender:
    """One connection at a time; counts answers by status, 0 where it was closed without one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.statuses: Counter[tuple[str, int]] = Counter()
        self._connection: socket.socket | None = None

    def send(self, request: Malformed) -> None:
        if not request.is_framed:
            self._close()
        status = self._try(request)
        if status == 0 and request.is_framed:
            # The server may have closed a kept connection a moment before.
            status = self._try(request)
        self.statuses[request.family, status] += 1

    def _try(self, request: Malformed) -> int:
        if self._connection is None:
            self._connection = socket.create_connection(("127.0.0.1", self.port), timeout=_ANSWER_SECONDS)
        status = 0
        with suppress(ConnectionError, http.client.HTTPException):
            self._connection.sendall(request.raw)
            if not request.is_framed:
                self._connection.shutdown(socket.SHUT_WR)
            answer = http.client.HTTPResponse(
                self._connection, method=request.raw.split(b" ", 1)[0].decode("latin-1")
            )
            answer.begin()
            status = answer.status
            answer.read()
            if not answer.will_close and request.is_framed:
                return status
        self._close()
        return status

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def send_all(world: ProcessWorld, requests: list[Malformed]) -> Counter[tuple[str, int]]:
    senders = [Sender(world.port) for _ in range(_SENDERS)]

    def work(place: int) -> None:
        for request in requests[place::_SENDERS]:
            senders[place].send(request)
        senders[place]._close()

    with ThreadPoolExecutor(_SENDERS) as pool:
        list(pool.map(work, range(_SENDERS)))
    return sum((sender.statuses for sender in senders), Counter())


def memory(world: ProcessWorld) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{world.first.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(world: ProcessWorld) -> int:
    """But for those of the database, whose connections wait in a pool of fixed size."""
    count = 0
    for descriptor in Path(f"/proc/{world.first.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += "proxy.sqlite3" not in str(descriptor.readlink())
    return count


@pytest.mark.nightly
def test_malformed_requests_change_nothing(world: ProcessWorld, promise: Promise) -> None:
    study = world.open_study(3)
    study.deliver(world.owners[0], values_of(3, 0))
    study.upload(world.owners[0], study.plain_chunks(values_of(3, 1)), 2)
    forge = Forge(study, _SEED)
    statuses = send_all(world, list(forge.requests(_WARM)))
    time.sleep(0.5)  # the last connections of the warming up are closed
    rows, bytes_before, files_before = dump(world.proxy), memory(world), open_files(world)
    # Made as they are sent: a signature is fresh for five minutes.
    for _ in range((_COUNT - _WARM) // 500):
        statuses += send_all(world, list(forge.requests(500)))
    bad = {(family, status): count for (family, status), count in statuses.items() if status >= 500}
    assert not bad
    well = {(family, status): count for (family, status), count in statuses.items() if 200 <= status < 300}
    assert set(well) <= {("path", 200), ("framing", 200)}, "a malformed request was obeyed"
    assert dump(world.proxy) == rows
    assert world.first.is_alive
    wait_for(lambda: open_files(world) <= files_before * _DRIFT, 20)
    more_files = open_files(world) - files_before
    drift = memory(world) / bytes_before
    assert drift <= _DRIFT
    assert world.request(None, "GET", "/readyz").status_code == 200
    promise(
        "P16",
        counted=f"{sum(statuses.values()):,} malformed requests of 5 families",
        result=f"0 answers 5xx, 0 rows changed, memory {drift - 1:+.1%}, files {more_files:+d}",
    )
