"""Commands of the installed `dpdpca` as processes: run to their end, or served until stopped or killed.

What they say goes to files, for whoever looks into a test that failed.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpdpca_cli.federation.parties import LocalParty, is_ready
from dpdpca_cli.federation.processes import launch, tail
from federation import warm

_COMMAND_SECONDS = 90.0
_START_SECONDS = 45.0
STOP_SECONDS = 20.0


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
    """The first true value of `condition`, which is asked less often the longer it takes."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(pause)
        pause = max(pause, min(1.4 * pause, 0.2))


@dataclass
class Server:
    """A command that serves until it is stopped; may be started again on what it left."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    url: str
    process: warm.Process | None = None

    def start(self) -> None:
        assert self.process is None, f"{self.name} runs already"
        self.process = warm.start(self.arguments, self.environment, self.log)
        wait_for(self._is_ready, f"{self.name} is ready", _START_SECONDS)

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended at once:\n{tail(self.log)}"
        return is_ready(self.url)

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


def _kill_group(process: warm.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True)
class Machine(LocalParty):
    """Where one party runs its commands; `settings` are its whole environment apart from its home."""

    logs: Path = field(kw_only=True)

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
        return launch([*map(str, arguments)], self.environment, subprocess.PIPE, subprocess.PIPE)
