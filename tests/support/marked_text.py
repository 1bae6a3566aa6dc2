"""Text as editors and shells of several systems write it."""

import codecs
from collections.abc import Callable

WRITTEN: dict[str, Callable[[str], bytes]] = {
    "utf-8": lambda text: text.encode(),
    "utf-8-mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "utf-16-le": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "utf-16-be": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "utf-32-le": lambda text: codecs.BOM_UTF32_LE + text.encode("utf-32-le"),
    "utf-32-be": lambda text: codecs.BOM_UTF32_BE + text.encode("utf-32-be"),
    "utf-16-le-crlf": lambda text: codecs.BOM_UTF16_LE + text.replace("\n", "\r\n").encode("utf-16-le"),
    "utf-16-be-crlf": lambda text: codecs.BOM_UTF16_BE + text.replace("\n", "\r\n").encode("utf-16-be"),
}
"""By name, what makes the bytes of a file. Notepad writes the mark, PowerShell's `>` UTF-16 with CR LF."""
NO_TEXT = {
    "latin-1": "Größe".encode("latin-1"),
    "utf-16 without a mark": "age".encode("utf-16-le"),
    "half a unit": codecs.BOM_UTF16_LE + b"a\0b",
    "a lone surrogate": codecs.BOM_UTF16_LE + b"\x00\xd8",
    "beyond Unicode": codecs.BOM_UTF32_LE + b"\xff\xff\xff\xff",
    "compressed": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}
