"""Rows from applications, in original units, as the d encoded columns that components are made of.

Projection needs no privacy and no clipping: a row outside the bounds keeps its values. What counts as
missing, and how columns are found, is decided where owners read theirs (`dpdpca_protocol.columns`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpdpca_protocol.columns import Column, levels_of, numbers_of, pick_columns
from dpdpca_protocol.components import Floats
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.manifest import Manifest


def is_table(rows: Any) -> bool:
    """Whether `rows` names its columns: a data frame, an Arrow table or a mapping of columns."""
    return isinstance(rows, Mapping) or hasattr(rows, "column_names") or hasattr(rows, "columns")


def rows_of_table(table: Any, manifest: Manifest) -> Floats:
    """(n, d): columns matched by name, categories spread over their levels, gaps by the manifest's rule.

    Args:
        table: mapping of columns, Arrow table or data frame; extra columns and their order do not matter.
        manifest: whose features to take.

    Raises:
        InputError: a column is absent or there twice, text where a number belongs, an unknown level, a
            missing value under the rule `reject`, or columns of different lengths.
    """
    picked = pick_columns(_columns(table), manifest.features)
    d = len(manifest.encoded_names)
    rows = np.zeros((len(picked[0]), d))
    start = 0
    for feature, column in zip(manifest.features, picked, strict=True):
        block = rows[:, start : start + feature.width]
        if feature.is_categorical:
            positions = levels_of(column, feature)
            absent = positions < 0
            present = np.flatnonzero(~absent)
            block[present, positions[present]] = 1.0
        else:
            values = numbers_of(column, feature)
            absent = np.isnan(values)
            block[:, 0] = np.where(absent, float(feature.origin), values)
        if manifest.missing == "reject" and absent.any():
            raise InputError(
                "value-missing",
                f"feature {feature.name} has {int(absent.sum())} missing value(s)",
                "leave these rows out",
            )
        start += feature.width
    return rows


def rows_of_lists(rows: Any, manifest: Manifest) -> Floats:
    """(n, d) from JSON: a list of objects by feature name, or a list of lists of d encoded numbers.

    Raises:
        InputError: neither of them, or as `rows_of_table`.
    """
    if not isinstance(rows, list) or not rows:
        raise InputError("malformed-rows", "rows must be a list with at least one row")
    if all(isinstance(row, dict) for row in rows):
        names = {name for row in rows for name in row}
        return rows_of_table({name: [row.get(name) for row in rows] for name in names}, manifest)
    d = len(manifest.encoded_names)
    if not all(isinstance(row, list) and len(row) == d for row in rows):
        raise InputError("malformed-rows", f"each row must be an object of features or a list of {d} numbers")
    if not all(
        isinstance(value, int | float) and not isinstance(value, bool) for row in rows for value in row
    ):
        raise InputError("malformed-rows", "a row of encoded numbers holds something else")
    try:
        values = np.array(rows, dtype=np.float64)
    except OverflowError as error:
        raise InputError("malformed-rows", "a number is too large") from error
    if not np.isfinite(values).all():
        raise InputError("malformed-rows", "a row of encoded numbers has a gap; name the features instead")
    return values


def _columns(table: Any) -> dict[str, Column]:
    if isinstance(table, Mapping):
        return {
            str(name): column if isinstance(column, np.ndarray) else list(column)
            for name, column in table.items()
        }
    if hasattr(table, "column_names"):
        names = list(table.column_names)
        if len(set(names)) != len(names):
            raise InputError("duplicated-column", "the table has two columns of one name", "keep one of them")
        return {name: table.column(index).to_pylist() for index, name in enumerate(names)}
    return {str(name): list(table[name]) for name in table.columns}
