"""A person at a terminal: one shell, typed into line by line, whose questions are answered with yes."""

import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_PROMPT = re.compile(r"<<(\d+)>>")
_QUESTION = "[y/N]: "
_OWN_FILES = re.compile(r"(_editable_impl_|__editable__)?_*dpdpca", re.IGNORECASE)
_LINE_SECONDS = 180.0
_STOP_SECONDS = 60.0


class Terminal:
    """A shell in a folder.

    Args:
        folder: where it begins; also the home of whoever types.
        environment: the variables of the shell.
        otherwise: what is typed otherwise than printed, in this order.

    `line_seconds` is how long a line may take.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], otherwise: Mapping[str, str]) -> None:
        self.otherwise = dict(otherwise)
        self.line_seconds = _LINE_SECONDS
        self._ours, theirs = pty.openpty()
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={**environment, "HOME": str(folder), "PS1": "<<$?>>", "TERM": "dumb", "COLUMNS": "120"},
            start_new_session=True,
        )
        os.close(theirs)
        self._shown, self._more = "", threading.Condition()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        self._read("the first prompt")
        self.type("stty -echo")
        self.type("unset HISTFILE")

    def type(self, line: str) -> str:
        """What the terminal shows of a line, which must end well."""
        for printed, wanted in self.otherwise.items():
            line = line.replace(printed, wanted)
        os.write(self._ours, f"{line}\n".encode())
        shown, status = self._read(line)
        assert status == 0, f"$ {line}\n{shown}"
        return shown

    def _watch(self) -> None:
        """Takes in whatever is shown, at any time: a server that may not write waits."""
        with suppress(OSError):  # how Linux says that the other end is closed
            while piece := os.read(self._ours, 65536).decode(errors="replace"):
                with self._more:
                    self._shown += piece.replace("\r\n", "\n")
                    self._more.notify()

    def _read(self, line: str) -> tuple[str, int]:
        """What is shown until the next prompt, and its status."""
        answered, deadline = 0, time.monotonic() + self.line_seconds
        with self._more:
            while (prompt := _PROMPT.search(self._shown)) is None:
                if self._shown.count(_QUESTION) > answered:
                    answered += 1
                    os.write(self._ours, b"y\n")
                self._more.wait(1.0)
                assert time.monotonic() < deadline, f"$ {line}\n{self._shown}"
            shown, self._shown = self._shown[: prompt.start()], self._shown[prompt.end() :]
        return shown, int(prompt[1])

    def close(self) -> None:
        """Ends the line that runs, what runs in the background, and the shell."""
        os.write(self._ours, b"\x03\nkill $(jobs -p); wait; exit\n")
        try:
            self._shell.wait(_STOP_SECONDS)
        finally:
            os.close(self._ours)


def lend_packages(environment: Path) -> None:
    """Puts the packages of the tests, all but dpdpca, into a virtual environment: no registry is asked."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ours, theirs = (Path(root) / "lib" / version / "site-packages" for root in (sys.prefix, environment))
    for package in ours.iterdir():
        if not _OWN_FILES.match(package.name) and not (theirs / package.name).exists():
            (theirs / package.name).symlink_to(package)


def copy_of_checkout(folder: Path) -> Path:
    """The files of this checkout that a wheel is made of, in a new folder `checkout`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    checkout = folder / "checkout"
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            (checkout / name).write_bytes((ROOT / name).read_bytes())
    return checkout


def plain_environment() -> dict[str, str]:
    """The variables of these tests without those that this program reads."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("DPDPCA_", "XDG_"))}
