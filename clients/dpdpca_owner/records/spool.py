"""Blocks of columns, kept so that they can be read back by rows.

A table that is stored column by column cannot be read a few records at a time without a step for each column.
So its columns are read once, some at a time, and each block of them is written down row by row. A few records
then cost one step for each block. What fits into 64 MiB stays in memory; the rest is in an unnamed file that
disappears with this process.
"""

import errno
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import UnavailableError

_MEMORY_BYTES = 1 << 26
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_CALLS_A_BYTE: Final = 4
_UNPACKED: Final = np.array(
    [[(0, 1, 2, np.nan)[byte >> 2 * place & 3] for place in range(_CALLS_A_BYTE)] for byte in range(256)],
    dtype=np.float32,
)
"""(256, 4) the calls in each byte; NaN for a missing one."""
_LARGEST, _MISSING = 127, -128
"""In a block that is kept as bytes: the largest whole number, and what stands for NaN."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Where a block is, how it is kept, and the type that it has when it is read back.

    Attributes:
        is_packed: whether a byte holds four calls.
    """

    offset: int
    width: int
    kept: np.dtype[Any]
    dtype: np.dtype[Any]
    is_packed: bool = False

    @property
    def row_bytes(self) -> int:
        return -(-self.width // _CALLS_A_BYTE) if self.is_packed else self.width * self.kept.itemsize


class RowSpool:
    """Takes (n, w) blocks of columns, all of the same n records, and gives back rows of all of them.

    A block of small whole numbers is kept in one byte a value. What is read back is equal to what was added,
    and has its type.

    Args:
        folder: for what does not fit into memory; None means the system's folder for temporary files.
        order: (n,) the order in which records are given back; None leaves it as it is.
    """

    def __init__(self, folder: Path | None = None, order: NDArray[np.int64] | None = None) -> None:
        self._order = order
        self._folder = folder or Path(gettempdir())
        self._file = SpooledTemporaryFile(max_size=_MEMORY_BYTES, dir=str(self._folder))  # noqa: SIM115 - see `close`
        self._blocks: list[_Kept] = []
        self._end = 0

    def add(self, block: NDArray[Any]) -> None:
        """Add the next columns.

        Raises:
            UnavailableError: `storage-full`.
        """
        kept = _packed(block)
        self._write(kept, _Kept(self._end, block.shape[1], kept.dtype, block.dtype))

    def add_calls(self, calls: NDArray[np.int8]) -> None:
        """Add the next columns, which have calls alone: 0, 1, 2, or −1 for a missing one.

        They are read back as single precision, with NaN for a missing call.

        Raises:
            UnavailableError: `storage-full`.
        """
        bits = (calls & 3).view(np.uint8)
        packed = bits[:, ::_CALLS_A_BYTE].copy()
        for place in range(1, _CALLS_A_BYTE):
            part = bits[:, place::_CALLS_A_BYTE]
            packed[:, : part.shape[1]] |= part << (2 * place)
        kept = _Kept(self._end, calls.shape[1], packed.dtype, _UNPACKED.dtype, is_packed=True)
        self._write(np.ascontiguousarray(packed), kept)

    def _write(self, content: NDArray[Any], kept: _Kept) -> None:
        self._blocks.append(kept)
        stored = (content if self._order is None else content[self._order]).tobytes()
        try:
            self._file.seek(self._end)
            self._file.write(stored)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise UnavailableError(
                "storage-full",
                f"{self._folder} has no room for the records, which are written down there row by row",
                "free space on this disk, then try again; a file with fewer columns needs less",
                retry_after_seconds=60,
            ) from error
        self._end += len(stored)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """(stop − start, d): these records of all blocks, laid out by rows."""
        parts = [self._rows(block, start, stop - start) for block in self._blocks]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, block: _Kept, start: int, count: int) -> NDArray[Any]:
        shape, row_bytes = (count, block.width), block.row_bytes
        if not count * row_bytes:
            return np.zeros(shape, block.dtype)
        self._file.seek(block.offset + start * row_bytes)
        stored = np.frombuffer(self._file.read(count * row_bytes), block.kept)
        if block.is_packed:
            calls = _UNPACKED.take(stored, axis=0).reshape(count, -1)
            return calls[:, : block.width]
        content = stored.reshape(shape)
        if block.kept == block.dtype:
            return content
        values = content.astype(block.dtype)
        values[content == _MISSING] = np.nan
        return values


def _packed(block: NDArray[Any]) -> NDArray[Any]:
    """The block as bytes if it has only small whole numbers and NaN, else as it is."""
    if block.dtype.kind != "f":
        return block
    missing = np.isnan(block)
    with np.errstate(invalid="ignore"):
        is_small = (np.abs(block) <= _LARGEST) & (np.rint(block) == block)
    if not (is_small | missing).all():
        return block
    return np.where(missing, _MISSING, block).astype(np.int8)
