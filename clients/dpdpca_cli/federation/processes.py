"""Commands of this installation as child processes, none of which is left behind.

Children run in their own sessions, so that Ctrl-C reaches only the parent, which then ends them in order.
What a child prints goes to files in a private folder. The last lines of a child's output are shown when it
fails.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Self

from dpdpca_protocol.errors import UnavailableError
from dpdpca_runtime.system import detached_from_terminal, terminate_group

_TAIL_LINES = 12
_TAIL_BYTES = 16_384
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.1
_LOWEST_PORT, _HIGHEST_PORT = 12_000, 32_000
_ENDINGS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

COMMAND = (sys.executable, "-m", "dpdpca_cli.main")
"""The `dpdpca` of this installation, whatever the PATH says."""


def launch(
    words: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | int, errors: IO[bytes] | int
) -> subprocess.Popen[bytes]:
    """Start `dpdpca WORDS` in its own session, with this environment and an empty standard input."""
    return subprocess.Popen(  # noqa: S603 - this installation's own command, words without a shell
        [*COMMAND, *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env=dict(environment),
        **detached_from_terminal(without_terminal=True),
    )


def inherited_environment() -> dict[str, str]:
    """This process's environment without settings of DPDPCA, which belong to other parties."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DPDPCA_")}


def tail(file: Path) -> str:
    """The end of a log; empty if there is none."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Child:
    """A child process. A server must not end by itself; anything else may end when it is done."""

    name: str
    is_server: bool
    process: subprocess.Popen[bytes]
    output: Path
    errors: Path

    def tail(self) -> str:
        """The last lines that the child wrote: of its errors if there are any, else of its output."""
        for file in (self.errors, self.output):
            lines = tail(file).splitlines()
            if lines:
                return "\n".join(lines[-_TAIL_LINES:])
        return "the process printed nothing"


class ChildFailedError(UnavailableError):
    """A child failed, ended too early, or did not start in time.

    Args:
        child: the child whose last lines are shown.
        what: what went wrong with it.
    """

    def __init__(self, child: Child, what: str) -> None:
        super().__init__("demo-process", f"{child.name} {what}", "the last lines of its output are above")
        self.tail = child.tail()
        self.child = child.name


class ChildProcesses:
    """Starts child processes, waits for them, and ends all of them when the block is left for any reason.

    Args:
        folder: a private folder; the output of the children goes to `folder/logs`.
        environment: variables for every child. A child also inherits this process's environment, except for
            the settings of DPDPCA in it.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._logs = folder / "logs"
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._environment = {**inherited_environment(), **environment}
        self._started = 0
        self._children: list[Child] = []
        self._open_files: list[IO[bytes]] = []
        self._old_handlers: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        for number in _ENDINGS:
            self._old_handlers[number] = signal.signal(number, _leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not interrupt the ending of the children.
        impatient = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._end_all()
        finally:
            signal.signal(signal.SIGINT, impatient)
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        is_server: bool = False,
    ) -> Child:
        """Start `dpdpca ARGUMENTS` and return at once."""
        self._started += 1
        stem = f"{self._started:02d}-{name.replace(' ', '-')}"
        output, errors = self._logs / f"{stem}.out", self._logs / f"{stem}.err"
        streams = output.open("wb"), errors.open("wb")
        self._open_files += streams
        process = launch(arguments, {**self._environment, **(environment or {})}, *streams)
        child = Child(name, is_server, process, output, errors)
        self._children.append(child)
        return child

    def run(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        limit_seconds: float = 120.0,
    ) -> str:
        """Run `dpdpca ARGUMENTS` to its end, and return what it printed.

        Raises:
            ChildFailedError: this child failed, or another child failed in the meantime.
        """
        child = self.start(name, arguments, environment)
        self.wait_for([child], limit_seconds)
        return child.output.read_text(encoding="utf-8")

    def wait_for(
        self, waited: Sequence[Child], limit_seconds: float, tick: Callable[[], None] | None = None
    ) -> None:
        """Wait until all of `waited` have ended without a failure; `tick` is called ten times a second, and
        at the end.

        Raises:
            ChildFailedError: a child failed or took too long, or a server ended.
        """

        def all_done() -> bool:
            done = all(child.process.poll() is not None for child in waited)
            if tick is not None:
                tick()
            return done

        self.wait_until(all_done, limit_seconds, waited[0], "did not finish")

    def wait_until(
        self,
        condition: Callable[[], bool],
        limit_seconds: float,
        blamed: Child,
        what: str,
        every_seconds: float = _POLL_SECONDS,
    ) -> None:
        """Wait until `condition` holds, as long as no child fails and no server ends.

        Args:
            condition: checked every `every_seconds`.
            limit_seconds: how long to wait.
            blamed: the child that the error names after this time.
            what: the error message in that case, such as "did not finish".
            every_seconds: time between two checks.
        """
        deadline = time.monotonic() + limit_seconds
        while not condition():
            self._check_all()
            if time.monotonic() > deadline:
                raise ChildFailedError(blamed, f"{what} within {limit_seconds:.0f} s")
            time.sleep(every_seconds)
        self._check_all()

    def _check_all(self) -> None:
        for child in list(self._children):
            status = child.process.poll()
            if status is None:
                continue
            if status != 0:
                raise ChildFailedError(child, f"ended with status {status}")
            if child.is_server:
                raise ChildFailedError(child, "ended too early")
            self._children.remove(child)

    def _end_all(self) -> None:
        living = [child for child in self._children if child.process.poll() is None]
        for child in reversed(living):
            terminate_group(child.process)
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in living:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
        for child in living:
            if child.process.poll() is None:
                terminate_group(child.process, at_once=True)
                child.process.wait()
        for file in self._open_files:
            file.close()


def free_port() -> int:
    """A loopback port on which nobody listens now.

    The port is below the ports of outgoing connections, so that it is still free when a server is restarted.
    """
    while True:
        port = _LOWEST_PORT + secrets.randbelow(_HIGHEST_PORT - _LOWEST_PORT)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
