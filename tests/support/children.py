"""Children of a test: forked from a process that has imported the product, so that they start at once."""

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

CHILDREN = multiprocessing.get_context("forkserver")
# Installed modules only: Python 3.11 does not tell the server where a test finds its own.
CHILDREN.set_forkserver_preload(
    ["dpdpca_proxy.app", "dpdpca_runtime.http.client", "dpdpca_owner.actions", "uvicorn", "opendp.prelude"]
)


def start_child(target: Callable[..., None], *arguments: Any, daemon: bool = False) -> BaseProcess:
    """A started child that runs `target`, and does not import the test runner first."""
    child = CHILDREN.Process(target=target, args=arguments, daemon=daemon)
    main = sys.modules["__main__"]
    file = main.__dict__.pop("__file__", None)
    try:
        child.start()
    finally:
        if file is not None:
            main.__file__ = file
    return child
