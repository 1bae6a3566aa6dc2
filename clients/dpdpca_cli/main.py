"""`dpdpca`: finds the role, runs its command, and turns every error into one line and an exit status.

Exit status: 0 for success, 1 for failure, 2 for wrong usage, 130 if interrupted. Tracebacks appear only with
--debug, which is accepted anywhere on the command line.
"""

import errno
import importlib
import io
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpdpca_cli.variables import check_variables
from dpdpca_protocol.errors import DpdpcaError, UsageError
from dpdpca_runtime.command_options import AsJson
from dpdpca_runtime.cores import forbid_core_dumps


@dataclass(frozen=True, slots=True)
class Part:
    """One group of commands: its help text, the modules of its typer apps, and the extra that installs it."""

    help: str
    apps: tuple[str, ...]
    extra: str
    is_group: bool = True

    def load(self, name: str) -> Any:
        first, *others = (self._app(module) for module in self.apps)
        if not self.is_group:
            command: Any = typer.main.get_command(first)
        else:
            command = typer.main.get_group(first)
            for other in others:
                command.commands.update(typer.main.get_group(other).commands)
        command.name = name
        return command

    def _app(self, module: str) -> typer.Typer:
        app = importlib.import_module(module).app
        assert isinstance(app, typer.Typer)
        return app


PARTS = {
    "owner": Part("Take part in studies as a data owner.", ("dpdpca_owner.commands.app",), "owner"),
    "proxy": Part(
        "Run the proxy, which adds up encrypted shares and adds noise.", ("dpdpca_proxy.commands",), "proxy"
    ),
    "user": Part(
        "Create studies as a data user, and get their components.",
        ("dpdpca_user.commands.app", "dpdpca_user_service.commands"),
        "user",
    ),
    "audit": Part(
        "Test a study's privacy claim with the distinguishing game.",
        ("dpdpca_lab.audit.commands",),
        "lab",
        is_group=False,
    ),
    "bench": Part(
        "Compare the time of each phase with its bare arithmetic and with other libraries.",
        ("dpdpca_lab.benchmarks.commands", "dpdpca_lab.benchmarks.study", "dpdpca_lab.scale.commands"),
        "bench",
    ),
    "experiments": Part(
        "Run the experiments of the papers again, and small ones on their mechanisms.",
        ("dpdpca_lab.commands",),
        "lab",
    ),
    "demo": Part(
        "Run a whole study on this machine, with real data.",
        ("dpdpca_cli.demo.command",),
        "demo",
        is_group=False,
    ),
}


_NOWHERE = logging.NullHandler()


class _LazyParts(TyperGroup):
    """Lists the parts of the program without importing them. Only the part that is called is imported."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in PARTS:
            command = PARTS[name].load(name)
        return name, command, rest


app = typer.Typer(
    cls=_LazyParts,
    help="Principal components over the data of several owners who may not show their data to each other.",
    epilog="Example: dpdpca demo",
    pretty_exceptions_enable=False,
)


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; accepted anywhere on the line.")
    ] = False,
) -> None:
    """Declares the options of every command. `--debug` is read before parsing begins."""


def _stand_in(part: Part) -> typer.Typer:
    stand_in = typer.Typer(help=part.help)
    stand_in.callback()(lambda: None)
    return stand_in


for _name, _part in PARTS.items():
    app.add_typer(_stand_in(_part), name=_name, help=_part.help)


@app.command(epilog="Example: dpdpca version --wheel dpdpca-1.0.0-py3-none-any.whl")
def version(
    digest: Annotated[
        bool, typer.Option("--digest", help="Print also what was installed, and its digest.")
    ] = False,
    wheel: Annotated[
        Path | None, typer.Option("--wheel", help="A wheel: print its version and its digest instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the version of this installation, or the version and the digest of a wheel.

    An owner's policy may list the digests of the software that it accepts from a proxy.
    """
    if wheel is None and not digest:
        number = installed_version("dpdpca")
        typer.echo(json.dumps({"version": number}) if as_json else f"dpdpca {number}")
        return
    from dpdpca_runtime.software import running_software, wheel_software

    software = running_software() if wheel is None else wheel_software(wheel)
    typer.echo(json.dumps(software.to_body()) if as_json else str(software))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit with its status."""
    forbid_core_dumps()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Greek letters must show the rest
            stream.reconfigure(errors="replace")
    # Log lines are for services, which configure where they go. A command prints its own errors.
    logging.getLogger("dpdpca").addHandler(_NOWHERE)
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    sys.exit(_run(words, debug))


def _run(words: list[str], debug: bool) -> int:
    try:
        warning = check_variables(words, os.environ)
        if warning is not None:
            _say(warning)
        outcome = typer.main.get_command(app).main(words, prog_name="dpdpca", standalone_mode=False)
    except typer.TyperException as error:
        return _report_usage(error)
    except typer.Abort:
        return _fail("stopped; nothing more was done", 1)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        if debug:
            raise
        return _fail(*_explain(error, words))
    return outcome if isinstance(outcome, int) else 0


def _explain(error: Exception, words: list[str]) -> tuple[str, int]:
    """The line to print for `error`, and the exit status.

    The text of an unexpected error may contain data and is not shown.
    """
    if isinstance(error, DpdpcaError):
        return str(error), 2 if isinstance(error, UsageError) else 1
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "").startswith("dpdpca_"):
            return f"this installation is incomplete: it lacks {error.name}; install dpdpca again", 1
        if error.name in sys.stdlib_module_names:
            return f"this Python lacks the standard module {error.name}; use a complete CPython", 1
        part = PARTS.get(next((word for word in words if word in PARTS), ""))
        extra = _EXTRAS.get((error.name or "").partition(".")[0]) or (part.extra if part else "demo")
        next_step = f"in the source folder of dpdpca, run: pip install '.[{extra}]'"
        return f"the Python package {error.name} is not installed; {next_step}", 1
    if isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        return (
            f"the system refused: {error.strerror}{place}{_REMEDIES.get(error.errno or 0, '')}",
            1,
        )
    return f"unexpected internal error ({type(error).__name__}); run again with --debug and report it", 1


_EXTRAS = {"opentelemetry": "otel", "psycopg": "postgres"}
"""Packages that one setting needs, whatever the command."""

_REMEDIES = {
    errno.ENOSPC: "; free disk space and try again",
    errno.EDQUOT: "; free disk space and try again",
    errno.EROFS: "; make this path writable, or choose another one",
    errno.EACCES: "; make this path accessible, or choose another one",
}


def _report_usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if context is not None and (not message or "\n" in message):
        typer.echo(context.get_help(), err=True)
        return error.exit_code
    hint = f"; try: {context.command_path} --help" if context is not None else ""
    return _fail(f"{message.rstrip('.')}{hint}", error.exit_code)


def _fail(line: str, status: int) -> int:
    _say(line)
    return status


def _say(line: str) -> None:
    """Print `line` as one line without control characters, because parts of it may come from a peer."""
    inert = "".join(letter if letter.isprintable() else " " for letter in line)
    typer.echo(f"dpdpca: {inert}", err=True)


if __name__ == "__main__":
    main()
