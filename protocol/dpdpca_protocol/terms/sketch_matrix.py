"""P₀, the public matrix that mixes the features of a record into a sketch.

Each feature goes with sign +1 or −1 into two of the m numbers of the sketch: one of the first half and one of
the second. A public seed determines which, so every party computes the same matrix.
"""

import hashlib
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

_TAG = b"dpdpca/sketch/v1\x00"
ENTRIES = 2
"""Entries other than 0 in each column of P₀, so that E|P₀z|² = 2|z|² over seeds."""


@dataclass(frozen=True, slots=True)
class SketchMatrix:
    """The two entries of each column of P₀, which has m rows and d columns.

    Attributes:
        row_count: m, even.
        rows: (2, d) int64: the row of each entry. The first is below m/2, the second is not.
        signs: (2, d) int64: +1 or −1.

    Source: docs/spec.md, "Many features".
    """

    row_count: int
    rows: NDArray[np.int64]
    signs: NDArray[np.int64]

    @classmethod
    def of(cls, seed: bytes, features: int, row_count: int) -> Self:
        """P₀ for d = `features` columns and m = `row_count` rows, from 32 bytes of seed."""
        sizes = features.to_bytes(4, "big") + row_count.to_bytes(4, "big")
        stream = hashlib.shake_256(_TAG + seed + sizes).digest(2 * ENTRIES * features)
        drawn = np.frombuffer(stream, dtype=">u2").reshape(features, ENTRIES).T.astype(np.int64)
        half = row_count // 2
        rows = ((drawn >> 1) * half >> 15) + half * np.arange(ENTRIES)[:, None]
        return cls(row_count, rows, np.where(drawn & 1, 1, -1))

    @property
    def features(self) -> int:
        """d."""
        return int(self.rows.shape[1])

    def after(self, matrix: NDArray[np.int64]) -> NDArray[np.int64]:
        """C·P₀, exact.

        Args:
            matrix: C, (k, m) int64 with entries below 2⁶² in size.

        Returns:
            (k, d) int64.
        """
        first, second = (matrix[:, rows] * signs for rows, signs in zip(self.rows, self.signs, strict=True))
        return np.asarray(first + second, dtype=np.int64)
