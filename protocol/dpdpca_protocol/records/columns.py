"""Converts an owner's columns, as readers deliver them, into numbers or level positions.

Only this module decides what is missing: NaN, NaT, both infinities, None, a masked entry, and a text that is
empty or has only spaces. This module also decides what is a number: integers, reals, decimals and booleans. A
level is a number, a text, a date or a UUID. Each level has one text, however it is stored. Columns of other
types are refused, as are text in a numeric column and levels that the manifest does not list. Errors name the
column, the type and the record's position. Errors never repeat a value.
"""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import InputError
from dpdpca_protocol.terms.features import Feature, column_key

Column = NDArray[Any] | Sequence[Any]

MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none")
"""Texts that mark a missing number in text files, in upper or lower case."""
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (str, "text"),
    ((bytes, bytearray, memoryview), "bytes"),
    ((timedelta, np.timedelta64), "a duration"),
    ((datetime, np.datetime64), "a point in time"),
    (date, "a date"),
    (time, "a time of day"),
    ((complex, np.complexfloating), "a complex number"),
    ((Mapping, np.void), "a structure"),
    ((list, tuple, set, frozenset, np.ndarray), "a list"),
)
"""Names for values that are not numbers."""
_MOST_DIGITS = 200


def pick_columns(columns: Mapping[str, Column], features: Sequence[Feature]) -> list[NDArray[Any]]:
    """The columns of the features in the manifest's order, found by name. Extra columns are ignored.

    Args:
        columns: header to values. Names are compared in NFC, without a byte-order mark or spaces at the ends.
        features: the features of the manifest.

    Returns:
        One (n,) array for each feature.

    Raises:
        InputError: a column is missing, appears twice, is not one-dimensional, or has another length than the
            others.
    """
    found: dict[str, list[str]] = {}
    for header in columns:
        found.setdefault(column_key(header), []).append(header)
    missing = [feature.name for feature in features if column_key(feature.name) not in found]
    if missing:
        listed = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise InputError(
            "missing-column",
            f"{len(missing)} of {len(features)} features have no column with their name: {listed}",
            "rename the columns of your data to the names in the manifest",
        )
    picked = []
    for feature in features:
        headers = found[column_key(feature.name)]
        if len(headers) > 1:
            raise InputError(
                "duplicated-column",
                f"feature {feature.name} has {len(headers)} columns with its name",
                "keep one of them",
            )
        column = columns[headers[0]]
        picked.append(column if isinstance(column, np.ndarray) else _as_array(column))
        if picked[-1].ndim != 1 or len(picked[-1]) != len(picked[0]):
            raise InputError(
                "ragged-columns", f"feature {feature.name} does not have one value for each record"
            )
    return picked


def numbers_of(column: NDArray[Any], feature: Feature, first_record: int = 0) -> NDArray[np.float64]:
    """A numeric column as (n,) float64 with NaN for every missing value.

    Each number is rounded to the nearest double. A number outside the range of doubles counts as missing,
    like infinity.

    Raises:
        InputError: `not-a-number`, a value is text or something else that is not a real number.
    """
    column, masked = _unmasked(column)
    if column.dtype.kind in "fiub":
        with np.errstate(over="ignore"):
            numbers: NDArray[np.float64] = column.astype(np.float64)
    elif column.dtype.kind in "mMcV":
        _refuse_present(column, masked, feature, first_record)
        numbers = np.full(len(column), math.nan)
    else:
        numbers = np.full(len(column), math.nan)
        for position in np.flatnonzero(~masked).tolist():
            value = column[position]
            if _is_missing(value):
                continue
            if not _is_real(value):
                raise wrong_kind(feature, kind_of(value), first_record + position + 1)
            numbers[position] = _to_double(value)
    numbers[masked | ~np.isfinite(numbers)] = math.nan
    return numbers


def levels_of(column: NDArray[Any], feature: Feature, first_record: int = 0) -> NDArray[np.int64]:
    """A categorical column as (n,) positions in the feature's list of levels, −1 for a missing value.

    Texts are compared in NFC without spaces at the ends, numbers by their shortest plain text at their own
    width (3, 3.0 and 3.00 are "3"), booleans as "true" and "false" in any case, dates as "2026-01-31".

    Raises:
        InputError: `unknown-level`, or `not-a-level` for a value whose type no level can have.
    """
    column, masked = _unmasked(column)
    position_of = _level_positions(feature.levels)
    # Values with the same hash are the same level, except True and 1. So the key contains the type.
    known: dict[tuple[type, Any], int] = {}
    positions = np.full(len(column), -1, dtype=np.int64)
    values = _level_values(column, masked, feature, first_record)
    for index in np.flatnonzero(~masked).tolist():
        value = values[index]
        key = (type(value), value)
        try:
            position = known.get(key)
        except (
            TypeError,
            ValueError,
        ):  # a value that cannot be hashed is not a level, or is looked up each time
            key, position = (object, None), None
        if position is None:
            position = _level_position(value, position_of, feature, first_record + index + 1)
            if position >= 0:  # a NaN is never found again, so caching it would only fill memory
                known[key] = position
        positions[index] = position
    return positions


def wrong_kind(feature: Feature, kind: str, record: int, next_step: str = "") -> InputError:
    """The error for a column whose values do not fit its feature.

    Args:
        kind: what the column holds, in the words of `kind_of`; never a value.
        record: the position of the first such record, from 1.
        next_step: replaces the usual next step.
    """
    if feature.is_categorical:
        return InputError(
            "not-a-level",
            f"column '{feature.name}' holds {kind} in record {record}, but a level must be a text, a "
            "number, a truth value or a date",
            next_step or "store the level as text, spelled as in the manifest",
        )
    correct = "correct the record, or leave the value empty"
    return InputError(
        "not-a-number",
        f"column '{feature.name}' holds {kind} in record {record}, which is not a number",
        next_step
        or (correct if kind == "text" else "store a plain number in the unit of the study's bounds"),
    )


def kind_of(value: Any) -> str:
    """A description of a value's kind, with the name of its type if that helps."""
    kind = next((words for types, words in _KINDS if isinstance(value, types)), "something")
    if isinstance(value, str | bytes):
        return kind  # the names of NumPy's text types contain the length of the text
    return f"{kind} ({value.dtype if isinstance(value, np.generic) else type(value).__name__})"


def _refuse_present(
    column: NDArray[Any], masked: NDArray[np.bool_], feature: Feature, first_record: int
) -> None:
    """Raises InputError for the first value with an unusable type.

    NaN and NaT count as missing, not as values.
    """
    absent = masked.copy()
    if column.dtype.kind in "mM":
        absent |= np.isnat(column)
    elif column.dtype.kind == "c":
        absent |= np.isnan(column)
    for position in np.flatnonzero(~absent)[:1].tolist():
        raise wrong_kind(feature, kind_of(column[position]), first_record + position + 1)


def _level_values(
    column: NDArray[Any], masked: NDArray[np.bool_], feature: Feature, first_record: int
) -> list[Any]:
    """The values of a column, each with its own type."""
    if column.dtype.kind == "M" and np.datetime_data(column.dtype) == ("D", 1):
        return [None if text == "NaT" else text for text in np.datetime_as_string(column).tolist()]
    if column.dtype.kind in "mMcV":
        _refuse_present(column, masked, feature, first_record)
        return [None] * len(column)
    return list(column) if column.dtype.kind == "f" else list(column.tolist())


def _level_positions(levels: Sequence[str]) -> dict[str, int]:
    """The position of each level by its text.

    A boolean is found in any spelling, unless several spellings are levels.
    """
    position_of = {level: position for position, level in enumerate(levels)}
    for word in ("true", "false"):
        alike = [position for position, level in enumerate(levels) if level.lower() == word]
        if len(alike) == 1:
            position_of |= dict.fromkeys((word, word.title(), word.upper()), alike[0])
    return position_of


def _level_position(value: Any, position_of: Mapping[str, int], feature: Feature, record: int) -> int:
    if _is_missing(value):
        return -1
    text = _level_text(value)
    if text is None:
        raise wrong_kind(feature, kind_of(value), record)
    if text not in position_of:
        raise InputError(
            "unknown-level",
            f"in record {record}, column '{feature.name}' holds a level that the manifest does not list",
            "replace the value by one of the manifest's levels, or leave it empty",
        )
    return position_of[text]


def _unmasked(column: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The values, and which of them are masked. A structured array is read as if it had no mask."""
    hides = isinstance(column, np.ma.MaskedArray) and column.dtype.names is None
    return np.ma.getdata(column), np.ma.getmaskarray(column) if hides else np.zeros(len(column), dtype=bool)


def _as_array(column: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(column), dtype=object)
    # The values are assigned one by one: numpy would turn [1, "a"] into text and a list of lists into a
    # matrix.
    for index, value in enumerate(column):
        array[index] = value
    return array


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, str | bytes | bytearray | memoryview):
        return not (value if isinstance(value, str) else bytes(value)).strip()
    if isinstance(value, float | np.floating):
        return not np.isfinite(value)
    if isinstance(value, Decimal):
        return not value.is_finite()
    if type(value).__name__ == "NAType":  # pandas.NA is neither equal nor unequal to itself
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError, ArithmeticError):
        return False


def _is_real(value: Any) -> bool:
    # In NumPy, durations are a kind of integer.
    return isinstance(value, Real | Decimal | np.bool_) and not isinstance(value, np.timedelta64)


def _to_double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan


def _level_text(value: Any) -> str | None:
    """The text of a value; None for a value whose type no level can have."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value).decode(errors="surrogateescape")  # bytes that are not UTF-8 are not a level
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value.strip())
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return _plain(np.format_float_positional(value, trim="-"))
    if isinstance(value, Decimal):
        return _decimal_text(value)
    if isinstance(value, Integral) and not isinstance(value, np.timedelta64):
        return _decimal_text(Decimal(int(value)))
    if isinstance(value, np.datetime64):
        return str(value) if np.datetime_data(value.dtype) == ("D", 1) else None
    if isinstance(value, UUID) or (isinstance(value, date) and not isinstance(value, datetime)):
        return str(value)
    return None


def _decimal_text(value: Decimal) -> str:
    if abs(value.adjusted()) > _MOST_DIGITS:
        return str(value)  # too large for any level, and its plain digits could fill the memory
    return _plain(format(value, "f"))


def _plain(text: str) -> str:
    """A plain decimal without trailing zeros, and without a sign if it is zero."""
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    text = f"{whole}.{fraction}" if fraction else whole
    return "0" if text == "-0" else text
