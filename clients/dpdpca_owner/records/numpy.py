"""NumPy files: .npy with the features in manifest order, or .npz.

A .npz file has a matrix with an array of column names, or one array for each column, or a sparse matrix of
SciPy. The names of a matrix may also be in a text file. Arrays are streamed from the file a few rows at a
time; a matrix that is stored column by column is read a few columns at a time. Nothing is unpickled.
"""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_owner.records.npy_arrays import (
    StoredArray,
    UnpackedArray,
    decoded,
    members_of,
    read_header,
    reading,
)
from dpdpca_owner.records.source import ColumnSource, Listener, RecordSource, check_record_count
from dpdpca_owner.records.sparse import is_sparse, open_sparse
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature
from dpdpca_runtime.file_kinds import zip_kind
from dpdpca_runtime.text import load_text

_NAME_ARRAYS = ("features", "columns", "feature_names", "column_names")
_MOST_NAME_BYTES = 1 << 26
NAMES_BESIDE = ".features.txt"
"""The ending of a text file beside a NumPy file that names its columns."""


def open_numpy(
    path: Path, features: Sequence[Feature], names_file: Path | None, folder: Path | None
) -> RecordSource:
    """The records in a .npy or .npz file.

    Args:
        path: of the file.
        features: of the study, in whose order an unnamed matrix has its columns.
        names_file: a text file with the names of a matrix's columns, or None. A file beside `path` whose name
            ends with `.features.txt` is used if nothing else names the columns.
        folder: for what has to be unpacked; None means the system's folder for temporary files.

    Raises:
        InputError: the file is damaged, or its columns have no names.
    """
    with reading(path):
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                matrix = read_header(file, path, None)
            names = _names_in_text(path, names_file)
            return _matrix(matrix, _manifest_order(matrix, features, names), folder)
        arrays = members_of(path)
        if not arrays:
            kind = zip_kind(path)
            raise InputError("unknown-format", f"{path} is {kind.name}", kind.advice)
        if is_sparse(arrays):
            return open_sparse(
                path, arrays, lambda columns: _names(path, arrays, columns, names_file), folder
            )
        return _dense(path, arrays, names_file, folder)


class MatrixSource(RecordSource):
    """A matrix that is stored row by row."""

    def __init__(self, matrix: StoredArray, names: tuple[str, ...]) -> None:
        self._matrix, self.names = matrix, names

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        with reading(self._matrix.path):
            for rows in self._matrix.parts(records):
                if listener is not None:
                    listener(rows.T)
                yield [rows[:, position] for position in positions]

    def tables(
        self,
        positions: Sequence[int],
        records: int,
        listener: Listener | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> Iterator[NDArray[Any]] | None:
        return self._tables(positions, records, listener) if self._matrix.dtype.kind in "fiub" else None

    def _tables(
        self, positions: Sequence[int], records: int, listener: Listener | None
    ) -> Iterator[NDArray[Any]]:
        are_all = list(positions) == list(range(len(self.names)))
        with reading(self._matrix.path):
            for rows in self._matrix.parts(records):
                if listener is not None:
                    listener(rows.T)
                yield rows if are_all else rows[:, positions]


class MatrixByColumns(ColumnSource):
    """A matrix that is stored column by column (in Fortran order)."""

    def __init__(self, matrix: StoredArray, names: tuple[str, ...], folder: Path | None) -> None:
        super().__init__(folder)
        self._columns, self.names = matrix.transposed, names
        self._unpacked: UnpackedArray | None = None
        self.records = matrix.shape[0]
        check_record_count(self.records, matrix.path)

    def stored_columns(self, positions: Sequence[int], width: int) -> Iterator[NDArray[Any]]:
        with reading(self._columns.path):
            self._unpacked = self._unpacked or UnpackedArray(self._columns, self.folder)
            for start in range(0, len(positions), width):
                block = np.empty((len(positions[start : start + width]), self.records), self._columns.dtype)
                for place, position in enumerate(positions[start : start + width]):
                    block[place] = self._unpacked.rows(position, 1)[0]
                yield block.T


class ArraysSource(RecordSource):
    """One array for each column.

    Args:
        path: of the .npz file.
        arrays: all its arrays; those with one dimension are columns.
    """

    def __init__(self, path: Path, arrays: Mapping[str, StoredArray]) -> None:
        self._path, self._columns = path, arrays
        self.names = tuple(name for name, array in arrays.items() if len(array.shape) == 1)

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        with reading(self._path):
            arrays = [self._columns[self.names[position]] for position in positions]
            lengths = {array.shape[0] for array in arrays}
            if len(lengths) > 1:
                raise InputError(
                    "ragged-columns",
                    "the arrays have different lengths",
                    "give each array one value for every record",
                )
            others = [] if listener is None else self._companions(positions)
            for parts in zip(*(array.parts(records) for array in arrays + others), strict=True):
                if listener is not None:
                    listener(parts)
                yield list(parts[: len(arrays)])

    def _companions(self, positions: Sequence[int]) -> list[StoredArray]:
        """The arrays that were not asked for and that also have one value for each record."""
        asked = {self.names[position] for position in positions}
        records = self._columns[next(iter(asked))].shape[0]
        return [
            array
            for name, array in self._columns.items()
            if name not in asked and len(array.shape) == 1 and array.shape[0] == records
        ]


def _dense(
    path: Path, arrays: Mapping[str, StoredArray], names_file: Path | None, folder: Path | None
) -> RecordSource:
    matrices = {name: array for name, array in arrays.items() if len(array.shape) == 2}
    if not matrices:
        return ArraysSource(path, arrays)
    chosen = matrices.get("X") or (next(iter(matrices.values())) if len(matrices) == 1 else None)
    if chosen is None:
        raise _unnamed(path, "numpy.savez(path, X=X, features=names)")
    return _matrix(chosen, _names(path, arrays, chosen.shape[1], names_file), folder)


def _matrix(matrix: StoredArray, names: tuple[str, ...], folder: Path | None) -> RecordSource:
    if matrix.fortran_order and matrix.size:
        return MatrixByColumns(matrix, names, folder)
    return MatrixSource(matrix, names)


def _names(
    path: Path, arrays: Mapping[str, StoredArray], columns: int, names_file: Path | None
) -> tuple[str, ...]:
    """The names of a matrix's columns: in the file that the owner names, in the .npz file, or beside it."""
    listed = next((arrays[name] for name in _NAME_ARRAYS if name in arrays), None)
    names = None if listed is not None and names_file is None else _names_in_text(path, names_file)
    if names is None:
        if listed is None:
            raise _unnamed(path, "numpy.savez(path, X=X, features=names)")
        if listed.dtype.kind not in "US" or len(listed.shape) != 1 or listed.size > _MOST_NAME_BYTES:
            raise InputError("unnamed-columns", "the array of column names does not contain plain text")
        names = decoded([name for part in listed.parts(max(1, listed.shape[0])) for name in part.tolist()])
    if len(names) != columns:
        raise InputError(
            "unnamed-columns",
            f"there are {len(names)} column names, but the matrix has {columns} columns",
            "give one name for each column, in their order",
        )
    return names


def _names_in_text(path: Path, names_file: Path | None) -> tuple[str, ...] | None:
    """The lines of the file that names the columns, or None if there is no such file."""
    beside = path.with_name(path.name.removesuffix(path.suffix) + NAMES_BESIDE)
    if names_file is None and not beside.is_file():
        return None
    file = names_file or beside
    if not file.is_file():
        raise InputError(
            "no-such-file", f"there is no file {file}", "give the path of the names with --names"
        )
    text = load_text(file, _MOST_NAME_BYTES).removesuffix("\n")
    return tuple(line.removesuffix("\r") for line in text.split("\n"))


def _unnamed(path: Path, how: str) -> InputError:
    return InputError(
        "unnamed-columns",
        f"{path} needs one matrix X and an array 'features' that names its columns",
        f"add the names: {how}, or name a text file with one name a line: --names FILE",
    )


def _manifest_order(
    matrix: StoredArray, features: Sequence[Feature], names: tuple[str, ...] | None
) -> tuple[str, ...]:
    if matrix.dtype.names is not None:
        raise InputError(
            "wrong-shape",
            f"the array contains structures with {len(matrix.dtype.names)} fields",
            "save each field as an array: numpy.savez(path, **{name: X[name] for name in X.dtype.names})",
        )
    if len(matrix.shape) not in (1, 2):
        raise InputError("wrong-shape", f"the array has {len(matrix.shape)} dimensions instead of 2")
    columns = matrix.shape[1] if len(matrix.shape) == 2 else 0
    expected = len(features) if names is None else len(names)
    if columns != expected:
        whose = (
            f"the study has {expected} features" if names is None else f"there are {expected} column names"
        )
        raise InputError(
            "wrong-shape",
            f"the array has {columns} columns, but {whose}",
            "give one column for each feature in the manifest's order, or the names of the columns with"
            " --names FILE or in a .npz file",
        )
    return names or tuple(feature.name for feature in features)
