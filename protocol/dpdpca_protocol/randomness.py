"""The only source of randomness: the operating system.

All code that needs randomness takes a `Randomness` as an argument. The product passes `OS_RANDOMNESS`. The
tests have a scripted source, and no setting can select it.
"""

import secrets
from typing import Protocol


class Randomness(Protocol):
    def bytes(self, count: int) -> bytes:
        """`count` uniform bytes."""

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound)."""


class _OsRandomness:
    __slots__ = ()

    def bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def below(self, bound: int) -> int:
        return secrets.randbelow(bound)

    def __reduce__(self) -> str:
        return "OS_RANDOMNESS"  # unpickled in another process, it is that process's own source


OS_RANDOMNESS: Randomness = _OsRandomness()
