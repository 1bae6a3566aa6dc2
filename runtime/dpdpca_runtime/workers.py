"""Threads and processes for long work.

All worker processes of DPDPCA are started here. Threads are useful for waiting on a network and for
powers that take milliseconds. Threads are useless for the products of the cipher, which take microseconds:
two threads would spend as much time passing the interpreter's lock to each other. A worker process is a new
interpreter. There is no fork, so locks held by threads are not copied, and no two processes share the state
of a random number generator. A worker process imports only what its calls need, and never the program that
started it. Secrets only reach a worker process through its pipe. A worker process has its own process group,
so that Ctrl-C only reaches its parent. A worker process ends when the parent's end of the pipe is closed,
even in the middle of a call and however the parent ended. Owners use `WorkerProcesses`, which share slices of
one computation. Services use `BackgroundProcesses`, which run single calls of seconds to minutes.
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
    """A call in a worker raised an unexpected exception.

    The exception's text may contain data, so only its class is returned.
    """

    def __init__(self, error_class: str) -> None:
        super().__init__(
            "worker-failed",
            f"a worker failed with an unexpected error: {error_class}",
            "report this as a bug",
        )
        self.error_class = error_class

    def __reduce__(self) -> tuple[type["WorkerFailedError"], tuple[str]]:
        return WorkerFailedError, (self.error_class,)


def core_count() -> int:
    """The number of cores that this process may use, at most `MOST_WORKERS`."""
    allowed = getattr(os, "sched_getaffinity", None)  # only Linux reports which cores are ours
    return min(len(allowed(0)) if allowed else os.cpu_count() or 1, MOST_WORKERS)


class WorkerThreads(Executor):
    """A pool of `count` threads, each started when it is first needed.

    As a context manager, the pool waits for submitted calls. If an exception leaves the block, it drops
    waiting calls and waits for running ones. After an interrupt, the pool waits for no thread. Python's
    `ThreadPoolExecutor` would then, in rare cases, wait forever: Ctrl-C may arrive after the main thread has
    taken a future's lock and before it will surely release it, and then the thread that must set this future
    blocks.
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
        """Submits a call.

        Raises RuntimeError after `shutdown`, and UnavailableError after a worker has died.
        """
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
        """Accepts no more calls; see `Executor.shutdown`."""
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
                # without waiting: a worker may take the last job between the check and this call
                job = self._jobs.get_nowait()
                if job is None:
                    ends += 1
                else:
                    job[0].cancel()
        for _ in range(ends):
            self._jobs.put(None)

    def _serve_calls(self) -> None:
        """The main loop of a thread: one call at a time."""
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
                    # nothing of the call may stay in memory while this thread waits for the next
                    value = None
                del job, future, call
                with self._lock:
                    self._unfinished -= 1

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call for a thread, with its future."""
        return partial(fn, *args, **kwargs)

    @contextmanager
    def _call_runner(self) -> Iterator[Callable[[Any], Any]]:
        """The function that executes the calls of one thread."""
        yield lambda call: call()

    def _end_all(self) -> None:
        """Stops running calls, where that is possible."""


class WorkerProcess:
    """A worker process, which is started at once. The process runs one call at a time.

    Args:
        niceness: lowers its priority, 0 to 19. The child processes of the worker inherit its priority.
        library_threads: the number of threads of the libraries below NumPy; if None, the libraries decide.

    Raises:
        UnavailableError: `worker-died`, the system cannot start a process.
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
        """Runs a packed call and returns its result. An interrupt ends the process.

        Args:
            call: from `pack`.
            progress: receives the progress that the function reports.

        Raises:
            UnavailableError: `worker-died`.
            WorkerFailedError: the function raised an unexpected exception.
            DpdpcaError: the function raised this error.
            OSError: the function raised this error. Only the number of the OSError is returned, because its
                path may be private.
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
        """Kills the process.

        A caller that waits for its answer gets `worker-died`. `end` must still be called.
        """
        self._cut_short = True
        self._process.kill()

    def end(self) -> None:
        """Ends the process and waits until it has ended."""
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
    """Like `WorkerThreads`, with one process for each thread.

    Functions must be top-level functions of installed packages, and arguments must be picklable. Errors are
    returned as in `WorkerProcess.run`. If a worker dies, every unfinished future fails with `worker-died`,
    and no more calls are accepted. An exception in the context ends the processes at once.
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
    """Runs the long calls of a service outside of its requests."""

    def call(self, function: Callable[..., T], /, *args: Any, progress: Progress | None = None) -> T: ...

    def close(self) -> None: ...


class BackgroundProcesses:
    """Runs each call in a worker process, until `close`. Several threads may call at once.

    Args:
        keep: whether a process is kept for the next call. If it is not kept, each call has a new process, and
            its secrets vanish with the process.
        niceness: as in `WorkerProcess`.
        library_threads: as in `WorkerProcess`.
    """

    def __init__(self, *, keep: bool = False, niceness: int = 0, library_threads: int | None = None) -> None:
        self._keep = keep
        self._niceness = niceness
        self._library_threads = library_threads
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._closed = False

    def call(self, function: Callable[..., T], /, *args: Any, progress: Progress | None = None) -> T:
        """Runs `function(*args)` in a worker process and waits for it.

        Args:
            function: a top-level function of an installed package.
            args: picklable arguments.
            progress: receives the progress that the function reports. If it is given, the function must have
                a parameter with this name.

        Raises:
            UnavailableError: `worker-died`, also after `close`. The next call gets a new process.
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
        """Ends the running calls. Each call can be repeated later."""
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
            process = process or WorkerProcess(self._niceness, self._library_threads)
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
    """Packs a call for a worker.

    Args:
        function: a top-level function of an installed package.
        args: picklable arguments.
        kwargs: picklable keyword arguments.
        tells: whether the function gets `progress`, to report its progress.

    Raises:
        Exception: something cannot be pickled.
    """
    return pickle.dumps((function, args, kwargs, tells))


def _environment(library_threads: int | None) -> dict[str, str]:
    """Our environment without the settings of the roles, which may contain passwords."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DPDPCA_")}
    if library_threads is not None:
        inherited |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(library_threads))
    return inherited


def _died(problem: str = "a worker process ended unexpectedly") -> UnavailableError:
    return UnavailableError("worker-died", problem, "try again", retry_after_seconds=1)


# In the worker


def work(niceness: int) -> None:
    """The main loop of a worker: it reads calls from its standard input and writes answers to its output."""
    forbid_core_dumps()
    lower_priority(niceness)
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a library must not mix with the answers
    waiting: SimpleQueue[bytes] = SimpleQueue()
    # It also reads its input during a call, so it notices at once when the parent has ended.
    threading.Thread(target=_take_calls, args=(calls, waiting), daemon=True).start()
    while True:
        _answer(waiting.get(), answers)


def _take_calls(calls: IO[bytes], waiting: "SimpleQueue[bytes]") -> None:
    try:
        while True:
            waiting.put(_receive(calls))
    except (OSError, EOFError):
        # The destructors of large tables are skipped.
        os._exit(0)


def _answer(call: bytes, answers: IO[bytes]) -> None:
    """Runs one call. Nothing of the call stays in memory while the worker waits for the next call."""

    def tell(kind: str, value: Any) -> None:
        message = pickle.dumps((kind, value))
        try:
            _send(answers, message)
        except OSError:
            os._exit(1)  # the parent has ended

    def progress(*values: Any) -> None:
        tell(_PROGRESS, values)

    try:
        function, args, kwargs, tells = pickle.loads(call)  # noqa: S301 # of our own parent
        del call
        tell(_DONE, function(*args, **kwargs, **({"progress": progress} if tells else {})))
    except Exception as error:
        tell(_FAILED, as_told(error))


def as_told(error: Exception) -> Exception:
    """The exception that the parent process gets for `error`."""
    if isinstance(error, DpdpcaError):
        return error
    if isinstance(error, MemoryError):
        return UnavailableError("out-of-memory", "a worker process ran out of memory", "free some memory")
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
