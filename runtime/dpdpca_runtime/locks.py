"""The lock between processes.

The lock is on a file that has no other use. The system releases the lock when a process ends for any reason,
so there are no stale locks.
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
_msvcrt = optional_module("msvcrt")  # on Windows


@contextmanager
def locked(path: Path, *, patience_seconds: float, busy: DpdpcaError, shared: bool = False) -> Iterator[None]:
    """Mutual exclusion for all blocks with the same path, in all processes and threads.

    Args:
        path: the lock file, in an existing folder. The lock file is created if it is missing, and it stays.
        patience_seconds: how long to wait while another holds the lock; 0 refuses at once.
        busy: the error to raise then. The error says who may hold the lock and what to do.
        shared: allows other shared blocks at the same time. A shared lock needs no write permission, but the
            file must exist.

    Raises:
        DpdpcaError: `busy`.
        UsageError: `no-file-locks`, this Python has no file locks.
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
    """Tries to take the lock. Returns whether this process now holds the lock."""
    try:
        if _fcntl is not None:
            _fcntl.flock(descriptor, (_fcntl.LOCK_SH if shared else _fcntl.LOCK_EX) | _fcntl.LOCK_NB)
        elif _msvcrt is not None:
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)  # has no shared locks, so readers take turns
        else:
            raise UsageError(
                "no-file-locks",
                "this Python cannot lock files, because it has neither the module fcntl nor msvcrt",
                "use CPython on Linux, macOS or Windows",
            )
    except (BlockingIOError, PermissionError):
        return False
    return True


def _give_back(descriptor: int) -> None:
    if _fcntl is None:
        # Closing the file would release it too, but on Windows at an unknown time.
        _msvcrt.locking(descriptor, _msvcrt.LK_UNLCK, 1)
