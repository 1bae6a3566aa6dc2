"""Shuffles encoded records, which may be larger than memory. Only the number of records and a secret decide
the order.

As records arrive, one byte of a key stream puts each into one of 256 buckets. Then each bucket, 1/256 of the
records on average, is read back and shuffled by itself. With random bytes, all orders are equally likely,
even if the file was sorted. Byte i belongs to record i, however the file is divided into batches. So with the
same secret, the same number of records always gives the same order, whatever their values.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.records.pairing import KeyStream, shuffled

_BUCKETS = 256
_MEMORY_VALUES = 2**24
"""The most values kept in memory, 128 MiB, before they are written to the disk."""


def order_of(count: int, seed: bytes) -> NDArray[np.int64]:
    """The order in which `Shuffle` returns so many records: (count,) positions."""
    stream = KeyStream(seed)
    dealt = stream.take(count)
    by_bucket = np.argsort(dealt, kind="stable")
    begins = np.concatenate([[0], np.cumsum(np.bincount(dealt, minlength=_BUCKETS))])
    buckets = (by_bucket[begins[bucket] : begins[bucket + 1]] for bucket in range(_BUCKETS))
    return np.concatenate([bucket[shuffled(len(bucket), stream)] for bucket in buckets])


class Shuffle:
    """Collects records and returns them once, in a new order.

    Args:
        width: d, the number of encoded features.
        seed: 32 secret bytes.
        folder: where records that do not fit into memory are kept, in an unnamed file that disappears with
            this process.
        memory_values: how many values fit into memory.
    """

    def __init__(self, width: int, seed: bytes, folder: Path, memory_values: int = _MEMORY_VALUES) -> None:
        self._width = width
        self._stream = KeyStream(seed)
        self._folder = folder
        self._memory_values = memory_values
        self._held: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
        self._held_records = 0
        self._file: IO[bytes] | None = None
        self._runs: list[NDArray[np.int64]] = []
        self.count = 0

    def add(self, z: NDArray[np.int64]) -> None:
        """Add records, (n, d) int64."""
        self._held.append((self._stream.take(len(z)), z))
        self._held_records += len(z)
        self.count += len(z)
        if self._held_records * self._width > self._memory_values:
            self._write_run()

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """All records in the new order, one bucket at a time."""
        held_buckets, held = self._sort_held()
        self._held.clear()
        try:
            for bucket in range(_BUCKETS):
                parts = [*self._read_runs(bucket), held[held_buckets[bucket] : held_buckets[bucket + 1]]]
                records = np.concatenate(parts)
                yield records[shuffled(len(records), self._stream)]
        finally:
            if self._file is not None:
                self._file.close()

    def _sort_held(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The start of each bucket (257 positions), and the records in memory sorted by bucket."""
        if not self._held:
            return np.zeros(_BUCKETS + 1, dtype=np.int64), np.empty((0, self._width), dtype=np.int64)
        buckets = np.concatenate([dealt for dealt, _ in self._held])
        records = np.concatenate([z for _, z in self._held])
        counts = np.bincount(buckets, minlength=_BUCKETS)
        begins = np.concatenate([[0], np.cumsum(counts)])
        return begins, records[np.argsort(buckets, kind="stable")]

    def _write_run(self) -> None:
        begins, records = self._sort_held()
        if self._file is None:
            self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed when all is read
        self._file.seek(0, 2)
        place = self._file.tell() // (8 * self._width)
        self._file.write(np.ascontiguousarray(records).data)
        self._runs.append(begins + place)
        self._held.clear()
        self._held_records = 0

    def _read_runs(self, bucket: int) -> Iterator[NDArray[np.int64]]:
        for begins in self._runs:
            assert self._file is not None
            first, last = int(begins[bucket]), int(begins[bucket + 1])
            self._file.seek(8 * self._width * first)
            content = self._file.read(8 * self._width * (last - first))
            yield np.frombuffer(content, dtype=np.int64).reshape(-1, self._width)
