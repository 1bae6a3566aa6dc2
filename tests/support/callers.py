"""Which functions, classes and methods of the product nothing in the product reaches.

A name of a module is followed to where it is defined. A method counts as reached where a name like its own is
asked of anything: types are not known here. What calls itself, or is called only by what nothing reaches, is
not reached.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path

Definable = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_REGISTERED = {
    *("command", "callback", "get", "post", "put", "delete", "listens_for"),
    *("field_validator", "model_validator"),
}
"""Decorators of commands, routes, listeners and validators: what they decorate is called from outside."""


@dataclass
class Definition:
    """A function, class or method.

    Attributes:
        module, name: where it is, as "package.module" and "Class.method".
        named: (module, name) of everything of ours that its code names.
        asked: names of attributes that its code asks for.
    """

    module: str
    name: str
    registered: bool = False
    named: set[tuple[str, str]] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)

    @property
    def key(self) -> str:
        return f"{self.module}:{self.name}"

    @property
    def owner(self) -> str:
        """The class of a method, else nothing."""
        return self.name.rpartition(".")[0]

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


class Product:
    """All modules below some folders."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.definitions: dict[str, Definition] = {}
        self._outside = Definition("", "")  # what modules do when they are imported
        self._trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in _modules(folders)}
        self._reexported = {
            (module, alias.asname or alias.name): (node.module, alias.name)
            for module, tree in self._trees.items()
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module in self._trees
            for alias in node.names
        }
        for module, tree in self._trees.items():
            for node in tree.body:
                self._define(module, node, "")

    def unreached(self, roots: Iterable[str] = ()) -> list[str]:
        """Keys of what nothing reaches, given what is called from outside anyway."""
        reached: set[str] = set()
        asked: set[str] = set()
        waiting = [self._outside, *(each for each in self.definitions.values() if each.registered)]
        waiting += [self.definitions[root] for root in roots]
        while waiting:
            for here in waiting:
                reached.add(here.key)
                asked |= here.asked
            keys = {":".join(self._home(named)) for here in waiting for named in here.named}
            waiting = [self.definitions[key] for key in keys & self.definitions.keys() - reached]
            waiting = waiting or [
                each
                for each in self._methods
                if each.key not in reached
                and f"{each.module}:{each.owner}" in reached
                and (each.last in asked or _is_hook(each))
            ]
        return sorted(self.definitions.keys() - reached)

    @cached_property
    def _methods(self) -> list[Definition]:
        return [each for each in self.definitions.values() if each.owner]

    def _home(self, named: tuple[str, str]) -> tuple[str, str]:
        """Where a name that a module has only imported is defined."""
        while f"{named[0]}:{named[1]}" not in self.definitions and named in self._reexported:
            named = self._reexported[named]
        return named

    def _define(self, module: str, node: ast.stmt, owner: str) -> None:
        """Takes in a definition, or what a module or a class does beside its definitions."""
        if not isinstance(node, Definable):
            self._read(module, node, self.definitions[f"{module}:{owner}"] if owner else self._outside)
            return
        name = f"{owner}.{node.name}" if owner else node.name
        made = self.definitions[f"{module}:{name}"] = Definition(module, name)
        for decorator in node.decorator_list:
            self._read(module, decorator, made)
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            by = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            made.registered |= by in _REGISTERED
        if isinstance(node, ast.ClassDef) and not owner:
            for base in (*node.bases, *node.keywords):
                self._read(module, base, made)
            for inner in node.body:
                self._define(module, inner, name)
        else:
            for child in ast.iter_child_nodes(node):
                if child not in node.decorator_list:
                    self._read(module, child, made)

    def _read(self, module: str, node: ast.AST, into: Definition) -> None:
        imported = self._imported[module]
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                into.named.add(imported.get(each.id, (module, each.id)))
            elif isinstance(each, ast.Attribute):
                into.asked.add(each.attr)
                if isinstance(each.value, ast.Name) and each.value.id in imported:
                    package, name = imported[each.value.id]
                    into.named.add((f"{package}.{name}", each.attr))

    @cached_property
    def _imported(self) -> dict[str, dict[str, tuple[str, str]]]:
        """For each module, where the names come from that it imports anywhere."""
        found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        for module, tree in self._trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        found[module][alias.asname or alias.name] = node.module, alias.name
        return found


def _modules(folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _is_hook(method: Definition) -> bool:
    """Whether somebody else's class calls it by this name: as all special methods, and what it overrides."""
    if method.last.startswith("__"):
        return True
    made = getattr(import_module(method.module), method.owner)
    others = (base for base in made.__mro__[1:] if not base.__module__.startswith("dpdpca_"))
    return any(hasattr(base, method.last) for base in others)
