"""The same genotypes give the same share and fingerprint from every source, by rows and by columns."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import wide_studies as wide
from genotype_files import MORE_SITES, OF_CALLS, OF_DOSAGES, SITES, Genotypes, Write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from present import present
from reference_data import Seeded
from study_parties import MakeManifest

from dpdpca_owner.records import arrow, sparse, spool, summed
from dpdpca_owner.records import open as opening
from dpdpca_owner.records import source as sources
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.matching import match_columns
from dpdpca_owner.records.open import open_source, read_batches
from dpdpca_owner.records.source import ColumnSource, DataLocation, Reading
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.terms.manifest import Manifest

KEY = bytes(32)
TERMS: list[dict[str, Any]] = [
    {"missing": "midpoint"},
    {"missing": "reject"},
    {"release": "pairs", "missing": "midpoint", "epsilon": 5},
    {
        "release": "pre-study",
        "missing": "midpoint",
        "blocks": {"octaves": "0.5", "norms": "0.5"},
        "epsilon": 5,
    },
    {"release": "sketch", "of": "records"},
    {"release": "lift", "of": "pairs"},
    {"release": "scores", "of": "records"},
]
CALLS, DOSAGES = (
    st.sampled_from([0.0, 1.0, 2.0, np.nan]),
    st.sampled_from([0.0, 0.25, 1.0, 1.75, 2.0, np.nan]),
)


def sites_of(terms: dict[str, Any]) -> tuple[Sequence[str], int]:
    """The sites that a table may have, and the fewest that a study of these terms may ask for."""
    return (MORE_SITES, wide.M) if terms.get("release") in wide.CHAIN else (SITES, 1)


def tables(values: st.SearchStrategy[float], least: int, most: int) -> st.SearchStrategy[Genotypes]:
    shapes = st.tuples(st.integers(2, 11), st.integers(max(2, least), most))
    return shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=values))


def asked(make_manifest: MakeManifest, sites: Sequence[str], **terms: Any) -> Manifest:
    features = [{"name": site, "lower": 0, "upper": 2, "centre": "0.5"} for site in sites]
    of_chain = wide.CHAIN.get(terms.get("release", ""))
    make = make_manifest if of_chain is None else partial(of_chain, make_manifest)
    return make(features=features, clip_norm=1, max_records=1000, **terms)


def told(location: DataLocation, manifest: Manifest) -> tuple[Any, ...]:
    """All that an owner gets from its records, or why there is nothing."""
    components = np.array(wide.COMPONENTS)[:, : manifest.encoded_features]
    try:
        made = read_contribution(location, manifest, KEY, projection=projection_of(manifest, components))
    except InputError as error:
        return (error.slug,)
    return made.sums.to_bytes(), made.report, made.content, made.notes, made.suspected_units


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few records a batch, few values a block, and a spool that is on the disk from its 17th byte on."""
    monkeypatch.setattr(opening, "BATCH_VALUES", 60)
    monkeypatch.setattr(sources, "BATCH_VALUES", 12)
    monkeypatch.setattr(sparse, "BATCH_VALUES", 12)
    monkeypatch.setattr(spool, "_MEMORY_BYTES", 16)


@pytest.mark.usefixtures("small_steps")
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize(("values", "formats"), [(CALLS, OF_CALLS), (DOSAGES, OF_DOSAGES)])
def test_every_source_gives_the_same_share(
    tmp_path: Path,
    make_manifest: MakeManifest,
    values: st.SearchStrategy[float],
    formats: dict[str, Write],
    terms: dict[str, Any],
    data: st.DataObject,
) -> None:
    sites, least = sites_of(terms)
    genotypes = data.draw(tables(values, least, len(sites)))
    sites = sites[: genotypes.shape[1]]
    some = st.permutations(sites).flatmap(lambda p: st.integers(least, len(p)).map(lambda n: p[:n]))
    manifest = asked(make_manifest, data.draw(some), **terms)
    found = {}
    for name, write in formats.items():
        path = tmp_path / name.replace(" ", "-")
        path.unlink(missing_ok=True)
        found[name] = told(write(path, genotypes, sites), manifest)
    for name, each in found.items():
        assert each == found["csv"], name


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("name", [name for name in OF_CALLS if name not in ("csv", "parquet", "sql")])
def test_tables_have_the_columns_that_were_asked_for(
    tmp_path: Path, make_manifest: MakeManifest, name: str
) -> None:
    genotypes = np.random.default_rng(7).choice([0, 1, 2, np.nan], (11, len(SITES)))  # noqa: TID251 - made up
    wanted = SITES[::-1]
    features = asked(make_manifest, wanted).features
    source = open_source(OF_CALLS[name](tmp_path / "table", genotypes, SITES), features)
    is_by_columns = "rows" not in name
    assert isinstance(source, ColumnSource) == is_by_columns
    assert source.by == ("columns" if is_by_columns else "rows")
    if not isinstance(source, ColumnSource):
        return
    assert source.records == 11
    tables = list(present(source.tables(match_columns(source.names, features), 3)))
    assert [len(table) for table in tables] == [3, 3, 3, 2]
    assert np.array_equal(np.concatenate(tables), genotypes[:, ::-1], equal_nan=True)


def test_markers_are_missing_values_in_tables_too(tmp_path: Path, make_manifest: MakeManifest) -> None:
    genotypes = np.array([[0.0, 1.0], [2.0, -9.0], [1.0, np.nan]])
    location = OF_CALLS["npy by columns"](tmp_path / "table", genotypes, SITES[:2])
    features = asked(make_manifest, SITES[:2]).features
    marked = DataLocation(location.data, reading=Reading(missing_markers=("-9",)))
    source = open_source(marked, features)
    assert isinstance(source, ColumnSource)
    (table,) = present(source.tables([0, 1], 10))
    expected = np.array([[0.0, 1.0], [2.0, np.nan], [1.0, np.nan]])
    assert np.array_equal(table, expected, equal_nan=True)
    (columns,) = read_batches(source, features)
    assert np.array_equal(columns[SITES[1]], expected[:, 1], equal_nan=True)


def test_the_spool_keeps_types_and_values() -> None:
    blocks = [
        np.array([[1.5, np.nan], [np.inf, -0.5], [3, 4]]),
        np.array([[1, np.nan], [-127, 2], [127, 0]], np.float32),
        np.array([[1, 128.0], [0, 1], [2, 1]]),
        np.array([[7], [-128], [3]], np.int8),
        np.array([[True], [False], [True]]),
    ]
    for block in blocks:
        with spool.RowSpool() as kept:
            kept.add(block)
            assert kept.rows(0, 3).dtype == block.dtype
            is_real = block.dtype.kind == "f"
            assert np.array_equal(kept.rows(0, 3), block, equal_nan=is_real)
            assert np.array_equal(kept.rows(1, 2), block[1:2], equal_nan=is_real)
    with spool.RowSpool() as kept:
        for block in blocks[:3]:
            kept.add(block)
        together = np.concatenate(blocks[:3], axis=1)
        assert np.array_equal(kept.rows(1, 2), together[1:2], equal_nan=True)
        kept._file.seek(0, 2)
        assert kept._file.tell() == 6 * 8 + 6 + 6 * 8, "small whole numbers take a byte each"


@pytest.mark.parametrize("width", [1, 4, 7, 70])
def test_calls_take_two_bits_in_the_spool_and_come_back_in_any_order(width: int) -> None:
    drawn = Seeded(width)
    calls = np.array([[drawn.below(4) - 1 for _ in range(width)] for _ in range(9)], np.int8)
    expected = np.where(calls < 0, np.nan, calls.astype(np.float32))
    order = np.array([3, 1, 4, 0, 5, 8, 2, 6, 7])
    for layout in (np.ascontiguousarray(calls), np.asfortranarray(calls)):
        with spool.RowSpool() as plain, spool.RowSpool(order=order) as ordered:
            for kept in (plain, ordered):
                kept.add_calls(layout)
                kept.add(np.full((9, 1), 0.5, np.float32) + calls[:, :1])
            assert plain.rows(0, 9).dtype == np.float32
            assert np.array_equal(plain.rows(2, 7)[:, :-1], expected[2:7], equal_nan=True)
            assert np.array_equal(ordered.rows(0, 9), plain.rows(0, 9)[order], equal_nan=True)
            plain._file.seek(0, 2)
            assert plain._file.tell() == 9 * (-(-width // 4) + 4)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("by_number", [OF_CALLS, OF_DOSAGES])
def test_a_table_read_at_once_gives_the_share_of_its_columns(
    tmp_path: Path,
    make_manifest: MakeManifest,
    monkeypatch: pytest.MonkeyPatch,
    by_number: dict[str, Write],
    terms: dict[str, Any],
) -> None:
    """With many features, a source that holds numbers in one array is not read column by column."""
    source = Seeded(5)
    steps = 3 if by_number is OF_CALLS else 9
    sites, _ = sites_of(terms)
    genotypes = np.array([[2 * source.below(steps) / (steps - 1) for _ in sites] for _ in range(30)])
    genotypes[3, 2] = np.nan
    manifest = asked(make_manifest, sites[::-1], **terms)
    found = {}
    for name, write in by_number.items():
        location = write(tmp_path / name.replace(" ", "-"), genotypes, sites)
        location = replace(location, reading=replace(location.reading, missing_markers=("2",)))
        plain = told(location, manifest)
        with monkeypatch.context() as changed:
            changed.setattr(summed, "MANY_FEATURES", 1)
            found[name] = told(location, manifest)
        assert found[name][:3] == plain[:3], name
    assert len({each[0] for each in found.values()}) == 1


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("terms", TERMS)
def test_a_parquet_file_gives_the_same_share_by_rows_and_by_columns(
    tmp_path: Path, make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any]
) -> None:
    """Numbers of several types and missing values, in two row groups."""
    source, (sites, _) = Seeded(6), sites_of(terms)
    kinds = [pa.float32(), pa.float32(), pa.float64(), pa.int8(), pa.uint32(), pa.float32()]
    table = {}
    for site, kind in zip(sites, kinds * 4, strict=False):
        values = [source.below(2**20) / 2**19 for _ in range(30)]
        numbers = [None if value < 0.2 else value for value in values]
        table[site] = pa.array(
            numbers if pa.types.is_floating(kind) else [n and int(n) for n in numbers], kind
        )
    path = tmp_path / "table.parquet"
    pa.parquet.write_table(pa.table(table), path, row_group_size=17)
    location, manifest = DataLocation(str(path)), asked(make_manifest, sites[::-1], **terms)
    by_rows = told(location, manifest)
    assert open_source(location, manifest.features).by == "rows"
    monkeypatch.setattr(arrow, "_MOST_HELD_BYTES", 0)
    assert open_source(location, manifest.features).by == "columns"
    assert told(location, manifest) == by_rows
    monkeypatch.setattr(summed, "MANY_FEATURES", 1)
    assert told(location, manifest)[:3] == by_rows[:3]


def test_a_parquet_file_with_other_values_is_read_by_rows(
    tmp_path: Path, make_manifest: MakeManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A double does not hold every one of them."""
    monkeypatch.setattr(arrow, "_MOST_HELD_BYTES", 0)
    features = asked(make_manifest, SITES[:1]).features
    numbers = pa.array([1.0, 2.0])
    named = pa.field(SITES[0], pa.float64(), metadata={"ARROW:extension:name": "lengths"})
    path = tmp_path / "table.parquet"
    for table, by in (
        (pa.table({SITES[0]: numbers}), "columns"),
        (pa.table({SITES[0]: numbers, "name": ["a", "b"]}), "rows"),
        (pa.table({SITES[0]: numbers, "long": [2**53 + 1, 1]}), "rows"),
        (pa.table([numbers], pa.schema([named])), "rows"),
        (pa.table([numbers] * 3, [SITES[0], "twice", "twice"]), "rows"),
    ):
        pa.parquet.write_table(table, path)
        assert open_source(DataLocation(str(path)), features).by == by
