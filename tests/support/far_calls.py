"""Functions for worker processes of the tests, which find this folder by PYTHONPATH."""

from collections.abc import Callable


def count_up(last: int, *, progress: Callable[..., None]) -> int:
    """Tells (0, last) to (last, last)."""
    for done in range(last + 1):
        progress(done, last)
    return last
