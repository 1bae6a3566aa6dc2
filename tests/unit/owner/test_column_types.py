"""Whatever type a column has, its values mean the same in every format, or the type is refused by name.

The types are those of `column_types`.
"""

import datetime
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from column_types import RECORDS, Stored, arrow_columns, numpy_columns

from dpdpca_owner.records.fingerprint import RecordsFingerprint
from dpdpca_owner.records.open import open_source, read_batches
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.arrow_columns import from_arrow
from dpdpca_protocol.records.columns import (
    levels_of,
    numbers_of,
    pick_columns,
    read_levels,
    read_numbers,
)
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_user.results.tables import table_columns

ARROW, NUMPY = list(arrow_columns()), list(numpy_columns())
LEVELS = tuple(dict.fromkeys(text for each in ARROW + NUMPY for text in each.levels or () if text))
NUMERIC = Feature("x", "numeric", Fraction(-(10**9)), Fraction(10**9))
CATEGORICAL = Feature("x", "categorical", levels=LEVELS)
NOT_IN_PARQUET = re.compile(
    r"interval|union|runs of|dictionary of|list_view|decimal128\(5, -3\)|timestamp s .* [0-9]{2}"
)
NOT_FROM_A_FILE = re.compile("dictionary of (bool8|uuid|extension)")
"""Arrow writes a dictionary of these, and cannot read its own file."""


def write_parquet(array: pa.Array, path: Path) -> None:
    pa.parquet.write_table(pa.table({"x": array}), path)


def write_file(array: pa.Array, path: Path) -> None:
    table = pa.table({"x": array})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def write_stream(array: pa.Array, path: Path) -> None:
    table = pa.table({"x": array})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def write_npz(array: Any, path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=array)


def write_npy(array: Any, path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, array.reshape(-1, 1))


def read(location: DataLocation, feature: Feature) -> tuple[list[Any], Digest]:
    """Numbers or level texts as the encoder takes them, None where one is missing, and the fingerprint."""
    fingerprint = RecordsFingerprint(b"k" * 32)
    values: list[Any] = []
    for columns in read_batches(open_source(location, [feature]), [feature], fingerprint.add):
        values += of_column(pick_columns(columns, [feature])[0], feature, len(values))
    return values, fingerprint.content.fingerprint


def of_column(column: Any, feature: Feature, first_record: int = 0) -> list[Any]:
    if feature.is_categorical:
        positions = levels_of(column, feature, first_record)
        return [LEVELS[place] if place >= 0 else None for place in positions]
    numbers = numbers_of(column, feature, first_record).tolist()
    return [None if np.isnan(number) else Fraction(number) for number in numbers]


def check(stored: Stored, reading: Callable[[Feature], Any]) -> Iterator[Any]:
    """That a reader of the one column finds what it stands for, or refuses it; yields what else it found."""
    for feature, expected in ((NUMERIC, stored.numbers), (CATEGORICAL, stored.levels)):
        if expected is None:
            with pytest.raises(InputError) as refusal:
                pytest.fail(f"{stored.name} was taken for {reading(feature)}")
            assert refusal.value.slug == ("not-a-level" if feature.is_categorical else "not-a-number")
            assert re.search(
                r"^column 'x' holds [a-z]+.* in record [123], (which is not|but a level must be) a ",
                refusal.value.problem,
            )
            assert refusal.value.next_step
            continue
        found = reading(feature)
        values, beside = found if isinstance(found, tuple) else (found, None)
        assert values == list(expected), stored.name
        yield beside


@pytest.mark.parametrize("write", [write_parquet, write_file, write_stream])
def test_every_type_of_arrow(tmp_path: Path, write: Callable[[pa.Array, Path], None]) -> None:
    walked = 0
    for stored in ARROW:
        if NOT_FROM_A_FILE.search(stored.name):
            continue
        try:
            write(stored.array, tmp_path / "x")
        except (pa.ArrowException, OSError):
            assert write is write_parquet
            assert NOT_IN_PARQUET.search(stored.name), stored.name
            continue
        list(check(stored, lambda feature: read(DataLocation(str(tmp_path / "x")), feature)))
        walked += 1
    assert walked >= 80


def test_a_null_of_any_type_is_missing_and_the_other_values_are_unusable() -> None:
    """So that one record with a null is dropped where a study drops such records, and no other."""
    walked = 0
    for stored in ARROW:
        if stored.numbers is not None or stored.levels is not None or "union" in stored.name:
            continue
        numeric = pick_columns({"x": from_arrow(stored.array, NUMERIC)}, [NUMERIC])[0]
        categorical = pick_columns({"x": from_arrow(stored.array, CATEGORICAL)}, [CATEGORICAL])[0]
        numbers, no_numbers = read_numbers(numeric)
        levels, no_levels = read_levels(categorical, LEVELS)
        assert np.isnan(numbers).all()
        assert (levels == -1).all()
        assert no_numbers.tolist() == no_levels.tolist() == [True, False, True], stored.name
        walked += 1
    assert walked >= 50


def test_every_type_of_arrow_without_a_file() -> None:
    for stored in ARROW:
        parts = pa.chunked_array([stored.array[:1], stored.array[1:]])
        for table in (
            {"x": stored.array},
            {"x": parts},
            pa.table({"x": parts}),
            pa.table({"x": stored.array}),
        ):

            def reading(feature: Feature, table: Any = table) -> list[Any]:
                return of_column(pick_columns(table_columns(table, [feature]), [feature])[0], feature)

            list(check(stored, reading))


@pytest.mark.parametrize("write", [write_npz, write_npy])
def test_every_type_of_numpy(tmp_path: Path, write: Callable[[Any, Path], None]) -> None:
    for stored in NUMPY:
        if write is write_npy and stored.array.dtype.names:
            continue
        write(stored.array, tmp_path / "x")
        list(check(stored, lambda feature: read(DataLocation(str(tmp_path / "x")), feature)))


def test_the_same_values_have_the_same_fingerprint_in_every_type_and_format(tmp_path: Path) -> None:
    """So that the ledger knows records again that were exported in another type."""
    seen: dict[tuple[Any, ...], set[Digest]] = {}
    for stored in ARROW + NUMPY:
        if NOT_FROM_A_FILE.search(stored.name):
            continue
        write = write_npz if isinstance(stored.array, np.ndarray) else write_file
        write(stored.array, tmp_path / "x")
        found = check(stored, lambda feature: read(DataLocation(str(tmp_path / "x")), feature))
        for feature_values in (stored.numbers, stored.levels):
            if feature_values is not None and any(value is not None for value in feature_values):
                seen.setdefault(tuple(feature_values), set()).add(next(found))
    assert len(seen) > 15
    assert all(len(digests) == 1 for digests in seen.values()), seen
    texts = {values: digests for values, digests in seen.items() if any(isinstance(v, str) for v in values)}
    for values, digests in texts.items():
        lines = "".join(f"{'' if value is None else value},1\n" for value in values)
        (tmp_path / "x.csv").write_text("x,y\n" + lines, encoding="utf-8")
        assert read(DataLocation(str(tmp_path / "x.csv")), CATEGORICAL)[0] == list(values)
        fingerprint = RecordsFingerprint(b"k" * 32)
        fingerprint.add([list(values)])
        assert digests == {fingerprint.content.fingerprint}


@pytest.mark.parametrize("stored", [each for each in ARROW + NUMPY if "dictionary" not in each.name])
def test_no_type_stops_the_ledger_from_knowing_the_records(stored: Stored) -> None:
    """A column that no study asks for may hold anything."""

    def fingerprint(*columns: Any) -> Digest:
        found = RecordsFingerprint(b"k" * 32)
        found.add(columns)
        return found.content.fingerprint

    numbers = np.arange(RECORDS)
    assert fingerprint(numbers, stored.array) == fingerprint(stored.array, numbers)


@pytest.mark.parametrize(
    ("values", "numbers", "levels"),
    [
        ([1, None, Decimal("0.50")], (1, None, Fraction(1, 2)), ("1", None, "0.5")),
        ([True, float("nan"), 3.0], (1, None, 3), ("true", None, "3")),
        ([np.int8(1), np.float32(0.5), np.bool_(False)], (1, Fraction(1, 2), 0), ("1", "0.5", "false")),
        ([Decimal("NaN"), Decimal("-Infinity"), Decimal("sNaN")], (None,) * 3, (None,) * 3),
        (["A", b"1", ""], None, ("A", "1", None)),
        ([bytearray(b"A"), memoryview(b"1"), " "], None, ("A", "1", None)),
        ([datetime.date(2020, 1, 1), None, "2020-01-02"], None, ("2020-01-01", None, "2020-01-02")),
        ([np.datetime64("2020-01-01"), np.datetime64("NaT"), None], None, ("2020-01-01", None, None)),
        ([uuid.UUID(int=1), None, None], None, (str(uuid.UUID(int=1)), None, None)),
        ([np.timedelta64(1, "s"), None, None], None, None),
        ([1, np.timedelta64(1), None], None, None),
        ([1, datetime.timedelta(1), None], None, None),
        ([1, datetime.datetime(2020, 1, 1), None], None, None),  # as SQL gives them, without a zone
        ([1, datetime.time(1), None], None, None),
        ([1, 2j, None], None, None),
        ([1, [1], None], None, None),
        ([1, {"a": 1}, None], None, None),
        ([1, {1}, None], None, None),
        ([1, object(), None], None, None),
    ],
)
def test_python_values_as_queries_and_applications_give_them(
    values: list[Any], numbers: Sequence[Any] | None, levels: Sequence[Any] | None
) -> None:
    def reading(feature: Feature) -> list[Any]:
        return of_column(pick_columns({"x": values}, [feature])[0], feature)

    list(check(Stored(str(type(values[0])), values, numbers, levels), reading))


@pytest.mark.parametrize("kind", [int, Decimal])
def test_what_is_beyond_all_doubles_is_the_largest_one_and_no_level(kind: Callable[[int], Any]) -> None:
    huge = kind(10**5000)
    column = pick_columns({"x": [huge, 0]}, [NUMERIC])[0]
    assert of_column(column, NUMERIC) == [Fraction(float(np.finfo(np.float64).max)), 0]
    with pytest.raises(InputError, match="in record 1"):
        of_column(column, CATEGORICAL)
    RecordsFingerprint(b"k" * 32).add([[huge, 0]])


def test_masks_strides_and_empty_columns() -> None:
    assert of_column(np.ma.masked_array([1, 2, 3], mask=[False, True, False]), NUMERIC) == [1, None, 3]
    durations = np.ma.masked_array(np.array([1, 2], "m8[ns]"), mask=[True, True])
    assert of_column(durations, NUMERIC) == [None, None]
    with pytest.raises(InputError, match=r"duration \(timedelta64\[ns\]\) in record 2"):
        of_column(np.ma.masked_array(np.array([1, 2], "m8[ns]"), mask=[True, False]), NUMERIC)
    table = np.arange(12.0).reshape(4, 3)
    for column in (table[:, 1], table.T[1], table[::-1, 1], np.asfortranarray(table)[:, 1]):
        assert of_column(column, NUMERIC) == column.tolist()
    assert of_column(np.broadcast_to(np.float16(0.5), 3), NUMERIC) == [Fraction(1, 2)] * 3
    for dtype in ("f8", "U3", "M8[s]", "V3", "O"):
        for feature in (NUMERIC, CATEGORICAL):
            assert of_column(np.zeros(0, dtype), feature) == []
    structured = np.ma.zeros(0, [("a", "i4")])
    assert of_column(structured, NUMERIC) == []


def test_a_truth_value_is_a_level_in_whatever_spelling_a_program_writes_it() -> None:
    for levels in (("false", "true"), ("False", "True"), ("FALSE", "TRUE")):
        feature = Feature("x", "categorical", levels=levels)
        for values in ([True, False], ["true", "false"], ["True", "False"], ["TRUE", "FALSE"]):
            assert levels_of(np.array(values, object), feature).tolist() == [1, 0]
    several = Feature("x", "categorical", levels=("true", "True"))
    assert levels_of(np.array(["true", "True", True], object), several).tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="does not list"):
        levels_of(np.array(["TRUE"], object), several)


def test_numbers_and_truth_values_of_a_text_file_are_those_of_a_typed_one(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("x\nTrue\nfalse\n+1.5\n.5\n1e2\n", encoding="utf-8")
    values, _ = read(DataLocation(str(tmp_path / "x.csv")), NUMERIC)
    assert values == [1, 0, Fraction(3, 2), Fraction(1, 2), 100]


def test_a_decimal_is_the_nearest_double_in_every_format(tmp_path: Path) -> None:
    """Arrow's own conversion is off by the last bit for about every fourth of these."""
    exact = [Decimal(number).scaleb(-4) for number in range(1, 30_000, 7)]
    write_parquet(pa.array(exact, pa.decimal128(9, 4)), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("x\n" + "".join(f"{each}\n" for each in exact), encoding="utf-8")
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("CREATE TABLE t (x REAL)")
        database.executemany("INSERT INTO t VALUES (?)", [(float(each),) for each in exact])
    database.close()
    found = [
        read(DataLocation(str(tmp_path / "x.parquet")), NUMERIC),
        read(DataLocation(str(tmp_path / "x.csv")), NUMERIC),
        read(DataLocation(f"sqlite:///{tmp_path / 'x.db'}", "SELECT x FROM t"), NUMERIC),
    ]
    assert found[0] == found[1] == found[2]
    assert found[0][0] == [Fraction(float(each)) for each in exact]


def test_a_type_that_only_its_writer_knows_is_not_taken_for_what_it_is_stored_as(tmp_path: Path) -> None:
    """Pandas stores a month as the number of months since 1970."""
    field = pa.field("x", pa.int64(), metadata={"ARROW:extension:name": "pandas.period"})
    table = pa.table([pa.array([600, 601, 602])], schema=pa.schema([field]))
    pa.parquet.write_table(table, tmp_path / "x.parquet")
    for feature in (NUMERIC, CATEGORICAL):
        with pytest.raises(InputError, match=r"'x' holds a value of type pandas\.period in record 1"):
            read(DataLocation(str(tmp_path / "x.parquet")), feature)


def test_the_record_of_a_later_batch_is_named(tmp_path: Path) -> None:
    times = pa.array([None] * 70_000 + [1], pa.timestamp("s"))
    write_parquet(times, tmp_path / "x.parquet")
    with pytest.raises(InputError, match="in record 70001"):
        read(DataLocation(str(tmp_path / "x.parquet")), NUMERIC)


def npy(header: str, content: bytes = b"") -> bytes:
    padded = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 1)}", b"12345678"), "NumPy file"),
        (npy("{'descr': '|S2000000000', 'fortran_order': False, 'shape': (9999999, 1)}"), "NumPy file"),
        (npy("{'descr': '<U1', 'fortran_order': False, 'shape': (1, 1)}", b"\xff\xff\xff\x7f"), "NumPy file"),
        (npy("{'descr': '<U1', 'fortran_order': True, 'shape': (1, 1)}", b"\x00\xd8\x00\x00"), "NumPy file"),
        (npy("{'descr': '<f8', 'fortran_order': True, 'shape': (0, 1)}"), "no records"),
        (npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,)}", b"1234"), "1 fields"),
    ],
)
def test_arrays_that_hold_no_values(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read(DataLocation(str(tmp_path / "x.npy")), NUMERIC)
