"""Every format gives the same columns, in batches, matched by name."""

import gzip
import sqlite3
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

from dpdpca_owner.records.open import locate_data, open_source, read_batches
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.records.columns import levels_of, numbers_of, pick_columns
from dpdpca_protocol.terms.features import Feature

AGE, TALL, SEX = (
    Feature("âge", "numeric"),
    Feature("height", "numeric"),
    Feature("sex", "categorical", levels=("f", "m")),
)
FEATURES = (AGE, TALL, SEX)
COUNT = 150_000
NUMBERS = {"âge": np.arange(COUNT) % 90 + 0.5, "height": np.arange(COUNT, dtype=np.float64)}
NUMBERS["height"][[3, 70_000]] = np.nan
SEXES = ["f" if row % 3 else "m" for row in range(COUNT)]
SEXES[5] = ""


def read(path: Path | str, features: tuple[Feature, ...] = FEATURES, **options: Any) -> list[NDArray[Any]]:
    """All batches, by the encoder's own reading of them, put together."""
    parts: list[list[NDArray[Any]]] = [[] for _ in features]
    count = 0
    location = DataLocation(str(path), **options)
    for columns in read_batches(open_source(location, features), features):
        for part, feature, column in zip(parts, features, pick_columns(columns, features), strict=True):
            read_one = levels_of if feature.is_categorical else numbers_of
            part.append(read_one(column, feature, count))
        count += len(parts[0][-1])
        assert len(parts[0][-1]) <= 65_536
    return [np.concatenate(part) for part in parts]


def table() -> pa.Table:
    """Permuted, with columns that nobody asked for; a level is null where a text file has nothing."""
    sexes = pa.array([sex or None for sex in SEXES]).dictionary_encode()
    heights = pa.array(NUMBERS["height"], from_pandas=True)
    return pa.table(
        {
            "extra": pa.array(["x"] * COUNT),
            "sex": sexes,
            "height": heights,
            "âge": NUMBERS["âge"],
            "nested": [[1]] * COUNT,
        }
    )


def write_parquet(path: Path) -> None:
    pa.parquet.write_table(table(), path, row_group_size=40_000)


def write_feather(path: Path) -> None:
    pa.feather.write_feather(table(), str(path), compression="lz4")


def write_stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table().schema) as writer:
        writer.write_table(table())


def lines(delimiter: str, decimal: str = ".") -> str:
    def number(value: float) -> str:
        return "" if np.isnan(value) else str(value).replace(".", decimal)

    rows = [delimiter.join(("sex", "âge", "note", "height"))]
    rows += [
        delimiter.join((sex, number(age), '"a b"', number(height)))
        for sex, age, height in zip(SEXES, NUMBERS["âge"], NUMBERS["height"], strict=True)
    ]
    return "\n".join(rows) + "\n"


def write_csv(path: Path) -> None:
    path.write_text(lines(","), encoding="utf-8")


def write_csv_with_mark(path: Path) -> None:
    path.write_text(lines(";"), encoding="utf-8-sig")


def write_tabs_in_utf16(path: Path) -> None:
    path.write_text(lines("\t"), encoding="utf-16")


def write_bars_gzipped(path: Path) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(lines("|"))


def write_npz_columns(path: Path) -> None:
    arrays: dict[str, Any] = {"sex": np.array(SEXES), "other": np.zeros((2, 2, 2)), **NUMBERS}
    np.savez_compressed(path, **arrays)


def write_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE records ("âge" REAL, height REAL, sex TEXT)')
        rows = zip(NUMBERS["âge"].tolist(), NUMBERS["height"].tolist(), SEXES, strict=True)
        connection.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("records.parquet", write_parquet),
        ("records.feather", write_feather),
        ("records.arrows", write_stream),
        ("no-suffix-at-all", write_parquet),
        ("comma.csv", write_csv),
        ("semicolon.csv", write_csv_with_mark),
        ("tabs.tsv", write_tabs_in_utf16),
        ("bars.csv.gz", write_bars_gzipped),
        ("columns.npz", write_npz_columns),
    ],
)
def test_every_file_format_gives_the_same_columns(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    check(read(tmp_path / name))


def test_a_query_gives_the_same_columns(tmp_path: Path) -> None:
    write_sqlite(tmp_path / "records.db")
    check(read(f"sqlite:///{tmp_path / 'records.db'}", query="SELECT sex, height, âge FROM records"))
    (tmp_path / "records.db").rename(tmp_path / "a?b 100%.db")
    check(read(f"sqlite:///{tmp_path}/a%3Fb 100%25.db", query="SELECT sex, height, âge FROM records"))


def test_a_database_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist") as refusal:
        read(f"sqlite:///{tmp_path / 'recrods.db'}", query="SELECT 1")
    assert "recrods" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def check(columns: list[NDArray[Any]]) -> None:
    ages, heights, sexes = columns
    np.testing.assert_array_equal(ages, NUMBERS["âge"])
    np.testing.assert_array_equal(heights, NUMBERS["height"])
    assert sexes.tolist() == [{"f": 0, "m": 1, "": -1}[sex] for sex in SEXES]


def test_other_encodings_and_decimal_commas_are_named(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_bytes(lines(";", ",").encode("cp1252"))
    check(read(path, encoding="cp1252", decimal=","))
    with pytest.raises(InputError, match="--encoding"):
        read(path)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_matrix_with_names(tmp_path: Path, order: Any, save: Callable[..., None]) -> None:
    matrix = np.asarray(np.arange(400_000.0).reshape(100_000, 4), order=order)
    save(tmp_path / "m.npz", X=matrix, features=np.array(["a", "height", "b", "âge"]))
    ages, heights = read(tmp_path / "m.npz", (AGE, TALL))
    np.testing.assert_array_equal(ages, matrix[:, 3])
    np.testing.assert_array_equal(heights, matrix[:, 1])


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_bare_matrix_is_in_the_manifest_s_order(tmp_path: Path, order: Any) -> None:
    matrix = np.asarray(np.arange(200_000, dtype=np.int32).reshape(100_000, 2), order=order)
    np.save(tmp_path / "m.npy", matrix)
    ages, heights = read(tmp_path / "m.npy", (AGE, TALL))
    np.testing.assert_array_equal(ages, matrix[:, 0])
    np.testing.assert_array_equal(heights, matrix[:, 1])
    with pytest.raises(InputError, match="2 columns, but the study has 3"):
        read(tmp_path / "m.npy")


@pytest.mark.parametrize(
    "header", ["\ufeffâge,height", "a\u0302ge, height ", '"âge","height"', "height,x,âge"]
)
def test_headers_are_matched_after_normalisation(tmp_path: Path, header: str) -> None:
    path = tmp_path / "records.csv"
    path.write_text(f"{header}\n1,2,3\n" if header.count(",") == 2 else f"{header}\n1,2\n", encoding="utf-8")
    assert read(path, (AGE, TALL))[0].shape == (1,)


def test_numbers_of_every_typed_kind(tmp_path: Path) -> None:
    kinds = {
        "i": pa.array([1, None], pa.int8()),
        "u": pa.array([2**64 - 1, None], pa.uint64()),
        "h": pa.array([np.float16(0.5), None], pa.float16()),
        "b": pa.array([True, None]),
        "d": pa.array([Decimal("1.25"), None], pa.decimal128(9, 4)),
        "n": pa.nulls(2),
    }
    pa.parquet.write_table(pa.table(kinds), tmp_path / "kinds.parquet")
    columns = read(tmp_path / "kinds.parquet", tuple(Feature(name, "numeric") for name in kinds))
    assert [column[0] for column in columns[:5]] == [1, 2.0**64, 0.5, 1, 1.25]
    assert all(np.isnan(column[1]) for column in columns)


def test_words_for_missing_in_a_text_file(tmp_path: Path) -> None:
    words = ["", "NA", "n/a", "NaN", "null", "None", "inf", "-Infinity", '""']
    (tmp_path / "m.csv").write_text("height,x\n" + "".join(f"{word},1\n" for word in words), encoding="utf-8")
    assert np.isnan(read(tmp_path / "m.csv", (TALL,))[0]).tolist() == [True] * len(words)


@pytest.mark.parametrize("stray", ["7", "seven", "1e999"])
def test_columns_of_a_text_file_are_read_alike_together_and_alone(tmp_path: Path, stray: str) -> None:
    """Columns of numbers are converted together, unless one has a text."""
    features = [Feature(name, "numeric", Fraction(0), Fraction(9)) for name in "abc"]
    features.insert(1, SEX)
    path = tmp_path / "stray.csv"
    path.write_text(f"c,sex,b,a\n1,f,{stray},3\n,m,5,true\n7,f,NA,1e3\n", encoding="utf-8")

    def written(asked: list[Feature]) -> dict[str, str]:
        (columns,) = read_batches(open_source(DataLocation(str(path)), asked), asked)
        return {name: str(np.asarray(column).tolist()) for name, column in columns.items()}

    together = written(features)
    assert together == {name: text for each in features for name, text in written([each]).items()}
    assert together["a"] == "[3.0, 1.0, 1000.0]"
    assert together["sex"] == "['f', 'm', 'f']"
    assert together["c"] == "[1.0, nan, 7.0]"


def test_levels_from_numbers_and_truth_values(tmp_path: Path) -> None:
    features = (
        Feature("i", "categorical", levels=("1", "2")),
        Feature("f", "categorical", levels=("1", "2.5")),
        Feature("b", "categorical", levels=("false", "true")),
    )
    columns = pa.table({"i": [1, 2, None], "f": [1.0, 2.5, None], "b": [False, True, None]})
    pa.parquet.write_table(columns, tmp_path / "levels.parquet")
    assert [column.tolist() for column in read(tmp_path / "levels.parquet", features)] == [[0, 1, -1]] * 3


def test_where_the_data_is_said_to_be(tmp_path: Path) -> None:
    def where(
        data: str | None, query: str | None = None, file: Path | None = None, **environment: str
    ) -> str:
        return locate_data(data, query, file, None, ".", environment).data

    (tmp_path / "url").write_text("postgresql://u:secret@h/db\n", encoding="utf-8")
    assert where("f.csv") == "f.csv"
    assert where(None, "SELECT 1", DPDPCA_DATA_URL="sqlite://") == "sqlite://"
    assert where(None, "SELECT 1", tmp_path / "url") == "postgresql://u:secret@h/db"
    with pytest.raises(UsageError, match="read a database password on the command line") as caught:
        where("postgresql://u:secret@h/db", "SELECT 1")
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="--query"):
        where("sqlite:///f.db")
    with pytest.raises(UsageError, match="no data"):
        where(None)
    assert "secret" not in repr(locate_data(None, "SELECT 1", tmp_path / "url", None, ".", {}))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:secret@h/db",
        "postgresql://u:sec/ret@h/db",
        "postgresql://u@corp:secret@h/db",
        "postgresql://h/db?user=u&password=secret",
        "postgresql://h/db?user=u&pass%77ord=secret",
        "mysql://h/db?passwd=secret",
        "snowflake://u@h/db?authenticator=oauth&access_token=secret",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3D%7Bx%7D%3BUID%3Du%3BPwd%3Dsecret",
    ],
)
def test_a_password_on_the_command_line_is_refused_wherever_it_stands(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        locate_data(url, "SELECT 1", None, None, ".", {})
    assert caught.value.slug == "password-in-arguments"
    assert "secret" not in str(caught.value)
    assert locate_data(None, "SELECT 1", None, None, ".", {"DPDPCA_DATA_URL": url}).data == url


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////data/a:b@c.db",
        "postgresql://u@h:5432/db",
        "postgresql://u@h/db?passfile=/run/pg&sslmode=verify-full",
        "duckdb:///f.db?compass=north",
    ],
)
def test_a_database_url_without_a_password_is_taken(url: str) -> None:
    assert locate_data(url, "SELECT 1", None, None, ".", {}).data == url


def test_a_doubled_column_still_shows_the_delimiter(tmp_path: Path) -> None:
    """Or the owner would read that the column is missing."""
    path = tmp_path / "doubled.csv"
    path.write_text("height;height;a,b,c,d\n1;2;x\n", encoding="utf-8")
    features = [Feature("height", "numeric", Fraction(0), Fraction(3))]
    with pytest.raises(InputError) as refusal:
        list(read_batches(open_source(DataLocation(str(path)), features), features))
    assert refusal.value.slug == "duplicated-column"
