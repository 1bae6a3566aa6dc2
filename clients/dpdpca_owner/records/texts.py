"""What a text means in a column of numbers, and which values an owner's missing markers are.

Every format is read by these rules, after its own decoding.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpdpca_owner.records.source import ColumnSource, Listener, RecordSource
from dpdpca_protocol.records.columns import (
    MISSING_WORDS,
    Column,
    Unusable,
    level_text,
    read_levels,
    read_numbers,
)
from dpdpca_protocol.terms.features import Feature

OTHER_MARKERS: Final = (".", "?", "-", "--", "#N/A", "<NA>", "\\N")
"""What other programs write in place of a missing value. The owner must say that it means that."""
TRUTH: Final = {"true": 1.0, "false": 0.0}
"""Truth values, in upper or lower case, and the numbers for which they stand."""
NUMBER: Final = r"(?i)^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?$"
"""Matches a finite number with a decimal point. RE2 and Python read this pattern alike."""

_INFINITE = (f"{sign}{word}" for word in ("inf", "infinity", "nan") for sign in ("", "+", "-"))
_NUMBERS: Final[dict[str, float | None]] = {**TRUTH, **dict.fromkeys((*MISSING_WORDS, *_INFINITE))}
_NUMBER = re.compile(NUMBER)
_TEXTS = (str, bytes, bytearray, memoryview)
_WITH_COMMA = re.compile(r"^[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?$")
_IN_A_LEVEL: Final = {word.lower(): word for word in (*OTHER_MARKERS, "NA", "N/A", "NaN", "NULL", "None")}
_IN_A_NUMBER: Final = {marker.lower(): marker for marker in OTHER_MARKERS}


class MissingMarkers:
    """The texts and numbers that an owner's data has in place of missing values.

    Upper and lower case and spaces at the ends make no difference. A marker that is a number also stands for
    every equal number, however it is stored. A level that the study lists is a level, even if it is a marker.

    Args:
        named: as the owner wrote them; none for data whose missing values are empty.
    """

    def __init__(self, named: Sequence[str] = ()) -> None:
        self._texts = frozenset(text.lower() for each in named if (text := level_text(each)))
        self._numbers = frozenset(float(text) for text in self._texts if _NUMBER.match(text))

    def read(self, column: Column, feature: Feature) -> Column:
        """The column with None in place of markers, numbers in place of words for numbers, and `Unusable` in
        place of texts about which the owner can do something."""
        return self._levels(column, feature) if feature.is_categorical else self._in_numbers(column)

    def read_block(self, values: NDArray[Any]) -> NDArray[Any]:
        """(n, w) values of numeric features with NaN in place of markers and of what is no number."""
        if values.dtype.kind in "fiub":
            marked = self._in_numbers(values)
            assert isinstance(marked, np.ndarray)
            return marked
        columns = [np.array(self._in_numbers(column), dtype=object) for column in values.T]
        return np.stack([read_numbers(column)[0] for column in columns], axis=1)

    def _in_numbers(self, column: Column) -> Column:
        if isinstance(column, np.ndarray) and column.dtype.kind not in "OUS":
            if not self._numbers or column.dtype.kind not in "fiu":
                return column
            return np.where(np.isin(column, list(self._numbers)), np.nan, column)
        if not self._numbers and not any(issubclass(kind, _TEXTS) for kind in set(map(type, column))):
            return column
        return _replaced(column, self._number)

    def _number(self, value: Any) -> Any:
        text = _text(value)
        if text is None:
            return None if self._is_marker(value) else value
        lower = text.lower()
        if self._stands_for_missing(text):
            return None
        if lower in _NUMBERS:
            return _NUMBERS[lower]
        if lower in _IN_A_NUMBER:
            return _marker(_IN_A_NUMBER[lower])
        if _NUMBER.match(text):
            return Unusable(
                "text that looks like a number",
                "store the column as numbers; in a query, write CAST(column AS DOUBLE PRECISION)",
            )
        if _WITH_COMMA.match(text):
            return Unusable(
                "text with a decimal comma", "for a text file with decimal commas add --decimal ,"
            )
        return value

    def _is_marker(self, value: Any) -> bool:
        try:
            return not isinstance(value, bool | np.bool_) and value in self._numbers
        except TypeError:  # a value that cannot be hashed
            return False

    def _levels(self, column: Column, feature: Feature) -> Column:
        def level(value: Any) -> Any:
            text = level_text(value)
            if text is None:
                return value
            is_marker = self._stands_for_missing(text)
            if not is_marker and text.lower() not in _IN_A_LEVEL:
                return value
            alone = np.empty(1, dtype=object)
            alone[0] = value
            if read_levels(alone, feature.levels)[0][0] >= 0:
                return value
            return None if is_marker else _marker(_IN_A_LEVEL[text.lower()])

        if isinstance(column, np.ndarray) and column.dtype.kind not in "OUS" and not self._texts:
            return column
        return _replaced(column, level)

    def _stands_for_missing(self, text: str) -> bool:
        if text.lower() in self._texts:
            return True
        return bool(self._numbers) and bool(_NUMBER.match(text)) and float(text) in self._numbers


class MarkedSource(RecordSource):
    """Another source, read with an owner's missing markers. Its listener gets the values as they are.

    So the ledger knows the same records again, whatever markers are named.
    """

    def __init__(self, source: RecordSource, markers: Sequence[str]) -> None:
        self.names, self.is_text, self.remarks = source.names, source.is_text, source.remarks
        self._source = source
        self._markers = MissingMarkers(markers)

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        for columns in self._source.read(positions, features, records, listener):
            yield [
                self._markers.read(column, feature) for column, feature in zip(columns, features, strict=True)
            ]

    def tables(
        self,
        positions: Sequence[int],
        records: int,
        listener: Listener | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> Iterator[NDArray[Any]] | None:
        tables = self._source.tables(positions, records, listener, order)
        return None if tables is None else map(self._markers.read_block, tables)


class MarkedColumns(MarkedSource, ColumnSource):
    """Like `MarkedSource`, for a source by columns."""

    def __init__(self, source: ColumnSource, markers: Sequence[str]) -> None:
        super().__init__(source, markers)
        self._columns, self.records, self.folder = source, source.records, source.folder

    def stored_columns(self, positions: Sequence[int], width: int) -> Iterator[NDArray[Any]]:
        return self._columns.stored_columns(positions, width)

    def stored_calls(self, positions: Sequence[int], width: int) -> Iterator[NDArray[np.int8]] | None:
        return self._columns.stored_calls(positions, width)

    def counted(self, values: NDArray[Any], positions: Sequence[int]) -> NDArray[Any]:
        return self._columns.counted(values, positions)


def marked(source: RecordSource, markers: Sequence[str]) -> RecordSource:
    """`source`, read with an owner's missing markers."""
    return (
        MarkedColumns(source, markers) if isinstance(source, ColumnSource) else MarkedSource(source, markers)
    )


def _replaced(column: Column, meaning: Callable[[Any], Any]) -> Column:
    """The column with the meaning of each value; most columns have few different values, or no text."""
    # The numbers of an array keep their width.
    values = (
        column.tolist() if isinstance(column, np.ndarray) and column.dtype.kind in "OUS" else list(column)
    )
    try:
        meanings = {key: meaning(key[1]) for key in set(zip(map(type, values), values, strict=True))}
        if all(meant is value for (_, value), meant in meanings.items()):
            return column
        return [meanings[type(value), value] for value in values]
    except (TypeError, ValueError):  # a value that cannot be hashed
        return [meaning(value) for value in values]


def _marker(marker: str) -> Unusable:
    return Unusable(f"'{marker}'", f"if it stands for a missing value, add --missing-marker '{marker}'")


def _text(value: Any) -> str | None:
    return level_text(value) if isinstance(value, _TEXTS) else None
