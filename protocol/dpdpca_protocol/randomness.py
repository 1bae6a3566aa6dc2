"""The one source of randomness: the operating system.

Everything random takes a `Randomness` as an argument. The product passes `OS_RANDOMNESS`; a scripted source
lives in the tests and cannot be chosen by any setting.
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
        return "OS_RANDOMNESS"  # in another process: the one of that process


OS_RANDOMNESS: Randomness = _OsRandomness()
