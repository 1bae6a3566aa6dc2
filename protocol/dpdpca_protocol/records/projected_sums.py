"""The exact integer sums of one owner for a sketch, a lift or scores.

A projection turns each record, or each difference of two records, into a few integers. These are cut to a
bound of their own, so the guarantee depends on no property of the projection.
"""

from collections.abc import Iterator
from math import isqrt

import numpy as np

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.records.encoding import Integers, cut_to_bound
from dpdpca_protocol.records.pairing import difference
from dpdpca_protocol.records.projection import Projection
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.terms.figures import Figures

_CHUNK_VALUES = 2**21
_ROWS_AT_ONCE = 1024
"""Projected records are added up when there are so many: their matrix of products is large, too."""


class ProjectedSums:
    """Running sums over one owner's records or pairs.

    Args:
        figures: of a sketch, a lift or scores.
        projection: of the same study.

    Attributes:
        cut: how many differences were clipped to the clip norm. Records that are summed without pairs are
            clipped before.

    Guarantee: Σ z² ≤ K, and for the projected integers Σ y² ≤ 2K, Σ a² ≤ B or Σ y² ≤ K′, whatever the
        projection is. Both are checked with integers.
    Source: docs/claims.md, C1, C10, C19 and C20. Tested: tests/unit/test_projected_sums.py.
    """

    def __init__(self, figures: Figures, projection: Projection) -> None:
        setting = figures.mechanism.setting
        lifts = setting.columns > 0
        self._projection = projection
        self._names = tuple(block.name for block in figures.blocks)
        self._d, self._record_bound = figures.encoded_features, figures.record_bound
        self._bound = setting.score_bound if lifts else figures.summed_bound
        self._added = SecondMoments(setting.columns if lifts else figures.summed_features, self._bound)
        self._waiting: list[Integers] = []
        self._lifted: Integers = np.zeros((setting.columns, self._d), dtype=np.int64)
        self._exact_rows = 2**53 // (isqrt(self._record_bound * self._bound) + 1)
        self._of_pairs = figures.rules.of_pairs
        self.cut = 0

    @property
    def count(self) -> int:
        """How many records or pairs were added."""
        return self._moments.count

    @property
    def has_pairs(self) -> bool:
        """Whether differences are added."""
        return self._of_pairs

    def add(self, z: Integers) -> None:
        """Adds records, (n, d) int64 with Σ z² ≤ K in every row. A study of pairs ignores single records."""
        self._check(z)
        if not self._of_pairs:
            self._add_rows(z)

    def add_pairs(self, first: Integers, second: Integers) -> None:
        """Adds pairs of records, each (n, d) int64, before clipping, with `ABSENT` for what they lack."""
        self._check(first)
        self._check(second)
        y, cut = cut_to_bound(difference(first, second), self._record_bound)
        self.cut += cut
        self._add_rows(y)

    def merge(self, other: "ProjectedSums") -> None:
        """Adds the sums over other records or pairs of the same study."""
        self._moments.merge(other._moments)
        self._lifted += other._lifted
        self.cut += other.cut

    def values(self) -> Integers:
        """All values in the order in which they are sent."""
        moments = self._moments.values()  # count, sum, triangle
        size = self._moments.encoded_features
        parts = {
            BlockName.COUNT: moments[:1],
            BlockName.SUM: moments[1 : 1 + size],
            BlockName.LIFTED: self._lifted.T.ravel(),
        }
        triangle = moments[1 + size :]
        return np.concatenate([parts.get(name, triangle) for name in self._names])

    def stream(self) -> Iterator[int]:
        """The values, one at a time."""
        yield from self.values().tolist()

    def to_bytes(self) -> bytes:
        """A unique encoding of the sums."""
        return self.values().astype(">i8").tobytes()

    def _add_rows(self, z: Integers) -> None:
        step = max(1, min(self._exact_rows, _CHUNK_VALUES // self._d))
        for start in range(0, len(z), step):
            chunk = z[start : start + step]
            projected, _ = cut_to_bound(self._projection(chunk), self._bound)
            self._waiting.append(projected)
            if sum(map(len, self._waiting)) >= _ROWS_AT_ONCE:
                self._add_waiting()
            if self._lifted.size:
                # Every partial sum of at most `_exact_rows` products z·a is below 2⁵³.
                product = projected.T.astype(np.float64) @ chunk.astype(np.float64)
                self._lifted += product.astype(np.int64)

    @property
    def _moments(self) -> SecondMoments:
        self._add_waiting()
        return self._added

    def _add_waiting(self) -> None:
        if self._waiting:
            self._added.add(np.concatenate(self._waiting))
            self._waiting.clear()

    def _check(self, z: Integers) -> None:
        if z.ndim != 2 or z.shape[1] != self._d or z.dtype != np.int64:
            raise UsageError("bad-argument", f"records must be int64 with shape (n, {self._d})")
