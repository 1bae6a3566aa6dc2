"""N, v = Σ z and R = Σ z zᵀ of encoded records: exact integers, computed by fast floating-point products.

If the study asks for it, two integers say what clipping did to the records, and one how many values are
missing.

A float64 product is exact while every partial sum stays below 2⁵³. So records are multiplied in chunks of
fewer than 2⁵³/K, and the chunks are added in int64, which cannot overflow because N̄·K < 2⁶².
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.records.clipping import ClippedRows
from dpdpca_protocol.records.encoding import obeys_bound

_CHUNK_VALUES = 2**22  # values of one float64 chunk: 32 MiB


class SecondMoments:
    """Running sums over batches of one owner's records.

    Attributes:
        count: N_l.
        sum: v_l, (d,) int64, grid units.
        second_moment: R_l, (d, d) int64, symmetric, grid units².
        clipped: what clipping did, or None if the study does not ask for it.
    """

    def __init__(self, encoded_features: int, record_bound: int, clipped: ClippedRows | None = None) -> None:
        if encoded_features < 1 or not 1 <= record_bound < 2**62:
            raise UsageError("bad-argument", "second moments need d ≥ 1 and 1 ≤ K < 2⁶²")
        self.encoded_features = encoded_features
        self.record_bound = record_bound
        self.count = 0
        self.sum: NDArray[np.int64] = np.zeros(encoded_features, dtype=np.int64)
        self.second_moment: NDArray[np.int64] = np.zeros((encoded_features, encoded_features), dtype=np.int64)
        self.clipped = clipped

    def add(self, z: NDArray[np.int64]) -> None:
        """Adds records.

        Args:
            z: (n, d) int64 with Σ z² ≤ K in every row, as `RecordEncoder` returns them.

        Raises:
            UsageError: a wrong shape or type, or a row above the bound.
            InputError: there are so many records that 64-bit sums might not be exact.
        """
        if z.ndim != 2 or z.shape[1] != self.encoded_features or z.dtype != np.int64:
            raise UsageError("bad-argument", f"records must be int64 with shape (n, {self.encoded_features})")
        self._check_room(len(z))
        exact_rows = (2**53 - 1) // self.record_bound
        step = max(1, min(exact_rows or len(z), _CHUNK_VALUES // self.encoded_features))
        for start in range(0, len(z), step):
            chunk = z[start : start + step]
            if not np.all(obeys_bound(chunk, self.record_bound)):
                raise UsageError("bad-argument", "a record exceeds the norm bound")
            if exact_rows:
                chunk_float = chunk.astype(np.float64)
                product = (chunk_float.T @ chunk_float).astype(np.int64)
            else:
                # K ≥ 2⁵³: not even one record's square fits a float64. This path is slow and exact, for tiny
                # studies only.
                product = chunk.T @ chunk
            self.second_moment += product
            self.sum += chunk.sum(axis=0)
            self.count += len(chunk)

    def add_clipped(self, lengths: NDArray[np.int64]) -> None:
        """Adds clipped records by their squared lengths before clipping, if the study asks for that."""
        if self.clipped is not None:
            self.clipped.add(lengths)

    def add_gaps(self, counts: NDArray[np.int64]) -> None:
        """Adds records by (n,) the numbers of encoded values that they lack, if the study asks for that."""
        if self.clipped is not None:
            self.clipped.add_gaps(counts)

    def merge(self, other: "SecondMoments") -> None:
        """Adds the sums over other records, under the same terms. Raises InputError like `add`."""
        self._check_room(other.count)
        self.count += other.count
        self.sum += other.sum
        self.second_moment += other.second_moment
        if self.clipped is not None and other.clipped is not None:
            self.clipped.merge(other.clipped)

    def to_bytes(self) -> bytes:
        """A unique encoding of the sums."""
        parts = (self.sum.astype(">i8"), self.second_moment.astype(">i8"), self._told().astype(">i8"))
        return self.count.to_bytes(8, "big") + b"".join(part.tobytes() for part in parts)

    def stream(self) -> Iterator[int]:
        """N, v₁…v_d, the upper triangle of R by rows, what clipping did: the order of the joint release.

        Values come one at a time, so that a large R never exists as a whole in Python integers.
        """
        yield self.count
        yield from self.sum.tolist()
        for index, row in enumerate(self.second_moment):
            yield from row[index:].tolist()
        yield from self._told().tolist()

    def values(self) -> NDArray[np.int64]:
        """The values of `stream` as one array."""
        rows = (row[index:] for index, row in enumerate(self.second_moment))
        return np.concatenate((np.array([self.count], dtype=np.int64), self.sum, *rows, self._told()))

    def _check_room(self, records: int) -> None:
        if (self.count + records) * self.record_bound >= 2**62:
            raise InputError(
                "too-many-records", "there are more records than the manifest allows one owner to add up"
            )

    def _told(self) -> NDArray[np.int64]:
        return np.array([] if self.clipped is None else self.clipped.values, dtype=np.int64)
