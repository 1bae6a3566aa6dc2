"""The one lock between processes: whoever holds it has locked a file that is there for nothing else.

The system takes the lock away from a process that ends, however it ends, so no stale lock is left behind.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpdpca_protocol.errors import DpdpcaError, UsageError
from dpdpca_runtime.system import optional_module

_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.001, 0.05

_fcntl = optional_module("fcntl")
_msvcrt = optional_module("msvcrt")  # of Windows


@contextmanager
def locked(path: Path, *, patience_seconds: float, busy: DpdpcaError, shared: bool = False) -> Iterator[None]:
    """Nobody else is in such a block with the same path: no other process, and no other thread of this one.

    Args:
        path: of the lock file, in a folder that exists. It is made where it is missing, and it stays.
        patience_seconds: how long to wait while somebody else holds the lock; 0 refuses at once.
        busy: is raised then. It says who may be holding the lock and what to do.
        shared: only keeps those out who do not share. Needs no right to write, but a file that is there.

    Raises:
        DpdpcaError: `busy`.
        UsageError: `no-file-locks`, this Python has none.
        OSError: the lock file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline, pause = time.monotonic() + patience_seconds, _FIRST_LOOK_SECONDS
        while not _take(descriptor, shared):
            if time.monotonic() >= deadline:
                raise busy
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_SECONDS)
        try:
            yield
        finally:
            _give_back(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int, shared: bool) -> bool:
    """Whether the lock is ours now."""
    try:
        if _fcntl is not None:
            _fcntl.flock(descriptor, (_fcntl.LOCK_SH if shared else _fcntl.LOCK_EX) | _fcntl.LOCK_NB)
        elif _msvcrt is not None:
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)  # knows no shared locks: readers take turns
        else:
            raise UsageError(
                "no-file-locks",
                "this Python cannot lock files: it has neither the module fcntl nor msvcrt",
                "use CPython on Linux, macOS or Windows",
            )
    except (BlockingIOError, PermissionError):
        return False
    return True


def _give_back(descriptor: int) -> None:
    if _fcntl is None:
        # Closing the file does it too, but on Windows at a time of the system's choosing.
        _msvcrt.locking(descriptor, _msvcrt.LK_UNLCK, 1)
