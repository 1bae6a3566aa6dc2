"""Children of a test: forked from a process that has imported the product, so that they start at once."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

CHILDREN = multiprocessing.get_context("forkserver")
# Installed modules only: Python 3.11 does not tell the server where a test finds its own.
CHILDREN.set_forkserver_preload(
    [
        "dpdpca_cli.main",
        "dpdpca_owner.actions",
        "dpdpca_owner.commands.app",
        "dpdpca_owner.records.source",
        "dpdpca_proxy.commands",
        "dpdpca_proxy.initialise",
        "dpdpca_proxy.serve",
        "dpdpca_runtime.http.client",
        "dpdpca_user.commands.app",
        "dpdpca_user.home",
        "dpdpca_user_service.app",
        "dpdpca_user_service.commands",
        "dpdpca_user_service.transform",
        "dpdpca_runtime.migrations",
        "opendp.measurements",
        "opentelemetry.trace",
        "pyarrow",
        "pytest",
        "rich.console",
        "uvicorn",
    ]
)


def start_child(target: Callable[..., None], *arguments: Any, daemon: bool = False) -> BaseProcess:
    """A started child that runs `target`, and does not import the test runner first.

    It has the environment of now. The process that it is forked from has that of the first child.
    """
    given = (dict(os.environ), target, *arguments)
    child = CHILDREN.Process(target=_in_environment, args=given, daemon=daemon)
    main = sys.modules["__main__"]
    file = main.__dict__.pop("__file__", None)
    try:
        child.start()
    finally:
        if file is not None:
            main.__file__ = file
    return child


def _in_environment(environment: dict[str, str], target: Callable[..., None], *arguments: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)
