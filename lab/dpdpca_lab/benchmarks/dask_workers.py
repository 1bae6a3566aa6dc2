"""Products and a masked release on one and two Dask workers, beside the proxy's own worker processes.

`python -m dpdpca_lab.benchmarks.dask_workers` takes some minutes. Scheduler and workers run on
this machine, each worker with one thread. All are measured in turns, so only the ratios mean something.
"""

import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from dpdpca_lab.benchmarks.measure import seconds_of
from dpdpca_lab.benchmarks.phases import RECORDS, Size, stored_products, stored_shares, with_cores
from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.study import ReleaseKind
from dpdpca_proxy.precomputed import prepare_residues
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_proxy.worker import draw, make_release, multiply_chunks
from dpdpca_runtime.cluster.address import SEAL_KEY_VARIABLE, Cluster
from dpdpca_runtime.cluster.carrier import InMessage
from dpdpca_runtime.cluster.executor import ClusterExecutor
from dpdpca_runtime.files import write_private

ROUNDS = 3
START_SECONDS = 60.0
SHARES = Size(617, 100, 3072, ReleaseKind.JOINT, 2)
RELEASE = Size(64, 3, 3072, ReleaseKind.MASKED, 2)

Phase = Callable[[StudyFiles], object]


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """A scheduler and workers on loopback, ready for work."""
    seal_key = folder / f"seal-{workers}.key"
    write_private(seal_key, secrets.token_hex(32).encode())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    dask = [sys.executable, "-m", "dask"]
    common = ["--host", "127.0.0.1", "--no-dashboard"]
    commands = [[*dask, "scheduler", *common, "--port", str(port)]]
    commands += [
        [*dask, "worker", f"tcp://127.0.0.1:{port}", *common, "--nthreads", "1", "--no-nanny"]
    ] * workers
    with ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, SEAL_KEY_VARIABLE: str(seal_key)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        made = Cluster("127.0.0.1", port, seal_key, None, 0.0)
        _wait(made, workers)
        yield made


def _wait(made: Cluster, workers: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with ClusterExecutor(made, InMessage()) as executor:
                if executor.workers == workers:
                    list(executor.map(abs, range(4 * workers)))  # its processes are started
                    return
        except UnavailableError:
            pass
        time.sleep(0.2)
    raise UnavailableError("cluster-unreachable", "the Dask cluster of the benchmark did not start")


def compare(name: str, place: StudyFiles, phase: Phase, clusters: list[Cluster]) -> list[str]:
    """The rows of a table: seconds of each way, and its speed relative to one worker process."""
    ways: dict[str, Callable[[], object]] = {
        f"{count} worker process{'es' if count > 1 else ''}": partial(
            with_cores, count, partial(phase, place)
        )
        for count in (1, 2)
    }
    for count, each in enumerate(clusters, 1):
        there = replace(place, cluster=each)
        ways[f"{count} Dask worker{'s' if count > 1 else ''}"] = partial(phase, there)
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, run in ways.items():
            found[way].append(seconds_of(run))
    seconds = {way: statistics.median(times) for way, times in found.items()}
    first = next(iter(seconds.values()))
    return [f"{name:10} {way:20} {s:7.2f} s  {first / s:5.2f}" for way, s in seconds.items()]


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        clusters = [stack.enter_context(cluster(folder, count)) for count in (1, 2)]
        print("phase      where                seconds    speed relative to 1 worker process")
        place, wanted = stored_shares(SHARES, folder / "shares")
        print(*compare("aggregate", place, lambda files: multiply_chunks(files, wanted), clusters), sep="\n")
        place, products = stored_products(RELEASE, folder / "release")
        figures = RELEASE.figures
        token = draw(place, figures, RECORDS)
        while prepare_residues(place, RELEASE.layout.release_count):
            pass

        def release(files: StudyFiles) -> object:
            return make_release(files, figures, RECORDS, products, token)

        print(*compare("release", place, release, clusters), sep="\n")


if __name__ == "__main__":
    main()
