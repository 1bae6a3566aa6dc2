"""A person at a terminal: one shell, typed into line by line, whose questions are answered with yes."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_PROMPT = re.compile(r"<<(\d+)>>")
_QUESTION = "[y/N]: "
_OWN_FILES = re.compile(r"(_editable_impl_|__editable__)?_*dpdpca", re.IGNORECASE)
_LINE_SECONDS = 180.0
_STOP_SECONDS = 20.0


class Terminal:
    """A shell in a folder.

    Args:
        folder: where it begins; also the home of whoever types.
        environment: the variables of the shell.
        otherwise: what is typed otherwise than printed, in this order.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], otherwise: Mapping[str, str]) -> None:
        self.otherwise = dict(otherwise)
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

    def _read(self, line: str) -> tuple[str, int]:
        """What is shown until the next prompt, and its status. Servers may write at any time."""
        shown, answered, deadline = "", 0, time.monotonic() + _LINE_SECONDS
        while (prompt := _PROMPT.search(shown)) is None:
            assert time.monotonic() < deadline, f"$ {line}\n{shown}"
            if select.select([self._ours], [], [], 1.0)[0]:
                shown += os.read(self._ours, 65536).decode(errors="replace").replace("\r\n", "\n")
            if shown.count(_QUESTION) > answered:
                answered += 1
                os.write(self._ours, b"y\n")
        return shown[: prompt.start()], int(prompt[1])

    def close(self) -> None:
        """Ends what runs in the background, then the shell."""
        os.write(self._ours, b"kill $(jobs -p); wait; exit\n")
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
