"""Takes from this process what Windows does not have. For subprocesses of tests, before they import ours.

What others have for Linux is imported first: they have something else for Windows, and that is not ours.
"""

import asyncio
import errno
import fcntl
import getpass
import importlib.abc
import multiprocessing.util
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import platformdirs.unix

PRELOADED = (asyncio, getpass, multiprocessing.util, platformdirs.unix, pty, subprocess, tempfile)
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty")
NAMES = {
    os: (
        *("fchmod", "fork", "forkpty", "getgid", "getpgid", "getuid", "geteuid", "killpg", "mkfifo", "nice"),
        *("sched_getaffinity", "sched_setaffinity", "setpgid", "setsid", "statvfs", "sysconf", "O_CLOEXEC"),
        *("O_DIRECTORY", "O_NOFOLLOW"),
    ),
    signal: ("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "pthread_sigmask", "setitimer"),
}


class _Refusing(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def take_away() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Refusing())
    for module, names in NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)


def add_windows_locks() -> None:
    """`msvcrt` as far as locks use it: they belong to an open file, and are exclusive."""
    module = ModuleType("msvcrt")
    module.LK_UNLCK, module.LK_NBLCK = 0, 2  # type: ignore[attr-defined] # made here

    def locking(descriptor: int, mode: int, _nbytes: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if mode == 2 else fcntl.LOCK_UN)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    module.locking = locking  # type: ignore[attr-defined] # made here
    sys.modules["msvcrt"] = module
