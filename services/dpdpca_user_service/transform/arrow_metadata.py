"""Reads from the metadata of an Arrow stream how large it will be, before Arrow's own reader sees it.

That reader trusts the metadata: it decompresses whole record batches, believes a count of rows, and copies a
name as often as an offset points to it. So a stream of kilobytes can require gigabytes. This module neither
decompresses nor copies anything. It only reads numbers, after checking that each is within the bytes.

Source: the Arrow columnar format, "Serialization and Interprocess Communication", and its Message.fbs and
Schema.fbs; the FlatBuffers binary format.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, Self

from dpdpca_protocol.errors import InputError, LimitError, MessageError

MOST_METADATA_BYTES = 16 * 1024 * 1024
"""The largest metadata of one message, and the most memory for the names and notes of a schema."""
MOST_MESSAGES = 65_536
"""The most record batches and dictionaries of a stream."""

_CONTINUATION = 0xFFFFFFFF
_FIELD_BYTES, _NOTE_BYTES = 256, 64
"""The memory that a column, or a key with its value, needs in addition to its texts."""

_U8, _U16, _U32, _I32, _I64 = (struct.Struct(form) for form in ("<B", "<H", "<I", "<i", "<q"))
_SCHEMA, _DICTIONARY_BATCH, _RECORD_BATCH = 1, 2, 3
_FLAT_TYPES = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 18, 19, 20, 23, 24})
"""Null, numbers, texts, bytes, booleans, decimals, dates, times, durations."""
_TIMESTAMP = 10
_OTHER_TYPES = {
    11: "intervals",
    12: "lists",
    13: "structs",
    14: "unions",
    16: "lists of one length",
    17: "maps",
    21: "large lists",
    22: "run-end encoded",
    25: "list views",
    26: "large list views",
}


@dataclass(frozen=True, slots=True)
class StreamSize:
    """The size of a stream after reading.

    Attributes:
        rows: the rows of all record batches.
        unpacked_bytes: the bytes of all record batches and dictionaries. A dictionary that grows is counted
            again each time.
    """

    rows: int
    unpacked_bytes: int


def measure_stream(untrusted: bytes | bytearray, most_rows: int, most_bytes: int) -> StreamSize:
    """The size of an Arrow stream, if it is within the limits and all its columns are flat.

    Raises:
        MessageError: the body is not an Arrow stream.
        InputError: a column has a type that no feature can have.
        LimitError: `too-large`.
    """
    data = memoryview(untrusted)
    dictionaries: dict[int, int] = {}
    rows = unpacked = count = 0
    for kind, header, body in _messages(data):
        if (kind == _SCHEMA) != (count == 0):
            _malformed()
        if kind == _SCHEMA:
            _check_schema(header)
        elif kind == _RECORD_BATCH:
            rows += _natural(header.number(0, _I64))
            unpacked += _unpacked_bytes(header, body)
        elif kind == _DICTIONARY_BATCH:
            name, is_more = header.number(0, _I64), header.number(2, _U8)
            size = _unpacked_bytes(header.table(1), body)
            # Arrow's reader copies the existing dictionary to append to it.
            dictionaries[name] = size + (dictionaries.get(name, 0) if is_more else 0)
            unpacked += dictionaries[name]
        else:
            _malformed()
        count += 1
        if count > MOST_MESSAGES:
            _too_large(f"the stream has more than {MOST_MESSAGES} batches", "write fewer and larger batches")
        if rows > most_rows:
            _too_large(f"the stream has more than {most_rows} rows", "send fewer rows at once")
        if unpacked > most_bytes:
            _too_large(f"the stream decompresses to more than {most_bytes} bytes", "send fewer rows at once")
    if count == 0:
        _malformed()
    return StreamSize(rows, unpacked)


class _Table:
    """A table of a FlatBuffer. Its fields are numbered."""

    __slots__ = ("_at", "_data", "_slots")

    def __init__(self, data: memoryview, at: int) -> None:
        table = at - _read(_I32, data, at)
        size = _read(_U16, data, table)
        if size < 4 or size % 2 or table + size > len(data):
            _malformed()
        self._data, self._at = data, at
        self._slots = struct.unpack_from(f"<{size // 2 - 2}H", data, table + 4)

    @classmethod
    def root(cls, data: memoryview) -> Self:
        return cls(data, _read(_U32, data, 0))

    def number(self, field: int, form: struct.Struct) -> int:
        """A number, or 0 if it is omitted."""
        place = self._place(field)
        return 0 if place is None else _read(form, self._data, place)

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def table(self, field: int) -> "_Table":
        place = self._place(field)
        if place is None:
            _malformed()
        return _Table(self._data, place + _read(_U32, self._data, place))

    def count(self, field: int) -> int:
        """The entries of a list, or the bytes of a text; 0 if it is omitted."""
        return self._vector(field)[1]

    def tables(self, field: int) -> Iterator["_Table"]:
        start, count = self._vector(field)
        for at in range(start, start + 4 * count, 4):
            yield _Table(self._data, at + _read(_U32, self._data, at))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """A list of structs of two 64-bit numbers."""
        start, count = self._vector(field)
        if start + 16 * count > len(self._data):
            _malformed()
        return struct.iter_unpack("<qq", self._data[start : start + 16 * count])

    def _vector(self, field: int) -> tuple[int, int]:
        place = self._place(field)
        if place is None:
            return 0, 0
        start = place + _read(_U32, self._data, place)
        return start + 4, _read(_U32, self._data, start)

    def _place(self, field: int) -> int | None:
        if field >= len(self._slots) or not self._slots[field]:
            return None
        return int(self._at + self._slots[field])


def _messages(data: memoryview) -> Iterator[tuple[int, _Table, memoryview]]:
    """The kind, header and body of each message, as Arrow's reader finds them."""
    at = 0
    while at < len(data):
        size = _read(_U32, data, at)
        at += 4
        if size == _CONTINUATION:  # versions before 0.15 omitted it
            size = _read(_U32, data, at)
            at += 4
        if size == 0:
            return
        if size > len(data) - at:
            _malformed()
        _check_texts(size)
        message = _Table.root(data[at : at + size])
        at += size
        length = _natural(message.number(3, _I64))
        if length > len(data) - at:
            _malformed()
        _check_texts(_notes_bytes(message, 4))
        yield message.number(1, _U8), message.table(2), data[at : at + length]
        at += length


def _check_schema(schema: _Table) -> None:
    if schema.number(0, _U16):
        raise InputError("malformed-rows", "the Arrow stream is big-endian", "write it little-endian")
    texts = _notes_bytes(schema, 2)
    for position, field in enumerate(schema.tables(1), 1):
        kind = field.number(2, _U8)
        if kind not in _FLAT_TYPES or field.count(5):
            named = _OTHER_TYPES.get(kind, "of an unknown type")
            raise InputError(
                "malformed-rows",
                f"column {position} of the Arrow stream is {named}, which is not a type of a feature",
                "omit this column",
            )
        texts += _FIELD_BYTES + field.count(0) + _notes_bytes(field, 6)
        if kind == _TIMESTAMP:
            texts += field.table(3).count(1)
        _check_texts(texts)


def _notes_bytes(table: _Table, field: int) -> int:
    """The memory that the keys and values of `table` need. Counting stops when the limit is exceeded."""
    total = 0
    for note in table.tables(field):
        total += _NOTE_BYTES + note.count(0) + note.count(1)
        if total > MOST_METADATA_BYTES:
            break
    return total


def _check_texts(texts: int) -> None:
    if texts > MOST_METADATA_BYTES:
        _too_large("the stream's names and metadata are too long", "omit columns that no feature needs")


def _unpacked_bytes(batch: _Table, body: memoryview) -> int:
    """The bytes of all buffers of a record batch after decompression."""
    is_packed = batch.has(3)
    total = 0
    for offset, length in batch.pairs(2):
        if offset < 0 or length < 0 or offset > len(body) - length:
            _malformed()
        if is_packed and length:
            claimed: int = _read(_I64, body, offset)
            # −1 means that the buffer is not compressed.
            length = length - 8 if claimed == -1 else _natural(claimed)
        total += length
    return total


def _natural(number: int) -> int:
    if number < 0:
        _malformed()
    return number


def _read(form: struct.Struct, data: memoryview, at: int) -> int:
    if not 0 <= at <= len(data) - form.size:
        _malformed()
    return int(form.unpack_from(data, at)[0])


def _malformed() -> NoReturn:
    raise MessageError("malformed", "the body is not an Arrow stream")


def _too_large(problem: str, next_step: str) -> NoReturn:
    raise LimitError("too-large", f"the Arrow stream is too large: {problem}", next_step)
