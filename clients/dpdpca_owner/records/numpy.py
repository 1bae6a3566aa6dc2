"""NumPy files: .npy with the features in manifest order, or .npz.

A .npz file has either a matrix with an array of column names, or one array for each column. Arrays are
streamed from the file a few rows at a time. Nothing is unpickled.
"""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dpdpca_owner.records.source import Listener, RecordSource, encrypted_file
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature
from dpdpca_runtime.file_kinds import zip_kind

_NAME_ARRAYS = ("features", "columns", "feature_names", "column_names")
_MOST_NAME_BYTES = 1 << 26
_COLUMN_ORDER_BYTES = 1 << 30
_READ_BYTES = 1 << 24
_LAST_POINT, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class _Array:
    """An array in a file; `member` is its name in a .npz file, and None for a .npy file."""

    member: str | None
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


class NumpySource(RecordSource):
    """One matrix with column names, or one 1-D array for each column."""

    def __init__(self, path: Path, features: Sequence[Feature]) -> None:
        self._path = path
        with self._reading():
            if zipfile.is_zipfile(path):
                arrays = self._members()
                if not arrays:
                    kind = zip_kind(path)
                    raise InputError("unknown-format", f"{path} is {kind.name}", kind.advice)
                self._matrix, self.names = self._choose(arrays)
                self._columns = arrays
            else:
                self._columns = {}
                with path.open("rb") as file:
                    self._matrix = _array_header(file, None)
                self.names = _manifest_order(self._matrix, features)

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        with self._reading():
            if self._matrix is not None:
                for rows in self._rows(self._matrix, records):
                    if listener is not None:
                        listener(list(rows.T))
                    yield [rows[:, position] for position in positions]
                return
            arrays = [self._columns[self.names[position]] for position in positions]
            lengths = {array.shape[0] for array in arrays}
            if len(lengths) > 1:
                raise InputError(
                    "ragged-columns",
                    "the arrays have different lengths",
                    "give each array one value for every record",
                )
            others = [] if listener is None else self._companions(positions)
            for parts in zip(*(self._rows(array, records) for array in arrays + others), strict=True):
                if listener is not None:
                    listener(parts)
                yield list(parts[: len(arrays)])

    def _companions(self, positions: Sequence[int]) -> list[_Array]:
        """The arrays that were not asked for and that also have one value for each record."""
        asked = {self.names[position] for position in positions}
        records = self._columns[next(iter(asked))].shape[0]
        return [
            array
            for name, array in self._columns.items()
            if name not in asked and len(array.shape) == 1 and array.shape[0] == records
        ]

    def _members(self) -> dict[str, _Array]:
        arrays = {}
        with zipfile.ZipFile(self._path) as archive:
            for member in archive.namelist():
                if member.endswith(".npy"):
                    with archive.open(member) as file:
                        arrays[member.removesuffix(".npy")] = _array_header(file, member)
        return arrays

    def _choose(self, arrays: dict[str, _Array]) -> tuple[_Array | None, tuple[str, ...]]:
        matrices = {name: array for name, array in arrays.items() if len(array.shape) == 2}
        listed = next((arrays[name] for name in _NAME_ARRAYS if name in arrays), None)
        if not matrices:
            return None, tuple(name for name, array in arrays.items() if len(array.shape) == 1)
        chosen = matrices.get("X") or (next(iter(matrices.values())) if len(matrices) == 1 else None)
        if chosen is None or listed is None:
            raise InputError(
                "unnamed-columns",
                f"{self._path} needs one matrix X and an array 'features' that names its columns",
                "add the names: numpy.savez(path, X=X, features=names)",
            )
        if listed.dtype.kind not in "US" or listed.bytes > _MOST_NAME_BYTES:
            raise InputError("unnamed-columns", "the array of column names does not contain plain text")
        (names,) = self._rows(listed, max(1, listed.shape[0])) if listed.shape[0] else (np.array([], "U1"),)
        if names.ndim != 1 or len(names) != chosen.shape[1]:
            raise InputError(
                "unnamed-columns",
                f"there are {len(names)} column names, but the matrix has {chosen.shape[1]} columns",
            )
        return chosen, tuple(_decoded(name) for name in names.tolist())

    def _rows(self, array: _Array, records: int) -> Iterator[NDArray[Any]]:
        """The array in parts of at most `records` rows."""
        with ExitStack() as stack:
            if array.member is None:
                file: IO[bytes] = stack.enter_context(self._path.open("rb"))
            else:
                file = stack.enter_context(zipfile.ZipFile(self._path).open(array.member))
            _array_header(file, array.member)
            if array.fortran_order and len(array.shape) > 1:
                for rows in _slices(self._whole(file, array), records):
                    _check_text(rows)
                    yield rows
                return
            row_shape = array.shape[1:]
            row_bytes = int(np.prod(row_shape, dtype=object)) * array.dtype.itemsize
            left = array.shape[0]
            while left:
                count = min(records, left)
                content = _exactly(file, count * row_bytes)
                # An item may have a size of 0 bytes, and `frombuffer` cannot read an empty buffer.
                rows = np.frombuffer(content, array.dtype) if row_bytes else np.zeros(count, array.dtype)
                rows = rows.reshape(count, *row_shape)
                _check_text(rows)
                yield rows
                left -= count

    def _whole(self, file: IO[bytes], array: _Array) -> NDArray[Any]:
        """A whole matrix that is stored in column order and therefore cannot be read row by row.

        A .npy file is mapped, a .npz one loaded.
        """
        if not array.bytes:
            return np.zeros(array.shape, array.dtype)
        if array.member is None:
            return np.load(self._path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]  # a memmap
        if array.bytes > _COLUMN_ORDER_BYTES:
            raise InputError(
                "too-large", "a matrix stored column by column in a .npz file is too large to be loaded",
                "save the matrix in row order: numpy.ascontiguousarray(X)",
            )  # fmt: skip
        values = np.frombuffer(_exactly(file, array.bytes), array.dtype)
        return values.reshape(array.shape, order="F")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        # NumPy and zipfile raise each of these for some damage, such as an unknown compression.
        except (ValueError, zipfile.BadZipFile, OSError, EOFError, NotImplementedError, SyntaxError) as error:
            raise InputError(
                "damaged-file",
                f"{self._path} cannot be read as a NumPy file",
                "save the array again with numpy.save",
            ) from error
        except RuntimeError as error:  # zipfile raises this if the file needs a password
            raise encrypted_file(self._path) from error


def _array_header(file: IO[bytes], member: str | None) -> _Array:
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError("unknown version of the npy format")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    if min(shape, default=1) < 0:
        raise ValueError("a negative length")
    if dtype.hasobject:
        raise InputError(
            "pickled-file",
            "an array contains Python objects, and these are never unpickled",
            "save arrays of numbers or text",
        )
    return _Array(member, shape, fortran_order, dtype)


def _check_text(values: NDArray[Any]) -> None:
    """Raises ValueError if an array of text is not valid Unicode. NumPy itself detects this only when the
    text is used."""
    if values.dtype.kind == "U":
        points = np.ascontiguousarray(values).view(values.dtype.byteorder + "u4")
        if ((points > _LAST_POINT) | ((points >= _SURROGATES.start) & (points < _SURROGATES.stop))).any():
            raise ValueError("an array of text is not valid Unicode")


def _manifest_order(matrix: _Array, features: Sequence[Feature]) -> tuple[str, ...]:
    if matrix.dtype.names is not None:
        raise InputError(
            "wrong-shape",
            f"the array contains structures with {len(matrix.dtype.names)} fields",
            "save each field as an array: numpy.savez(path, **{name: X[name] for name in X.dtype.names})",
        )
    if len(matrix.shape) not in (1, 2):
        raise InputError("wrong-shape", f"the array has {len(matrix.shape)} dimensions instead of 2")
    columns = matrix.shape[1] if len(matrix.shape) == 2 else 0
    if columns != len(features):
        raise InputError(
            "wrong-shape",
            f"the array has {columns} columns, but the study has {len(features)} features",
            "give one column for each feature in the manifest's order, or a .npz file with column names",
        )
    return tuple(feature.name for feature in features)


def _decoded(name: Any) -> str:
    return name.decode("utf-8", errors="replace") if isinstance(name, bytes) else str(name)


def _slices(values: NDArray[Any], records: int) -> Iterator[NDArray[Any]]:
    for start in range(0, len(values), records):
        yield values[start : start + records]


def _exactly(file: IO[bytes], count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        # In small parts: a damaged header may promise more than there is, and must not fill the memory.
        more = file.read(min(count - len(content), _READ_BYTES))
        if not more:
            raise EOFError("the array ends early")
        content += more
    return bytes(content)
