"""The Python API: what each package lists in `__all__`, from signatures and docstrings."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from reference_pages.markdown import code, fenced

PACKAGES = (
    "dpdpca_user",
    "dpdpca_owner",
    "dpdpca_protocol",
    "dpdpca_runtime",
    "dpdpca_proxy",
    "dpdpca_user_service",
    "dpdpca_interop",
    "dpdpca_lab",
)

_INTRODUCTION = """
# Python API

Import only the names on this page. All other names are internal and may change without notice.
"""


_SECTIONS = {"Args": "Arguments"}


def page() -> str:
    lines = [*_INTRODUCTION.strip().splitlines(), ""]
    for package in PACKAGES:
        module = importlib.import_module(package)
        if names := public_names(module):
            lines += [f"## {package}", "", *docstring(module)]
            for name in names:
                lines += _entry(package, name, getattr(module, name))
    return "\n".join(lines)


def public_names(module: Any) -> list[str]:
    return sorted(getattr(module, "__all__", []))


def _entry(package: str, name: str, value: Any) -> list[str]:
    lines = [f"### {package}.{name}", ""]
    if inspect.isclass(value):
        lines += [*_signature(name, value.__init__), *docstring(value), *_inherited_attributes(value)]
        for method, function in _methods(value):
            lines += [f"#### {name}.{method}", "", *_signature(method, function), *docstring(function)]
        return lines
    if callable(value):
        return [*lines, *_signature(name, value), *docstring(value)]
    return [*lines, f"A constant of type {code(type(value).__name__)}.", ""]


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods that are defined in this project and have a docstring."""
    for name in sorted(dir(kind)):
        value = inspect.getattr_static(kind, name)
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        is_ours = str(getattr(function, "__module__", "")).startswith("dpdpca_")
        if not name.startswith("_") and inspect.isfunction(function) and is_ours and function.__doc__:
            yield name, function


def _inherited_attributes(kind: type) -> list[str]:
    """The sections on attributes in the docstrings of the base classes of `kind` in this project."""
    lines: list[str] = []
    for base in kind.__mro__[1:]:
        if base.__module__.startswith("dpdpca_"):
            for paragraph in (inspect.getdoc(base) or "").split("\n\n"):
                if paragraph.startswith("Attributes:"):
                    lines += _paragraph(paragraph)
    return lines


def _signature(name: str, function: Any) -> list[str]:
    """The signature as in the source, so that it does not depend on how a Python version prints types."""
    if not inspect.isfunction(function):
        return []
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    parameters = list(_parameters(node.args))
    result = "" if node.returns is None or name[0].isupper() else f" -> {ast.unparse(node.returns)}"
    whole = f"{name}({', '.join(parameters)}){result}"
    if len(whole) > 100:
        whole = "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){result}"])
    return fenced(whole, "python")


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    """The parameters without `self` and `cls`."""
    usual = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(usual) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(usual, defaults, strict=True):
        if argument.arg not in ("self", "cls"):
            yield _parameter(argument, default)
    if arguments.vararg is not None:
        yield f"*{_parameter(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg is not None:
        yield f"**{_parameter(arguments.kwarg, None)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    return f"{argument.arg}{annotation}" + ("" if default is None else f" = {ast.unparse(default)}")


def docstring(value: Any) -> list[str]:
    """The docstring: its text unchanged, and its sections as lists."""
    lines: list[str] = []
    for paragraph in filter(None, (inspect.getdoc(value) or "").split("\n\n")):
        lines += _paragraph(paragraph)
    return lines


def _paragraph(paragraph: str) -> list[str]:
    head, _, rest = paragraph.partition("\n")
    if not (head.endswith(":") and rest.startswith("    ")):
        return [*paragraph.splitlines(), ""]
    rest, title = textwrap.dedent(rest), head.removesuffix(":")
    if rest.startswith(">>>"):
        return [f"**{title}**", "", *fenced(re.sub(r"  # doctest:.*", "", rest), "pycon")]
    return [f"**{_SECTIONS.get(title, title)}**", "", *_items(rest), ""]


def _items(text: str) -> list[str]:
    """A list item for each line `name: meaning`. Lines with a deeper indentation continue the item."""
    items: list[str] = []
    for line in text.splitlines():
        if line.startswith("  ") and items:
            items[-1] += f" {line.strip()}"
            continue
        names, colon, meaning = line.partition(": ")
        items.append(f"- {code(names)}: {meaning}" if colon else f"- {line}")
    return items
