"""Reads rows in JSON block by block: `{"rows": [{…}, …]}` or `{"rows": [[…], …]}`.

As Python objects, a text of many small lists needs thirty times its size. So only one block at a time is
parsed. The text must be UTF-8 without a byte-order mark, and no object may name a member twice.
"""

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dpdpca_protocol.errors import InputError, MessageError
from dpdpca_protocol.wire.canonical import unique_members

MOST_ROW_BYTES = 2 * 1024 * 1024
"""A row of up to this length can always be read; a longer row may be refused."""

_BLOCK_CHARACTERS = 1024 * 1024
_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder(object_pairs_hook=unique_members).raw_decode


def json_blocks(untrusted: bytes | bytearray, most_rows: int) -> Iterator[list[Any]]:
    """The parsed rows, otherwise unchanged, in blocks of 1 to `most_rows`.

    Raises:
        MessageError: the body is not UTF-8 JSON of this form, an object names a member twice, or a row is too
        long.
        InputError: `rows` is not a list or is empty, or a row is neither an object nor a list.
    """
    text = _Window(untrusted)
    text.take("{")
    if text.character() != '"' or text.value() != "rows":
        raise MessageError("malformed", "the body must be an object with the one member rows")
    text.take(":")
    if text.character() != "[":
        raise InputError("malformed-rows", "rows must be a list with at least one row")
    text.take("[")
    while True:
        if text.character() not in ("[", "{"):
            raise InputError("malformed-rows", "rows must be a list of lists or of objects, and not empty")
        rows = text.values()
        is_last = text.take(",]") == "]"
        while rows:
            yield rows[:most_rows]
            del rows[:most_rows]
        if is_last:
            break
    text.take("}")
    if text.character():
        raise MessageError("malformed", "the body must be an object with the one member rows")


class _Window:
    """A decoded part of a JSON text, which moves forward through the text."""

    def __init__(self, untrusted: bytes | bytearray) -> None:
        self._rest = memoryview(untrusted)
        self._decode = getincrementaldecoder("utf-8")().decode
        self._text = ""
        self._at = self._one_by_one = 0

    @property
    def _has_room(self) -> bool:
        """Whether the text that is not consumed yet may become longer."""
        return len(self._text) - self._at < MOST_ROW_BYTES

    def character(self) -> str:
        """The next character that is not a space, without consuming it; empty at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr] # it always matches
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._move_on():
                return ""

    def take(self, expected: str) -> str:
        """Consumes the next character, which must be one of `expected`."""
        character = self.character()
        if not character or character not in expected:
            raise MessageError("malformed", "the body is not JSON of this form", 'send {"rows": [...]}')
        self._at += 1
        return character

    def values(self) -> list[Any]:
        """Consumes the comma-separated values that begin here and end in this window, at least one."""
        while self._at >= self._one_by_one:
            end = 1 + max(self._text.rfind("],", self._at), self._text.rfind("},", self._at))
            if end > self._at:
                part = f"[{self._text[self._at : end]}]"
                with suppress(ValueError, RecursionError):
                    values, stop = _decode(part)
                    if stop == len(part):
                        self._at = end
                        return list(values)
                self._one_by_one = end  # this was not the end of a value
            elif not self._has_room or not self._move_on():
                break
        return [self.value()]

    def value(self) -> Any:
        """Consumes the text, list or object that begins here."""
        while True:
            try:
                value, self._at = _decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                # The end of the window may have cut the value off.
                if self._has_room and self._move_on():
                    continue
                raise MessageError(
                    "malformed",
                    f"a row is not JSON, or is longer than {MOST_ROW_BYTES} bytes",
                    'send {"rows": [...]} in UTF-8',
                ) from error
            return value

    def _move_on(self) -> bool:
        """Decodes more of the text; False at its end."""
        piece, self._rest = self._rest[:_BLOCK_CHARACTERS], self._rest[_BLOCK_CHARACTERS:]
        try:
            decoded = self._decode(piece, not self._rest)
        except UnicodeDecodeError as error:
            raise MessageError("malformed", "the body is not in UTF-8", "send it in UTF-8") from error
        self._text, self._at, self._one_by_one = self._text[self._at :] + decoded, 0, 0
        return bool(piece)
