"""Converts rows of applications, in original units, to the d encoded columns of the components.

Projection needs no privacy and no clipping, so a row outside the bounds keeps its values. Missing values and
column names are treated as for owners (`dpdpca_protocol.records.columns`).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.arrow_columns import from_arrow
from dpdpca_protocol.records.columns import Column, levels_of, numbers_of, pick_columns
from dpdpca_protocol.result.components import Floats
from dpdpca_protocol.terms.features import Feature, column_key
from dpdpca_protocol.terms.manifest import Manifest

_NUMBERS = frozenset({int, float})
_VALUES = _NUMBERS | {bool, str, type(None)}
"""Types of single values in JSON."""


def is_table(rows: Any) -> bool:
    """Whether `rows` names its columns: a data frame, an Arrow table or a mapping of columns.

    Raises:
        InputError: it is a query that was not run yet, such as a `LazyFrame` of Polars.
    """
    if callable(getattr(rows, "collect", None)):
        raise InputError(
            "malformed-rows",
            f"a {type(rows).__name__} has no rows until its query is run",
            "call its collect() first",
        )
    if hasattr(rows, "nnz"):
        return False  # a sparse matrix; one kind of it is also a mapping
    return isinstance(rows, Mapping) or hasattr(rows, "column_names") or hasattr(rows, "columns")


def names_of_features(names: Iterable[str], features: Sequence[Feature]) -> list[str]:
    """The column names that are names of features.

    Raises:
        InputError: there are more such columns than features.
    """
    keys = {column_key(feature.name) for feature in features}
    named = [name for name in names if column_key(name) in keys]
    if len(named) > len(features):
        raise InputError(
            "duplicated-column", "two columns have the name of the same feature", "keep one of them"
        )
    return named


def rows_of_table(table: Any, manifest: Manifest, first_record: int = 0) -> Floats:
    """(n, d) encoded rows. Columns are matched by name, and each level of a category gets a column.

    Missing values are treated by the manifest's rule.

    Args:
        table: mapping of columns, Arrow table or data frame; extra columns and their order do not matter.
        manifest: has the features.
        first_record: number of records before these, for the record numbers in errors.

    Raises:
        InputError: a column is missing or occurs twice, a numeric column contains text, a level is unknown, a
            value is missing under the rule `reject`, or columns have different lengths.
    """
    picked = pick_columns(table_columns(table, manifest.features), manifest.features)
    d = len(manifest.encoded_names)
    rows = np.zeros((len(picked[0]), d))
    start = 0
    for feature, column in zip(manifest.features, picked, strict=True):
        block = rows[:, start : start + feature.width]
        if feature.is_categorical:
            positions = levels_of(column, feature, first_record)
            absent = positions < 0
            present = np.flatnonzero(~absent)
            block[present, positions[present]] = 1.0
        else:
            values = numbers_of(column, feature, first_record)
            absent = np.isnan(values)
            block[:, 0] = values
        block[absent] = [float(origin) for origin in feature.origins]
        if manifest.missing == "reject" and absent.any():
            raise InputError(
                "value-missing",
                f"feature {feature.name} is missing in record {first_record + int(np.argmax(absent)) + 1}",
                "leave out such rows",
            )
        start += feature.width
    return rows


def rows_of_lists(rows: Sequence[Any], manifest: Manifest, first_record: int = 0) -> Floats:
    """(n, d) encoded rows from JSON: objects with feature names, or lists of d encoded numbers.

    Args:
        rows: at least one row, all of the same kind.
        manifest: has the features.
        first_record: as for `rows_of_table`.

    Raises:
        InputError: the rows are neither all objects nor all lists of d numbers; also all errors of
            `rows_of_table`.
    """
    kinds, d = set(map(type, rows)), len(manifest.encoded_names)
    if kinds == {dict}:
        return rows_of_table(_columns_of_objects(rows, manifest.features), manifest, first_record)
    if kinds != {list} or set(map(len, rows)) != {d}:
        raise InputError("malformed-rows", f"each row must be an object of features or a list of {d} numbers")
    if not _NUMBERS.issuperset(map(type, chain.from_iterable(rows))):
        raise InputError("malformed-rows", "a row of encoded numbers contains something that is not a number")
    try:
        values = np.array(rows, dtype=np.float64)
    except OverflowError as error:
        raise InputError("malformed-rows", "a number is too large") from error
    if not np.isfinite(values).all():
        raise InputError(
            "malformed-rows",
            "a row of encoded numbers has a missing value",
            "give rows with missing values as objects with feature names",
        )
    return values


def _columns_of_objects(rows: Sequence[Mapping[str, Any]], features: Sequence[Feature]) -> dict[str, Column]:
    """The columns of the features, under the names that the rows use; None where a row has no value."""
    levelled = {column_key(feature.name) for feature in features if feature.is_categorical}
    columns: dict[str, Column] = {}
    for name in names_of_features(dict.fromkeys(chain.from_iterable(rows)), features):
        column = [row.get(name) for row in rows]
        kinds = set(map(type, column))
        if not kinds <= _VALUES:
            raise InputError(
                "malformed-rows", "a row contains a list or an object in place of a single value"
            )
        columns[name] = column
        if kinds <= _NUMBERS and column_key(name) not in levelled:
            with suppress(OverflowError):  # an integer too large for a float counts as missing, as everywhere
                columns[name] = np.array(column, dtype=np.float64)
    return columns


def numeric_matrix(table: Any) -> Floats:
    """(n, d) numbers from all columns of a table, in their order; NaN for a missing value.

    Raises:
        InputError: a column is not numeric, or columns have different lengths.
    """
    features = [Feature(name, "numeric") for name in _names(table)]
    picked = pick_columns(table_columns(table, features), features)
    return np.column_stack(
        [numbers_of(column, feature) for column, feature in zip(picked, features, strict=True)]
    )


def table_columns(table: Any, features: Sequence[Feature]) -> dict[str, Column]:
    """Names and values of the columns; at least of those that the features name."""
    if isinstance(table, Mapping):
        wanted = {column_key(feature.name): feature for feature in features}
        return {
            str(name): _column(column, wanted.get(column_key(str(name)))) for name, column in table.items()
        }
    names = _names(table)
    if len(set(names)) != len(names):
        raise InputError(
            "duplicated-column", "the table has two columns with the same name", "keep one of them"
        )
    arrow = _as_arrow(table)
    if arrow is None:
        return {name: list(table[header]) for name, header in zip(names, table.columns, strict=True)}
    wanted = {column_key(feature.name): feature for feature in features}
    return {
        name: _from_arrow(arrow.column(place), wanted[column_key(name)], arrow.schema.field(place))
        for place, name in enumerate(names)
        if column_key(name) in wanted
    }


def _names(table: Any) -> list[str]:
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    names = table.column_names if hasattr(table, "column_names") else table.columns
    return [str(name) for name in names]


def _column(values: Any, feature: Feature | None) -> Column:
    if feature is not None and isinstance(values, pa.Array | pa.ChunkedArray):
        return _from_arrow(values, feature, None)
    if isinstance(values, np.ndarray):
        return values
    try:
        return list(values)
    except TypeError as error:
        raise InputError(
            "ragged-columns", "a column of the table is a single value, not a list", "give a list of values"
        ) from error


def _as_arrow(table: Any) -> pa.Table | pa.RecordBatch | None:
    """The table as an Arrow table, so that types mean the same for every library; None if impossible."""
    if isinstance(table, pa.Table | pa.RecordBatch):
        return table
    if not hasattr(table, "__arrow_c_stream__"):
        return None
    try:
        return pa.table(table)
    except (pa.ArrowException, TypeError, ValueError):  # a column of mixed Python objects
        return None


def _from_arrow(values: pa.Array | pa.ChunkedArray, feature: Feature, field: pa.Field | None) -> Column:
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    parts = [from_arrow(chunk, feature, field) for chunk in chunks]
    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return list(chain.from_iterable(parts))
