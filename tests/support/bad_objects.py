"""Objects in memory that go wrong as a test wants it."""

from collections.abc import Callable
from typing import Any

from obstore.store import MemoryStore


class Bad:
    """A store in memory that goes wrong as a test wants it.

    `wrong` maps the name of a method to what is done in its place; it gets the real method and the arguments.
    """

    def __init__(self, **wrong: Callable[..., Any]) -> None:
        self.memory, self.wrong = MemoryStore(), wrong
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.memory, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            wrong = self.wrong.get(name)
            return wrong(real, *arguments, **options) if wrong else real(*arguments, **options)

        return call
