"""Sparse matrices in .npz files, as scipy.sparse.save_npz writes them, by rows (CSR) or by columns (CSC).

An entry that the file lacks is 0; a missing value is NaN, as in a dense matrix. Where each row (CSR) or
column (CSC) begins stays in memory, and the entries are read a batch at a time. Only NumPy reads the file, so
nothing is unpickled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_owner.records.npy_arrays import StoredArray, UnpackedArray, decoded, reading
from dpdpca_owner.records.source import (
    BATCH_VALUES,
    ColumnSource,
    Listener,
    RecordSource,
    check_record_count,
)
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature

_MEMBERS = ("format", "shape", "data", "indices", "indptr")
_MOST_POINTER_BYTES = 1 << 28
_SAVE = "save it again: X.sum_duplicates(); scipy.sparse.save_npz(path, X)"


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries of a sparse matrix, one line (row or column) after the other.

    Attributes:
        path: of the file.
        data, indices: (entries,) values, and the place of each in its line.
        begins: (lines + 1,) where each line begins.
        length: how long a line is.
    """

    path: Path
    data: StoredArray
    indices: StoredArray
    begins: NDArray[np.int64]
    length: int

    @property
    def lines(self) -> int:
        return len(self.begins) - 1

    def check_places(self, lines: NDArray[np.int64], places: NDArray[Any], count: int) -> None:
        """Raises InputError for places outside of a line, or for two entries at one place of it.

        Args:
            lines, places: (n,) where the entries are, in `count` lines.
        """
        if places.size and (int(places.min()) < 0 or int(places.max()) >= self.length):
            raise self.damaged(f"the index of an entry is not from 0 to {self.length - 1}")
        seen = np.zeros((count, self.length), dtype=bool)
        seen[lines, places] = True
        if np.count_nonzero(seen) != len(places):
            raise self.damaged("two entries have the same row and column")

    def damaged(self, problem: str) -> InputError:
        return InputError("damaged-file", f"{self.path} is no valid sparse matrix: {problem}", _SAVE)


def is_sparse(arrays: Mapping[str, StoredArray]) -> bool:
    """Whether a .npz file has a sparse matrix of SciPy, by the names of its arrays."""
    return "format" in arrays and "shape" in arrays and arrays["format"].shape == ()


def open_sparse(
    path: Path,
    arrays: Mapping[str, StoredArray],
    names_of: Callable[[int], tuple[str, ...]],
    folder: Path | None,
) -> RecordSource:
    """The records in a sparse matrix.

    Args:
        path: of the .npz file.
        arrays: all its arrays.
        names_of: the names of so many columns.
        folder: for what has to be unpacked.

    Raises:
        InputError: the matrix is damaged, or has another format than CSR or CSC.
    """
    (format,) = decoded([_small(arrays["format"]).item()])
    if format not in ("csr", "csc") or any(member not in arrays for member in _MEMBERS):
        raise InputError(
            "unknown-format",
            f"{path} has a sparse matrix in another format than CSR or CSC",
            "save it by rows: scipy.sparse.save_npz(path, X.tocsr())",
        )
    shape = _small(arrays["shape"])
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or min(shape.tolist()) < 0:
        raise InputError("wrong-shape", f"{path} has a sparse array without two dimensions", _SAVE)
    records, columns = shape.tolist()
    lines, length = (records, columns) if format == "csr" else (columns, records)
    entries = _entries(path, arrays, lines, length)
    names = names_of(columns)
    if format == "csr":
        return SparseRows(entries, names)
    check_record_count(records, path)
    return SparseColumns(entries, names, folder)


class SparseRows(RecordSource):
    """A matrix in format CSR."""

    def __init__(self, entries: _Entries, names: tuple[str, ...]) -> None:
        self._entries, self.names = entries, names

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        entries, begins = self._entries, self._entries.begins
        with reading(entries.path), entries.data.content() as data, entries.indices.content() as indices:
            start = 0
            # Also where a study asks for few columns, all of a batch have to fit into memory.
            most = max(1, min(records, BATCH_VALUES // max(1, entries.length)))
            while start < entries.lines:
                count = min(most, entries.lines - start)
                counts = np.diff(begins[start : start + count + 1])
                values = entries.data.values(data, int(counts.sum()))
                places = entries.indices.values(indices, int(counts.sum()))
                rows = np.repeat(np.arange(count), counts)
                entries.check_places(rows, places, count)
                batch = np.zeros((count, entries.length), values.dtype)
                batch[rows, places] = values
                if listener is not None:
                    listener(batch.T)
                yield [batch[:, position] for position in positions]
                start += count


class SparseColumns(ColumnSource):
    """A matrix in format CSC."""

    def __init__(self, entries: _Entries, names: tuple[str, ...], folder: Path | None) -> None:
        super().__init__(folder)
        self._entries, self.names = entries, names
        self._unpacked: tuple[UnpackedArray, UnpackedArray] | None = None
        self.records = entries.length

    def stored_columns(self, positions: Sequence[int], width: int) -> Iterator[NDArray[Any]]:
        entries = self._entries
        with reading(entries.path):
            self._unpacked = self._unpacked or (
                UnpackedArray(entries.data, self.folder),
                UnpackedArray(entries.indices, self.folder),
            )
            data, indices = self._unpacked
            for start in range(0, len(positions), width):
                group = positions[start : start + width]
                block = np.zeros((len(group), self.records), entries.data.dtype)
                for line, position in enumerate(group):
                    begin, end = entries.begins[position : position + 2].tolist()
                    places = indices.rows(begin, end - begin)
                    entries.check_places(np.zeros(len(places), np.int64), places, 1)
                    block[line, places] = data.rows(begin, end - begin)
                yield block.T


def _entries(path: Path, arrays: Mapping[str, StoredArray], lines: int, length: int) -> _Entries:
    data, indices, pointers = (arrays[member] for member in ("data", "indices", "indptr"))
    if data.dtype.kind not in "fiub":
        raise InputError(
            "wrong-shape", f"{path} has a sparse matrix of something else than real numbers", _SAVE
        )
    if any(array.dtype.kind not in "iu" for array in (indices, pointers)):
        raise InputError("wrong-shape", f"{path} has a sparse matrix whose indices are no integers", _SAVE)
    if pointers.size > _MOST_POINTER_BYTES:
        raise InputError(
            "too-large",
            f"{path} has a sparse matrix with {lines} rows, which are too many for one file",
            "divide the records into several files",
        )
    if pointers.shape != (lines + 1,) or len(data.shape) != 1 or data.shape != indices.shape:
        raise InputError(
            "wrong-shape", f"{path} has a sparse matrix whose arrays do not fit its shape", _SAVE
        )
    (begins,) = pointers.parts(lines + 1)
    begins = begins.astype(np.int64)
    entries = _Entries(path, data, indices, begins, length)
    counts = np.diff(begins)
    if begins[0] != 0 or begins[-1] != data.shape[0] or (lines and int(counts.min()) < 0):
        raise entries.damaged("the places where its rows or columns begin are not in order")
    if lines and int(counts.max()) > length:
        raise entries.damaged("a row or column has more entries than places")
    return entries


def _small(array: StoredArray) -> NDArray[Any]:
    """A whole array of a few bytes. Raises ValueError if it is larger."""
    if array.size > 1 << 10:
        raise ValueError("a small array is large")
    with array.content() as file:
        flat = StoredArray(array.path, array.member, (int(np.prod(array.shape)),), False, array.dtype)
        return flat.values(file, flat.shape[0]).reshape(array.shape)
