"""Workers are processes of their own: they work, fail and die as futures say, and outlive nobody."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

from dpdpca_disk.workers import WorkerProcesses, core_count
from dpdpca_protocol.errors import IntegrityError, MessageError, UnavailableError
from dpdpca_protocol.fields import read_time


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
                future.result(timeout=20)
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
        running.result(timeout=0)
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
from dpdpca_disk.workers import WorkerProcesses
workers = WorkerProcesses(1)
print(workers.submit(os.getpid).result(), flush=True)
workers.submit(time.sleep, 0.5)
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
    PARENT.replace("workers = WorkerProcesses(1)", "")
    .replace("print(", "with WorkerProcesses(1) as workers:\n  print(")
    .replace("\nworkers.submit", "\n  workers.submit")
    .replace("\ntime.sleep(60)", "\n  time.sleep(60)")
)


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
    time.sleep(0.2)  # so that the signal finds it waiting, as a person's would, and not between two locks
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=20)
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
