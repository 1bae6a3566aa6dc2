"""One lock for all roles: it keeps others out, waits as long as it is told, and ends with whoever held it."""

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import no_posix
import pytest

from dpdpca_protocol.errors import ConflictError
from dpdpca_runtime.locks import locked

BUSY = ConflictError("busy", "another command holds it", "wait until it has ended")
HOLDER = """
import sys
from pathlib import Path
from dpdpca_protocol.errors import ConflictError
from dpdpca_runtime.locks import locked

busy = ConflictError("busy", "somebody else holds it")
path, shared, patience = Path(sys.argv[1]), sys.argv[2] == "shared", float(sys.argv[3])
try:
    with locked(path, patience_seconds=patience, busy=busy, shared=shared):
        print("held", flush=True)
        sys.stdin.readline()
except ConflictError as error:
    print(error.slug, flush=True)
"""
AS_ON_WINDOWS = "import no_posix; no_posix.take_away(); no_posix.add_windows_locks()\n"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(params=["", AS_ON_WINDOWS], ids=["fcntl", "msvcrt"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Starts another process that takes the lock, and returns when it has said whether it has it."""
    with ExitStack() as stack:

        def begin(*, shared: bool = False, patience: float = 0.0) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", request.param + HOLDER, str(tmp_path / "lock")),
                    *("shared" if shared else "alone", str(patience)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(no_posix.__file__).parent)},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_without_patience_a_lock_that_is_held_is_refused_at_once(start: Start, tmp_path: Path) -> None:
    holder = start()
    assert said(holder) == "held"
    assert said(start()) == "busy"
    with pytest.raises(ConflictError) as refused, locked(tmp_path / "lock", patience_seconds=0, busy=BUSY):
        pass
    assert refused.value is BUSY
    holder.communicate("leave\n")
    assert said(start()) == "held"


def test_with_patience_it_is_ours_as_soon_as_the_other_has_left(start: Start) -> None:
    holder = start()
    assert said(holder) == "held"
    waiting = start(patience=3600.0)
    time.sleep(0.1)
    assert waiting.poll() is None
    holder.communicate("leave\n")
    assert said(waiting) == "held"


def test_a_holder_that_was_killed_leaves_nothing_behind(start: Start) -> None:
    holder = start()
    assert said(holder) == "held"
    holder.kill()
    holder.wait()
    assert said(start(patience=60.0)) == "held"


def test_readers_keep_a_writer_out_and_a_writer_keeps_readers_out(start: Start, tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    reader = start(shared=True)
    assert said(reader) == "held"
    assert said(start()) == "busy"
    reader.communicate("leave\n")
    assert said(start()) == "held"
    assert said(start(shared=True)) == "busy"


def test_readers_share(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()

    def hold(*, shared: bool) -> AbstractContextManager[None]:
        return locked(tmp_path / "lock", patience_seconds=0.05, busy=BUSY, shared=shared)

    with hold(shared=True), hold(shared=True), pytest.raises(ConflictError), hold(shared=False):
        pass


def test_threads_of_one_process_keep_each_other_out(tmp_path: Path) -> None:
    inside, most = [], []

    def work() -> None:
        with locked(tmp_path / "lock", patience_seconds=60.0, busy=BUSY):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 8


def test_the_lock_file_is_private_and_stays(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock", patience_seconds=0, busy=BUSY):
        raise ZeroDivisionError
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
    with locked(tmp_path / "lock", patience_seconds=0, busy=BUSY):
        pass


def test_a_reader_makes_no_lock_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        locked(tmp_path / "lock", patience_seconds=0, busy=BUSY, shared=True).__enter__()
