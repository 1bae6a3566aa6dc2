"""Converts an owner's columns, as readers deliver them, into numbers or level positions.

Only this module decides what is missing: NaN, NaT, both infinities, None, a masked entry, and a text that is
empty or has only spaces. This module also decides what is a number: integers, reals, decimals and booleans. A
level is a number, a text, a date or a UUID. Each level has one text, however it is stored. Anything else is
unusable: text in a numeric column, a level that the manifest does not list, and every value of another type.

`read_numbers` and `read_levels` take any column and say which values are unusable. `numbers_of` and
`levels_of` refuse the first such value. Their errors name the column, the type and the record's position.
No error repeats a value.
"""

import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_PLAIN_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]{0,99})(\.[0-9]{0,99})?([eE][+-]?[0-9]{1,3})?")
"""Matches a text that is a number as programs write it. 007 is a code, not a number."""
_TRUTH_WORDS = {"1": "true", "0": "false"}
_MISSING, _UNUSABLE = -1, -2
"""They stand in place of a level's position if a value is missing or unusable."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """What a reader puts in place of a value that no feature of this kind accepts.

    The value itself is not kept.

    Attributes:
        kind: what the value was, as `kind_of` says it; never the value.
        next_step: what the reader advises, or an empty text for the usual advice.
    """

    kind: str
    next_step: str = ""


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


def read_numbers(column: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """A numeric column, whatever it holds.

    Each number is rounded to the nearest double. A number outside the range of doubles counts as the largest
    double of its sign, which is out of every bound; infinity counts as missing.

    Returns:
        (n,) float64 with NaN where there is no number, and (n,) whether the value is unusable: it is not a
        real number, and it is not missing.
    """
    column, masked = _unmasked(column)
    unusable = np.zeros(len(column), dtype=bool)
    if column.dtype.kind in "fiub":
        with np.errstate(over="ignore"):
            numbers: NDArray[np.float64] = column.astype(np.float64)
        if column.dtype.itemsize > numbers.dtype.itemsize:
            too_large = np.isinf(numbers) & np.isfinite(column)
            numbers[too_large] = np.copysign(sys.float_info.max, numbers[too_large])
    else:
        numbers = np.full(len(column), math.nan)
        if column.dtype.kind in "mMcV":
            unusable = _present(column, masked)
        else:
            for position in np.flatnonzero(~masked).tolist():
                value = column[position]
                if _is_real(value):
                    numbers[position] = _to_double(value)
                else:
                    unusable[position] = not _is_missing(value)
    numbers[masked | ~np.isfinite(numbers)] = math.nan
    return numbers, unusable


def numbers_of(column: NDArray[Any], feature: Feature, first_record: int = 0) -> NDArray[np.float64]:
    """A numeric column as (n,) float64 with NaN for every missing value, as `read_numbers` reads it.

    Raises:
        InputError: `not-a-number`, a value is unusable.
    """
    numbers, unusable = read_numbers(column)
    refuse_unusable(column, unusable, feature, first_record)
    return numbers


def read_levels(column: NDArray[Any], levels: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A categorical column, whatever it holds.

    Texts are compared in NFC without spaces at the ends, numbers by their shortest plain text at their own
    width (3, 3.0 and 3.00 are "3"), booleans as "true" and "false" in any case, dates as "2026-01-31". A text
    that is no level but a number ("3.0") is compared as that number, and so are the levels. If the levels
    include both truth values as words, or both as 1 and 0, then 1 means true and 0 means false.

    Returns:
        (n,) positions in `levels`, −1 where there is none, and (n,) whether the value is unusable: it is not
        one of the levels, and it is not missing.
    """
    column, masked = _unmasked(column)
    position_of = _level_positions(levels)
    # Values with the same hash are the same level, except True and 1. So the key contains the type.
    known: dict[tuple[type, Any], int] = {}
    positions = np.full(len(column), _MISSING, dtype=np.int64)
    values = _level_values(column, masked)
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
            position = _level_position(value, position_of)
            if position >= 0:  # a NaN is never found again, so caching it would only fill memory
                known[key] = position
        positions[index] = position
    unusable = positions == _UNUSABLE
    positions[unusable] = _MISSING
    return positions, unusable


def levels_of(column: NDArray[Any], feature: Feature, first_record: int = 0) -> NDArray[np.int64]:
    """A categorical column as (n,) positions in the feature's list of levels, −1 for a missing value.

    The values are read as in `read_levels`.

    Raises:
        InputError: `unknown-level`, or `not-a-level` for a value whose type no level can have.
    """
    positions, unusable = read_levels(column, feature.levels)
    refuse_unusable(column, unusable, feature, first_record)
    return positions


def advised_values(column: NDArray[Any], unusable: NDArray[np.bool_]) -> list[Unusable]:
    """The unusable values of a column that come with a reader's advice.

    Args:
        column, unusable: as in `refuse_unusable`.
    """
    if column.dtype != object or not unusable.any():
        return []
    values = np.ma.getdata(column)[unusable].tolist()
    return [value for value in values if isinstance(value, Unusable) and value.next_step]


def refuse_unusable(
    column: NDArray[Any], unusable: NDArray[np.bool_], feature: Feature, first_record: int = 0
) -> None:
    """Raises InputError for the first unusable value of a column, if there is one.

    Args:
        column: as it was read.
        unusable: (n,), as `read_numbers` or `read_levels` gives it.
        feature: the column's feature.
        first_record: the position of the column's first value in all records.
    """
    if not unusable.any():
        return
    position = int(np.argmax(unusable))
    value, record = np.ma.getdata(column)[position], first_record + position + 1
    advice = value.next_step if isinstance(value, Unusable) else ""
    if feature.is_categorical and (advice or level_text(value) is not None):
        raise InputError(
            "unknown-level",
            f"in record {record}, column '{feature.name}' holds a level that the manifest does not list",
            advice or "replace the value by one of the manifest's levels, or leave it empty",
        )
    raise wrong_kind(feature, value.kind if isinstance(value, Unusable) else kind_of(value), record, advice)


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


def _present(column: NDArray[Any], masked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n,) booleans: which values of a column of an unusable type are present. NaN and NaT are not."""
    present = ~masked
    if column.dtype.kind in "mM":
        present &= ~np.isnat(column)
    elif column.dtype.kind == "c":
        present &= ~np.isnan(column)
    return present


def _level_values(column: NDArray[Any], masked: NDArray[np.bool_]) -> list[Any]:
    """The values of a column, each with its own type."""
    if column.dtype.kind == "M" and np.datetime_data(column.dtype) == ("D", 1):
        return [None if text == "NaT" else text for text in np.datetime_as_string(column).tolist()]
    if column.dtype.kind in "mMcV":
        other = Unusable(str(column.dtype))
        return [other if present else None for present in _present(column, masked).tolist()]
    return list(column) if column.dtype.kind == "f" else list(column.tolist())


def _level_positions(levels: Sequence[str]) -> dict[str, int]:
    """The position of each level by its text.

    If exactly one level is a spelling of true, then true, True and TRUE all lead to this level. If exactly
    one level is a spelling of false, then false, False and FALSE all lead to that level.
    """
    position_of = {level: position for position, level in enumerate(levels)}
    for word in ("true", "false"):
        alike = [position for position, level in enumerate(levels) if level.lower() == word]
        if len(alike) == 1:
            position_of |= dict.fromkeys((word, word.title(), word.upper()), alike[0])
    numbers = [_number_text(level) for level in levels]
    times = Counter(numbers)
    for position, number in enumerate(numbers):
        if number is not None and times[number] == 1:
            position_of.setdefault(number, position)
    _add_equal_truths(position_of)
    return position_of


def _add_equal_truths(position_of: dict[str, int]) -> None:
    """Lets 1 and 0 stand for levels that are truth values in words, and words for the levels 1 and 0."""
    words, digits = _TRUTH_WORDS.values(), _TRUTH_WORDS.keys()
    if all(word in position_of for word in words) and not any(digit in position_of for digit in digits):
        position_of |= {digit: position_of[word] for digit, word in _TRUTH_WORDS.items()}
    elif all(digit in position_of for digit in digits) and not any(
        level.lower() in words for level in position_of
    ):
        for digit, word in _TRUTH_WORDS.items():
            position_of |= dict.fromkeys((word, word.title(), word.upper()), position_of[digit])


def _level_position(value: Any, position_of: Mapping[str, int]) -> int:
    if _is_missing(value):
        return _MISSING
    text = level_text(value)
    if text is None:
        return _UNUSABLE
    position = position_of.get(text)
    if position is None and (number := _number_text(text)) is not None:
        position = position_of.get(number)
    return _UNUSABLE if position is None else position


def _number_text(text: str) -> str | None:
    """The shortest plain text of a text that is a number; None for any other text."""
    return _decimal_text(Decimal(text)) if _PLAIN_NUMBER.fullmatch(text) else None


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
        number = float(value)
    except OverflowError:  # an integer or a fraction
        return sys.float_info.max if value > 0 else -sys.float_info.max
    except ValueError:
        return math.nan
    is_too_large = math.isinf(number) and value != number
    return math.copysign(sys.float_info.max, number) if is_too_large else number


def level_text(value: Any) -> str | None:
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
