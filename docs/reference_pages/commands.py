"""Every command with its arguments and options, from what `--help` shows."""

from collections.abc import Iterator
from typing import Any

from dpdpca_cli.main import PARTS, app, version
from reference_pages.markdown import code, fenced, plain, table

_INTRODUCTION = """
Every command accepts `--help`. Commands that print facts also accept `--json`. The exit status is 0 if the
command succeeded, 1 if it failed, 2 if its arguments were wrong, and 130 if it was interrupted. A command
prints an error as one line on standard error. The option `--debug`, anywhere on the command line, adds the
traceback.
"""


def page() -> str:
    lines = ["# Commands", "", *_INTRODUCTION.strip().splitlines(), ""]
    for name, part in PARTS.items():
        lines += [f"## dpdpca {name}", "", plain(part.help), ""]
        command = part.load(name)
        if not part.is_group:
            lines += _described(command)
        for words, each in _commands(command, f"dpdpca {name}"):
            lines += [f"### {words}", "", *_described(each)]
    (registered,) = [each for each in app.registered_commands if each.callback is version]
    lines += ["## dpdpca version", "", plain(version.__doc__ or ""), "", *fenced(_example(registered.epilog))]
    return "\n".join(lines)


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """The commands of a group and of the groups in it, with the words that call them."""
    for name, command in getattr(group, "commands", {}).items():
        if getattr(command, "commands", None):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _described(command: Any) -> list[str]:
    shown = [parameter for parameter in command.params if not parameter.hidden]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    return [
        *plain((command.help or "").strip()).splitlines(),
        "",
        *fenced(_example(command.epilog)),
        *table(
            ("argument", "meaning"), ((code(each.metavar or each.name), _meaning(each)) for each in arguments)
        ),
        *table(("option", "meaning"), ((_names(each), _meaning(each)) for each in options)),
    ]


def _example(epilog: str | None) -> str:
    return (epilog or "").removeprefix("Example: ")


def _names(option: Any) -> str:
    return ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))


def _meaning(parameter: Any) -> str:
    notes = []
    if parameter.required:
        notes.append("Required.")
    if parameter.multiple:
        notes.append("May be given more than once.")
    if parameter.show_default and parameter.default not in (None, False, ()):
        notes.append(f"Default: {code(parameter.default)}.")
    return " ".join([plain(parameter.help or ""), *notes])
