"""Reads Arrow arrays as columns.

The meaning of a value does not depend on how it is stored. Dictionaries, runs, views and the two extension
types for plain values (booleans in a byte, UUIDs) are decoded first. Of all other types only the name is
read, because Arrow cannot convert every value to a Python object.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpdpca_protocol.records.columns import Column, Unusable
from dpdpca_protocol.terms.features import Feature

EXTENSION = b"ARROW:extension:name"
"""The key in a field's metadata that names an extension type which this Arrow library does not know."""


def from_arrow(array: pa.Array, feature: Feature, field: pa.Field | None = None) -> Column:
    """Reads a typed Arrow array as the column of a feature.

    Args:
        array: of any type.
        feature: the feature of the column.
        field: the Arrow field of the array. If this Arrow library does not know the type, the metadata of
            this field contain the type's name.

    Returns:
        Float64 with NaN for null for a numeric feature; otherwise what `read_levels` reads. Values of a type
        that such a feature cannot have are `Unusable`.
    """
    name = ((field.metadata if field is not None else None) or {}).get(EXTENSION)
    kind = value_type(array.type)
    if name is not None or not _is_taken(kind, feature):
        said = f"type {name.decode(errors='replace')}" if name is not None else f"type {array.type}"
        other = Unusable(f"a value of {said}")
        return [other if present else None for present in _is_present(array).to_pylist()]
    values = plain(array)
    if pa.types.is_date(kind):
        return values.to_numpy(zero_copy_only=False).astype("datetime64[D]")  # type: ignore[no-any-return] # Arrow is untyped
    if not feature.is_categorical and not _is_text(kind):
        return doubles(values)
    if pa.types.is_floating(kind):
        return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]  # pyarrow is untyped
    listed: list[Any] = values.to_pylist()
    return listed


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values in a dictionary or in runs."""
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    return kind


def plain(array: pa.Array) -> pa.Array:
    """The same values without a dictionary, runs, views or an extension type for plain values."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        return plain(array.values).take(_runs(array))
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if isinstance(kind, pa.Bool8Type):
        return array.storage.cast(pa.bool_())
    if isinstance(kind, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())
    return array


def doubles(array: pa.Array) -> NDArray[np.float64]:
    """Integers, reals, decimals or booleans as the nearest doubles; NaN for null."""
    kind = array.type
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif pa.types.is_decimal(kind):
        # Arrow's own conversion is wrong in the last bit for every fourth value. Text is read exactly.
        array = array.cast(pa.string())
    if not pa.types.is_float16(kind):
        array = array.cast(pa.float64(), safe=False)
    return np.asarray(array.to_numpy(zero_copy_only=False), np.float64)


def is_number(kind: pa.DataType) -> bool:
    """Whether `doubles` accepts arrays of this type."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    )


def _is_taken(kind: pa.DataType, feature: Feature) -> bool:
    if pa.types.is_null(kind) or is_number(kind) or _is_text(kind) or isinstance(kind, pa.Bool8Type):
        return True
    return feature.is_categorical and (pa.types.is_date(kind) or isinstance(kind, pa.UuidType))


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _runs(array: pa.RunEndEncodedArray) -> pa.Array:
    """(n,) the run in which each value is."""
    ends = array.run_ends.to_numpy(zero_copy_only=False)
    return pa.array(np.searchsorted(ends, np.arange(array.offset, array.offset + len(array)), side="right"))


def _is_present(array: pa.Array) -> pa.Array:
    """(n,) booleans: whether each value is not null, also behind a dictionary and in runs."""
    if pa.types.is_dictionary(array.type):
        return _is_present(array.dictionary).take(array.indices).fill_null(False)
    if pa.types.is_run_end_encoded(array.type):
        return _is_present(array.values).take(_runs(array))
    return array.is_valid()
