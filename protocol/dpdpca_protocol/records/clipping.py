"""What the clip norm did to one owner's rows, and how many values are missing: two or three exact integers.

The first says how many rows were shortened, and the second how long these were together. A row is a record
or, in a study of pairs, the difference of two records. The third counts missing values, if the study asks for
it.
"""

import numpy as np
from numpy.typing import NDArray


class ClippedRows:
    """Running sums over the rows that were longer than the clip norm.

    Args:
        clip_bound: C, at least 1, in units of 2^e grid units².
        clip_shift: e.
        gap_bound: G, how many missing values of a record count at most; 0 if they are not counted.

    Attributes:
        count: how many rows were clipped.
        squares: the sum of their squared lengths before clipping, each divided by 2^e and rounded down, and
            each at least 0 and at most C.
        gaps: how many encoded values are missing in all records, in each at most G; None if they are not
            counted.

    Guarantee: one row adds 0 or 1 to `count`, and an integer from 0 to C to `squares`, whatever `lengths`
        are; one record adds an integer from 0 to G to `gaps`. Lengths come from floating point, but only
        integers decide these bounds.
    Source: docs/claims.md, C17. Tested: tests/unit/test_clipped_rows.py.
    """

    def __init__(self, clip_bound: int, clip_shift: int = 0, gap_bound: int = 0) -> None:
        self._bound, self._shift, self._gap_bound = clip_bound, clip_shift, gap_bound
        self.count = 0
        self.squares = 0
        self.gaps = 0 if gap_bound else None

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Adds clipped rows.

        Args:
            lengths: (n,) squared lengths before clipping, in grid units². n·C must be below 2⁶³, which the
                terms of a study ensure.
        """
        self.count += len(lengths)
        self.squares += int(np.clip(lengths >> self._shift, 0, self._bound).sum())

    def add_gaps(self, counts: NDArray[np.int64]) -> None:
        """Adds records, clipped or not, by (n,) the numbers of encoded values that they lack."""
        if self.gaps is not None:
            self.gaps += int(np.clip(counts, 0, self._gap_bound).sum())

    def merge(self, other: "ClippedRows") -> None:
        """Adds the sums over other rows, under the same terms."""
        self.count += other.count
        self.squares += other.squares
        if self.gaps is not None and other.gaps is not None:
            self.gaps += other.gaps

    @property
    def values(self) -> tuple[int, ...]:
        """All integers in the order in which they are sent."""
        return (self.count, self.squares) if self.gaps is None else (self.count, self.squares, self.gaps)
