"""What an owner's records add up to in a sketch, a lift and scores: from every source, whole or in parts."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import wide_studies as wide
from study_parties import MakeManifest
from wide_world import WRITERS

from dpdpca_owner.records.contribution import Contribution, read_contribution
from dpdpca_owner.records.shuffle import Shuffle
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.records.summed import PartCall, SummedRecords
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.records.block_sums import merge_sums, new_sums
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.pairing import differences, pairing_seed
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.terms.manifest import Manifest

KEY = bytes(range(32))
EITHER = ["records", "pairs"]
COUNT = 43


def contribution(path: Path, manifest: Manifest, **options: Any) -> Contribution:
    projection = projection_of(manifest, wide.COMPONENTS)
    return read_contribution(DataLocation(str(path)), manifest, KEY, projection=projection, **options)


def rows_of(manifest: Manifest, records: dict[str, list[float]], folder: Path) -> list[list[int]]:
    """The encoded records before clipping or, in pairs, their differences in the owner's order."""
    if not manifest.rules.of_pairs:
        return [
            [int(value * manifest.figures.grid) for value in row]
            for row in zip(*records.values(), strict=True)
        ]
    shuffle = Shuffle(wide.D, pairing_seed(KEY, manifest.study_id), folder)
    shuffle.add(RecordEncoder(manifest).encode(records).z)
    return [row for y in differences(shuffle.batches()) for row in y.tolist()]


@pytest.mark.parametrize("of", EITHER)
@pytest.mark.parametrize("release", wide.CHAIN)
def test_every_source_gives_the_share_of_the_specification(
    release: str, of: str, make_manifest: MakeManifest, tmp_path: Path
) -> None:
    manifest, records = wide.CHAIN[release](make_manifest, of), wide.records(8, COUNT)
    rows = rows_of(manifest, records, tmp_path)
    bound = manifest.figures.record_bound
    clipped = [wide.plain_cut(row, bound) for row in rows]
    made = np.array([wide.plain_projection(manifest, row) for row in clipped])
    size = made.shape[1]
    gram = (made.T @ made)[np.triu_indices(size)].tolist()
    middle = (np.array(clipped).T @ made).ravel() if release == "lift" else made.sum(axis=0)
    if release != "lift" and of == "pairs":
        middle = middle[:0]
    found = [contribution(write(tmp_path / "data", records), manifest) for write in WRITERS]
    for each in found:
        assert each.sums.values().tolist() == [len(rows), *middle.tolist(), *gram]
        assert (each.digest, each.content) == (found[0].digest, found[0].content)
        assert each.noise_seed == found[0].noise_seed
        assert each.report.clipped == sum(sum(z * z for z in row) > bound for row in rows) > 0
        assert ("is odd" in " ".join(each.notes)) == (of == "pairs")


@pytest.mark.parametrize("of", EITHER)
@pytest.mark.parametrize("release", wide.CHAIN)
def test_parts_elsewhere_are_the_whole(
    release: str, of: str, make_manifest: MakeManifest, tmp_path: Path
) -> None:
    """Pairs may have their records in two parts, so these are read here."""
    manifest, table = wide.CHAIN[release](make_manifest, of), pa.table(dict(wide.records(9, COUNT)))
    folder, calls = tmp_path / "parts", list[PartCall]()
    folder.mkdir()
    for number, (first, last) in enumerate([(0, 17), (17, COUNT)]):
        pq.write_table(table.slice(first, last - first), folder / f"{number}.parquet")

    def elsewhere(wanted: Sequence[PartCall]) -> Iterator[SummedRecords]:
        calls.extend(wanted)
        yield from (pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(call))())) for call in wanted)

    here, apart = contribution(folder, manifest), contribution(folder, manifest, sum_parts=elsewhere)
    assert len(calls) == (2 if of == "records" else 0)
    assert apart.sums.to_bytes() == here.sums.to_bytes()
    assert replace(apart, sums=here.sums) == here


@pytest.mark.parametrize("release", wide.CHAIN)
def test_other_records_give_another_share(release: str, make_manifest: MakeManifest, tmp_path: Path) -> None:
    """The digest decides whether a share may be resumed, and which noise an owner draws."""
    manifest, write = wide.CHAIN[release](make_manifest), WRITERS[0]
    first = contribution(write(tmp_path / "data", wide.records(1, COUNT)), manifest)
    other = contribution(write(tmp_path / "data", wide.records(2, COUNT)), manifest)
    assert first.digest != other.digest
    assert first.noise_seed != other.noise_seed


def test_sums_of_two_kinds_are_not_merged(make_manifest: MakeManifest) -> None:
    sketch = wide.sketch(make_manifest)
    with pytest.raises(UsageError, match="of different kinds"):
        merge_sums(new_sums(sketch.figures, projection_of(sketch)), new_sums(make_manifest().figures))
