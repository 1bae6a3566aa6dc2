"""Parquet and Arrow (Feather) files, read in record batches."""

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray

from dpdpca_owner.records.source import (
    MOST_RECORDS,
    ColumnSource,
    Listener,
    RecordSource,
    encrypted_file,
    unreadable_object,
)
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.arrow_columns import EXTENSION, doubles, from_arrow
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.terms.features import Feature

_ENCRYPTED = re.compile(r"\b(?:de|en)crypt", re.IGNORECASE)
"""Matches Arrow's message about an encrypted Parquet column."""
_BUFFER_BYTES = 1 << 20
_BUFFERS_BYTES = 1 << 26
"""Bytes read ahead for each column and for all together; without buffers, a whole row group is in memory."""
_HELD_BYTES = 1 << 21
_MOST_HELD_BYTES = 1 << 27
"""What a reader by rows holds of each column: a page and a dictionary. And what it may hold of all together;
a file that would need more is read by columns."""


class _ArrowBatches(RecordSource):
    """Base of the Arrow formats: batches of typed arrays."""

    _is_object = False
    """Whether the file is in object storage."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        with self._reading():
            self._schema = self._read_schema()
        self.names = tuple(self._schema.names)

    @abstractmethod
    def _read_schema(self) -> pa.Schema: ...

    @abstractmethod
    def _batches(self, positions: Sequence[int], records: int) -> Iterator[Sequence[pa.Array]]: ...

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        fields = [self._schema.field(position) for position in positions]
        with self._reading():
            wanted = positions if listener is None else range(len(self.names))
            for arrays in self._batches(wanted, records):
                if listener is not None:
                    listener(arrays)
                    arrays = [arrays[position] for position in positions]
                yield [
                    from_arrow(array, feature, field)
                    for array, feature, field in zip(arrays, features, fields, strict=True)
                ]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Replaces Arrow's messages, which may contain values, by one that names only the file."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            if _ENCRYPTED.search(str(error)):
                raise encrypted_file(self._path) from error
            if self._is_object and isinstance(error, OSError):
                raise unreadable_object(str(self._path)) from error
            raise InputError(
                "damaged-file",
                f"{self._path} is damaged: its first bytes name a format, but it cannot be read as that"
                " format",
                "export it again",
            ) from error


class ParquetSource(_ArrowBatches):
    """A Parquet file. The file is read page by page, so that large row groups do not fill the memory.

    Args:
        path: of the file, for errors.
        name: of the file in `filesystem`.
        filesystem: of Arrow, or None for the file at `path`.

    Attributes:
        records: how many there are, as the file says.
    """

    records: int

    def __init__(self, path: Path | str, name: str | None = None, filesystem: Any = None) -> None:
        self._name, self._filesystem = name or str(path), filesystem
        self._is_object = filesystem is not None
        super().__init__(path)

    def _read_schema(self) -> pa.Schema:
        with self._open() as file:
            self.records = int(file.metadata.num_rows)
            return file.schema_arrow

    def _batches(self, positions: Sequence[int], records: int) -> Iterator[Sequence[pa.Array]]:
        wanted = [self.names[position] for position in positions]
        with self._open(len(wanted)) as file:
            if len(wanted) == len(self.names):
                for batch in file.iter_batches(batch_size=records):
                    yield [batch.column(position) for position in positions]
                return
            for batch in file.iter_batches(batch_size=records, columns=wanted):
                # The columns of a batch are in the order of the file, not in ours.
                yield [batch.column(batch.schema.get_field_index(name)) for name in wanted]

    def _open(self, columns: int = 1) -> Any:
        buffer = max(1 << 14, min(_BUFFER_BYTES, _BUFFERS_BYTES // columns))
        return pyarrow.parquet.ParquetFile(
            self._name, filesystem=self._filesystem, pre_buffer=False, buffer_size=buffer
        )

    @property
    def has_many_numbers(self) -> bool:
        """Whether doubles hold all values, and reading them by rows would take too much memory."""
        if len(set(self.names)) < len(self.names) or not all(map(_is_exact, self._schema)):
            return False
        with self._open() as file:
            groups = (file.metadata.row_group(i) for i in range(file.num_row_groups))
            longest = max((int(group.total_byte_size) for group in groups), default=0)
        return min(longest, _HELD_BYTES * len(self.names)) > _MOST_HELD_BYTES

    def blocks(self, positions: Sequence[int], width: int) -> Iterator[NDArray[Any]]:
        """The columns at `positions`, numbers alone, as (records, w) arrays, w ≤ `width`."""
        with self._reading(), self._open(width) as file:
            for start in range(0, len(positions), width):
                some = positions[start : start + width]
                table = file.read(columns=[self.names[position] for position in some])
                columns = [doubles(table.column(self.names[each]).combine_chunks()) for each in some]
                is_single = all(pa.types.is_float32(self._schema.field(each).type) for each in some)
                kind = np.float32 if is_single else np.float64
                yield np.stack(columns, axis=1, dtype=kind, casting="same_kind")


class ParquetColumns(ColumnSource):
    """A Parquet file of many numbers, read some columns at a time.

    Args:
        file: of numbers alone.
        folder: for the columns while they are read by rows.
    """

    def __init__(self, file: ParquetSource, folder: Path | None) -> None:
        super().__init__(folder)
        self._file, self.names, self.records = file, file.names, file.records

    def stored_columns(self, positions: Sequence[int], width: int) -> Iterator[NDArray[Any]]:
        return self._file.blocks(positions, width)


def open_parquet(file: ParquetSource, folder: Path | None) -> ParquetSource | ParquetColumns:
    """The file, to be read in the order that fits into memory."""
    by_columns = file.records <= MOST_RECORDS and file.has_many_numbers
    return ParquetColumns(file, folder) if by_columns else file


class ArrowSource(_ArrowBatches):
    """An Arrow IPC file (Feather version 2) or stream. Long record batches are cut into smaller ones."""

    def __init__(self, path: Path, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        super().__init__(path)

    def _read_schema(self) -> pa.Schema:
        with pa.memory_map(str(self._path)) as mapped:
            return self._open(mapped).schema

    def _batches(self, positions: Sequence[int], records: int) -> Iterator[Sequence[pa.Array]]:
        with pa.memory_map(str(self._path)) as mapped:
            reader = self._open(mapped)
            batches = (
                reader if self._is_stream else (reader.get_batch(i) for i in range(reader.num_record_batches))
            )
            for batch in batches:
                for start in range(0, batch.num_rows, records):
                    part = batch.slice(start, records)
                    yield [part.column(position) for position in positions]

    def _open(self, mapped: Any) -> Any:
        return pa.ipc.open_stream(mapped) if self._is_stream else pa.ipc.open_file(mapped)


def _is_exact(field: pa.Field) -> bool:
    """Whether a double holds every value of this column."""
    kind, is_other = field.type, EXTENSION in (field.metadata or {})
    is_short = pa.types.is_integer(kind) and kind.bit_width <= 32
    return not is_other and bool(pa.types.is_floating(kind) or is_short)
