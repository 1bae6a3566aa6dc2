"""What may be missing and is there, for tests that know it."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """`value`, which must not be None."""
    assert value is not None
    return value
