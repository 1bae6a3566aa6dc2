"""Threads and processes that do long work: the one way in which this product starts worker processes.

Threads serve what waits for a network, and powers that take milliseconds. They do not serve the products of
the cipher, which take microseconds: two threads spend as long handing the interpreter's lock to each other.

A worker process is a fresh interpreter. There is no fork, so nothing that threads hold is copied, and no two
processes share a state that random numbers come from. It imports what its first call needs and not the
program that started it. Secrets reach it through its pipe alone. It has a process group of its own, so that
Ctrl-C reaches its parent only, and it ends when the parent's end of the pipe is gone, even in the middle of a
call, however the parent ended.

Owners use `WorkerProcesses`, which share slices of one computation. Services use `BackgroundProcesses`, which
run single calls that take seconds to minutes.
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
from typing import IO, Any, Protocol, TypeVar

from dpdpca_protocol.errors import DpdpcaError, IntegrityError, UnavailableError
from dpdpca_runtime.cores import forbid_core_dumps
from dpdpca_runtime.system import detached_from_terminal, lower_priority

T = TypeVar("T")
Progress = Callable[..., None]

MOST_WORKERS = 32
_LENGTH_BYTES = 8
_PROGRESS, _DONE, _FAILED = "progress", "done", "failed"


class WorkerFailedError(IntegrityError):
    """A call in a worker raised what nobody planned. Its text may hold data, so only its class comes back."""

    def __init__(self, error_class: str) -> None:
        super().__init__("worker-failed", f"a worker failed: {error_class}", "report this as a bug")
        self.error_class = error_class

    def __reduce__(self) -> tuple[type["WorkerFailedError"], tuple[str]]:
        return WorkerFailedError, (self.error_class,)


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
                thread = threading.Thread(target=self._serve_calls, name="worker", daemon=True)
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

    def _serve_calls(self) -> None:
        """The life of a thread: one call at a time."""
        with self._call_runner() as do:
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
    def _call_runner(self) -> Iterator[Callable[[Any], Any]]:
        """What carries out the calls of one thread."""
        yield lambda call: call()

    def _end_all(self) -> None:
        """Cuts short what has begun, where that can be done."""


class WorkerProcess:
    """One worker process, started at once. It takes one call at a time.

    Args:
        niceness: how much it gives way to other processes, 0 to 19; the processes that it starts inherit it.
        library_threads: threads of the libraries beneath NumPy; None leaves their number to them.

    Raises:
        UnavailableError: `worker-died`, the system starts no more processes.
    """

    def __init__(self, niceness: int = 0, library_threads: int | None = None) -> None:
        program = f"from dpdpca_runtime.workers import work; work({niceness})"
        try:
            # -P: no module of the folder that the program happens to be in
            self._process = subprocess.Popen(  # noqa: S603 # our own interpreter
                [sys.executable, "-P", "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(library_threads),
                **detached_from_terminal(),
            )
        except OSError as error:
            raise _died(f"a worker process cannot be started: {error.strerror}") from error
        self._cut_short = False

    @property
    def is_usable(self) -> bool:
        return not self._cut_short and self._process.poll() is None

    def run(self, call: bytes, progress: Progress | None = None) -> Any:
        """The result of a packed call. What cuts it short ends the process.

        Args:
            call: from `pack`.
            progress: is given what the function tells.

        Raises:
            UnavailableError: `worker-died`.
            WorkerFailedError: the function raised what nobody planned.
            DpdpcaError: what the function raised.
            OSError: what the function raised, its number alone: the path may say too much.
        """
        try:
            self._send(call)
            kind, value = self._receive()
            while kind == _PROGRESS:
                if progress is not None:
                    progress(*value)
                kind, value = self._receive()
        except BaseException:
            self.kill()
            raise
        if kind == _FAILED:
            raise value
        return value

    def kill(self) -> None:
        """Whoever waits for its answer hears that it has died; `end` is still to be called."""
        self._cut_short = True
        self._process.kill()

    def end(self) -> None:
        """Lets the process go, and waits until it has gone; it does nothing more."""
        self._process.communicate()

    def _send(self, call: bytes) -> None:
        assert self._process.stdin is not None
        try:
            _send(self._process.stdin, call)
        except OSError:
            raise _died() from None

    def _receive(self) -> tuple[str, Any]:
        assert self._process.stdout is not None
        try:
            answer: tuple[str, Any] = pickle.loads(_receive(self._process.stdout))  # noqa: S301 # our own child
        except (OSError, EOFError, pickle.UnpicklingError):
            raise _died() from None
        return answer


class WorkerProcesses(WorkerThreads):
    """The same with a process behind each thread.

    Functions and arguments must pickle: top-level functions of installed packages. Errors come back as
    `WorkerProcess.run` says. When a worker dies every unfinished future fails with `worker-died`, and nothing
    more is taken. An exception that passes ends the processes at once.
    """

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._processes: list[WorkerProcess] = []

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return pack(fn, args, kwargs)

    @contextmanager
    def _call_runner(self) -> Iterator[Callable[[Any], Any]]:
        process: WorkerProcess | None = None

        def ask(call: bytes) -> Any:
            nonlocal process
            try:
                process = process or self._start()
                return process.run(call)
            finally:
                if process is None or not process.is_usable:
                    self._end_all()

        try:
            yield ask
        finally:
            if process is not None:
                process.end()

    def _end_all(self) -> None:
        with self._lock:
            self._broken = True
            for process in self._processes:
                process.kill()

    def _start(self) -> WorkerProcess:
        with self._lock:
            if self._broken:
                raise _died()
            process = WorkerProcess(library_threads=1)  # there is one process for each core
            self._processes.append(process)
            return process


class Background(Protocol):
    """Where the long calls of a service run, away from its requests."""

    def call(self, function: Callable[..., T], /, *args: Any, progress: Progress | None = None) -> T: ...

    def close(self) -> None: ...


class BackgroundProcesses:
    """Runs each call in a worker process, until `close`. Any thread may call, several at once.

    Args:
        keep: whether a process waits for the next call. Otherwise each call has a fresh one, and what it was
            told in confidence is gone with it.
        niceness: as for `WorkerProcess`.
    """

    def __init__(self, *, keep: bool = False, niceness: int = 0) -> None:
        self._keep = keep
        self._niceness = niceness
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._closed = False

    def call(self, function: Callable[..., T], /, *args: Any, progress: Progress | None = None) -> T:
        """Waits for `function(*args)` in a worker process.

        Args:
            function: a top-level function of an installed package.
            args: pickle.
            progress: if given, the function has a parameter of this name, and what it tells there comes here.

        Raises:
            UnavailableError: `worker-died`, also after `close`. The next call has a new process.
            Exception: see `WorkerProcess.run`.
        """
        packed = pack(function, args, {}, tells=progress is not None)
        process = self._take()
        try:
            result: T = process.run(packed, progress)
            return result
        finally:
            self._give_back(process)

    def close(self) -> None:
        """Ends what runs: each call can be made again."""
        with self._lock:
            self._closed = True
            for process in (*self._idle, *self._busy):
                process.kill()
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _take(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise _died("this service is stopping")
            process = None
            while process is None and self._idle:
                process = self._idle.pop()
                if not process.is_usable:
                    process.end()
                    process = None
            process = process or WorkerProcess(self._niceness)
            self._busy.add(process)
            return process

    def _give_back(self, process: WorkerProcess) -> None:
        with self._lock:
            self._busy.remove(process)
            is_kept = self._keep and process.is_usable
            if is_kept:
                self._idle.append(process)
        if not is_kept:
            process.end()


def pack(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, tells: bool = False
) -> bytes:
    """A call as it goes to a worker.

    Args:
        function: a top-level function of an installed package.
        args: pickle.
        kwargs: likewise.
        tells: whether the function is given `progress`, to tell how far it is.

    Raises:
        Exception: something does not pickle.
    """
    return pickle.dumps((function, args, kwargs, tells))


def _environment(library_threads: int | None) -> dict[str, str]:
    """Ours without the settings of the roles, which may hold passwords."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DPDPCA_")}
    if library_threads is not None:
        inherited |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(library_threads))
    return inherited


def _died(problem: str = "a worker process ended early") -> UnavailableError:
    return UnavailableError("worker-died", problem, "try again", retry_after_seconds=1)


# In the worker


def work(niceness: int) -> None:
    """The life of a worker: calls come by its standard input, answers leave by its output."""
    forbid_core_dumps()
    lower_priority(niceness)
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not stand between the answers
    waiting: SimpleQueue[bytes] = SimpleQueue()
    # It waits for calls while one is under way, and so it notices at once when the parent has gone.
    threading.Thread(target=_take_calls, args=(calls, waiting), daemon=True).start()
    while True:
        _answer(waiting.get(), answers)


def _take_calls(calls: IO[bytes], waiting: "SimpleQueue[bytes]") -> None:
    try:
        while True:
            waiting.put(_receive(calls))
    except (OSError, EOFError):
        # Nobody waits for destructors of tables that take megabytes.
        os._exit(0)


def _answer(call: bytes, answers: IO[bytes]) -> None:
    """Does one call. Nothing of it stays in memory while the next one is awaited."""

    def tell(kind: str, value: Any) -> None:
        message = pickle.dumps((kind, value))
        try:
            _send(answers, message)
        except OSError:
            os._exit(1)  # the parent has gone

    def progress(*values: Any) -> None:
        tell(_PROGRESS, values)

    try:
        function, args, kwargs, tells = pickle.loads(call)  # noqa: S301 # of our own parent
        del call
        tell(_DONE, function(*args, **kwargs, **({"progress": progress} if tells else {})))
    except Exception as error:
        tell(_FAILED, _as_told(error))


def _as_told(error: Exception) -> Exception:
    """What the parent hears of an error."""
    if isinstance(error, DpdpcaError):
        return error
    if isinstance(error, MemoryError):
        return UnavailableError("out-of-memory", "a worker process found no memory left", "make some free")
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, os.strerror(error.errno))
    return WorkerFailedError(type(error).__name__)


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
