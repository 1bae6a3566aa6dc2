"""Parquet and Arrow (Feather) files, read in record batches."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from dpdpca_owner.sources import Listener, RecordSource
from dpdpca_protocol.columns import Column
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.features import Feature

_BUFFER_BYTES = 1 << 20
_BUFFERS_BYTES = 1 << 26
"""Read ahead of each column and of all of them: without it a row group is in memory as a whole."""


class _ArrowBatches(RecordSource):
    """What the Arrow-backed formats share: batches of typed arrays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._reading():
            self.names = self._names()

    @abstractmethod
    def _names(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _batches(self, positions: Sequence[int], records: int) -> Iterator[Sequence[pa.Array]]: ...

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        with self._reading():
            wanted = positions if listener is None else range(len(self.names))
            for arrays in self._batches(wanted, records):
                if listener is not None:
                    listener(arrays)
                    arrays = [arrays[position] for position in positions]
                yield [from_arrow(array, feature) for array, feature in zip(arrays, features, strict=True)]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Arrow's own messages may repeat values, so only the file is named."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                "damaged-file",
                f"{self._path} cannot be read as the kind of file it begins as",
                "export it again",
            ) from error


class ParquetSource(_ArrowBatches):
    """A Parquet file, read page by page however large its row groups are."""

    def _names(self) -> tuple[str, ...]:
        with self._open() as file:
            return tuple(file.schema_arrow.names)

    def _batches(self, positions: Sequence[int], records: int) -> Iterator[Sequence[pa.Array]]:
        wanted = [self.names[position] for position in positions]
        with self._open(len(wanted)) as file:
            if len(wanted) == len(self.names):
                for batch in file.iter_batches(batch_size=records):
                    yield [batch.column(position) for position in positions]
                return
            for batch in file.iter_batches(batch_size=records, columns=wanted):
                # The file's order, not ours, decides the order of columns in a batch.
                yield [batch.column(batch.schema.get_field_index(name)) for name in wanted]

    def _open(self, columns: int = 1) -> Any:
        buffer = max(1 << 14, min(_BUFFER_BYTES, _BUFFERS_BYTES // columns))
        return pyarrow.parquet.ParquetFile(self._path, pre_buffer=False, buffer_size=buffer)


class ArrowSource(_ArrowBatches):
    """An Arrow IPC file (Feather version 2) or stream; its own record batches are cut where they are long."""

    def __init__(self, path: Path, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        super().__init__(path)

    def _names(self) -> tuple[str, ...]:
        with pa.memory_map(str(self._path)) as mapped:
            return tuple(self._open(mapped).schema.names)

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


def from_arrow(array: pa.Array, feature: Feature) -> Column:
    """A typed Arrow array as a column: numbers as float64 with NaN for null, all else as Python values."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if feature.is_categorical or not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    ):
        values: list[Any] = array.to_pylist()
        return values
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    if not pa.types.is_float16(kind):
        # Integers beyond 2⁵³ round to the nearest float: the manifest's bounds decide what counts.
        array = array.cast(pa.float64(), safe=False)
    return np.asarray(array.to_numpy(zero_copy_only=False), np.float64)
