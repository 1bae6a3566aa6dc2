"""Text that people make: in UTF-8, or in UTF-16 or UTF-32 where a byte-order mark says so.

Editors and shells on Windows write such marks. Files only: what comes over HTTP is UTF-8 without one.
"""

import codecs
import unicodedata
from pathlib import Path
from typing import BinaryIO

from dpdpca_protocol.errors import LimitError, UsageError

MOST_BYTES = 16 * 1024 * 1024
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16: it begins with the same two bytes
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
MARK_BYTES = 4
"""Of the longest mark."""
_FROM_THE_RIGHT = frozenset({"R", "AL", "AN"})
_ISOLATE, _POP_ISOLATE = "\u2068", "\u2069"


def marked_encoding(beginning: bytes) -> str | None:
    """The Python codec that the first `MARK_BYTES` bytes of a file mark, or None. It takes the mark off."""
    return next((codec for mark, codec in _MARKS if beginning.startswith(mark)), None)


def decode_text(content: bytes, name: str) -> str:
    """`content` without its mark.

    Args:
        content: all of it.
        name: for the error.

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
        LimitError: `too-large`, above `most` bytes.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise LimitError("too-large", f"{path} is larger than {most} bytes", "is it the right file?")
    return decode_text(content, str(path))


def load_line(stream: BinaryIO) -> str:
    """The first line of a standard input, without spaces around it. Raises UsageError `not-text`."""
    line = stream.readline(MOST_BYTES)
    if marked_encoding(line):
        line += stream.read(MOST_BYTES)  # of a file whose line ends may have more bytes than one
    return decode_text(line, "the standard input").strip().partition("\n")[0].strip()


def for_terminal(text: str) -> str:
    """What others wrote, to stand in a line of a terminal.

    Nothing in it acts, and letters that run from right to left stay among themselves: figures that stand
    beside them, also in the next column, would else be drawn on their other side.
    """
    inert = "".join(letter if letter.isprintable() else " " for letter in text)
    runs_left = any(unicodedata.bidirectional(letter) in _FROM_THE_RIGHT for letter in inert)
    return f"{_ISOLATE}{inert}{_POP_ISOLATE}" if runs_left else inert


def _not_text(name: str) -> UsageError:
    return UsageError(
        "not-text",
        f"{name} is no text: neither in UTF-8, nor marked as UTF-16 or UTF-32",
        "save it again in UTF-8",
    )
