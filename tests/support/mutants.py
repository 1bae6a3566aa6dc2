"""Mutants of a module: its syntax tree with one operator, comparison, constant, condition or result changed.

Left alone is what no test of values should know: annotations, decorators, texts and the raising of errors,
`__slots__`, and `strict=` of zip, which only says again what holds anyway.
"""

import ast
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SILENT_FIELDS = {"annotation", "returns", "decorator_list", "type_params"}
_SILENT_CALLS = {"refused", "print"}
_SILENT_KEYWORDS = {"strict"}


@dataclass(frozen=True)
class Mutant:
    """One changed module.

    Attributes:
        function: in which it is, or the empty string.
        line: of the original.
        before, after: the changed node, as source.
        source: of the whole mutated module.
    """

    function: str
    line: int
    before: str
    after: str
    source: str


@dataclass(frozen=True)
class _Change:
    function: str
    node: ast.AST
    apply: Callable[[ast.AST], ast.AST]


def mutants_of(source: str, but: Collection[str] = ()) -> list[Mutant]:
    """All mutants of a module in the order of its lines.

    Args:
        source: of the module.
        but: names of functions, classes and constants to leave alone.
    """
    tree = ast.parse(source)
    places = list(ast.walk(tree))
    found = []
    for change in _changes(tree, ""):
        if set(change.function.split(".")) & set(but):
            continue
        copy = deepcopy(tree)
        node = list(ast.walk(copy))[places.index(change.node)]
        after = change.apply(node)
        if after is not node:
            _Replace(node, after).visit(copy)
        ast.fix_missing_locations(copy)
        line = getattr(change.node, "lineno", 0)
        found.append(
            Mutant(change.function, line, ast.unparse(change.node), ast.unparse(after), ast.unparse(copy))
        )
    return found


def sampled(mutants: list[tuple[str, Mutant]], count: int, seed: int) -> list[tuple[str, Mutant]]:
    """`count` of (file, mutant) in their order. By hash, so that an edit elsewhere changes few of them."""

    def rank(position: int) -> bytes:
        file, mutant = mutants[position]
        name = f"{seed}|{file}|{mutant.function}|{mutant.before}|{mutant.after}"
        return hashlib.sha256(name.encode()).digest()

    chosen = sorted(range(len(mutants)), key=rank)[:count]
    return [mutants[position] for position in sorted(chosen)]


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)


def _changes(node: ast.AST, function: str) -> Iterator[_Change]:
    if _is_silent(node):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    elif not function and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        function = node.targets[0].id
    for apply in _changes_here(node):
        yield _Change(function, node, apply)
    for field, value in ast.iter_fields(node):
        if field not in _SILENT_FIELDS:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _changes(child, function)


def _is_silent(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in _SILENT_CALLS
        case ast.keyword(arg=name):
            return name in _SILENT_KEYWORDS
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
            return True
    return False


def _changes_here(node: ast.AST) -> Iterator[Callable[[ast.AST], ast.AST]]:
    match node:
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _OPERATORS:
            yield _setting("op", _OPERATORS[type(node.op)]())
        case ast.Compare():
            for position, operator in enumerate(node.ops):
                changed = list(node.ops)
                changed[position] = _COMPARISONS[type(operator)]()
                yield _setting("ops", changed)
        case ast.BoolOp():
            yield _setting("op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield _operand
        case ast.Constant(value=bool(value)):
            yield _setting("value", not value)
        case ast.Constant(value=int(value)):
            yield _setting("value", value + 1)
            yield _setting("value", value - 1)
        case ast.Constant(value=float(value)):
            yield _setting("value", value * 2)
        case ast.Return(value=ast.expr()):
            yield _setting("value", ast.Constant(None))
        case ast.IfExp(test=test) | ast.If(test=test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield _setting("test", ast.UnaryOp(ast.Not(), node.test))


def _operand(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.UnaryOp)
    return node.operand


def _setting(field: str, value: object) -> Callable[[ast.AST], ast.AST]:
    def apply(node: ast.AST) -> ast.AST:
        setattr(node, field, value)
        return node

    return apply


def run_alone(script: str, *arguments: str, seconds: float) -> "subprocess.CompletedProcess[str]":
    """A script of this folder, run to its end without what pytest leaves in the environment."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    folder = Path(__file__).parent
    return subprocess.run(
        [sys.executable, str(folder / script), *arguments],
        env=own | {"PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
