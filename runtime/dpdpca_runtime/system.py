"""What only POSIX systems offer, and what is done elsewhere. Files and locks have modules of their own.

Owners also work on Windows. Nothing here fails to import there.
"""

import importlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any


def optional_module(name: str) -> Any:
    """A module of the standard library that some systems lack, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def detached_from_terminal(*, without_terminal: bool = False) -> dict[str, Any]:
    """Options of `subprocess.Popen` for a child that Ctrl-C at our terminal does not reach.

    Args:
        without_terminal: the child has no terminal either, in a session of its own. Not for one that is to
            give way to us: many Linux systems share the processor between sessions, whatever their niceness.
    """
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True} if without_terminal else {"process_group": 0}


def lower_priority(niceness: int) -> None:
    """Lowers the priority of this process. Where there is no `nice` it stays as it is."""
    if niceness and hasattr(os, "nice"):
        os.nice(niceness)


def terminate_group(process: subprocess.Popen[bytes], *, at_once: bool = False) -> None:
    """Asks a process that was started in a session of its own, and all of its children, to end.

    Args:
        process: the first of them.
        at_once: leaves them no time. Windows never leaves any.
    """
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform != "win32" and hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL if at_once else signal.SIGTERM)
        else:
            process.kill()


def may_be_running(process: int) -> bool:
    """False only if it is sure that no process of this machine has this number."""
    if sys.platform == "win32":
        return True  # os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
