"""Text files with a header and one of four delimiters.

The encoding is UTF-8, or UTF-16 or UTF-32 with a byte-order mark; others must be named. Every field is read
as text and converted to a number here. So the type of a column does not depend on its first rows, and no
error message can contain a value.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from dpdpca_owner.records.fingerprint import as_text
from dpdpca_owner.records.source import Listener, RecordSource
from dpdpca_owner.records.texts import NUMBER, TRUTH
from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.records.columns import MISSING_WORDS, Column, Unusable
from dpdpca_protocol.terms.features import Feature, column_key
from dpdpca_runtime.file_kinds import BEGINNING_BYTES, foreign_kind, is_binary
from dpdpca_runtime.text import marked_encoding

_DELIMITERS = (",", ";", "\t", "|")
_RAGGED = re.compile(r"(?:Row #([0-9]+): )?Expected [0-9]+ columns, got ([0-9]+)")
"""Matches Arrow's message about a row with too few or too many fields."""
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_TABLES = (
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"PK\x03\x04", "a ZIP archive"),
    *((magic, "compressed") for magic in _COMPRESSIONS),
)
"""Formats that a compressed file may contain instead of text."""
_MOSTLY = 0.8
_HEADER_BYTES = 1 << 23
_BLOCK_BYTES = 1 << 20
"""Smallest size of a block; the reader holds a few dozen blocks. A record must fit into one block."""
_MISSING = pa.array(MISSING_WORDS)
_READ_AS_NUMBER = rf"{NUMBER}|^[+-]?(inf|infinity|nan)$"
"""Matches what Arrow reads as a number."""
_WITH_POINT = Unusable("text with a decimal point", "if the file has decimal points, leave out --decimal ,")
_DELIMITER_LINE = re.compile(r"sep=([^\w\s\"]|\t)\r?\n")
"""Matches the line with which Excel names the delimiter of a file."""
_END_MARKS = re.compile(rb"(?:\x1a[\r\n]*)+\Z")
"""Matches the marks with which DOS programs end a text file."""
_END_BYTES = 1024


class CsvSource(RecordSource):
    """A delimited text file.

    Args:
        path: a plain file, or one compressed with gzip, bzip2, zstd or LZ4, whatever its name.
        features: used to find the delimiter: the one with which the header has most of these features.
        encoding: a Python codec; None means UTF-8, or the encoding of the file's byte-order mark.
        decimal: "." or ",".
        header_lines: how many lines come before the records. The first has the names; a line `sep=;` before
            it is not counted.
    """

    is_text = True

    def __init__(
        self,
        path: Path,
        features: Sequence[Feature],
        encoding: str | None,
        decimal: str,
        header_lines: int = 1,
    ) -> None:
        self._path = path
        self._header_lines = header_lines
        self._decimal = decimal
        self._compression = _compression(path)
        beginning = self._beginning()
        self._encoding = _encoding(beginning, encoding)
        text = self._decode(beginning)
        named = _DELIMITER_LINE.match(text)
        self._lines_before = 1 if named else 0
        self._delimiter, self.names = _header(
            text[named.end() :] if named else text, features, named.group(1) if named else _DELIMITERS
        )
        self._block_bytes = max(_BLOCK_BYTES, 64 * len(self.names), 8 * sum(map(len, self.names)))

    def read(
        self,
        positions: Sequence[int],
        features: Sequence[Feature],
        records: int,
        listener: Listener | None = None,
    ) -> Iterator[list[Column]]:
        columns = [f"{position}" for position in range(len(self.names))]
        wanted = [columns[position] for position in positions]
        included = wanted if listener is None else columns
        # Bytes, because a field need not be valid text.
        types = dict.fromkeys(included, pa.binary())
        try:
            with self._open() as file:
                reader = pyarrow.csv.open_csv(
                    file,
                    read_options=pa.csv.ReadOptions(
                        use_threads=False,  # keeps the order, so that rows can be counted
                        block_size=self._block_bytes,
                        column_names=columns,  # our own names, so that duplicate names do no harm
                        skip_rows=self._lines_before,
                        skip_rows_after_names=self._header_lines,
                        encoding=self._encoding,
                    ),
                    parse_options=pa.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                    convert_options=pa.csv.ConvertOptions(
                        include_columns=included,
                        column_types=types,
                        strings_can_be_null=False,
                    ),
                )
                with reader:
                    for block in reader:
                        for start in range(0, block.num_rows, records):
                            batch = block.slice(start, records)
                            if listener is not None:
                                listener([_with_points(column, self._decimal) for column in batch.columns])
                            yield self._columns([batch.column(name) for name in wanted], features)
        except (pa.ArrowException, UnicodeError, OSError) as error:
            # Parsed from the message, because a handler of ours would be called by Arrow's reading thread.
            # That thread may outlive the interpreter and then crash the process.
            if ragged := _RAGGED.search(str(error)):
                number, fields = ragged.groups()
                place = f"row {number}" if number else "a row"
                raise InputError(
                    "ragged-row",
                    f"{place} of {self._path} has {fields} fields, but the header has {len(self.names)}",
                    "export the file again, with quotes around text fields",
                ) from None
            raise self._damaged() if isinstance(error, OSError) else self._not_text() from error

    def _columns(self, texts: Sequence[pa.Array], features: Sequence[Feature]) -> list[Column]:
        numeric = [
            array for array, feature in zip(texts, features, strict=True) if not feature.is_categorical
        ]
        numbers = iter(_all_numbers(numeric, self._decimal))
        return [
            self._levels(as_text(array), feature) if feature.is_categorical else next(numbers)
            for array, feature in zip(texts, features, strict=True)
        ]

    def _levels(self, texts: pa.Array, feature: Feature) -> list[str]:
        levels: list[str] = texts.to_pylist()
        if self._decimal == ".":
            return levels
        listed = set(feature.levels)
        with_points = _with_points(texts, ",").to_pylist()
        return [
            level if level.strip() in listed else number
            for level, number in zip(levels, with_points, strict=True)
        ]

    def _open(self) -> Any:
        """The file without the marks at its end, which would be a record of one field."""
        has_marks = self._compression is None and not self._encoding.startswith(("utf-16", "utf-32"))
        end = _end_of_text(self._path) if has_marks else None
        if end is None:
            return pa.input_stream(str(self._path), compression=self._compression)
        # A slice of a mapped file: a reader in Python would be called by Arrow's own threads.
        with pa.memory_map(str(self._path)) as mapped:
            return pa.BufferReader(mapped.read_buffer(end))

    def _beginning(self) -> bytes:
        try:
            with pa.input_stream(str(self._path), compression=self._compression) as file:
                beginning = bytes(file.read(_HEADER_BYTES))
        except (pa.ArrowException, OSError) as error:
            raise self._damaged() from error
        if self._compression:
            self._check_compressed(beginning)
        return beginning

    def _check_compressed(self, beginning: bytes) -> None:
        """Check that a compressed file contains text. The other formats have a compression of their own."""
        first = beginning[:BEGINNING_BYTES]
        kind = foreign_kind(first)
        tables = (name for magic, name in _TABLES if first.startswith(magic) and is_binary(first))
        inside = kind.name if kind else next(tables, None)
        if inside:
            raise InputError(
                "unknown-format",
                f"{self._path} is compressed with {self._compression}, and its content is {inside}, not text",
                "unpack it first",
            )

    def _decode(self, beginning: bytes) -> str:
        try:
            decoder = codecs.getincrementaldecoder(self._encoding)()
            text = decoder.decode(beginning)
        except (UnicodeError, LookupError) as error:
            raise (self._binary(beginning) if b"\0" in beginning else self._not_text()) from error
        if "\0" in text:
            raise self._binary(beginning)
        return text.removeprefix("\ufeff")

    def _not_text(self) -> InputError:
        return InputError(
            "unknown-format",
            f"{self._path} is not text in the encoding {self._encoding}",
            "name the encoding of the file, for example --encoding cp1252",
        )

    def _binary(self, beginning: bytes) -> InputError:
        # In most texts in UTF-16, nearly every other byte is zero.
        first = beginning[:BEGINNING_BYTES]
        for encoding, half in (("utf-16-le", first[1::2]), ("utf-16-be", first[::2])):
            if half.count(0) > _MOSTLY * len(half) and first.count(0) < len(half) + 2:
                return InputError(
                    "unknown-format",
                    f"{self._path} looks like UTF-16 without a byte-order mark",
                    f"add --encoding {encoding}",
                )
        return InputError(
            "unknown-format",
            f"{self._path} is neither a text file nor Parquet, Arrow or NumPy",
            "export the data as CSV or Parquet",
        )

    def _damaged(self) -> InputError:
        how = (
            f"as a {self._compression} file, although it begins as one" if self._compression else "to its end"
        )
        return InputError("damaged-file", f"{self._path} cannot be read {how}", "export it again")


def _compression(path: Path) -> str | None:
    """How a file is compressed, according to its first bytes and not to its name."""
    with path.open("rb") as file:
        first = file.read(BEGINNING_BYTES)
    names = (name for magic, name in _COMPRESSIONS.items() if first.startswith(magic) and is_binary(first))
    return next(names, None)


def _encoding(beginning: bytes, named: str | None) -> str:
    if named is not None:
        try:
            return codecs.lookup(named).name
        except LookupError as error:
            raise UsageError(
                "bad-option",
                "--encoding does not name an encoding that Python knows",
                "use a name such as utf-8 or cp1252",
            ) from error
    marked = marked_encoding(beginning)
    return "utf-8" if marked in (None, "utf-8-sig") else marked  # Arrow removes the UTF-8 mark itself


def _end_of_text(path: Path) -> int | None:
    """Where the text of a file ends, if marks for the end follow it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _END_BYTES))
        marks = _END_MARKS.search(file.read())
    return size - len(marks.group()) if marks else None


def _header(text: str, features: Sequence[Feature], delimiters: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The delimiter that finds most features (and then most columns), and the column names it gives."""
    best: tuple[tuple[int, int], str, tuple[str, ...]] | None = None
    wanted = [column_key(feature.name) for feature in features]
    for delimiter in delimiters:
        with suppress(csv.Error):
            rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
            names = next((tuple(row) for row in islice(rows, 100) if row), ())
            keys = {column_key(name) for name in names}
            score = (sum(key in keys for key in wanted), len(names))
            if names and (best is None or score > best[0]):
                best = (score, delimiter, names)
    if best is None:
        raise InputError(
            "no-header", "the text file has no header line", "put the column names into the first line"
        )
    return best[1], best[2]


def _all_numbers(texts: Sequence[pa.Array], decimal: str) -> Sequence[Column]:
    """The numbers of columns of bytes. A call of Arrow for each of many short columns would take long, so
    columns without any text are converted together."""
    if not texts:
        return []
    with suppress(pa.ArrowException):
        _, together = _as_digits(pa.concat_arrays(texts).cast(pa.string()), decimal)
        return list(_doubles(together).reshape(len(texts), -1))
    return [_numbers(as_text(array), decimal) for array in texts]


def _numbers(texts: pa.Array, decimal: str) -> Column:
    """The numbers of a column of texts: NaN for missing ones, and the text itself for what is no number."""
    written, digits = _as_digits(texts, decimal)
    with suppress(pa.ArrowInvalid):
        return _doubles(digits)
    is_number = pc.fill_null(pc.match_substring_regex(digits, _READ_AS_NUMBER), True)
    numbers = _doubles(pc.if_else(is_number, digits, pa.scalar(None, digits.type))).astype(object)
    others = np.flatnonzero(~is_number.to_numpy(zero_copy_only=False))
    for place, text in zip(others.tolist(), written.take(pa.array(others)).to_pylist(), strict=True):
        numbers[place] = _WITH_POINT if decimal == "," and re.match(NUMBER, text) else text
    return numbers


def _as_digits(texts: pa.Array, decimal: str) -> tuple[pa.Array, pa.Array]:
    """The texts without spaces at their ends; and the same as Arrow reads numbers, null where missing."""
    written = pc.utf8_trim_whitespace(texts)
    lower = pc.utf8_lower(written)
    trimmed = pc.if_else(pc.is_in(lower, value_set=_MISSING), pa.scalar(None, written.type), written)
    for word, number in TRUTH.items():
        trimmed = pc.if_else(pc.equal(lower, word), str(number), trimmed)
    if decimal == ",":
        # A point is then invalid: it is no decimal sign, and it is not taken for a thousands separator.
        trimmed = pc.replace_substring(pc.replace_substring(trimmed, ".", "?"), ",", ".")
    return written, trimmed


def _doubles(texts: pa.Array) -> NDArray[np.float64]:
    """The nearest doubles. A number that is too large for a double is the largest double, not infinity."""
    numbers = np.array(texts.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    infinite = np.flatnonzero(np.isinf(numbers))
    if infinite.size:
        has_digits = pc.match_substring_regex(texts.take(pa.array(infinite)), "[0-9]")
        too_large = infinite[has_digits.to_numpy(zero_copy_only=False)]
        numbers[too_large] = np.copysign(np.finfo(np.float64).max, numbers[too_large])
    return numbers


def _with_points(texts: pa.Array, decimal: str) -> pa.Array:
    """The column that a listener gets: decimal commas are replaced by points.

    The listener gets the same values of a column whether the study asks for this column or not. The other
    columns arrive as bytes, because they may not be valid text.
    """
    if decimal == ".":
        return texts
    texts = as_text(texts)
    return pc.replace_substring_regex(texts, r"^(\s*[+-]?[0-9]*),([0-9]+([eE][+-]?[0-9]+)?\s*)$", r"\1.\2")
