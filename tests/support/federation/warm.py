"""Commands as processes that need not import everything anew: a warm process forks each of them.

A command is still a process of its own, with a session, an environment, streams and an exit status. It starts
in a twentieth of the time. The demo, and what a test traces or limits, are started from nothing.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGTERM
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Protocol

from children import start_child


class Process(Protocol):
    """What tests ask of a server's process: a part of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...


class ForkedProcess:
    """A forked command that runs, seen as `subprocess.Popen` would show it."""

    def __init__(self, words: Sequence[str], process: BaseProcess) -> None:
        assert process.pid is not None
        self.pid, self._words, self._process = process.pid, words, process

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status.

        Raises:
            TimeoutExpired: it still runs after `timeout` seconds.
        """
        self._process.join(timeout)
        status = self._process.exitcode
        if status is None:
            raise TimeoutExpired(list(self._words), timeout or 0.0)
        return status

    def terminate(self) -> None:
        """Asks it to end."""
        if self.poll() is None:
            os.kill(self.pid, SIGTERM)


def start(words: Sequence[str], environment: Mapping[str, str], log: Path) -> ForkedProcess:
    """`dpdpca WORDS` in its own session; what it writes is added to `log`."""
    process = start_child(_command, tuple(words), dict(environment), log, log)
    return ForkedProcess(words, process)


def run(words: Sequence[str], environment: Mapping[str, str], seconds: float) -> CompletedProcess[bytes]:
    """`dpdpca WORDS` to its end.

    Raises:
        TimeoutExpired: it was killed after `seconds`.
    """
    with TemporaryDirectory() as name:
        out, err = Path(name, "out"), Path(name, "err")
        process = start_child(_command, tuple(words), dict(environment), out, err)
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutExpired(list(words), seconds, out.read_bytes(), err.read_bytes())
        return CompletedProcess(list(words), process.exitcode, out.read_bytes(), err.read_bytes())


def _command(words: tuple[str, ...], environment: dict[str, str], out: Path, err: Path) -> None:
    """What the new process does: takes its session, streams and environment, and runs the command."""
    from dpdpca_cli.main import main

    os.setsid()
    for path, number in ((Path(os.devnull), 0), (out, 1), (err, 2)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    main(words)
