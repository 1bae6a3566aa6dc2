"""Tables as other programs leave them: odd lines in text files, parts, and queries with any character."""

import gzip
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet
import pytest
import sqlalchemy
from owner_scene import MakeScene, OwnerCommands
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from study_parties import MakeManifest

from dpdpca_owner import actions
from dpdpca_owner.records.contribution import Contribution, read_contribution
from dpdpca_owner.records.open import locate_data
from dpdpca_owner.records.source import DataLocation, Reading
from dpdpca_owner.upload import Outcome, Watcher
from dpdpca_protocol.errors import InputError, UnavailableError, UsageError
from dpdpca_protocol.terms.manifest import Manifest

KEY = bytes(32)
FEATURES = [{"name": "age", "lower": 0, "upper": 100}, {"name": "ward", "levels": ["A", "B"]}]
PLAIN = "age,ward\n50,A\n60,B\n70,A\n"


@pytest.fixture
def manifest(make_manifest: MakeManifest) -> Manifest:
    return make_manifest(features=FEATURES, missing="midpoint", clip_norm=1)


def read(path: Path | str, manifest: Manifest, query: str | None = None, **said: Any) -> Contribution:
    return read_contribution(DataLocation(str(path), query, reading=Reading(**said)), manifest, KEY)


@pytest.fixture
def plain(tmp_path: Path, manifest: Manifest) -> bytes:
    (tmp_path / "plain.csv").write_text(PLAIN, encoding="utf-8")
    return read(tmp_path / "plain.csv", manifest).sums.to_bytes()


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("sep.csv", b"sep=;\r\nage;ward\r\n50;A\r\n60;B\r\n70;A\r\n", None),
        ("sep-of-a-rare-sign.csv", b"sep=^\nage^ward\n50^A\n60^B\n70^A\n", None),
        ("sep-tab.csv", b"sep=\t\nage\tward\n50\tA\n60\tB\n70\tA\n", None),
        ("sep-with-mark.csv", b"\xef\xbb\xbfsep=,\n" + PLAIN.encode(), None),
        ("sep-in-utf-16.csv", ("sep=,\r\n" + PLAIN).encode("utf-16"), None),
        ("units.csv", PLAIN.replace("\n50", "\n(years),\n50").encode(), 2),
        ("sep-and-units.csv", b"sep=;\nage;ward\n[a];-\n50;A\n60;B\n70;A\n", 2),
        ("units-in-two-lines.csv", PLAIN.replace("\n50", '\n"in\nyears",x\n,\n50').encode(), 3),
        ("dos.csv", PLAIN.encode() + b"\x1a", None),
        ("dos-marks.csv", PLAIN.replace("\n", "\r\n").encode() + b"\x1a\x1a\r\n\x1a", None),
        ("dos-in-a-line.csv", PLAIN.strip().encode() + b"\x1a", None),
        ("gzip-without-the-suffix", gzip.compress(PLAIN.encode(), mtime=0), None),
        ("gzip.csv", gzip.compress(b"sep=,\n" + PLAIN.encode(), mtime=0), None),
    ],
)
def test_odd_text_files_are_the_same_table(
    tmp_path: Path, manifest: Manifest, plain: bytes, name: str, content: bytes, lines: int | None
) -> None:
    (tmp_path / name).write_bytes(content)
    found = read(tmp_path / name, manifest, header_lines=lines)
    assert found.sums.to_bytes() == plain
    assert found.report.unusable == (0, 0)


def test_a_mark_in_the_middle_of_a_file_ends_nothing(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "t.csv").write_bytes(b"age,ward\n50,A\n60,\x1a\n70,B\n\x1a")
    found = read(tmp_path / "t.csv", manifest)
    assert (found.report.records, found.report.unusable) == (3, (0, 1))


def test_a_line_of_units_counts_as_a_record_until_the_owner_says_what_it_is(
    tmp_path: Path, manifest: Manifest
) -> None:
    """The content of a record may not decide whether it counts."""
    (tmp_path / "t.csv").write_text(PLAIN.replace("\n50", "\nyears,\n50"), encoding="utf-8")
    found = read(tmp_path / "t.csv", manifest)
    assert (found.report.records, found.report.unusable) == (4, (1, 0))
    assert any("add --header-lines 2" in note for note in found.notes)
    named = read(tmp_path / "t.csv", manifest, header_lines=2)
    assert not any("--header-lines" in note for note in named.notes)
    with pytest.raises(UsageError, match="at least 1"):
        locate_data("t.csv", None, None, None, ".", {}, Reading(header_lines=0))


def test_a_level_with_a_decimal_comma_is_the_level_with_the_point(
    tmp_path: Path, make_manifest: MakeManifest
) -> None:
    features = [{"name": "x", "lower": 0, "upper": 9}, {"name": "y", "levels": ["2.5", "a,b", "1"]}]
    manifest = make_manifest(features=features, missing="midpoint", clip_norm=1)
    (tmp_path / "t.csv").write_text("x;y\n1,5;2,5\n2;a,b\n3;1,0\n", encoding="utf-8")
    location = DataLocation(str(tmp_path / "t.csv"), decimal=",")
    assert read_contribution(location, manifest, KEY).report.unusable == (0, 0)


def part(path: Path, ages: list[Any], wards: list[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    pa.parquet.write_table(pa.table({"ward": wards, "age": ages}), path)
    return path


def test_a_folder_of_parquet_parts_is_one_table_in_the_order_of_the_names(
    tmp_path: Path, manifest: Manifest, plain: bytes
) -> None:
    folder = tmp_path / "records"
    part(folder / "part-2.parquet", [70.0], ["A"])
    part(folder / "part-0.parquet", [50], ["A"])
    part(folder / "part-1.parquet", [60], ["B"])
    for note in ("_SUCCESS", ".part-0.parquet.crc", "_metadata.parquet", "README.txt"):
        (folder / note).write_bytes(b"note")
    seen: list[int] = []
    found = read_contribution(DataLocation(str(folder)), manifest, KEY, seen.append)
    assert found.sums.to_bytes() == plain
    assert seen == [1, 2, 3]
    assert read(folder / "part-*.parquet", manifest).content == found.content
    whole = read(tmp_path / "plain.csv", manifest)
    assert whole.content == found.content


def test_records_that_are_paired_are_paired_in_the_order_of_the_names(
    tmp_path: Path, make_manifest: MakeManifest
) -> None:
    manifest = make_manifest(
        features=FEATURES, missing="midpoint", release="pairs", clip_norm=1, sum_weight="0"
    )
    ages = list(range(0, 100, 7))
    for place, age in enumerate(ages):
        part(tmp_path / "records" / f"part-{place:02}.parquet", [age], ["A"])
    part(tmp_path / "whole.parquet", ages, ["A"] * len(ages))
    one, whole = (read(tmp_path / name, manifest).sums for name in ("records", "whole.parquet"))
    assert one.to_bytes() == whole.to_bytes()


def test_a_pattern_finds_text_files_and_each_has_its_own_header(
    tmp_path: Path, manifest: Manifest, plain: bytes
) -> None:
    (tmp_path / "p1.csv").write_text("age;ward\n50;A\n", encoding="utf-8")
    (tmp_path / "p2.csv").write_text("ward,age\nB,60\nA,70\n", encoding="utf-8")
    assert read(tmp_path / "p[0-9].csv", manifest).sums.to_bytes() == plain
    (tmp_path / "a[1].csv").write_text(PLAIN, encoding="utf-8")
    assert read(tmp_path / "a[1].csv", manifest).sums.to_bytes() == plain


@pytest.mark.parametrize(
    ("make", "data", "problem", "advice"),
    [
        (lambda at: (at / "r").mkdir(), "r", "has no file NAME.parquet", r"name the files: .*\*\.csv"),
        (lambda at: None, "r-*.csv", "no file has a name like", "in quotes"),
        (
            lambda at: (
                part(at / "r" / "a.parquet", [1], ["A"]),
                pa.parquet.write_table(pa.table({"age": [1]}), at / "r" / "b.parquet"),
            ),
            "r",
            r"b\.parquet does not have the same columns as .*a\.parquet",
            "same columns",
        ),
        (
            lambda at: (part(at / "r" / "a.parquet", [1], ["A"]), (at / "r" / "b.parquet").write_bytes(b"")),
            "r",
            r"b\.parquet is empty",
            "at least one record",
        ),
    ],
)
def test_parts_that_are_no_table_are_refused(
    tmp_path: Path, manifest: Manifest, make: Callable[[Path], object], data: str, problem: str, advice: str
) -> None:
    make(tmp_path)
    with pytest.raises(InputError, match=problem) as refusal:
        read(tmp_path / data, manifest)
    assert re.search(advice, refusal.value.next_step)


class PercentDialect(SQLiteDialect_pysqlite):
    """SQLite behind a driver that, like those of PostgreSQL and MySQL, fills % in a query with parameters."""

    name = "sqlite"
    driver = "percent"
    default_paramstyle = "format"
    supports_statement_cache = False

    @classmethod
    def import_dbapi(cls) -> Any:
        class Driver:
            paramstyle = "format"

            def __getattr__(self, name: str) -> Any:
                return getattr(sqlite3, name)

            def connect(self, *args: Any, **more: Any) -> sqlite3.Connection:
                return sqlite3.connect(*args, factory=PercentConnection, **more)

        return Driver()


class PercentCursor(sqlite3.Cursor):
    def execute(self, statement: str, parameters: Any = None) -> Any:
        return super().execute(statement if parameters is None else statement % tuple(parameters))


class PercentConnection(sqlite3.Connection):
    def cursor(self, factory: Any = PercentCursor) -> Any:
        return super().cursor(factory)


registry.register("sqlite.percent", __name__, "PercentDialect")


@pytest.mark.parametrize("driver", ["sqlite", "sqlite+percent"])
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t WHERE note LIKE '%:abc'",
        "SELECT * FROM t WHERE note <> 'x' -- note :todo, and 100 % of it\n",
        "SELECT age, ward /* :a %s %(b)s */ FROM t WHERE age % 7 >= 0 AND note LIKE '%'",
        "SELECT age AS \"age\", ward FROM t WHERE note <> ':x' AND note <> '\\:y'",
    ],
)
def test_a_query_runs_as_it_stands(
    tmp_path: Path, manifest: Manifest, plain: bytes, driver: str, query: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "r.db")) as database, database:
        database.execute("CREATE TABLE t (age INTEGER, ward CHAR(4), note TEXT)")
        rows = [(50, "A   ", "1:abc"), (60, "B   ", ":abc"), (70, "A   ", "%:abc")]
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    assert read(f"{driver}:///{tmp_path / 'r.db'}", manifest, query).sums.to_bytes() == plain


def test_the_other_driver_does_fill_in() -> None:
    """Or the test above would prove nothing."""
    engine = sqlalchemy.create_engine("sqlite+percent://")
    with engine.connect() as connection, pytest.raises(TypeError, match="not enough arguments"):
        connection.exec_driver_sql("SELECT '%s'")


MARKED = "age,systolic,weight\n" + "50,120,.\n51,.,80\n52,121,81\n53,119,82\n"


def test_a_join_that_is_repeated_without_its_options_is_the_same_join(make_scene: MakeScene) -> None:
    scene = make_scene(missing="midpoint")
    Path(scene.location.data).write_text(MARKED.replace("\n50", "\nyears,mmHg,kg\n50"), encoding="utf-8")
    said = DataLocation(scene.location.data, reading=Reading((".",), 2))
    prepared = actions.prepare_join(scene.desk, scene.address, said)
    assert prepared.contribution.report.missing == (0, 1, 1)

    def break_off(request: httpx.Request) -> None:
        if request.url.path.endswith("/share/complete"):
            raise httpx.ReadError("the network is gone")

    scene.proxy.interfere = break_off
    with pytest.raises(UnavailableError):
        actions.join(scene.desk, scene.address, prepared, Watcher())
    scene.proxy.interfere = lambda request: None
    again = actions.prepare_join(scene.desk, scene.address, scene.location)
    assert again.contribution.digest == prepared.contribution.digest
    settled = actions.join(scene.desk, scene.address, again, Watcher())
    assert (settled.outcome, settled.receipt.version) == (Outcome.DONE, 1)
    # What is said again is what counts, and an empty marker names none.
    other = DataLocation(scene.location.data, reading=Reading(("",), 1))
    report = actions.prepare_join(scene.desk, scene.address, other).contribution.report
    assert (report.records, report.missing) == (5, (0, 0, 0))


def test_the_options_of_review_and_join(run: OwnerCommands) -> None:
    Path(run.scene.location.data).write_text(MARKED, encoding="utf-8")
    words = (str(run.scene.address), "--data", run.scene.location.data)
    status, out, err = run("review", *words)
    assert status == 0, err
    assert "--missing-marker '.'" in " ".join(out.split())
    assert "--decimal" not in out
    status, out, err = run("review", *words, "--missing-marker", ".", "--header-lines", "2", "--json")
    assert status == 0, err
    assert json.loads(out)["dry_run"]["records"] == 3
    status, out, err = run("join", *words, "--yes", "--missing-marker", ".", "--missing-marker", "?")
    assert status == 0, err
    assert "--missing-marker" not in out
