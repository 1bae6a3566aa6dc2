"""Data that does not fit: one clear sentence each, no value repeated, nothing changed."""

import base64
import io
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pyarrow.parquet.encryption as encryption
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from study_parties import MakeManifest

from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.terms.manifest import Manifest

SECRET = "4711-secret"
KEY = bytes(32)
HEADER = "age,systolic,weight\n"

TEXTS = {
    "text in a number": (HEADER + f"1,2,3\n4,{SECRET},6\n", "'systolic'.*record 2"),
    "text beyond the first block": (HEADER + "1,2,3\n" * 70_000 + f"{SECRET},2,3\n", "'age'.*record 70001"),
    "underscore in a number": (HEADER + "1_0,2,3\n", "'age'.*record 1"),
    "decimal comma unannounced": ("age;systolic;weight\n1,5;2;3\n", "--decimal"),
    "too few fields": (HEADER + f"1,2,3\n{SECRET},2\n", "has 2 fields, but the header has 3"),
    "too many fields": (HEADER + f"1,2,3,{SECRET}\n", "has 4 fields, but the header has 3"),
    "an open quote": (HEADER + f'1,2,"{SECRET}\n', "cannot|not text|not a number|fields"),
    "missing column": ("age,systolic\n1,2\n", "'weight'"),
    "renamed column": ("age,systolic,Weight\n1,2,3\n", "rename 'Weight' to 'weight'"),
    "doubled column": ("age,systolic,weight,age\n1,2,3,4\n", "more than one column named 'age'"),
    "doubled by decomposition and space": (
        "age,systolic,weight, age\n1,2,3,4\n",
        "more than one column named 'age'",
    ),
    "no header": ("1,2,3\n4,5,6\n", "columns 'age', 'systolic', 'weight'"),
    "only a header": (HEADER, "no records"),
    "only empty lines": ("\n\n\n", "no header"),
    "a web page": (f"<!doctype html><p>{SECRET}</p>", "is a web page"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_files(tmp_path: Path, make_manifest: MakeManifest, name: str) -> None:
    content, words = TEXTS[name]
    (tmp_path / "records.csv").write_text(content, encoding="utf-8")
    refused(tmp_path / "records.csv", make_manifest(max_records=100_000), words)


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), file)
    return file.getvalue()


def short_array() -> bytes:
    """A matrix whose header promises more than its member holds."""
    whole = io.BytesIO()
    np.save(whole, np.zeros((1000, 3)))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("X.npy", whole.getvalue()[:4000])
        names = io.BytesIO()
        np.save(names, np.array(["age", "systolic", "weight"]))
        archive.writestr("features.npy", names.getvalue())
    return file.getvalue()


class Keys(encryption.KmsClient):  # type: ignore[misc]  # Arrow has no types
    """Keeps the keys of a file under one of its own."""

    _cipher = AESGCM(bytes(16))

    def __init__(self, _config: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64encode(self._cipher.encrypt(bytes(12), key, None))

    def unwrap_key(self, wrapped: bytes, _name: str) -> bytes:
        return self._cipher.decrypt(bytes(12), base64.b64decode(wrapped), None)


def encrypted_parquet(column: str, *, plaintext_footer: bool) -> bytes:
    """Three columns and one more, of which `column` is encrypted, and the rest too where the footer is."""
    config = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": [column]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    table = pa.table({"age": [1.0], "systolic": [2.0], "weight": [3.0], "note": [SECRET]})
    file = io.BytesIO()
    with pa.parquet.ParquetWriter(file, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return file.getvalue()


def locked_npz() -> bytes:
    """As an archiver leaves it that was given a password: the flag stands in both headers of a member."""
    content = bytearray(npz(age=np.zeros(2), systolic=np.zeros(2), weight=np.zeros(2)))
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(signature)
        while at >= 0:
            content[at + flags] |= 1
            at = content.find(signature, at + 1)
    return bytes(content)


NAMES = np.array(["age", "systolic", "weight"])
TIMES = pa.array([0], pa.timestamp("s"))
BINARIES = {
    "empty": (b"", "is empty"),
    "random bytes": (bytes(range(128, 256)) * 9, "--encoding"),
    "zero bytes": (bytes(999), "is neither a text file"),
    "cut Parquet": (b"PAR1" + bytes(99), "cannot be read"),
    "cut Arrow": (b"ARROW1\0\0" + bytes(99), "cannot be read"),
    "cut stream": (b"\xff\xff\xff\xff" + bytes(99), "cannot be read"),
    "cut npy": (b"\x93NUMPY\x01\x00", "cannot be read"),
    "cut npz": (b"PK\x03\x04" + bytes(99), "cannot be read"),
    "pickle in npy": (pickled(), "never unpickled"),
    "array that ends early": (short_array(), "cannot be read"),
    "matrix without names": (npz(X=np.zeros((2, 3))), "names its columns"),
    "matrix with too few names": (npz(X=np.zeros((2, 3)), features=NAMES[:2]), "matrix has 3 columns"),
    "two matrices": (npz(A=np.zeros((2, 3)), B=np.zeros((2, 3)), features=NAMES), "needs one matrix"),
    "arrays of different lengths": (
        npz(age=np.zeros(2), systolic=np.zeros(3), weight=np.zeros(2)), "different lengths",
    ),
    "no records": (npz(X=np.zeros((0, 3)), features=NAMES), "no records"),
    "complex numbers": (npz(X=np.zeros((2, 3), complex), features=NAMES), "not a number"),
    "an encrypted footer": (encrypted_parquet("age", plaintext_footer=False), "is encrypted"),
    "an encrypted column": (encrypted_parquet("age", plaintext_footer=True), "is encrypted"),
    "an encrypted column that nobody asks for": (
        encrypted_parquet("note", plaintext_footer=True), "is encrypted",
    ),
    "a locked npz": (locked_npz(), "is encrypted"),
    "text in Parquet": (parquet(age=[SECRET], systolic=[1], weight=[1]), "'age' .*record 1"),
    "digits as text in Parquet": (parquet(age=["7"], systolic=[1], weight=[1]), "age' .*text.*not a number"),
    "times in Parquet": (parquet(age=TIMES, systolic=[1], weight=[1]), "age' .*timestamp.*not a number"),
    "lists in Parquet": (parquet(age=[[1]], systolic=[1], weight=[1]), "age' .*list.*not a number"),
    "no rows in Parquet": (parquet(age=pa.array([], pa.float64()), systolic=[], weight=[]), "no records"),
}  # fmt: skip


@pytest.mark.parametrize("name", BINARIES)
def test_binary_files(tmp_path: Path, make_manifest: MakeManifest, name: str) -> None:
    content, words = BINARIES[name]
    (tmp_path / "records").write_bytes(content)
    refused(tmp_path / "records", make_manifest(), words)


def test_no_file_and_a_folder(tmp_path: Path, make_manifest: MakeManifest) -> None:
    refused(tmp_path / "nothing", make_manifest(), "there is no file")
    refused(tmp_path, make_manifest(), "has no file NAME.parquet")


@pytest.mark.parametrize(
    ("url", "query", "words"),
    [
        ("sqlite:///{db}", f"SELECT '{SECRET}' AS age, 1 AS systolic, 1 AS weight", "age' .*record 1"),
        ("sqlite:///{db}", f"SELECT nothing FROM {SECRET!r}", "database refused"),
        ("sqlite:///{db}", "CREATE TABLE made (x)", "database refused"),
        ("sqlite:///{db}", "SELECT 1 AS age, 1 AS systolic, 1 AS weight WHERE 0", "no records"),
        ("sqlite:///{db}", "SELECT 1 AS age, 2 AS age, 1 AS systolic, 1 AS weight", "more than one"),
        (f"nosuch://u:{SECRET}@h/db", "SELECT 1", "SQLAlchemy does not understand"),
        (f"{SECRET}", "SELECT 1", "SQLAlchemy does not understand"),
    ],
)
def test_queries(tmp_path: Path, make_manifest: MakeManifest, url: str, query: str, words: str) -> None:
    sqlite3.connect(tmp_path / "db").close()
    refused(url.format(db=tmp_path / "db"), make_manifest(), words, query)
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_an_unknown_level_is_not_repeated(tmp_path: Path, make_manifest: MakeManifest) -> None:
    sex = {"name": "sex", "kind": "categorical", "levels": ["f", "m"]}
    manifest = make_manifest(features=[sex, {"name": "age", "lower": 0, "upper": 100}])
    (tmp_path / "r.csv").write_text(f"sex,age\nf,1\n{SECRET},2\n", encoding="utf-8")
    refused(tmp_path / "r.csv", manifest, "record 2, column 'sex'")


def test_more_records_than_the_study_takes(tmp_path: Path, make_manifest: MakeManifest) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,2,3\n" * 11, encoding="utf-8")
    refused(tmp_path / "r.csv", make_manifest(max_records=10, min_records=1), "more records than the 10")


def test_no_complete_record(tmp_path: Path, make_manifest: MakeManifest) -> None:
    (tmp_path / "r.csv").write_text(HEADER + "1,,3\n,2,3\n", encoding="utf-8")
    refused(tmp_path / "r.csv", make_manifest(missing="reject"), "all 2 records")


@pytest.mark.parametrize(
    ("content", "missing", "records", "kept"),
    [
        (HEADER + "1,2,3\n", "reject", 1, 1),
        (HEADER + "1,2,3\nnan,2,3\n1,inf,3\n", "reject", 3, 1),
        (HEADER + "1,2,3\nnan,2,3\n1,inf,3\n", "midpoint", 3, 3),
        ("\ufeffweight,extra,age,systolic\n3,x,1,2\n", "reject", 1, 1),
        (HEADER + "5,5,5\n" * 4, "reject", 4, 4),
    ],
)
def test_what_the_protocol_admits_passes(
    tmp_path: Path,
    make_manifest: MakeManifest,
    content: str,
    missing: str,
    records: int,
    kept: int,
) -> None:
    (tmp_path / "r.csv").write_text(content, encoding="utf-8")
    contribution = read_contribution(
        DataLocation(str(tmp_path / "r.csv")), make_manifest(missing=missing), KEY
    )
    assert (contribution.report.records, contribution.sums.count) == (records, kept)


def test_one_feature(tmp_path: Path, make_manifest: MakeManifest) -> None:
    (tmp_path / "r.csv").write_text("age\n50\n60\n", encoding="utf-8")
    manifest = make_manifest(features=[{"name": "age", "lower": 0, "upper": 100}])
    assert read_contribution(DataLocation(str(tmp_path / "r.csv")), manifest, KEY).sums.count == 2


def refused(data: Path | str, manifest: Manifest, words: str, query: str | None = None) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_contribution(DataLocation(str(data), query), manifest, KEY, strict=True)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert SECRET not in sentence
    assert len(sentence) < 300
