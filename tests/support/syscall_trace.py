"""Reads the system calls of a server, as strace wrote them, and finds answers that left before a sync."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CALLS = "write,pwrite64,writev,pwritev,fsync,fdatasync,rename,renameat,renameat2,sendto,sendmsg"
_LINE = re.compile(r"(?P<pid>\d+) +(?P<call>\w+)\((?P<rest>.*)")
_RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. (?P<call>\w+) resumed>")
_FILE = re.compile(r"^\d+<(?P<path>/[^>]*)>")
_NAMES = re.compile(r'"(?P<path>[^"]*)"')
_ANSWER = re.compile(r'"HTTP/1\.1 (?P<status>\d{3})')
_SHARED_MEMORY = "-shm"  # SQLite's index of its log: rebuilt from the log, never trusted after a crash


@dataclass
class Trace:
    """What was written, named and synced below one folder, answer by answer.

    Attributes:
        answers: statuses of the answers that left, in order.
        early: for each answer that left before something was synced, what that was.
        syncs: how often a file, a folder or the log was synced.
    """

    folder: Path
    answers: list[int] = field(default_factory=list)
    early: list[set[str]] = field(default_factory=list)
    syncs: int = 0
    _open: set[str] = field(default_factory=set)
    _pending: dict[str, str] = field(default_factory=dict)

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            resumed = _RESUMED.match(line)
            if resumed is not None:
                if resumed["call"] in ("fsync", "fdatasync"):
                    self._synced(self._pending.pop(resumed["pid"], ""))
                continue
            found = _LINE.match(line)
            if found is not None:
                self._take(found["pid"], found["call"], found["rest"])

    def _take(self, pid: str, call: str, rest: str) -> None:
        file = _FILE.match(rest)
        path = file["path"] if file is not None else ""
        if call in ("fsync", "fdatasync"):
            if "<unfinished" in rest:
                self._pending[pid] = path
            else:
                self._synced(path)
        elif call.startswith("rename"):
            names = [Path(name) for name in _NAMES.findall(rest)]
            if self._is_ours(str(names[-1])):
                # A name that appears before its content is on the disk stays wrong whatever is synced later.
                self._open |= {f"{names[-1]} named too early"} if str(names[0]) in self._open else set()
                self._open.add(str(names[-1].parent))
        elif self._is_ours(path):
            self._open.add(path)
        else:
            answer = _ANSWER.search(rest)
            if answer is not None:
                self.answers.append(int(answer["status"]))
                if self._open:
                    self.early.append(set(self._open))

    def _synced(self, path: str) -> None:
        self.syncs += self._is_ours(path)
        self._open.discard(path)

    def _is_ours(self, path: str) -> bool:
        return path.startswith(f"{self.folder}") and not path.endswith(_SHARED_MEMORY)


@contextmanager
def tracing(pid: int, output: Path) -> Iterator[None]:
    """Follows a process and its threads until the block ends."""
    command = ["strace", "-f", "-y", "-s", "24", "-e", f"trace={CALLS}", "-o", str(output), "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        yield
    finally:
        tracer.terminate()
        tracer.wait(20)
