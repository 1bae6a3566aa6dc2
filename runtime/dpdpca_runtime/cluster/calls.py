"""Calls that pass a scheduler which must not read them.

A call and its result are kept by a `Carrier`: in the store of a study, or, if they are small, in the message.
The scheduler sees an envelope, which is sealed under a key that the caller and all workers have. The envelope
says which carrier keeps the call, and where. What comes back is sealed in the same way.

A worker executes the calls in a process of its own, which ends when there was no call for a while. So the
secrets of a study do not outlive its work by more than `IDLE_SECONDS`, and this process is not dumped when it
crashes. If a call is executed twice, each execution keeps its own result, and the caller takes one of them.
"""

import io
import os
import pickle
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpdpca_protocol.errors import DpdpcaError, IntegrityError, UnavailableError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.prefetch import Shared
from dpdpca_protocol.wire.sealing import open_at_rest, seal_at_rest
from dpdpca_runtime.cluster.address import SEAL_KEY_VARIABLE, load_seal_key
from dpdpca_runtime.cluster.carrier import Carrier
from dpdpca_runtime.workers import BackgroundProcesses, as_told

IDLE_SECONDS = 30.0
TOKEN_BYTES = 16
_CALL, _OUTCOME = b"dpdpca/cluster-call/v1/", b"dpdpca/cluster-outcome/v1/"
_RETRY_AFTER_SECONDS = 10


class CallPickler(pickle.Pickler):
    """Pickles a call. A `Shared` value becomes the ticket that `carry` returns for it."""

    def __init__(self, file: io.BytesIO, carry: Callable[[Shared], bytes]) -> None:
        super().__init__(file)
        self._carry = carry

    def persistent_id(self, value: object) -> bytes | None:
        return self._carry(value) if isinstance(value, Shared) else None


class _CallUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes, carrier: Carrier) -> None:
        super().__init__(io.BytesIO(content))
        self._carrier = carrier

    def persistent_load(self, ticket: bytes) -> Shared:
        if ticket not in _shared_here:
            value = pickle.loads(self._carrier.get(ticket))  # noqa: S301 # sealed by our caller
            _shared_here.clear()
            _shared_here[ticket] = value
        return _shared_here[ticket]


_shared_here: dict[bytes, Shared] = {}
"""The last shared value of this worker: the calls of one release all have the same."""


# The caller


def seal_call(token: bytes, carrier: Carrier, ticket: bytes, key: bytes) -> bytes:
    """The envelope of a call that `carrier` keeps under `ticket`."""
    return seal_at_rest(pickle.dumps((_version(), carrier, ticket)), key, _CALL + token, OS_RANDOMNESS)


def open_outcome(token: bytes, sealed: bytes, carrier: Carrier, key: bytes) -> Any:
    """The result of a call.

    Raises:
        UnavailableError: `worker-refused`, the outcome is not that of this call.
        Exception: the error of the call.
    """
    try:
        opened = open_at_rest(sealed, key, _OUTCOME + token)
    except IntegrityError as error:
        raise _refused("a Dask worker gave an answer that cannot be opened") from error
    raised, ticket = pickle.loads(opened)  # noqa: S301 # sealed by a worker, which is trusted
    if raised is not None:
        raise raised
    return pickle.loads(carrier.get(ticket))  # noqa: S301 # the same


# A worker


def run_call(token: bytes, envelope: bytes) -> bytes:
    """Executes a call on a Dask worker, and returns its sealed outcome.

    Raises:
        UnavailableError: the call cannot be opened or its outcome cannot be kept, or the process died.
    """
    named = os.environ.get(SEAL_KEY_VARIABLE)
    if not named:
        raise _refused(f"{SEAL_KEY_VARIABLE} is not set on a Dask worker")
    return _calls_here.run(token, envelope, Path(named))


def execute(token: bytes, envelope: bytes, key_file: Path) -> bytes:
    """Opens a call, executes it, and returns its sealed outcome. Raises like `run_call`."""
    try:
        key = load_seal_key(key_file)
        opened = open_at_rest(envelope, key, _CALL + token)
    except DpdpcaError as error:
        raise _refused("the seal key of a Dask worker is missing, or differs from the caller's") from error
    theirs, carrier, ticket = pickle.loads(opened)  # noqa: S301 # sealed by our caller
    if theirs != _version():
        raise _refused(f"a Dask worker has dpdpca {_version()}, but its caller has {theirs}")
    try:
        call = carrier.get(ticket)
    except (DpdpcaError, OSError) as error:
        raise _refused("a Dask worker cannot read the files of the proxy") from error
    outcome = pickle.dumps(_outcome(call, carrier))
    return seal_at_rest(outcome, key, _OUTCOME + token, OS_RANDOMNESS)


def _outcome(call: bytes, carrier: Carrier) -> tuple[Exception | None, bytes]:
    try:
        function, args, kwargs = _CallUnpickler(call, carrier).load()
        return None, carrier.put(pickle.dumps(function(*args, **kwargs)))
    except Exception as error:
        return as_told(error), b""


class _CallsHere:
    """The process of a Dask worker that executes its calls; it ends after `IDLE_SECONDS` without a call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: BackgroundProcesses | None = None
        self._running = 0
        self._timer: threading.Timer | None = None

    def run(self, token: bytes, envelope: bytes, key_file: Path) -> bytes:
        with self._lock:
            self._running += 1
            if self._timer is not None:
                self._timer.cancel()
            processes = self._processes = self._processes or BackgroundProcesses(keep=True, library_threads=1)
        try:
            return processes.call(execute, token, envelope, key_file)
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._timer = threading.Timer(IDLE_SECONDS, self._end)
                    self._timer.daemon = True
                    self._timer.start()

    def _end(self) -> None:
        with self._lock:
            if not self._running and self._processes is not None:
                self._processes.close()
                self._processes = None


_calls_here = _CallsHere()


def _version() -> str:
    return version("dpdpca")


def _refused(problem: str) -> UnavailableError:
    return UnavailableError(
        "worker-refused",
        problem,
        "give every worker the proxy's version, seal key and store",
        retry_after_seconds=_RETRY_AFTER_SECONDS,
    )
