"""Names of running processes that share a folder. A process keeps a file locked as long as it runs.

The system releases the lock when the process ends for any reason. So another process can tell that it has
ended, also from another container. A process on a machine that does not share the folder cannot tell.
"""

import secrets
from contextlib import ExitStack
from pathlib import Path

from dpdpca_protocol.errors import UnavailableError
from dpdpca_runtime.files import private_dir, sync_folder
from dpdpca_runtime.locks import locked

_ENDING = ".lock"
_TAKEN = UnavailableError("busy", "another process has this name", "try again", retry_after_seconds=1)


class Presence:
    """This process, under a name that no other running process has.

    The name is that of a process that has ended, if there is one. So the next process after a crash knows
    what was left to it.

    Args:
        folder: is created when the name is first asked for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = ExitStack()
        self._name: str | None = None

    @property
    def name(self) -> str:
        """At most 40 characters. Raises OSError if the folder cannot be written."""
        if self._name is None:
            private_dir(self._folder)
            for path in sorted(self._folder.glob(f"*{_ENDING}")):
                if self._take(path):
                    return self._name_of(path)
            path = self._folder / f"{secrets.token_hex(8)}{_ENDING}"
            if not self._take(path):
                raise _TAKEN
            sync_folder(self._folder)
            return self._name_of(path)
        return self._name

    def may_be_running(self, name: str) -> bool:
        """False only if the process of this name, which is not ours, has certainly ended."""
        path = self._folder / f"{name.partition('.')[0]}{_ENDING}"
        if not path.is_file() or _named(path) != name:
            return True  # a process with another folder
        try:
            with locked(path, patience_seconds=0, busy=_TAKEN):
                return False
        except (UnavailableError, OSError):
            return True

    def end(self) -> None:
        """Gives the name back."""
        self._name = None
        self._held.close()

    def _take(self, path: Path) -> bool:
        try:
            self._held.enter_context(locked(path, patience_seconds=0, busy=_TAKEN))
        except UnavailableError:
            return False
        return True

    def _name_of(self, path: Path) -> str:
        self._name = _named(path)
        return self._name


def _named(path: Path) -> str:
    """The name for a file. The copy of a file in another folder gives another name."""
    return f"{path.stem}.{path.stat().st_ino:x}"
