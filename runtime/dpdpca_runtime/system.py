"""Features that only POSIX systems have, and their replacements elsewhere.

Files and locks have their own modules. Owners also work on Windows, so this module can be imported there.
"""

import importlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any


def optional_module(name: str) -> Any:
    """A module of the standard library, or None on systems that lack it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def detached_from_terminal(*, without_terminal: bool = False) -> dict[str, Any]:
    """Options of `subprocess.Popen` for a child that does not receive Ctrl-C from our terminal.

    Args:
        without_terminal: gives the child its own session without a terminal. Do not use this option for a
            child with low priority: many Linux systems divide the processor between sessions regardless of
            niceness.
    """
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True} if without_terminal else {"process_group": 0}


def lower_priority(niceness: int) -> None:
    """Lowers the priority of this process. Does nothing on systems without `nice`."""
    if niceness and hasattr(os, "nice"):
        os.nice(niceness)


def terminate_group(process: subprocess.Popen[bytes], *, at_once: bool = False) -> None:
    """Ends a process that was started in its own session, and all of its children.

    Args:
        process: the first process of the session.
        at_once: kills the processes without giving them time to clean up. On Windows, this is always so.
    """
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform != "win32" and hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL if at_once else signal.SIGTERM)
        else:
            process.kill()
