"""Commands of the installed `dpdpca` as processes: run to their end, or served until stopped or killed.

What they say goes to files, for whoever looks into a test that failed.
"""

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dpdpca_cli.demo.processes import COMMAND
from federation import warm

_COMMAND_SECONDS = 90.0
_START_SECONDS = 45.0
STOP_SECONDS = 20.0
_TAIL_BYTES = 6_000
_LOWEST_PORT, _HIGHEST_PORT = 12_000, 32_000
"""Below the ports of outgoing connections, so that a server that returns finds its own free."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def facts(self) -> dict[str, Any]:
        """What `--json` printed."""
        facts = json.loads(self.out)
        assert isinstance(facts, dict)
        return facts


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 30.0, pause: float = 0.05) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(pause)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    source = random.Random(os.urandom(8))
    while True:
        port = source.randrange(_LOWEST_PORT, _HIGHEST_PORT)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def tail(path: Path) -> str:
    """The end of a log."""
    content = path.read_bytes() if path.exists() else b""
    return content[-_TAIL_BYTES:].decode(errors="replace")


@dataclass
class Server:
    """A command that serves until it is stopped; may be started again on what it left."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    health: str
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self.process is None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
                start_new_session=True,
            )
        wait_for(self._is_ready, f"{self.name} is ready", _START_SECONDS)

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended at once:\n{tail(self.log)}"
        with suppress(httpx.TransportError):
            return httpx.get(self.health, trust_env=False, timeout=5).status_code == 200
        return False

    def stop(self) -> None:
        """As an operator would: SIGTERM, and it ends well."""
        process, self.process = self.process, None
        assert process is not None
        process.terminate()
        try:
            status = process.wait(STOP_SECONDS)
        finally:
            _kill_group(process)
        assert status == 0, f"{self.name} ended with status {status}:\n{tail(self.log)}"

    def kill(self) -> None:
        """As a power cut would, its worker processes included."""
        process, self.process = self.process, None
        if process is not None:
            _kill_group(process)

    def restart(self, *, kill: bool = False) -> None:
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass
class Machine:
    """Where one party runs its commands: a home folder and an environment."""

    name: str
    home: Path
    environment: Mapping[str, str]
    logs: Path

    def run(self, *arguments: str | Path, seconds: float = _COMMAND_SECONDS) -> Outcome:
        """`dpdpca ARGUMENTS` to its end, whatever that is."""
        done = warm.run([*map(str, arguments)], self.environment, seconds)
        outcome = Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
        with (self.logs / f"{self.home.name}.log").open("a") as log:
            log.write(f"$ dpdpca {' '.join(map(str, arguments))}\n{outcome.out}{outcome.err}")
            log.write(f"-> status {outcome.status}\n")
        return outcome

    def ask(self, *arguments: str | Path, seconds: float = _COMMAND_SECONDS) -> dict[str, Any]:
        """What `dpdpca ARGUMENTS --json` says; it must end well."""
        outcome = self.run(*arguments, "--json", seconds=seconds)
        assert outcome.status == 0, f"{self.name}: {outcome.err}"
        return outcome.facts

    def start(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """`dpdpca ARGUMENTS`, not waited for."""
        return subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(self.environment),
            start_new_session=True,
        )
