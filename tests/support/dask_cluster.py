"""A Dask scheduler and workers as real processes of this machine, over TLS with an authority of their own."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from certificates import Issued, issue
from proxy_world import free_port, wait_for

from dpdpca_runtime.cluster.address import SEAL_KEY_VARIABLE, Cluster, ClusterTls

START_SECONDS = 60.0


@dataclass
class DaskCluster:
    """A scheduler and its workers. A worker has one thread and one process of its own for calls.

    Args:
        folder: for keys, certificates and logs.
    """

    folder: Path
    port: int = field(default_factory=free_port)
    scheduler: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seal_key = self.folder / "seal.key"
        self.seal_key.touch(mode=0o600)
        self.seal_key.write_text(secrets.token_hex(32))
        authority = issue(self.folder, "cluster-authority", is_authority=True)
        self.certificate = issue(self.folder, "cluster-member", issuer=authority)
        self.authority = authority
        self.recorded.touch()

    @property
    def cluster(self) -> Cluster:
        return Cluster("127.0.0.1", self.port, self.seal_key, self.tls(), 0.0)

    def tls(self, member: Issued | None = None) -> ClusterTls:
        shown = member or self.certificate
        return ClusterTls(self.authority.certificate_file, shown.certificate_file, shown.key_file)

    @property
    def settings(self) -> dict[str, str | float]:
        """The settings of a proxy that uses this cluster for all its work."""
        tls = self.tls()
        return {
            "executor": f"dask://127.0.0.1:{self.port}",
            "executor_tls_ca": str(tls.ca),
            "executor_tls_cert": str(tls.cert),
            "executor_tls_key": str(tls.key),
            "executor_seal_key": str(self.seal_key),
            "executor_least_seconds": 0.0,
        }

    @property
    def variables(self) -> dict[str, str]:
        """The same for the environment of any role."""
        return {f"DPDPCA_{name.upper()}": str(value) for name, value in self.settings.items()}

    def start(self, workers: int = 2) -> None:
        """Starts a scheduler and workers, and waits until the workers are at the scheduler."""
        self.start_scheduler()
        self.start_workers(workers)

    def start_workers(self, count: int) -> None:
        registered = self._registered() + count
        for _ in range(count):
            self.start_worker()
        wait_for(lambda: self._registered() >= registered, START_SECONDS)

    def start_scheduler(self) -> None:
        preload = Path(__file__).with_name("recording_scheduler.py")
        self.scheduler = self._run(
            "scheduler",
            *("--host", "127.0.0.1", "--port", str(self.port), "--preload", str(preload)),
            RECORDED=str(self.recorded),
        )

    def start_worker(self) -> subprocess.Popen[bytes]:
        address = f"tls://127.0.0.1:{self.port}"
        worker = self._run("worker", address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny")
        self.workers.append(worker)
        return worker

    @property
    def recorded(self) -> Path:
        return self.folder / "received"

    def received(self) -> list[bytes]:
        """All frames that the scheduler received."""
        return [bytes.fromhex(line) for line in self.recorded.read_text().splitlines()]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in (*self.workers, *([self.scheduler] if self.scheduler else [])):
            if process.poll() is None:
                self.kill(process)

    def _run(self, what: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        tls = self.tls()
        command = [sys.executable, "-m", "dask", what, *arguments, "--no-dashboard", "--protocol", "tls"]
        command += ["--tls-ca-file", str(tls.ca), "--tls-cert", str(tls.cert), "--tls-key", str(tls.key)]
        variables = {SEAL_KEY_VARIABLE: str(self.seal_key)} if what == "worker" else {}
        log = self.folder / f"{what}-{secrets.token_hex(4)}.log"
        with log.open("wb") as out:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=out,
                stderr=out,
                env={
                    **os.environ,
                    **variables,
                    **environment,
                    "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true",
                },
            )

    def _registered(self) -> int:
        """How often a worker has come to a scheduler so far."""
        logs = (path.read_text() for path in self.folder.glob("worker-*.log"))
        return sum(log.count("Registered to:") for log in logs)


@contextmanager
def dask_cluster(folder: Path, workers: int = 2) -> Iterator[DaskCluster]:
    folder.mkdir(exist_ok=True)
    cluster = DaskCluster(folder)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.close()
