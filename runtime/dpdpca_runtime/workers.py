"""Threads and processes that take slices of long work, behind the interface of `concurrent.futures`.

Threads serve what waits for a network, and powers that take milliseconds. They do not serve the products of
the cipher, which take microseconds: two threads spend as long handing the interpreter's lock to each other. A
worker process is a fresh interpreter (no fork, so nothing that threads hold is copied), which imports what
its first slice needs and not the program that started it. Secrets reach it through its pipe alone. It has a
process group of its own, so that Ctrl-C comes to its parent, and it ends when the parent's end of the pipe is
gone, however the parent ended.
"""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Any, TypeVar

from dpdpca_protocol.errors import DpdpcaError, IntegrityError, UnavailableError

T = TypeVar("T")

MOST_WORKERS = 32
_LENGTH_BYTES = 8
_PROGRAM = "from dpdpca_runtime.workers import work; work()"


def core_count() -> int:
    """Cores that this process may use, at most `MOST_WORKERS`."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux alone tells which cores are ours
    return min(len(allowed(0)) if allowed else os.cpu_count() or 1, MOST_WORKERS)


class WorkerThreads(Executor):
    """`count` threads of this process, each started when there is first something for it to do.

    As a context manager it waits for what was submitted; when an exception passes, it drops what waits and
    waits for what has begun. After an interrupt it waits for no thread at all, which the standard pool does
    for ever once in a long while: Ctrl-C may strike right after the main thread has taken a future's lock and
    before it is bound to give it back, and then whoever has to set that future stands still.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError("there must be at least one worker")
        self.count = count
        self._jobs: SimpleQueue[tuple[Future[Any], Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = self._broken = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Raises RuntimeError after `shutdown`, UnavailableError after a worker has died."""
        call = self._call(fn, args, kwargs)
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("these workers were shut down")
            if self._broken:
                raise _died()
            self._unfinished += 1
            self._jobs.put((future, call))
            if self._unfinished > len(self._threads) < self.count:
                thread = threading.Thread(target=self._attend, name="worker", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes nothing more; see `Executor.shutdown`."""
        with self._lock:
            first, self._closed = not self._closed, True
        if cancel_futures:
            self._cancel()
        if first:
            for _ in self._threads:
                self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._cancel()
            self._end_all()
        self.shutdown(wait=error is None or isinstance(error, Exception))

    def _cancel(self) -> None:
        ends = 0
        with suppress(Empty):
            while True:
                # without waiting: a worker may take the last job between a look and a grasp
                job = self._jobs.get_nowait()
                if job is None:
                    ends += 1
                else:
                    job[0].cancel()
        for _ in range(ends):
            self._jobs.put(None)

    def _attend(self) -> None:
        """The life of a thread: one call at a time."""
        with self._hand() as do:
            while (job := self._jobs.get()) is not None:
                future, call = job
                if future.set_running_or_notify_cancel():
                    try:
                        value = do(call)
                    except BaseException as error:
                        future.set_exception(error)
                    else:
                        future.set_result(value)
                    # nothing of it may stay in memory while this thread waits for the next
                    value = None
                del job, future, call
                with self._lock:
                    self._unfinished -= 1

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a thread is handed."""
        return partial(fn, *args, **kwargs)

    @contextmanager
    def _hand(self) -> Iterator[Callable[[Any], Any]]:
        """What carries out the calls of one thread."""
        yield lambda call: call()

    def _end_all(self) -> None:
        """Cuts short what has begun, where that can be done."""


class WorkerProcesses(WorkerThreads):
    """The same with a process behind each thread.

    Functions and arguments must pickle: top-level functions of installed packages. A `DpdpcaError` comes back
    as it was raised, anything else as `worker-failed` with its class alone, since its text may hold data.
    When a worker dies every unfinished future fails with `worker-died`, and nothing more is taken. An
    exception that passes ends the processes at once.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._processes: list[subprocess.Popen[bytes]] = []

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return pickle.dumps((fn, args, kwargs))

    @contextmanager
    def _hand(self) -> Iterator[Callable[[Any], Any]]:
        process: subprocess.Popen[bytes] | None = None

        def ask(call: bytes) -> Any:
            nonlocal process
            try:
                process = process or self._start()
                succeeded, value = _ask(process, call)
            except (OSError, EOFError, pickle.UnpicklingError, UnavailableError):
                self._end_all()
                raise _died() from None
            if not succeeded:
                raise value
            return value

        try:
            yield ask
        finally:
            if process is not None:
                process.communicate()

    def _end_all(self) -> None:
        with self._lock:
            self._broken = True
            for process in self._processes:
                process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._broken:
                raise _died()
            # -P: no module of the folder that the program happens to be in
            process = subprocess.Popen(  # noqa: S603 # our own interpreter
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,
                env=_environment(),
            )
            self._processes.append(process)
            return process


def _environment() -> dict[str, str]:
    """Ours without the settings of the roles, which may hold passwords; one thread for each worker."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DPDPCA_")}
    return inherited | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _died() -> UnavailableError:
    return UnavailableError("worker-died", "a worker process ended early", "do it again")


def _ask(process: subprocess.Popen[bytes], call: bytes) -> tuple[bool, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    _send(process.stdin, call)
    answer: tuple[bool, Any] = pickle.loads(_receive(process.stdout))  # noqa: S301 # of our own child
    return answer


def work() -> None:
    """The life of a worker: calls come by its standard input, answers leave by its output."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not stand between the answers
    while True:
        try:
            call = _receive(calls)
        except EOFError:
            # Nobody waits for destructors of tables that take megabytes.
            os._exit(0)
        try:
            function, args, kwargs = pickle.loads(call)  # noqa: S301 # of our own parent
            answer = pickle.dumps((True, function(*args, **kwargs)))
        except DpdpcaError as error:
            answer = pickle.dumps((False, error))
        except Exception as error:
            failed = IntegrityError("worker-failed", f"a worker failed: {type(error).__name__}")
            answer = pickle.dumps((False, failed))
        try:
            _send(answers, answer)
        except BrokenPipeError:
            os._exit(1)


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_LENGTH_BYTES, "big"))
    stream.write(message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    length = int.from_bytes(_exactly(stream, _LENGTH_BYTES), "big")
    return _exactly(stream, length)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    found = stream.read(count)
    if len(found) != count:
        raise EOFError
    return found
