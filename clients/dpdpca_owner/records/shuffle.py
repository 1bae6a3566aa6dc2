"""Encoded records in an order that only their number and a secret decide, larger than memory or not.

Each record is dealt into one of 256 buckets by a byte of the key stream, as it comes; then each bucket, which
is a 256th of the records on average, is read back and shuffled by itself. With random bytes every order is
as likely as any other, wherever the file was sorted. Byte i belongs to record i however the file is read, so
that records of other values, in other batches, come out in the same order.
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
"""Values that are kept in memory, 128 MiB, before they go to the disk."""


class Shuffle:
    """Takes records in, and gives them back in a new order, once.

    Args:
        width: d.
        seed: 32 bytes, secret.
        folder: where more than fits into memory is kept meanwhile, in a file without a name that ends with
            this process.
        memory_values: how many values fit.
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
        """Take in records, (n, d) int64."""
        self._held.append((self._stream.take(len(z)), z))
        self._held_records += len(z)
        self.count += len(z)
        if self._held_records * self._width > self._memory_values:
            self._write_run()

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """All records in the new order, a bucket at a time."""
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
        """Where each bucket begins (257 places), and the records in memory, bucket by bucket as they came."""
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
