"""An owner's columns, as readers deliver them, made into numbers or level positions.

What counts as missing is decided here and nowhere else: NaN, both infinities, None, a masked entry, and an
empty text. Any other text in a numeric column is an error, and so is a level that the manifest does not list.
Errors name the feature and the record's position; they never repeat a value.
"""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.features import Feature, column_key

Column = NDArray[Any] | Sequence[Any]

MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none")
"""Fields of text files that stand for a missing number, in any case."""


def pick_columns(columns: Mapping[str, Column], features: Sequence[Feature]) -> list[NDArray[Any]]:
    """The features' columns in the manifest's order, found by name; extra columns are ignored.

    Args:
        columns: header to values; names are compared in NFC, without a byte-order mark or outer spaces.
        features: those of the manifest.

    Returns:
        One (n,) array a feature.

    Raises:
        InputError: a column is missing, stands there twice, is not one-dimensional, or has another length.
    """
    found: dict[str, list[str]] = {}
    for header in columns:
        found.setdefault(column_key(header), []).append(header)
    missing = [feature.name for feature in features if column_key(feature.name) not in found]
    if missing:
        listed = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise InputError(
            "missing-column",
            f"{len(missing)} of {len(features)} features have no column of their name: {listed}",
            "rename the columns of your data to the names in the manifest",
        )
    picked = []
    for feature in features:
        headers = found[column_key(feature.name)]
        if len(headers) > 1:
            raise InputError(
                "duplicated-column",
                f"feature {feature.name} has {len(headers)} columns of its name",
                "keep one of them",
            )
        column = columns[headers[0]]
        picked.append(column if isinstance(column, np.ndarray) else _as_array(column))
        if picked[-1].ndim != 1 or len(picked[-1]) != len(picked[0]):
            raise InputError("ragged-columns", f"feature {feature.name} has not one value for each record")
    return picked


def numbers_of(column: NDArray[Any], feature: Feature, first_record: int = 0) -> NDArray[np.float64]:
    """A numeric column as (n,) float64 with NaN for every missing value.

    Raises:
        InputError: `not-a-number`, text or another thing that is no real number.
    """
    column = _unmasked(column)
    if column.dtype.kind in "fiub":
        numbers: NDArray[np.float64] = column.astype(np.float64)
    else:
        numbers = np.empty(len(column), dtype=np.float64)
        for position, value in enumerate(column):
            if _is_missing(value):
                numbers[position] = math.nan
                continue
            if isinstance(value, str | bytes) or not _is_real(value):
                raise InputError(
                    "not-a-number",
                    f"feature {feature.name} holds something that is no number"
                    f" in record {first_record + position + 1}",
                    "correct the record, or leave the value empty",
                )
            numbers[position] = _to_double(value)
    numbers[~np.isfinite(numbers)] = math.nan
    return numbers


def levels_of(column: NDArray[Any], feature: Feature, first_record: int = 0) -> NDArray[np.int64]:
    """A categorical column as (n,) positions in the feature's list of levels, −1 for a missing value.

    Numbers are compared by their shortest text (3 and 3.0 are both "3"), truth values as "true" and "false".

    Raises:
        InputError: `unknown-level`.
    """
    column = _unmasked(column)
    position_of = {level: position for position, level in enumerate(feature.levels)}
    # Values of any type that hash alike are alike as levels, but for True and 1: hence the type in the key.
    known: dict[tuple[type, Any], int] = {}
    positions = np.empty(len(column), dtype=np.int64)
    for index, value in enumerate(column.tolist()):
        key = (type(value), value)
        try:
            position = known.get(key)
        except TypeError:
            key, position = (object, None), None
        if position is None:
            position = -1 if _is_missing(value) else position_of.get(_level_text(value), -2)
            if position == -2:
                raise InputError(
                    "unknown-level",
                    f"feature {feature.name} holds a level that the manifest does not list"
                    f" in record {first_record + index + 1}",
                    "map the value to one of the manifest's levels, or leave it empty",
                )
            if position >= 0:  # a NaN is never found again: remembering it would only fill memory
                known[key] = position
        positions[index] = position
    return positions


def _unmasked(column: NDArray[Any]) -> NDArray[Any]:
    if not isinstance(column, np.ma.MaskedArray):
        return column
    plain = np.asarray(column.data, dtype=object).copy()
    plain[np.ma.getmaskarray(column)] = None
    return plain


def _as_array(column: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(column), dtype=object)
    # Assigned one by one: numpy would turn [1, "a"] into text and a list of lists into a matrix.
    for index, value in enumerate(column):
        array[index] = value
    return array


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, str | bytes) and len(value) == 0):
        return True
    try:
        return bool(value != value) or (isinstance(value, float) and math.isinf(value))
    except (TypeError, ValueError, ArithmeticError):
        return False


def _is_real(value: Any) -> bool:
    return isinstance(value, Real | Decimal | np.bool_)


def _to_double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan


def _level_text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
