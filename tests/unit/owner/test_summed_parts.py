"""Parts of a table that are summed one by one give the owner's contribution, bit for bit."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import wide_studies as wide
from study_parties import MakeManifest

from dpdpca_owner.records.contribution import Contribution, read_contribution
from dpdpca_owner.records.open import open_source, parquet_parts
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.records.summed import PartCall, SummedRecords, part_calls
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.projection import projection_of

KEY = bytes(range(32))
RECORDS = 1400
STUDIES: list[dict[str, Any]] = [
    {"release": "joint"},
    {"release": "joint", "missing": "reject"},
    {"release": "masked"},
    {"release": "joint", "suite": "pads", "clip_share": "0.05"},
    {"release": "pre-study", "blocks": {"norms": "0.5", "sum": "0.5"}},
]


def table(count: int = RECORDS) -> pa.Table:
    """Some values are missing, out of bounds or no numbers; the weights are in grams."""
    return pa.table(
        {
            "age": [None if i % 37 == 0 else i % 111 for i in range(count)],
            "weight": [1000.0 * (i % 90) for i in range(count)],
            "note": [f"note {i}" for i in range(count)],
            "systolic": pa.array(["high" if i % 53 == 0 else str(60 + i % 250) for i in range(count)]),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four parts, of which one is empty and one has its columns in another order."""
    made = tmp_path / "parts"
    made.mkdir()
    whole = table()
    for number, (first, last) in enumerate([(0, 300), (300, 300), (300, 1100), (1100, RECORDS)]):
        part = whole.slice(first, last - first)
        pq.write_table(
            part.select(part.column_names[::-1]) if number == 2 else part, made / f"{number}.parquet"
        )
    return made


def facts_of(made: Contribution) -> list[Any]:
    return [made.sums.to_bytes(), replace(made, sums=made.sums.count)]  # type: ignore[arg-type]  # compared, not read


class Elsewhere:
    """Makes the calls as another process would: from their pickled form."""

    def __init__(self) -> None:
        self.parts = 0

    def __call__(self, calls: Sequence[PartCall]) -> Iterator[SummedRecords]:
        for call in calls:
            self.parts += 1
            yield pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(call))()))


@pytest.mark.parametrize("changes", STUDIES)
def test_summed_parts_are_the_whole(
    folder: Path, make_manifest: MakeManifest, changes: dict[str, Any]
) -> None:
    manifest, location = make_manifest(**changes), DataLocation(str(folder))
    elsewhere = Elsewhere()
    seen: tuple[list[int], list[int]] = [], []
    here = read_contribution(location, manifest, KEY, seen[0].append)
    apart = read_contribution(location, manifest, KEY, seen[1].append, sum_parts=elsewhere)
    assert elsewhere.parts == 4
    assert facts_of(apart) == facts_of(here)
    assert here.suspected_units, "the weights"
    assert here.report.clipped
    assert seen[0][-1] == seen[1][-1] == RECORDS


@pytest.mark.parametrize("release", wide.CHAIN)
def test_summed_parts_of_a_wide_round_are_the_whole(
    release: str, make_manifest: MakeManifest, tmp_path: Path
) -> None:
    manifest, elsewhere = wide.CHAIN[release](make_manifest), Elsewhere()
    for seed, count in enumerate((40, 0, 70)):
        pq.write_table(pa.table(wide.records(seed, count)), tmp_path / f"{seed}.parquet")
    location, projection = DataLocation(str(tmp_path)), projection_of(manifest, wide.COMPONENTS)
    here = read_contribution(location, manifest, KEY, projection=projection)
    apart = read_contribution(location, manifest, KEY, sum_parts=elsewhere, projection=projection)
    assert elsewhere.parts == 3
    assert facts_of(apart) == facts_of(here)
    assert here.report.clipped


def test_the_unit_check_looks_at_the_same_records(folder: Path, make_manifest: MakeManifest) -> None:
    """It looks at fewer records once it has seen some hundred."""
    manifest, location = make_manifest(), DataLocation(str(folder))
    whole, merged = (SummedRecords(manifest, KEY, strict=False) for _ in range(2))
    for _ in whole.add_all(open_source(location, manifest.features)):
        pass
    for call in part_calls(parquet_parts(location), manifest, KEY, strict=False):
        merged.merge(call())
    looked_at = [[seen.values for seen in each.units._seen] for each in (whole, merged)]
    assert looked_at[0] == looked_at[1]
    assert max(looked_at[0]) < RECORDS


def test_a_study_of_pairs_reads_its_records_here(folder: Path, make_manifest: MakeManifest) -> None:
    manifest, location = make_manifest(release="pairs"), DataLocation(str(folder))
    elsewhere = Elsewhere()
    here = read_contribution(location, manifest, KEY)
    assert facts_of(read_contribution(location, manifest, KEY, sum_parts=elsewhere)) == facts_of(here)
    assert not elsewhere.parts


def test_too_many_records_are_refused_alike(folder: Path, make_manifest: MakeManifest) -> None:
    manifest, location = make_manifest(max_records=1200), DataLocation(str(folder))
    errors = []
    for sum_parts in (None, Elsewhere()):
        with pytest.raises(InputError) as error:
            read_contribution(location, manifest, KEY, sum_parts=sum_parts)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert "1200" in errors[0]


def test_a_strict_reading_names_the_same_record(folder: Path, make_manifest: MakeManifest) -> None:
    (folder / "0.parquet").unlink()
    manifest, location = make_manifest(), DataLocation(str(folder))
    errors = []
    for sum_parts in (None, Elsewhere()):
        with pytest.raises(InputError) as error:
            read_contribution(location, manifest, KEY, strict=True, sum_parts=sum_parts)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_parts_are_several_parquet_files_alone(folder: Path, tmp_path: Path) -> None:
    parts = parquet_parts(DataLocation(str(folder)))
    assert [part.records for part in parts] == [300, 0, 800, 300]
    assert [Path(part.location.data).name for part in parts] == [f"{k}.parquet" for k in range(4)]
    assert parquet_parts(DataLocation(str(folder / "0.parquet"))) == []
    assert len(parquet_parts(DataLocation(str(folder / "[01].parquet")))) == 2
    assert parquet_parts(DataLocation(str(folder / "0*.parquet"))) == []
    (tmp_path / "a.csv").write_text("age\n1\n")
    (tmp_path / "b.csv").write_text("age\n2\n")
    assert parquet_parts(DataLocation(str(tmp_path / "*.csv"))) == []
    assert parquet_parts(DataLocation("sqlite://", "SELECT 1")) == []
