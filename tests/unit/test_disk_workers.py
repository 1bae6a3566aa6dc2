"""Workers are processes of their own: they work, fail and die as futures say, and outlive nobody."""

import errno
import os
import resource
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path

import far_calls
import pytest
from far_calls import count_up

from dpdpca_protocol.errors import IntegrityError, MessageError, UnavailableError
from dpdpca_protocol.wire.fields import read_time
from dpdpca_runtime.workers import BackgroundProcesses, WorkerProcesses, WorkerThreads, core_count


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(process: int) -> None:
    for _ in range(200):
        if not is_alive(process):
            return
        time.sleep(0.05)
    raise AssertionError("the worker outlived its parent")


def test_results_come_in_order_from_other_processes() -> None:
    with WorkerProcesses(3) as workers:
        assert list(workers.map(pow, range(40), range(40))) == [k**k for k in range(40)]
        workers.map(time.sleep, [0.2] * 3)
        processes = {workers.submit(os.getpid).result() for _ in range(4)}
    assert os.getpid() not in processes


def test_no_more_workers_start_than_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = subprocess.Popen

    def count(*args: object, **kwargs: object) -> object:
        started.append(args)
        return start(*args, **kwargs)  # type: ignore[call-overload]  # as it was called

    monkeypatch.setattr(subprocess, "Popen", count)
    with WorkerProcesses(8) as workers:
        assert workers.submit(abs, -2).result() == 2
        assert workers.submit(abs, -3).result() == 3
    assert len(started) == 1
    with WorkerProcesses(8):
        pass
    assert len(started) == 1


def test_errors_of_ours_come_back_and_others_without_their_text() -> None:
    with WorkerProcesses(1) as workers:
        with pytest.raises(MessageError) as ours:
            workers.submit(read_time, "yesterday", "closes_at").result()
        with pytest.raises(IntegrityError) as other:
            workers.submit(int, "secret").result()
        assert workers.submit(abs, -1).result() == 1
    assert ours.value.slug == "malformed"
    assert other.value.slug == "worker-failed"
    assert "ValueError" in str(other.value)
    assert "secret" not in str(other.value)


def test_a_disk_or_a_memory_that_is_full_is_no_bug_and_no_path_comes_back() -> None:
    with WorkerProcesses(1) as workers:
        with pytest.raises(FileNotFoundError) as missing:
            workers.submit(os.listdir, "/secret").result()
        with pytest.raises(UnavailableError) as full:
            workers.submit(bytes, 2**62).result()
    assert (missing.value.errno, missing.value.filename) == (errno.ENOENT, None)
    assert "secret" not in str(missing.value)
    assert full.value.slug == "out-of-memory"


def test_what_does_not_pickle_is_refused_at_once() -> None:
    with WorkerProcesses(1) as workers:
        with pytest.raises(AttributeError):
            workers.submit(lambda: 1)
        assert workers.submit(abs, -1).result() == 1


def test_a_worker_that_dies_fails_everything_and_says_so() -> None:
    with WorkerProcesses(2) as workers:
        futures: list[Future[None]] = [workers.submit(os._exit, 9)]
        futures += [workers.submit(time.sleep, 30) for _ in range(3)]
        for future in futures:
            with pytest.raises(UnavailableError) as died:
                future.result(timeout=120)
            assert died.value.slug == "worker-died"
        with pytest.raises(UnavailableError):
            workers.submit(abs, -1)


def test_an_exception_in_the_block_ends_the_workers_at_once() -> None:
    before = time.monotonic()
    workers = WorkerProcesses(1)
    running, waiting = workers.submit(time.sleep, 60), workers.submit(abs, -1)
    error = KeyboardInterrupt()
    workers.__exit__(KeyboardInterrupt, error, None)
    assert time.monotonic() - before < 20
    with pytest.raises((UnavailableError, CancelledError)):
        running.result(timeout=120)
    with pytest.raises(CancelledError):
        waiting.result(timeout=0)


def test_cancelling_never_waits_for_a_job_that_a_worker_takes_first() -> None:
    for _ in range(20):
        workers = WorkerProcesses(2)
        for _ in range(5):
            workers.submit(abs, -1)
        done = threading.Thread(
            target=lambda ending: ending.shutdown(wait=True, cancel_futures=True),
            args=(workers,),
            daemon=True,
        )
        done.start()
        done.join(60)
        assert not done.is_alive()


def within(seconds: float, act: Callable[[], None]) -> None:
    """Runs `act`, and fails where it hangs."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", [WorkerProcesses, WorkerThreads])
def test_an_interrupt_that_leaves_a_future_locked_hangs_nothing(kind: type[WorkerThreads]) -> None:
    """`Condition.__enter__` is Python: Ctrl-C may strike when it has the lock and nobody gives it back."""
    left: list[WorkerThreads] = []

    def interrupted() -> None:
        with suppress(KeyboardInterrupt), kind(1) as workers:
            left.append(workers)
            running = workers.submit(time.sleep, 0.3)
            workers.submit(time.sleep, 60)
            running._condition.acquire()
            raise KeyboardInterrupt

    within(20, interrupted)
    with pytest.raises((RuntimeError, UnavailableError)):
        left[0].submit(abs, 1)


@pytest.mark.parametrize("kind", [WorkerProcesses, WorkerThreads])
def test_an_interrupt_that_leaves_a_thread_without_a_start_hangs_nothing(
    kind: type[WorkerThreads], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    def submit() -> None:
        with monkeypatch.context() as patch, kind(1) as workers:
            patch.setattr(threading.Thread, "start", interrupt)
            workers.submit(abs, -1)

    with pytest.raises(KeyboardInterrupt):
        submit()


STRUCK = """
import random, signal, sys, threading, time
from dpdpca_runtime.workers import WorkerProcesses, WorkerThreads

struck = []

def strike(*_):
    struck.append(1)
    raise KeyboardInterrupt

def work(workers):
    # A function of its own: in Python 3.13, what strikes at a loop's end passes the handlers around it.
    while not struck:
        for future in [workers.submit(abs, -k) for k in range(4)]:
            future.result()

sys.setswitchinterval(1e-5)
signal.signal(signal.SIGALRM, strike)
timer = threading.Timer(60, lambda: __import__("os")._exit(7))
timer.daemon = True
timer.start()
for turn in range(60):
    try:
        with (WorkerThreads if turn % 3 else WorkerProcesses)(2) as workers:
            workers.submit(abs, -1).result()
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))
            work(workers)
            raise KeyboardInterrupt  # the interpreter drops what strikes in a callback of its own
    except (KeyboardInterrupt, RuntimeError):  # the latter from a condition that was struck while it was left
        struck.clear()
print("done")
"""


@pytest.mark.nightly
def test_interrupts_at_any_moment_hang_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "-c", STRUCK], capture_output=True, text=True, timeout=90, check=False
    )
    assert run.stdout == "done\n", run.stderr[-2000:]


def test_threads_are_of_this_process_and_fail_as_they_fail() -> None:
    with WorkerThreads(3) as workers:
        assert list(workers.map(pow, range(40), range(40))) == [k**k for k in range(40)]
        assert workers.submit(os.getpid).result() == os.getpid()
        with pytest.raises(ValueError, match="invalid literal"):
            workers.submit(int, "text").result()


def test_threads_finish_what_they_began_when_an_error_passes_and_drop_the_rest() -> None:
    done: list[int] = []
    dropped: list[Future[None]] = []
    began = threading.Event()

    def slow() -> None:
        began.set()
        time.sleep(0.2)
        done.append(1)

    def fail() -> None:
        with WorkerThreads(1) as workers:
            workers.submit(slow)
            dropped.append(workers.submit(done.append, 2))
            began.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert done == [1]
    assert dropped[0].cancelled()


def test_nothing_is_taken_after_the_end() -> None:
    workers = WorkerProcesses(1)
    workers.shutdown()
    workers.shutdown()
    with pytest.raises(RuntimeError):
        workers.submit(abs, 1)
    with pytest.raises(ValueError, match="at least one"):
        WorkerProcesses(0)


def test_settings_of_the_roles_do_not_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPDPCA_PROXY_SOMETHING", "password")
    with WorkerProcesses(1) as workers:
        assert workers.submit(os.getenv, "DPDPCA_PROXY_SOMETHING").result() is None
        assert workers.submit(os.getenv, "PATH").result() == os.environ["PATH"]


PARENT = """
import os, sys, time
from dpdpca_runtime.workers import WorkerProcesses
workers = WorkerProcesses(1)
worker = workers.submit(os.getpid).result()
workers.submit(time.sleep, 0.5)
print(worker, flush=True)
time.sleep(60)
"""


def test_a_worker_ends_with_a_parent_that_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert is_alive(worker)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_gone(worker)


INTERRUPTED = (
    PARENT.replace("workers = WorkerProcesses(1)", "with WorkerProcesses(1) as workers:")
    .replace("\nworker = ", "\n  worker = ")
    .replace("\nworkers.submit", "\n  workers.submit")
    .replace("\nprint(", "\n  print(")
    .replace("\ntime.sleep(60)", "\n  time.sleep(60)")
)


def test_a_worker_in_the_middle_of_a_call_ends_with_its_parent_too() -> None:
    program = PARENT.replace("0.5", "3600")
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_gone(worker)


def test_ctrl_c_comes_to_the_parent_alone() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=120)
    assert errors.count("KeyboardInterrupt") == 1, errors
    wait_until_gone(worker)


def test_the_number_of_cores_is_one_that_can_be_used() -> None:
    assert 1 <= core_count() <= len(os.sched_getaffinity(0))


def test_where_no_cores_are_assigned_all_of_them_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert core_count() == 1
    monkeypatch.setattr(os, "cpu_count", lambda: 500)
    assert core_count() == 32


# Long calls of services


@pytest.fixture(params=[False, True])
def background(request: pytest.FixtureRequest) -> Iterator[BackgroundProcesses]:
    """One that ends a process after its call, and one that keeps it."""
    processes = BackgroundProcesses(keep=request.param)
    yield processes
    processes.close()


def test_a_kept_process_serves_the_next_call_and_another_is_gone_with_its_own() -> None:
    kept, fresh = BackgroundProcesses(keep=True), BackgroundProcesses()
    pids = [kept.call(os.getpid) for _ in range(3)]
    assert len(set(pids)) == 1
    assert is_alive(pids[0])
    kept.close()
    wait_until_gone(pids[0])
    pids = [fresh.call(os.getpid) for _ in range(3)]
    assert len(set(pids)) == 3
    assert not any(map(is_alive, pids))


def test_calls_at_the_same_time_have_processes_of_their_own(
    background: BackgroundProcesses, tmp_path: Path
) -> None:
    """Each waits in a FIFO for the other, so that both can only end if both run."""
    os.mkfifo(tmp_path / "meet")
    results: list[object] = []

    def call(act: str) -> None:
        results.append(background.call(eval, f"open('{tmp_path}/meet', '{act}').close()"))

    threads = [threading.Thread(target=call, args=(act,), daemon=True) for act in "rw"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [None, None]


def test_a_background_process_that_dies_is_replaced(background: BackgroundProcesses) -> None:
    with pytest.raises(UnavailableError) as died:
        background.call(os._exit, 9)
    assert died.value.slug == "worker-died"
    assert background.call(abs, -3) == 3


def test_one_that_died_while_it_had_nothing_to_do_is_not_noticed() -> None:
    kept = BackgroundProcesses(keep=True)
    first = kept.call(os.getpid)
    os.kill(first, signal.SIGKILL)
    kept._idle[0]._process.wait(60)
    assert kept.call(os.getpid) != first
    kept.close()


def test_a_function_tells_how_far_it_is(
    background: BackgroundProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(far_calls.__file__).parent))
    told: list[tuple[int, int]] = []
    assert background.call(count_up, 3, progress=lambda *values: told.append(values)) == 3
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_who_does_not_want_to_hear_more_ends_the_call(
    background: BackgroundProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(far_calls.__file__).parent))

    def stop(*_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        background.call(count_up, 3, progress=stop)
    assert background.call(abs, -3) == 3


def test_closing_ends_what_runs_and_nothing_more_begins(background: BackgroundProcesses) -> None:
    heard: list[str] = []

    def call() -> None:
        try:
            background.call(time.sleep, 3600)
        except UnavailableError as error:
            heard.append(error.slug)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(background._busy) < 2:
        time.sleep(0.01)
    pids = [process._process.pid for process in background._busy]
    background.close()
    for thread in threads:
        thread.join(60)
    assert heard == ["worker-died"] * 2
    assert not any(map(is_alive, pids))
    with pytest.raises(UnavailableError, match="stopping"):
        background.call(abs, -3)


def test_long_work_gives_way_and_so_do_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    polite = BackgroundProcesses(keep=True, niceness=7)
    ours = os.nice(0)
    assert polite.call(os.nice, 0) == min(ours + 7, 19)
    assert int(polite.call(subprocess.check_output, ["nice"])) == min(ours + 7, 19)
    polite.close()


def test_a_process_starts_afresh_under_the_limits_of_its_parent(background: BackgroundProcesses) -> None:
    """Nothing is forked: neither the parent's modules are there nor any state that numbers are drawn from."""
    assert background.call(eval, "'pytest' in __import__('sys').modules") is False
    assert len({background.call(secrets.token_bytes, 16) for _ in range(3)}) == 3
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        fresh = BackgroundProcesses()
        assert fresh.call(resource.getrlimit, resource.RLIMIT_NOFILE) == (soft - 1, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_image_of_a_worker_is_written(background: BackgroundProcesses) -> None:
    """It holds keys too, and what makes its parent not dumpable ends with the start of another program."""
    assert background.call(resource.getrlimit, resource.RLIMIT_CORE) == (0, 0)
    if sys.platform == "linux":
        assert background.call(eval, "__import__('ctypes').CDLL(None).prctl(3, 0, 0, 0, 0)") == 0


def test_libraries_take_one_core_where_there_is_a_process_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with WorkerProcesses(1) as workers:
        assert workers.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
    alone = BackgroundProcesses()
    assert alone.call(os.getenv, "OMP_NUM_THREADS") is None


def test_a_process_that_cannot_be_started_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(UnavailableError, match="cannot be started: No such file"):
        BackgroundProcesses().call(abs, -3)
    with WorkerProcesses(1) as workers, pytest.raises(UnavailableError, match="cannot be started"):
        workers.submit(abs, -3).result()
