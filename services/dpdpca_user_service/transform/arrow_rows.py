"""Checks the size of an Arrow stream, then reads its rows block by block."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdpca_protocol.errors import InputError, LimitError, MessageError
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.result.components import Floats
from dpdpca_protocol.terms.features import Feature, column_key
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.results.tables import names_of_features, rows_of_table
from dpdpca_user_service.transform.arrow_metadata import measure_stream

MOST_TEXT_BYTES = 4096
"""The longest value of a feature. No level is as long."""
MOST_DICTIONARY_VALUES = 65_536
"""The most values in the dictionary of a feature's column."""

_TEXTS = 65_536
"""How many values' lengths are checked at a time."""


def arrow_blocks(
    untrusted: bytes | bytearray, manifest: Manifest, most_rows: int, most_bytes: int, block_rows: int
) -> Iterator[Floats]:
    """The rows as (n, d) encoded columns, n at most `block_rows`.

    Args:
        untrusted: the stream.
        manifest: names the features. Other columns and the order of columns do not matter.
        most_rows: the most rows in the stream.
        most_bytes: the most bytes to which it may decompress.
        block_rows: how many rows become Python and NumPy values at once.

    Raises:
        MessageError: the body is not an Arrow stream.
        InputError: the stream has no rows; also all errors of `rows_of_table`.
        LimitError: `too-large`; nothing was decompressed.
    """
    if measure_stream(untrusted, most_rows, most_bytes).rows == 0:
        raise InputError("malformed-rows", "the Arrow stream has no rows")
    first = 0
    for batch, features in _batches(untrusted, manifest):
        for start in range(0, batch.num_rows, block_rows):
            part = batch.slice(start, block_rows)
            columns = {name: _values(part.column(name), feature) for name, feature in features.items()}
            yield rows_of_table(columns, manifest, first + start)
        first += batch.num_rows


def _batches(
    untrusted: bytes | bytearray, manifest: Manifest
) -> Iterator[tuple[pa.RecordBatch, dict[str, Feature]]]:
    """The checked record batches, and which column belongs to which feature."""
    with _reading():
        # Arrow's own memory pool would never return its memory.
        reader = pa.ipc.open_stream(pa.py_buffer(untrusted), memory_pool=pa.system_memory_pool())
        names = reader.schema.names
    if len(set(names)) != len(names):
        raise InputError("duplicated-column", "the table has two columns of one name", "keep one of them")
    wanted = names_of_features(names, manifest.features)
    rows_of_table({name: [] for name in wanted}, manifest)  # raises if a feature has no column
    by_key = {column_key(feature.name): feature for feature in manifest.features}
    features = {name: by_key[column_key(name)] for name in wanted}
    while True:
        with _reading():
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            batch = _stored(batch.select(list(features)))
            batch.validate()
        for name, feature in features.items():
            _check_texts(batch.column(name), feature)
        with _reading():
            batch.validate(full=True)
        yield batch, features


def _stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the storage types in place of extension types."""
    arrays = [column.storage if isinstance(column, pa.ExtensionArray) else column for column in batch.columns]
    return pa.record_batch(arrays, batch.schema.names)


@contextmanager
def _reading() -> Iterator[None]:
    """Replaces Arrow's own messages, which may repeat values."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        raise MessageError("malformed", "the body is not an Arrow stream") from error


def _check_texts(array: pa.Array, feature: Feature) -> None:
    """Checks that no text is so long that Python's copies, one for each row, would fill the memory."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary
        if len(array) > MOST_DICTIONARY_VALUES:
            raise LimitError(
                "too-large",
                f"feature {feature.name} has a dictionary of more than {MOST_DICTIONARY_VALUES} values",
                "send the column without a dictionary",
            )
    parts = (array.slice(start, _TEXTS) for start in range(0, len(array), _TEXTS))
    if any(_longest(part) > MOST_TEXT_BYTES for part in parts):
        raise InputError(
            "malformed-rows",
            f"feature {feature.name} contains a text of more than {MOST_TEXT_BYTES} bytes",
            "replace it by one of the manifest's levels",
        )


def _longest(array: pa.Array) -> int:
    """The bytes of the longest text in `array`, which must not be empty; 0 for other types."""
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    if kind in (pa.string_view(), pa.binary_view()):
        # The length is in the first 4 of the 16 bytes of a view.
        end = array.offset + len(array)
        lengths = np.frombuffer(array.buffers()[1], np.int32, 4 * end)[4 * array.offset :: 4]
        present = array.is_valid().to_numpy(zero_copy_only=False)
        return int(lengths.max(initial=0, where=present))
    if kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        return pc.max(pc.binary_length(array)).as_py() or 0
    return 0


def _values(array: pa.Array, feature: Feature) -> Column:
    """Numbers as float64 with NaN for null; everything else as Python values."""
    try:
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
            return array.to_pylist()  # type: ignore[no-any-return] # Arrow is untyped
        if pa.types.is_boolean(kind):
            array = array.cast(pa.int8())
        if not pa.types.is_float16(kind):
            array = array.cast(pa.float64(), safe=False)
        return np.asarray(array.to_numpy(zero_copy_only=False), np.float64)
    except (pa.ArrowException, ValueError, ArithmeticError, LookupError, TypeError) as error:
        raise InputError(
            "malformed-rows",
            f"feature {feature.name} contains values that cannot be read",
            "send numbers, or texts of the manifest's levels",
        ) from error
