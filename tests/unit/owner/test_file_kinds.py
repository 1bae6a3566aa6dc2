"""A file that is not what its name says is read as what it is, or called by its name with what to do."""

import bz2
import gzip
import io
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import pytest

from dpdpca_owner.records.open import locate_data, open_source, read_batches
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.file_kinds import foreign_kind, is_binary

FEATURES = (Feature("age", "numeric"), Feature("größe", "numeric"))
TEXT = "age,größe\n" + "1.5,2.5\n" * 300
TABLE = pa.table({"age": [1.5] * 300, "größe": [2.5] * 300})

Make = Callable[[Path], object]


def sums(path: Path, **options: Any) -> list[float]:
    location = DataLocation(str(path), **options)
    batches = list(read_batches(open_source(location, FEATURES), FEATURES))
    return [
        float(np.sum([np.sum(np.asarray(batch[name], float)) for batch in batches]))
        for name in ("age", "größe")
    ]


def compressed(codec: str, content: bytes) -> Make:
    def make(path: Path) -> None:
        with pa.output_stream(str(path), compression=codec) as file:
            file.write(content)

    return make


def bytes_of(content: bytes) -> Make:
    return lambda path: path.write_bytes(content)


def zipped(*names: str) -> Make:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, TEXT)

    return make


def tarred(mode: Literal["w", "w:gz"]) -> Make:
    def make(path: Path) -> None:
        with tarfile.open(path, mode) as archive:
            member = tarfile.TarInfo("records.csv")
            member.size = len(TEXT.encode())
            archive.addfile(member, io.BytesIO(TEXT.encode()))

    return make


def sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (age REAL)")


def feather_1(path: Path) -> None:
    pa.feather.write_feather(TABLE, str(path), version=1)


def parquet_bytes() -> bytes:
    sink = io.BytesIO()
    pa.parquet.write_table(TABLE, sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("gzip.csv", compressed("gzip", TEXT.encode())),
        ("gzip-of-python.csv", bytes_of(gzip.compress(TEXT.encode()))),
        ("bzip2.csv", bytes_of(bz2.compress(TEXT.encode()))),
        ("zstd.csv", compressed("zstd", TEXT.encode())),
        ("lz4.csv", compressed("lz4", TEXT.encode())),
        ("plain.csv.gz", bytes_of(TEXT.encode())),
        ("plain.csv.zst", bytes_of(TEXT.encode())),
        ("utf-16.csv", bytes_of(TEXT.encode("utf-16"))),
        ("utf-16.csv.gz", compressed("gzip", TEXT.encode("utf-16"))),
        ("utf-32.csv", bytes_of(TEXT.encode("utf-32"))),
        ("with-mark.csv", bytes_of(TEXT.encode("utf-8-sig"))),
        ("text.parquet", bytes_of(TEXT.encode())),
        ("text.npz", bytes_of(TEXT.encode())),
        ("text.xlsx", bytes_of(TEXT.encode())),
        ("parquet.csv", bytes_of(parquet_bytes())),
        ("feather.csv", lambda path: pa.feather.write_feather(TABLE, str(path))),
        ("npz.csv", lambda path: np.savez(path.open("wb"), age=[1.5] * 300, größe=[2.5] * 300)),
    ],
)
def test_a_file_is_read_as_what_it_is_whatever_its_name(tmp_path: Path, name: str, make: Make) -> None:
    make(tmp_path / name)
    assert sums(tmp_path / name) == [450.0, 750.0]


@pytest.mark.parametrize(
    "first", ["PAR1", "PARENT", "ORCHARD", "FEA1", "RDX", "BZh", "ARROW1", "Rar!", "$FL2"]
)
def test_a_text_may_begin_like_a_file_of_another_kind(tmp_path: Path, first: str) -> None:
    (tmp_path / "x.csv").write_text(
        TEXT.replace("age", f"{first},age", 1).replace("\n1.5", "\nx,1.5"), "utf-8"
    )
    assert sums(tmp_path / "x.csv") == [450.0, 750.0]


@pytest.mark.parametrize(
    ("make", "kind", "advice"),
    [
        (
            zipped("[Content_Types].xml", "xl/workbook.xml", "xl/worksheets/sheet1.xml"),
            "an Excel workbook",
            "export",
        ),
        (zipped("mimetype", "content.xml"), "an OpenDocument file", "export"),
        (zipped("word/document.xml"), "a Word document", "ask"),
        (zipped("records.csv"), "a ZIP archive", "unpack"),
        (tarred("w"), "a tar archive", "unpack"),
        (tarred("w:gz"), "compressed with gzip, and its content is a tar archive", "unpack"),
        (bytes_of(gzip.compress(parquet_bytes())), "its content is a Parquet file", "unpack"),
        (bytes_of(gzip.compress(gzip.compress(TEXT.encode()))), "its content is compressed", "unpack"),
        (bytes_of(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj"), "a PDF document", "ask for the underlying table"),
        (
            bytes_of(b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\n" * 20),
            "a PDF document",
            "ask for the underlying table",
        ),
        (bytes_of(b"\xef\xbb\xbf\n<!DOCTYPE html><html><body>age,size"), "a web page or XML", "download"),
        (bytes_of(b"<?xml version='1.0'?><Workbook/>"), "a web page or XML", "download"),
        (bytes_of(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)), "an old Office document", "export"),
        (sqlite, "an SQLite database", "--query"),
        (lambda path: pa.orc.write_table(TABLE, str(path)), "an ORC file", "export"),
        (bytes_of(b"\x89HDF\r\n\x1a\n\0\0"), "an HDF5 file", "export"),
        (
            lambda path: pa.feather.write_feather(TABLE, str(path), version=1),
            "Feather version 1",
            "version 2",
        ),
        (bytes_of(pickle.dumps([[1.0, 2.0]], protocol=4)), "a Python pickle", "export"),
        (bytes_of(pickle.dumps([[1.0, 2.0]], protocol=5)), "a Python pickle", "export"),
        (bytes_of(b"\xfd7zXZ\0\0\x04"), "compressed with xz", "unpack"),
        (bytes_of(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), "a picture", "ask"),
        (bytes_of(IdentityKey.generate().to_pem()), "a key or a certificate", "path of the data"),
        (bytes_of(TEXT.encode("utf-16-le")), "looks like UTF-16 without", "--encoding utf-16-le"),
        (bytes_of(TEXT.encode("utf-16-be")), "looks like UTF-16 without", "--encoding utf-16-be"),
        (bytes_of(TEXT.encode("cp1252")), "is not text in the encoding utf-8", "--encoding cp1252"),
        (
            bytes_of(gzip.compress(TEXT.encode("cp1252"))),
            "is not text in the encoding utf-8",
            "--encoding cp1252",
        ),
        (bytes_of(bytes(range(256)) * 8), "is neither a text file nor Parquet", "export"),
        (bytes_of(TEXT.encode() + bytes(10)), "is neither a text file nor Parquet", "export"),
        (bytes_of(gzip.compress(TEXT.encode())[:-6]), "cannot be read", "export it again"),
        (bytes_of(parquet_bytes()[:-30]), "cannot be read", "export it again"),
    ],
)
def test_a_file_that_cannot_be_read_is_called_what_it_is(
    tmp_path: Path, make: Make, kind: str, advice: str
) -> None:
    for name in ("records.csv", "records.parquet"):
        make(tmp_path / name)
        with pytest.raises(InputError) as refusal:
            sums(tmp_path / name)
        assert kind in refusal.value.problem
        assert str(tmp_path / name) in refusal.value.problem
        assert advice in refusal.value.next_step
        assert ("cp1252" in refusal.value.next_step) == ("cp1252" in advice)


def test_what_is_advised_works(tmp_path: Path) -> None:
    for encoding in ("utf-16-le", "utf-16-be", "cp1252"):
        (tmp_path / "x.csv").write_bytes(TEXT.encode(encoding))
        assert sums(tmp_path / "x.csv", encoding=encoding) == [450.0, 750.0]


def test_no_text_of_a_table_looks_foreign() -> None:
    for encoding in ("utf-8", "utf-8-sig", "cp1252", "latin-1"):
        assert foreign_kind(TEXT.encode(encoding)) is None
        assert not is_binary(TEXT.encode(encoding))


def test_a_file_with_a_url_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "url").write_bytes(b"sqlite:///\xe9.db")
    with pytest.raises(UsageError, match="is not text: it is neither UTF-8"):
        locate_data(None, "SELECT 1", tmp_path / "url", None, ".", {})
