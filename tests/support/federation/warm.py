"""Commands as processes that need not import everything anew: a warm process forks each of them.

A command is still a process of its own, with an environment, a folder, streams and an exit status. It starts
in a twentieth of the time. Servers, the demo and whatever a test kills are started from nothing.
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryDirectory

_PRELOADED = (
    "pytest",
    "dpdpca_cli.main",
    "dpdpca_owner.commands.app",
    "dpdpca_proxy.commands",
    "dpdpca_user.commands.app",
    "dpdpca_user_service.commands",
    "dpdpca_owner.records.source",
    "federation.warm",
    "httpx",
    "numpy",
    "pydantic",
    "rich.console",
    "sqlalchemy",
)


def run(arguments: Sequence[str], environment: Mapping[str, str], seconds: float) -> CompletedProcess[bytes]:
    """`dpdpca ARGUMENTS` to its end.

    Raises:
        TimeoutExpired: it was killed after `seconds`.
    """
    with TemporaryDirectory() as name:
        out, err = Path(name, "out"), Path(name, "err")
        process = _warm().Process(target=_command, args=(tuple(arguments), dict(environment), out, err))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutExpired(list(arguments), seconds, out.read_bytes(), err.read_bytes())
        return CompletedProcess(list(arguments), process.exitcode, out.read_bytes(), err.read_bytes())


def _warm() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _command(arguments: tuple[str, ...], environment: dict[str, str], out: Path, err: Path) -> None:
    """What the new process does: takes its streams and its environment, and runs the command."""
    from dpdpca_cli.main import main

    for path, number in ((Path(os.devnull), 0), (out, 1), (err, 2)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        file = os.open(path, flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    main(arguments)
