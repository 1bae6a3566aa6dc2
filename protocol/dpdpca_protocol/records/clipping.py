"""What the clip norm did to one owner's rows: two exact integers.

The first says how many rows it shortened, and the second how long these were together. A row is a record or,
in a study of pairs, the difference of two records.
"""

import numpy as np
from numpy.typing import NDArray


class ClippedRows:
    """Running sums over the rows that were longer than the clip norm.

    Args:
        clip_bound: C, at least 1, in units of 2^e grid units².
        clip_shift: e.

    Attributes:
        count: how many rows were clipped.
        squares: the sum of their squared lengths before clipping, each divided by 2^e and rounded down, and
            each at least 0 and at most C.

    Guarantee: one row adds 0 or 1 to `count`, and an integer from 0 to C to `squares`, whatever `lengths`
        are. Lengths come from floating point, but only integers decide this bound.
    Source: docs/claims.md, C17. Tested: tests/unit/test_clipped_rows.py.
    """

    def __init__(self, clip_bound: int, clip_shift: int = 0) -> None:
        self._bound, self._shift = clip_bound, clip_shift
        self.count = 0
        self.squares = 0

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Adds clipped rows.

        Args:
            lengths: (n,) squared lengths before clipping, in grid units². n·C must be below 2⁶³, which the
                terms of a study ensure.
        """
        self.count += len(lengths)
        self.squares += int(np.clip(lengths >> self._shift, 0, self._bound).sum())

    def merge(self, other: "ClippedRows") -> None:
        """Adds the sums over other rows, under the same clip norm."""
        self.count += other.count
        self.squares += other.squares

    @property
    def values(self) -> tuple[int, int]:
        """Both integers in the order in which they are sent."""
        return self.count, self.squares
