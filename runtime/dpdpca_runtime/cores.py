"""Prevents core dumps of processes that hold keys."""

import ctypes
import sys

from dpdpca_runtime.system import optional_module

_resource = optional_module("resource")
"""None on Windows, which has no such module, and writes core dumps only if an administrator enables them."""
_PR_SET_DUMPABLE = 4  # of linux/prctl.h


def forbid_core_dumps() -> None:
    """Forbids core dumps of this process.

    Child processes only inherit the limit, so each of our programs calls this itself. The limit prevents core
    files. Regardless of the limit, Linux passes core dumps to a program such as systemd-coredump or apport,
    unless the process is marked as not dumpable. This mark also prevents other processes of the same account
    from reading the memory of the process.
    """
    if _resource is not None:
        _resource.setrlimit(_resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
