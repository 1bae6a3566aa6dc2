"""Records are known again in any format and order, and by nothing less than all of their values."""

import csv
import datetime
import decimal
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from study_parties import MakeManifest

from dpdpca_owner.accounts.charge import Content
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.fingerprint import RecordsFingerprint
from dpdpca_owner.records.open import open_source, read_batches
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.wire.identifiers import Digest

KEY = b"k" * 32
AGE = Feature.parse({"name": "age", "kind": "numeric", "lower": "0", "upper": "100"}, "age")
WARD = Feature.parse({"name": "ward", "kind": "categorical", "levels": ["A", "B"]}, "ward")

COLUMNS: dict[str, list[Any]] = {
    "age": [31.0, 47.5, None, 0.1, 0.0],
    "ward": ["A", "B", "A", None, "B"],
    "note": ["first", "Zürich", None, "17", "true"],
    "count": [1, 2, 3, 16_777_216, -5],
}


def of(*columns: Any, key: bytes = KEY) -> Digest:
    fingerprint = RecordsFingerprint(key)
    fingerprint.add(columns)
    return fingerprint.content.fingerprint


def read(location: DataLocation, features: Sequence[Feature]) -> Content:
    fingerprint = RecordsFingerprint(KEY)
    for _ in read_batches(open_source(location, features), features, fingerprint.add):
        pass
    return fingerprint.content


def write_csv(
    path: Path, *, delimiter: str = ",", encoding: str = "utf-8", comma: bool = False
) -> DataLocation:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(COLUMNS)
        for row in zip(*COLUMNS.values(), strict=True):
            texts = ["" if value is None else str(value) for value in row]
            writer.writerow([text.replace(".", ",") if comma else text for text in texts])
    return DataLocation(str(path), None, encoding, "," if comma else ".")


def write_sql(path: Path) -> DataLocation:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (age REAL, ward TEXT, note TEXT, count INTEGER)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", zip(*COLUMNS.values(), strict=True))
    database.close()
    return DataLocation(f"sqlite:///{path}", "SELECT * FROM t")


def write_npz(path: Path) -> DataLocation:
    arrays = {
        "age": np.array([np.nan if value is None else value for value in COLUMNS["age"]]),
        "ward": np.array([value or "" for value in COLUMNS["ward"]]),
        "note": np.array([value or "" for value in COLUMNS["note"]]),
        "count": np.array(COLUMNS["count"]),
        "of another length": np.zeros(2),
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]  # names of arrays are no options
    return DataLocation(str(path))


def test_every_format_gives_the_same_fingerprint_whatever_a_study_asks_for(tmp_path: Path) -> None:
    table = pa.table(COLUMNS)
    pa.parquet.write_table(table, tmp_path / "p.parquet", row_group_size=2)
    pa.feather.write_feather(table, tmp_path / "f.arrow")
    locations = [
        DataLocation(str(tmp_path / "p.parquet")),
        DataLocation(str(tmp_path / "f.arrow")),
        write_csv(tmp_path / "c.csv"),
        write_csv(tmp_path / "semicolon.csv", delimiter=";", comma=True),
        write_csv(tmp_path / "latin.csv", encoding="latin-1"),
        write_sql(tmp_path / "d.sqlite"),
        write_npz(tmp_path / "n.npz"),
    ]
    contents = {
        read(location, features)
        for location in locations
        for features in ([AGE], [WARD], [AGE, WARD], [WARD, AGE])
    }
    assert len(contents) == 1
    assert contents.pop().records == 5


def test_batches_records_and_columns_may_come_in_any_order() -> None:
    whole = RecordsFingerprint(KEY)
    whole.add(list(COLUMNS.values()))
    parts = RecordsFingerprint(KEY)
    for rows in ([4, 1], [0], [3, 2]):
        parts.add([[column[row] for row in rows] for column in reversed(COLUMNS.values())])
    assert parts.content == whole.content


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1.5, 2.0], np.array([1.5, 2.0], np.float32)),
        ([0.1], np.array([0.1], np.float32)),
        ([0.0], [-0.0]),
        ([1, 0], [True, False]),
        ([True, False], ["TRUE", "false"]),
        (["1e3", "+7", ".5", " 2 "], [1000, 7, 0.5, 2]),
        ([decimal.Decimal("1.50"), None], [1.5, float("nan")]),
        (["NA", "", "null"], [None, None, None]),
        ([float("inf")], [None]),
        (["Z\u00fcrich"], ["Zu\u0308rich "]),
        ([datetime.date(2020, 1, 2)], ["2020-01-02"]),
        ([b"x"], ["x"]),
        ([2**70, "a"], [str(2**70), "a"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([1, 2], pa.float16()), [1, 2]),
    ],
)
def test_a_value_is_the_same_however_it_is_stored(one: Any, other: Any) -> None:
    assert of(one) == of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1.0, 2.0], [1.0, 2.001]),
        ([1.0, 2.0], [1.0]),
        ([1.0, 1.0, 2.0], [1.0, 2.0, 2.0]),
        (["a"], ["b"]),
        (["a"], [None]),
        (["A"], ["a"]),
        ([0.0], [None]),
        ([[1, 2]], [[1, 3]]),
    ],
)
def test_another_value_is_another_fingerprint(one: Any, other: Any) -> None:
    assert of(one) != of(other)


def test_records_are_not_mixed_with_each_other() -> None:
    assert of([1, 2], [3, 4]) != of([1, 2], [4, 3])


def test_a_column_without_any_value_is_no_column() -> None:
    assert of([1, 2], [None, None]) == of([1, 2])
    assert of([1, 2], [None, 0]) != of([1, 2])


def test_without_the_key_nobody_can_try() -> None:
    assert of([1, 2]) != of([1, 2], key=b"l" * 32)


def test_what_no_study_can_read_is_no_obstacle_beside_one_that_it_can(tmp_path: Path) -> None:
    # Beyond the beginning, by which the encoding is judged.
    (tmp_path / "c.csv").write_bytes(b"age,note\n" + (b"1," + b"x" * 1000 + b"\n") * 9_000 + b"2,caf\xe9\n")
    assert read(DataLocation(str(tmp_path / "c.csv")), [AGE]).records == 9_001
    nested = pa.table({"age": [1.0], "list": [[1, 2]], "struct": [{"a": 1}], "span": [datetime.timedelta(1)]})
    pa.parquet.write_table(nested, tmp_path / "n.parquet")
    assert read(DataLocation(str(tmp_path / "n.parquet")), [AGE]).records == 1


def test_records_that_a_study_drops_belong_to_the_data_all_the_same(
    tmp_path: Path, make_manifest: MakeManifest
) -> None:
    path = tmp_path / "r.csv"
    path.write_text("age,systolic,weight\n1,2,3\n,2,3\n", encoding="utf-8")
    contribution = read_contribution(DataLocation(str(path)), make_manifest(), KEY)
    assert (contribution.sums.count, contribution.content.records) == (1, 2)


def test_wide_files_are_read_in_smaller_batches(tmp_path: Path) -> None:
    columns = 300
    table = pa.table({f"c{index}": np.arange(50_000, dtype=np.float32) for index in range(columns)})
    pa.parquet.write_table(table.rename_columns(["age", *table.column_names[1:]]), tmp_path / "w.parquet")
    sizes: list[int] = []
    location = DataLocation(str(tmp_path / "w.parquet"))
    for _ in read_batches(open_source(location, [AGE]), [AGE], lambda all_: sizes.append(len(all_[0]))):
        pass
    assert sum(sizes) == 50_000
    assert max(sizes) * columns <= 1 << 23
