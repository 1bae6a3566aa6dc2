"""Executes calls on a Dask cluster. Dask is imported with the first connection."""

import io
import logging
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dpdpca_protocol.errors import DpdpcaError, UnavailableError
from dpdpca_protocol.release.prefetch import Shared
from dpdpca_runtime.cluster.address import Cluster, load_seal_key
from dpdpca_runtime.cluster.calls import (
    TOKEN_BYTES,
    CallPickler,
    open_outcome,
    run_call,
    seal_call,
)
from dpdpca_runtime.cluster.carrier import Carrier
from dpdpca_runtime.workers import WorkerThreads

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as DaskFuture

_CONNECT_SECONDS = 10.0
_POLL_SECONDS = 1.0
"""How often a waiting call looks whether the scheduler is still there."""
_WORKERLESS_SECONDS = 30.0
"""How long a call waits for a worker to come back."""
_CALLS_AHEAD = 3
"""How many calls for each thread of a worker are under way: while one is computed, others are carried."""
_RETRY_AFTER_SECONDS = 10


class ClusterExecutor(WorkerThreads):
    """An executor whose calls run on the workers of a Dask cluster, like those of `WorkerProcesses`.

    Each thread here waits for one call. If a worker dies, the scheduler gives its calls to another one. If
    the scheduler is gone, or there is no worker, the calls fail, and the work can be tried again.

    Args:
        cluster: where the cluster is.
        carrier: keeps calls and results; closed with the executor.

    Attributes:
        workers: the number of threads of all workers at the start.

    Raises:
        UnavailableError: `cluster-unreachable`, or there is no worker.
        UsageError, PolicyError: the seal key or the certificates cannot be used.
    """

    def __init__(self, cluster: Cluster, carrier: Carrier) -> None:
        self._cluster, self._carrier = cluster, carrier
        self._key = load_seal_key(cluster.seal_key)
        self._carrying = threading.Lock()
        self._shared: dict[int, tuple[Shared, bytes]] = {}
        self._is_ended = False
        self._client = _connect(cluster)
        try:
            self.workers = self._count_workers()
            if not self.workers:
                raise self._workerless()
            super().__init__(_CALLS_AHEAD * self.workers)
        except BaseException:
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._leave()
            # What cannot be deleted now is deleted with the study.
            with suppress(DpdpcaError, OSError):
                self._carrier.close()

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        call = io.BytesIO()
        CallPickler(call, self._carry).dump((fn, args, kwargs))
        return call.getvalue()

    def _carry(self, value: Shared) -> bytes:
        with self._carrying:
            if id(value) not in self._shared:
                # The value is kept, so that no other value gets its number.
                self._shared[id(value)] = value, self._carrier.put(pickle.dumps(value))
            return self._shared[id(value)][1]

    @contextmanager
    def _call_runner(self) -> Iterator[Callable[[Any], Any]]:
        yield self._ask

    def _end_all(self) -> None:
        self._is_ended = True

    def _ask(self, call: bytes) -> Any:
        token = secrets.token_bytes(TOKEN_BYTES)
        envelope = seal_call(token, self._carrier, self._carrier.put(call), self._key)
        with self._telling():
            task = self._client.submit(run_call, token, envelope, key=f"dpdpca-{token.hex()}", pure=False)
            try:
                outcome = self._wait(task)
            finally:
                task.release()
        return open_outcome(token, outcome, self._carrier, self._key)

    def _wait(self, task: "DaskFuture[bytes]") -> bytes:
        is_done = threading.Event()
        task.add_done_callback(lambda _: is_done.set())
        last_seen = time.monotonic()
        while not is_done.wait(_POLL_SECONDS):
            if self._is_ended:
                raise CancelledError
            if self._client.status != "running":
                raise self._cluster.unreachable("went away")
            if self._count_workers():
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > _WORKERLESS_SECONDS:
                raise self._workerless()
        if task.cancelled():  # a scheduler that was started again does not know it
            raise self._cluster.unreachable("went away")
        return task.result()

    def _count_workers(self) -> int:
        with self._telling():
            return sum(self._client.nthreads().values())

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Replaces what Dask raises by an error of ours, which says what to do."""
        try:
            yield
        except DpdpcaError:
            raise
        except (CancelledError, TimeoutError, OSError) as error:
            if self._is_ended:
                raise
            raise self._cluster.unreachable("went away") from error
        except Exception as error:
            raise UnavailableError(
                "cluster-failing",
                f"the Dask cluster {self._cluster.url} could not finish a call: {type(error).__name__}",
                "look into the logs of its workers; the work is tried again",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            ) from error

    def _leave(self) -> None:
        with suppress(Exception):  # whatever Dask says, we are done with it
            self._client.close(timeout=_POLL_SECONDS)

    def _workerless(self) -> UnavailableError:
        return UnavailableError(
            "cluster-without-workers",
            f"the Dask scheduler {self._cluster.url} has no worker",
            "start workers; the work is tried again",
            retry_after_seconds=_RETRY_AFTER_SECONDS,
        )


def _connect(cluster: Cluster) -> "Client":
    cluster.check_installed()
    from distributed import Client, Security

    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # our errors say what Dask would say
    cluster.probe()  # Dask itself would try for some time
    security = None
    if cluster.tls is not None:
        security = Security(
            tls_ca_file=str(cluster.tls.ca),
            tls_client_cert=str(cluster.tls.cert),
            tls_client_key=str(cluster.tls.key),
            require_encryption=True,
        )
    try:
        return Client(
            cluster.url,
            security=security,
            timeout=_CONNECT_SECONDS,
            set_as_default=False,
            name="dpdpca",
        )
    except OSError as error:
        raise cluster.unreachable() from error
