"""Recognises unsupported files by their first bytes, and says what to do with them instead."""

import codecs
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BEGINNING_BYTES: Final = 512
"""How many bytes from the beginning of a file `foreign_kind` needs."""
_EXPORT = "export the data as CSV or Parquet"


@dataclass(frozen=True, slots=True)
class FileKind:
    """The kind of a file, as the end of a sentence, and what to do with it."""

    name: str
    advice: str


ENCRYPTED: Final = FileKind(
    "encrypted, in whole or in part",
    "export the data without encryption to a disk that only you can read; this program accepts no keys for"
    " data",
)
_ASK = "ask for the underlying table as CSV or Parquet"
_UNPACK = "unpack it first"
_BINARY: Final = (
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", FileKind("an old Office document, such as .xls", _EXPORT)),
    (
        b"SQLite format 3\0",
        FileKind("an SQLite database", "name the database by URL: sqlite:///PATH, with --query"),
    ),
    (b"PARE", ENCRYPTED),
    (b"FEA1", FileKind("Feather version 1", "save the file again as version 2")),
    (b"Obj\x01", FileKind("an Avro file", _EXPORT)),
    (b"ORC", FileKind("an ORC file", _EXPORT)),
    (b"\x89HDF\r\n\x1a\n", FileKind("an HDF5 file", _EXPORT)),
    (b"MATLAB 5.0 MAT-file", FileKind("a MATLAB file", _EXPORT)),
    (b"<stata_dta>", FileKind("a Stata file", _EXPORT)),
    (b"$FL2", FileKind("an SPSS file", _EXPORT)),
    (b"RDX", FileKind("R data", _EXPORT)),
    (b"\x80\x04", FileKind("a Python pickle, which is never opened", _EXPORT)),
    (b"\x80\x05", FileKind("a Python pickle, which is never opened", _EXPORT)),
    (b"\xfd7zXZ\0", FileKind("compressed with xz", "unpack the file, or compress it with gzip or zstd")),
    (b"7z\xbc\xaf\x27\x1c", FileKind("a 7z archive", _UNPACK)),
    (b"Rar!", FileKind("a RAR archive", _UNPACK)),
    (b"\x89PNG", FileKind("a picture", _ASK)),
    (b"\xff\xd8\xff", FileKind("a picture", _ASK)),
    (b"\x7fELF", FileKind("a program", "give the path of the data")),
)
"""No table in text form begins with these bytes. (Letters alone, such as PAR, are not enough: a column could
be called PARENT.)"""
_TEXT: Final = (
    (b"%pdf", FileKind("a PDF document", _ASK)),
    (b"-----begin ", FileKind("a key or a certificate", "give the path of the data")),
    *(
        (magic, FileKind("a web page or XML", "download the table itself, as CSV or Parquet"))
        for magic in (b"<!doctype html", b"<html", b"<?xml")
    ),
)
_TAR_AT, _TAR = 257, b"ustar"
_CONTROL: Final = frozenset(range(32)) - frozenset(b"\t\n\v\f\r\x1a")


def is_binary(beginning: bytes) -> bool:
    """Whether there are bytes that do not occur in text (UTF-8 or a code page).

    UTF-16 counts as binary here.
    """
    return not _CONTROL.isdisjoint(beginning)


def foreign_kind(beginning: bytes) -> FileKind | None:
    """The kind of a file with these first bytes, if it is known and is not a supported table."""
    if is_binary(beginning):
        if beginning[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
            return FileKind("a tar archive", _UNPACK)
        found = next((kind for magic, kind in _BINARY if beginning.startswith(magic)), None)
        if found is not None:
            return found
    text = beginning.removeprefix(codecs.BOM_UTF8).lstrip()[:20].lower()
    return next((kind for magic, kind in _TEXT if text.startswith(magic)), None)


def zip_kind(path: Path) -> FileKind:
    """The kind of the ZIP archive at `path`.

    Raises:
        OSError, zipfile.BadZipFile: the archive cannot be read.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.startswith("xl/") for name in names):
        return FileKind("an Excel workbook", _EXPORT)
    if "mimetype" in names and "content.xml" in names:
        return FileKind("an OpenDocument file", _EXPORT)
    if any(name.startswith("word/") for name in names):
        return FileKind("a Word document", "ask for the table in the archive, as CSV or Parquet")
    return FileKind("a ZIP archive", "unpack the archive, and give the path of the table in it")
