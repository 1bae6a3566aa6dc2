"""One set of reading rules: the same table gives the same share as CSV, Parquet, Arrow, npz and SQL.

docs/formats.md lists the rules.
"""

import csv
import dataclasses
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from study_parties import MakeManifest

from dpdpca_owner.records.contribution import Contribution, read_contribution
from dpdpca_owner.records.source import DataLocation, Reading
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.terms.manifest import Manifest

KEY = bytes(32)
FORMATS = ("csv", "parquet", "feather", "stream", "npz", "sql")


@dataclasses.dataclass(frozen=True)
class Kept:
    """A column of four records, as each format keeps it.

    Attributes:
        feature: as in a draft.
        means: what the records are: numbers or levels, None for a missing one.
        csv: the fields of a text file.
        arrow, npz, sql: the values of these formats.
        kind: the type of the SQL column.
    """

    feature: dict[str, Any]
    means: Sequence[Any]
    csv: Sequence[str]
    arrow: Any
    npz: Any
    sql: Sequence[Any]
    kind: str = ""


def number(name: str, half: int = 10) -> dict[str, Any]:
    return {"name": name, "lower": -half, "upper": half}


def levels(name: str, *listed: str) -> dict[str, Any]:
    return {"name": name, "levels": list(listed)}


NAN = float("nan")
TABLE = (
    Kept(
        number("reals"), [1.5, None, -2.0, 8.25],
        ["1.5", "", " -2 ", "+8.25e0"],
        [1.5, None, -2.0, 8.25], [1.5, NAN, -2.0, 8.25], [1.5, None, -2.0, 8.25], "REAL",
    ),
    Kept(
        number("out of bounds"), [-10, 10, None, 0],
        ["-1e300", "11", "NULL", "0"],
        [-1e300, 11, NAN, 0.0], [-1e300, 11, NAN, 0], [-1e300, 11, None, 0],
    ),
    Kept(
        number("whole numbers"), [1, 0, None, 5],
        ["1", "0", "None", "5.0"],
        pa.array([1, 0, None, 5], pa.int32()), [1, 0, NAN, 5], [1, 0, None, 5], "INTEGER",
    ),
    Kept(
        number("decimals"), [1.25, None, 0.1, -3],
        ["1.25", "n/a", "0.1", "-3"],
        [Decimal("1.25"), None, Decimal("0.1"), Decimal("-3.00")], [1.25, NAN, 0.1, -3], [1.25, "", 0.1, -3],
    ),
    Kept(
        number("truth in numbers"), [1, 0, None, 1],
        ["TRUE", "false", "NA", "1"],
        [True, False, None, True], [1, 0, NAN, 1], ["TRUE", "false", "NA", 1],
    ),
    Kept(
        number("texts in numbers"), [None, None, None, None],
        ["", " ", "NA", "nan"],
        ["", " ", "NA", "nan"], ["", " ", "NA", "nan"], ["", " ", "NA", "nan"], "TEXT",
    ),
    Kept(
        levels("whole levels", "1", "2"), ["1", "2", None, "1"],
        ["1.0", "2", "", "1.00"],
        [1.0, 2.0, None, 1.0], [1.0, 2.0, NAN, 1.0], [1.0, 2, None, "1.0"],
    ),
    Kept(
        levels("levels with a point", "1.0", "2.5"), ["1.0", "2.5", None, "1.0"],
        ["1", "2.50", "", "1e0"],
        [Decimal("1.00"), Decimal("2.50"), None, Decimal("1.00")], [1, 2.5, NAN, 1], [1, "2.50", "", "1.0"],
    ),
    Kept(
        levels("codes", "007", "7"), ["007", "7", None, "7"],
        ["007", "7", "", "7.0"],
        ["007", "7", None, "7"], ["007", "7", "", "7"], ["007", "7", None, "7"], "TEXT",
    ),
    Kept(
        levels("truth", "false", "true"), ["true", "false", None, "true"],
        ["TRUE", "False", "", "1"],
        [True, False, None, True], ["True", "FALSE", "", "1.0"], [1, 0, None, "true"],
    ),
    Kept(
        levels("truth in R", "FALSE", "TRUE"), ["TRUE", "FALSE", None, "TRUE"],
        ["TRUE", "0", "", "true"],
        [1.0, 0.0, None, 1.0], [1.0, 0.0, NAN, 1.0], [1, "FALSE", None, "TRUE"],
    ),
    Kept(
        levels("truth as digits", "0", "1"), ["1", "0", None, "1"],
        ["True", "0", "", "1"],
        [True, False, None, True], ["TRUE", "false", "", "1"], [1, 0, None, "t" "rue"],
    ),
    Kept(
        levels("padded", "X", "NA"), ["X", "NA", None, "X"],
        [" X ", "NA", "  ", "X\u00a0"],
        ["X   ", "NA", " ", "X"], ["X  ", "NA", " ", "X"], ["X   ", "NA  ", "    ", "X"], "CHAR(4)",
    ),
    Kept(
        levels("composed", "é", "b"), ["é", "b", None, "é"],
        ["e\u0301", "b", "", "é"],
        pa.array(["e\u0301", "b", None, "é"]).dictionary_encode(), ["e\u0301", "b", "", "é"],
        ["e\u0301", "b", None, "é"],
    ),
)  # fmt: skip


def write(format: str, path: Path, table: Sequence[Kept]) -> DataLocation:
    """The table in one format, and where it is."""
    names = [kept.feature["name"] for kept in table]
    if format == "csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *zip(*(kept.csv for kept in table), strict=True)])
    elif format == "npz":
        with path.open("wb") as binary:
            arrays: dict[str, Any] = {
                name: np.array(kept.npz) for name, kept in zip(names, table, strict=True)
            }
            np.savez(binary, **arrays)
    elif format == "sql":
        columns = ", ".join(f'"{kept.feature["name"]}" {kept.kind}' for kept in table)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(f"CREATE TABLE t ({columns})")
            marks = ", ".join("?" * len(table))
            rows = zip(*(kept.sql for kept in table), strict=True)
            database.executemany(f"INSERT INTO t VALUES ({marks})", rows)
        return DataLocation(f"sqlite:///{path}", "SELECT * FROM t")
    else:
        arrow = pa.table({name: kept.arrow for name, kept in zip(names, table, strict=True)})
        if format == "parquet":
            pa.parquet.write_table(arrow, path)
        elif format == "feather":
            pa.feather.write_feather(arrow, str(path))
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, arrow.schema) as writer:
                writer.write_table(arrow)
    return DataLocation(str(path))


def asked(make_manifest: MakeManifest, table: Sequence[Kept], missing: str = "midpoint") -> Manifest:
    columns = sum(len(kept.feature.get("levels", "x")) for kept in table)
    return make_manifest(
        features=[kept.feature for kept in table], missing=missing, clip_norm=isqrt(columns), max_records=1000
    )


def share(location: DataLocation, manifest: Manifest, **said: Any) -> Contribution:
    return read_contribution(dataclasses.replace(location, reading=Reading(**said)), manifest, KEY)


def plainly(table: Sequence[Kept]) -> Sequence[Kept]:
    """The table as whoever wrote the rules would write it."""
    return [
        dataclasses.replace(kept, csv=["" if value is None else str(value) for value in kept.means])
        for kept in table
    ]


@pytest.mark.parametrize("missing", ["midpoint", "reject"])
@pytest.mark.parametrize("format", FORMATS)
def test_one_table_is_one_share(
    tmp_path: Path, make_manifest: MakeManifest, format: str, missing: str
) -> None:
    """With dropped records column by column, so that no column hides the fault of another."""
    tables = [[kept] for kept in TABLE if any(value is not None for value in kept.means)]
    for place, table in enumerate(tables if missing == "reject" else [TABLE]):
        manifest = asked(make_manifest, table, missing)
        plain = share(write("csv", tmp_path / f"{place}.csv", plainly(table)), manifest)
        found = share(write(format, tmp_path / f"{place}.{format}", table), manifest)
        name = table[0].feature["name"]
        assert found.sums.to_bytes() == plain.sums.to_bytes(), name
        assert found.report.unusable == (0,) * len(table), name
        assert found.report.missing == tuple(kept.means.count(None) for kept in table), name


def test_one_table_has_one_fingerprint_where_it_has_the_same_values(
    tmp_path: Path, make_manifest: MakeManifest
) -> None:
    """So that the ledger knows the records again."""
    table = [kept for kept in TABLE if kept.feature["name"] not in ("texts in numbers", "padded")]
    manifest = asked(make_manifest, table)
    contents = {share(write(each, tmp_path / each, table), manifest).content for each in FORMATS}
    assert len(contents) == 1


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3)
LEVELS = st.one_of(
    TEXTS, st.sampled_from(["1", "1.0", "true", "TRUE", "0", "NA", "x", "x ", " x\t", ".", "\x1a", "01"])
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(LEVELS, min_size=1, max_size=6), marker=st.sampled_from([None, ".", "NA", "1"]))
@pytest.mark.parametrize("listed", [("x", "1", "0"), ("x", "true", "false"), ("NA", "1.0", "b")])
def test_any_text_is_the_same_level_in_every_format(
    tmp_path: Path,
    make_manifest: MakeManifest,
    listed: tuple[str, ...],
    texts: list[str],
    marker: str | None,
) -> None:
    kept = Kept(levels("x", *listed), [], [f"{text}" for text in texts], texts, texts, texts, "TEXT")
    beside = Kept(number("y"), [], ["1"] * len(texts), [1] * len(texts), [1] * len(texts), [1] * len(texts))
    manifest, seen = asked(make_manifest, [kept, beside]), []
    for format in FORMATS:
        (tmp_path / format).unlink(missing_ok=True)
        location = write(format, tmp_path / format, [kept, beside])
        found = share(location, manifest, missing_markers=None if marker is None else (marker,))
        seen.append((found.sums.to_bytes(), found.report))
    assert all(each == seen[0] for each in seen)


MARKED = (
    Kept(
        number("lab"), [1.5, None, None, 3],
        ["1.5", ".", "-9", "3"],
        [1.5, None, -9, 3], [1.5, NAN, -9, 3], [1.5, ".", -9, 3],
    ),
    Kept(
        levels("ward", "A", "B", "-"), ["A", None, "-", None],
        ["A", ".", "-", "-9.0"],
        ["A", ".", "-", "-9"], ["A", " . ", "-", "-9"], ["A", ".", "-", -9],
    ),
)  # fmt: skip


@pytest.mark.parametrize("missing", ["midpoint", "reject"])
@pytest.mark.parametrize("format", FORMATS)
def test_named_markers_are_missing_and_a_listed_level_stays_a_level(
    tmp_path: Path, make_manifest: MakeManifest, format: str, missing: str
) -> None:
    manifest = asked(make_manifest, MARKED, missing)
    plain = share(write("csv", tmp_path / "plain.csv", plainly(MARKED)), manifest)
    location = write(format, tmp_path / format, MARKED)
    found = share(location, manifest, missing_markers=(".", "-9", "-"))
    assert found.sums.to_bytes() == plain.sums.to_bytes()
    assert (found.report.missing, found.report.unusable) == ((2, 2), (0, 0))
    # The ledger knows the records, whatever markers are named.
    assert found.content == share(location, manifest).content


@pytest.mark.parametrize("marker", [".", "?", "-", "--", "#N/A", "<NA>", "\\N"])
@pytest.mark.parametrize("format", FORMATS)
def test_markers_of_other_programs_are_named_with_the_option(
    tmp_path: Path, make_manifest: MakeManifest, format: str, marker: str
) -> None:
    values = [marker, f" {marker.lower()} ", marker, ""]
    kept = Kept(number("lab"), [], values, values, values, values, "TEXT")
    wards = ["A", "A", "NA", "A"]
    beside = Kept(levels("ward", "A"), [], wards, wards, wards, wards)
    manifest = asked(make_manifest, [kept, beside])
    location = write(format, tmp_path / format, [kept, beside])
    found = share(location, manifest)
    assert (found.report.missing, found.report.unusable) == ((1, 0), (3, 1))
    assert any(
        f"3 values in 'lab': '{marker}'" in note and f"--missing-marker '{marker}'" in note
        for note in found.notes
    )
    assert any("1 value in 'ward': 'NA'" in note and "--missing-marker 'NA'" in note for note in found.notes)
    assert not any("--decimal" in note for note in found.notes)
    with pytest.raises(InputError, match=r"'lab' holds '.*' in record 1") as refusal:
        read_contribution(location, manifest, KEY, strict=True)
    assert refusal.value.next_step.endswith(f"add --missing-marker '{marker}'")
    marked = share(location, manifest, missing_markers=(marker, "NA"))
    assert (marked.report.missing, marked.report.unusable) == ((4, 1), (0, 0))


@pytest.mark.parametrize("format", ["parquet", "feather", "stream", "npz", "sql"])
def test_numbers_in_a_column_of_texts_are_to_be_cast(
    tmp_path: Path, make_manifest: MakeManifest, format: str
) -> None:
    values = ["1", "2.5", "", "x"]
    kept = Kept(number("lab"), [], [], values, values, values, "TEXT")
    location, manifest = write(format, tmp_path / format, [kept]), asked(make_manifest, [kept])
    found = share(location, manifest)
    assert (found.report.missing, found.report.unusable) == ((1,), (3,))
    assert any("2 values in 'lab': text that looks like a number" in note for note in found.notes)
    assert any("CAST(column AS DOUBLE PRECISION)" in note for note in found.notes)
    with pytest.raises(InputError, match="CAST"):
        read_contribution(location, manifest, KEY, strict=True)


def test_what_no_double_can_hold_is_out_of_bounds_and_infinity_is_missing(
    tmp_path: Path, make_manifest: MakeManifest
) -> None:
    huge = ["1e999", "-1E+999", "9" * 5000, "-" + "9" * 5000, "1e-999", "inf", "-Infinity"]
    for decimal in (".", ","):
        (tmp_path / "t.csv").write_text("x\n" + "\n".join(huge) + "\n", encoding="utf-8")
        manifest = make_manifest(features=[number("x")], missing="midpoint", clip_norm=1)
        location = DataLocation(str(tmp_path / "t.csv"), decimal=decimal)
        found = read_contribution(location, manifest, KEY)
        report = found.report
        assert (report.out_of_bounds, report.missing, report.unusable) == ((4,), (2,), (0,))
        (tmp_path / "t.csv").write_text('x\n10\n-10\n10\n-10\n0\n""\n""\n', encoding="utf-8")
        assert found.sums.to_bytes() == read_contribution(location, manifest, KEY).sums.to_bytes()
