"""Chunks per second, and how long each takes, at one, two and four proxies with one database and one store.

`python -m dpdpca_lab.benchmarks.proxies SERVER STORE` takes some minutes. SERVER is the address of a
PostgreSQL server whose user may create databases, and STORE a bucket, as in the settings. All runs alternate,
so only their ratios mean something. Each process is held to a part of a core by the kernel's control groups,
so that clients, database and store are not the limit. That needs root and a writable /sys/fs/cgroup.

Sixteen owners send at once, each the chunks of its shares in three studies, and wait for each answer. The
clock runs from the third chunk of all owners until the first owner has nothing left to send.
"""

import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier, Event
from typing import TypeAlias

import psycopg
from sqlalchemy import make_url

from dpdpca_cli.federation.parties import LocalParty, is_ready
from dpdpca_cli.federation.processes import ChildProcesses, free_port, inherited_environment
from dpdpca_lab.scale.uploads import START_SECONDS, OpenStudy, enrol_all, open_study, sealed_share
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.files import private_dir
from dpdpca_runtime.http.client import ProxyClient

COUNTS = (1, 2, 4)
HELD = 0.25
"""Of a core, for each process."""
ROUNDS = 3
OWNERS = 16
STUDIES = 3
FEATURES = 1000
WARMING = 2
"""Chunks that each owner sends before the clock runs: a new process loads and caches much."""
_PERIOD = 100_000
"""Microseconds after which the kernel counts anew, as for containers: who uses up its part stands still."""

Chunk: TypeAlias = tuple[StudyId, int, bytes]
"""The study, the position and the sealed body."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What so many processes took in, from clients that send at once.

    Attributes:
        per_second: chunks.
        median, slow: seconds that a chunk took, and the ninth of ten.
    """

    per_second: float
    median: float
    slow: float


@contextmanager
def held(process: int) -> Iterator[None]:
    """Holds a process and its children to a part of a core."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup", *([] if unified else ["cpu"])) / f"dpdpca-bench-{process}"
    quota = int(HELD * _PERIOD)
    limits = (
        {"cpu.max": f"{quota} {_PERIOD}"}
        if unified
        else {"cpu.cfs_period_us": f"{_PERIOD}", "cpu.cfs_quota_us": f"{quota}"}
    )
    everybody = group.parent / "cgroup.procs"
    try:
        group.mkdir()
        for file, value in limits.items():
            (group / file).write_text(value)
        members = [process, *_children(process)]
        _move(members, group / "cgroup.procs")
    except OSError as error:
        raise UsageError(
            "bad-argument", "a process cannot be held to a part of a core here", "run this as root on Linux"
        ) from error
    try:
        yield
    finally:
        _move(map(int, (group / "cgroup.procs").read_text().split()), everybody)
        group.rmdir()


def _children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [number for child in map(int, listed) for number in (child, *_children(child))]


def _move(processes: Iterable[int], group: Path) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            group.write_text(f"{process}")


@dataclass(frozen=True, slots=True)
class Relay:
    """Proxy processes of one home, and who sends to them.

    Attributes:
        urls: of the processes.
        processes: their ids.
        pinned: the key of the proxy.
        user, owners: enrolled keys.
    """

    urls: tuple[str, ...]
    processes: tuple[int, ...]
    pinned: bytes
    user: IdentityKey
    owners: tuple[IdentityKey, ...]


@contextmanager
def running_relay(server: str, store: str, count: int) -> Iterator[Relay]:
    """Starts `count` proxy processes of one home with a new database."""
    name = f"dpdpca_bench_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
    ports = [free_port() for _ in range(count)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    settings = {
        **inherited_environment(),
        "DPDPCA_PROXY_URL": urls[0],
        "DPDPCA_PROXY_ALSO_KNOWN_AS": json.dumps([f"127.0.0.1:{port}" for port in ports[1:]]),
        "DPDPCA_PROXY_DATABASE": make_url(server).set(database=name).render_as_string(hide_password=False),
        "DPDPCA_PROXY_STORE": f"{store}/{name}",
        "DPDPCA_PROXY_ADDRESS_REQUESTS": "100000",
    }
    with (
        tempfile.TemporaryDirectory(prefix="dpdpca-bench-") as folder,
        ChildProcesses(Path(folder), {}) as processes,
    ):
        home = private_dir(Path(folder) / "proxy")
        serving = list[int]()
        for port, url in zip(ports, urls, strict=True):
            listens = {"DPDPCA_PROXY_PORT": f"{port}", "DPDPCA_PROXY_OPERATOR_PORT": f"{free_port()}"}
            party = LocalParty("proxy", "Relay", home, settings | listens)
            if not serving:
                processes.run("proxy init", party.init(), party.environment)
            child = processes.start("proxy", party.serve(), party.environment, is_server=True)
            processes.wait_until(partial(is_ready, url), START_SECONDS, child, "was not ready")
            serving.append(child.process.pid)
        pinned, (user, *owners) = enrol_all(processes, party, urls[0], OWNERS)
        yield Relay(tuple(urls), tuple(serving), pinned, user, tuple(owners))


def measure(relay: Relay, count: int) -> Rate:
    """Sends shares in new studies to the first `count` processes. The others have nothing to do."""
    url, user = relay.urls[0], relay.user
    studies = [open_study(url, relay.pinned, user, OWNERS, FEATURES) for _ in range(STUDIES)]
    chunks = [list(_chunks_of(owner, studies)) for owner in relay.owners]
    with ExitStack() as stack:
        for process in relay.processes[:count]:
            stack.enter_context(held(process))
        rate = _send(relay, relay.urls[:count], chunks)
    with ProxyClient(url, user, relay.pinned) as client:
        for study in studies:
            client.cancel_study(study.signed.study_id, StudyAct("cancel", study.signed.study_id).sign(user))
    return rate


def _chunks_of(owner: IdentityKey, studies: Sequence[OpenStudy]) -> Iterator[Chunk]:
    """The chunks of one share in each study, the studies in turn."""
    shares = [(study.signed.study_id, sealed_share(study, owner)[0]) for study in studies]
    for index in range(len(shares[0][1])):
        for study, bodies in shares:
            yield study, index, bodies[index]


def _send(relay: Relay, urls: Sequence[str], chunks: Sequence[Sequence[Chunk]]) -> Rate:
    """All owners at once, each at one of the processes, until the first has nothing left to send."""
    owners = relay.owners
    ready, begun, ended = Barrier(len(owners)), Event(), Event()
    taken: list[float] = []
    clock = [0.0, 0.0]

    def put_all(place: int) -> None:
        with ProxyClient(urls[place % len(urls)], owners[place], relay.pinned) as client:
            for study, index, body in chunks[place][:WARMING]:
                client.put_chunk(study, 1, index, body)
            if ready.wait() == 0:
                clock[0] = time.perf_counter()
                begun.set()
            begun.wait()
            for study, index, body in chunks[place][WARMING:]:
                begin = time.perf_counter()
                client.put_chunk(study, 1, index, body)
                if ended.is_set():
                    return
                taken.append(time.perf_counter() - begin)
            if not ended.is_set():
                ended.set()
                clock[1] = time.perf_counter()

    with ThreadPoolExecutor(len(owners)) as pool:
        list(pool.map(put_all, range(len(owners))))
    rate = len(taken) / (clock[1] - clock[0])
    return Rate(rate, statistics.median(taken), statistics.quantiles(taken, n=10)[-1])


def main(server: str, store: str) -> None:
    found: dict[int, list[Rate]] = {count: [] for count in COUNTS}
    with running_relay(server, store, max(COUNTS)) as relay:
        for _ in range(ROUNDS):
            for count in COUNTS:
                found[count].append(measure(relay, count))
    print("processes   chunks/s   relative   in the rounds   median    nine of ten")
    first, alone = 0.0, found[COUNTS[0]]
    for count, rates in found.items():
        rate, median, slow = (
            statistics.median(getattr(each, name) for each in rates)
            for name in ("per_second", "median", "slow")
        )
        first = first or rate
        rounds = ", ".join(
            f"{each.per_second / one.per_second:.2f}" for each, one in zip(rates, alone, strict=True)
        )
        print(
            f"{count:9}   {rate:8.1f}   {rate / first:8.2f}   {rounds:>13}   {median:5.2f} s   {slow:5.2f} s"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
