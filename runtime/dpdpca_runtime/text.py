"""Text files from people: in UTF-8, or in UTF-16 or UTF-32 with a byte-order mark.

Editors and shells on Windows write such marks. Byte-order marks are for files only: text over HTTP must be
UTF-8 without a mark.
"""

import codecs
import unicodedata
from pathlib import Path
from typing import BinaryIO

from dpdpca_protocol.errors import LimitError, UsageError

MOST_BYTES = 16 * 1024 * 1024
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, which begins with the same two bytes
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
MARK_BYTES = 4
"""The length of the longest mark."""
_FROM_THE_RIGHT = frozenset({"R", "AL", "AN"})
_ISOLATE, _POP_ISOLATE = "\u2068", "\u2069"


def marked_encoding(beginning: bytes) -> str | None:
    """The Python codec for the byte-order mark in the first `MARK_BYTES` bytes of a file, or None.

    The codec removes the mark. None means that there is no mark.
    """
    return next((codec for mark, codec in _MARKS if beginning.startswith(mark)), None)


def decode_text(content: bytes, name: str) -> str:
    """Decodes `content` and removes its mark.

    Args:
        content: the whole content.
        name: the name in an error.

    Raises:
        UsageError: `not-text`.
    """
    try:
        text = content.decode(marked_encoding(content) or "utf-8")
    except UnicodeDecodeError as error:
        raise _not_text(name) from error
    if "\0" in text:
        raise _not_text(name)
    return text


def load_text(path: Path, most: int = MOST_BYTES) -> str:
    """The text in the file at `path`.

    Raises:
        UsageError: `not-text`.
        LimitError: `too-large`, the file has more than `most` bytes.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise LimitError(
            "too-large", f"{path} is larger than {most} bytes", "check that it is the right file"
        )
    return decode_text(content, str(path))


def load_line(stream: BinaryIO) -> str:
    """The first line of a standard input, without spaces around it. Raises UsageError `not-text`."""
    line = stream.readline(MOST_BYTES)
    if marked_encoding(line):
        line += stream.read(MOST_BYTES)  # a line end may have more than one byte
    return decode_text(line, "the standard input").strip().partition("\n")[0].strip()


def for_terminal(text: str) -> str:
    """Text from others, made safe for a line in a terminal.

    Control characters have no effect. Right-to-left letters are isolated, because otherwise numbers next to
    them, even in the next column, would be drawn on their other side.
    """
    inert = "".join(letter if letter.isprintable() else " " for letter in text)
    runs_left = any(unicodedata.bidirectional(letter) in _FROM_THE_RIGHT for letter in inert)
    return f"{_ISOLATE}{inert}{_POP_ISOLATE}" if runs_left else inert


def _not_text(name: str) -> UsageError:
    return UsageError(
        "not-text",
        f"{name} is not text: it is neither UTF-8 nor marked as UTF-16 or UTF-32",
        "save it in UTF-8",
    )
