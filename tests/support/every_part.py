"""Imports every module of the product and asks every command for its help.

`python every_part.py [NAME...]` prints what it saw as JSON, and fails if anything failed. It leaves out
the named packages and modules: those whose extra is not installed.
"""

import contextlib
import importlib
import io
import json
import pkgutil
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import typer.main

import dpdpca_cli.main as cli

PACKAGES = tuple(
    f"dpdpca_{part}"
    for part in ("protocol", "runtime", "proxy", "user_service", "owner", "user", "interop", "cli", "lab")
)


@dataclass
class Seen:
    """Modules that were imported, commands that were asked for help, and what failed, with its message."""

    modules: list[str] = field(default_factory=list)
    helped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def look(left_out: Collection[str] = ()) -> Seen:
    seen = Seen()
    for name in modules_of([package for package in PACKAGES if package not in left_out]):
        if name in left_out:
            continue
        seen.modules.append(name)
        try:
            importlib.import_module(name)
        except BaseException as error:  # a module that exits at its import has failed too
            seen.failed[name] = repr(error)
    _ask(seen, [], typer.main.get_command(cli.app))
    return seen


def modules_of(packages: Collection[str]) -> Iterator[str]:
    for package in packages:
        yield package
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if ".migrations." not in module.name:  # alembic runs these, with a context of its own
                yield module.name


def _ask(seen: Seen, words: list[str], command: Any) -> None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            cli.main([*words, "--help"])
    except SystemExit as left:
        if left.code or "Usage:" not in said.getvalue():
            seen.failed[" ".join(words)] = said.getvalue()
    seen.helped.append(" ".join(words))
    for name, below in getattr(command, "commands", {}).items():
        whole = cli.PARTS[name].load(name) if not words and name in cli.PARTS else below
        _ask(seen, [*words, name], whole)


if __name__ == "__main__":
    seen = look(sys.argv[1:])
    print(json.dumps(asdict(seen)))
    sys.exit(bool(seen.failed))
