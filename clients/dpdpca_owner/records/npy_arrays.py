"""Arrays in .npy and .npz files: found by their headers, and read a part at a time. Nothing is unpickled."""

import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dpdpca_owner.records.source import encrypted_file
from dpdpca_protocol.errors import InputError, UnavailableError

_READ_BYTES = 1 << 24
_LAST_POINT, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file.

    Attributes:
        path: of the file.
        member: its name in a .npz file, and None for a .npy file.
        shape, fortran_order, dtype: as its header says.
    """

    path: Path
    member: str | None
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """In bytes."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    @property
    def transposed(self) -> "StoredArray":
        """The same bytes as the array's transpose, in the other order."""
        return replace(self, shape=self.shape[::-1], fortran_order=not self.fortran_order)

    @contextmanager
    def content(self) -> Iterator[IO[bytes]]:
        """The file at the array's first byte."""
        with ExitStack() as stack:
            if self.member is None:
                file: IO[bytes] = stack.enter_context(self.path.open("rb"))
            else:
                file = stack.enter_context(zipfile.ZipFile(self.path).open(self.member))
            read_header(file, self.path, self.member)
            yield file

    def parts(self, records: int) -> Iterator[NDArray[Any]]:
        """An array in row order, in parts of at most `records` rows."""
        with self.content() as file:
            left = self.shape[0]
            while left:
                count = min(records, left)
                yield self.values(file, count)
                left -= count

    def values(self, file: IO[bytes], count: int) -> NDArray[Any]:
        """The next `count` rows of an array in row order. Raises ValueError for text that is not Unicode."""
        row_shape = self.shape[1:]
        row_bytes = int(np.prod(row_shape, dtype=object)) * self.dtype.itemsize
        # An item may have a size of 0 bytes, and `frombuffer` cannot read an empty buffer.
        if not count * row_bytes:
            return np.zeros((count, *row_shape), self.dtype)
        rows = np.frombuffer(exactly(file, count * row_bytes), self.dtype).reshape(count, *row_shape)
        _check_text(rows)
        return rows


class UnpackedArray:
    """An array in row order whose rows can be read in any order: that of a .npz file is unpacked first.

    Args:
        array: with at least one row.
        folder: for the unpacked array, in an unnamed file that disappears with this process; None means the
            system's folder for temporary files.

    Raises:
        UnavailableError: `storage-full`.
        EOFError: the file ends early.
    """

    def __init__(self, array: StoredArray, folder: Path | None) -> None:
        self._array = array
        if array.member is None:
            self._file: IO[bytes] = array.path.open("rb")
            read_header(self._file, array.path, None)
            self._begin = self._file.tell()
            if array.path.stat().st_size < self._begin + array.size:
                raise EOFError("the array ends early")
        else:
            _check_room(array, folder or Path(gettempdir()))
            self._file, self._begin = TemporaryFile(dir=folder), 0  # noqa: SIM115 - closed at the end
            left = array.size
            with array.content() as packed:
                while left:
                    content = exactly(packed, min(left, _READ_BYTES))
                    self._file.write(content)
                    left -= len(content)
        self._row_bytes = array.size // array.shape[0] if array.shape[0] else 0

    def rows(self, start: int, count: int) -> NDArray[Any]:
        """(count, …): the rows from `start` on."""
        self._file.seek(self._begin + start * self._row_bytes)
        return self._array.values(self._file, count)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


def read_header(file: IO[bytes], path: Path, member: str | None) -> StoredArray:
    """The array whose header stands here. Raises ValueError for damage, and InputError for objects."""
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
    return StoredArray(path, member, shape, fortran_order, dtype)


def members_of(path: Path) -> dict[str, StoredArray]:
    """The arrays of a .npz file by their names."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if member.endswith(".npy"):
                with archive.open(member) as file:
                    arrays[member.removesuffix(".npy")] = read_header(file, path, member)
    return arrays


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Says in an owner's words what NumPy and zipfile raise for damage."""
    try:
        yield
    # NumPy and zipfile raise each of these for some damage, such as an unknown compression.
    except (ValueError, zipfile.BadZipFile, OSError, EOFError, NotImplementedError, SyntaxError) as error:
        raise InputError(
            "damaged-file",
            f"{path} cannot be read as a NumPy file",
            "save the array again with numpy.save",
        ) from error
    except RuntimeError as error:  # zipfile raises this if the file needs a password
        raise encrypted_file(path) from error


def exactly(file: IO[bytes], count: int) -> bytes:
    """The next `count` bytes. Raises EOFError if there are fewer."""
    content = bytearray()
    while len(content) < count:
        # In small parts: a damaged header may promise more than there is, and must not fill the memory.
        more = file.read(min(count - len(content), _READ_BYTES))
        if not more:
            raise EOFError("the array ends early")
        content += more
    return bytes(content)


def decoded(names: Sequence[Any]) -> tuple[str, ...]:
    """Names of columns, of which old files have bytes."""
    return tuple(
        name.decode("utf-8", errors="replace") if isinstance(name, bytes) else str(name) for name in names
    )


def _check_text(values: NDArray[Any]) -> None:
    """Raises ValueError if an array of text is not valid Unicode. NumPy itself detects this only when the
    text is used."""
    if values.dtype.kind == "U":
        points = np.ascontiguousarray(values).view(values.dtype.byteorder + "u4")
        if ((points > _LAST_POINT) | ((points >= _SURROGATES.start) & (points < _SURROGATES.stop))).any():
            raise ValueError("an array of text is not valid Unicode")


def _check_room(array: StoredArray, folder: Path) -> None:
    """Unpacked, a small file can be larger than any disk."""
    free = shutil.disk_usage(folder).free
    if array.size > free:
        raise UnavailableError(
            "storage-full",
            f"{array.path} has an array of {array.size} bytes, which has to be unpacked, and {folder} has"
            f" {free} bytes left",
            "free space on this disk, or save the matrix in row order: numpy.ascontiguousarray(X), or"
            " X.tocsr() for a sparse one",
            retry_after_seconds=60,
        )
