"""No image of a process that holds keys is written to a disk when it dies."""

import ctypes
import sys

from dpdpca_runtime.system import optional_module

_resource = optional_module("resource")
"""Missing on Windows, which writes no images unless its administrator has asked for them."""
_PR_SET_DUMPABLE = 4  # of linux/prctl.h


def forbid_core_dumps() -> None:
    """For this process. What it starts inherits the limit alone, so each program of ours asks for itself.

    The limit stops files. Linux hands the image to a program such as systemd-coredump or apport whatever the
    limit is, but not that of a process which is not dumpable; nor may others of the same account read the
    memory of one.
    """
    if _resource is not None:
        _resource.setrlimit(_resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
