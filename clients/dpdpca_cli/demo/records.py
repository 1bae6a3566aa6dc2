"""The records of the demo: the bundled file or the user's own, split unevenly between the owners."""

from collections.abc import Sequence
from importlib.resources import as_file, files
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpdpca_owner.records.open import open_source, read_batches
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.terms.features import Feature

_DEMO_DATA = files("dpdpca_cli.demo") / "data"


def bundled_records() -> pa.Table:
    """20,000 records of ten terrain measurements; source and licence are in SOURCE.md beside the file."""
    with as_file(_DEMO_DATA / "forest.parquet") as path:
        return pq.read_table(path)


def bundled_draft() -> str:
    """The TOML draft of the demo's study."""
    return (_DEMO_DATA / "forest.toml").read_text(encoding="utf-8")


def read_records(path: Path, features: Sequence[Feature]) -> pa.Table:
    """Read the features' columns into memory, from any kind of file that owners can read.

    Raises:
        InputError: the file does not exist, or does not match the features.
    """
    batches = [
        pa.table({name: pa.array(column) for name, column in batch.items()})
        for batch in read_batches(open_source(DataLocation(str(path)), features), features)
    ]
    return pa.concat_tables(batches)


def part_sizes(record_count: int, owner_count: int) -> tuple[int, ...]:
    """How many records each owner gets: in proportion n : n − 1 : … : 1, largest first.

    Raises:
        InputError: there are too few records for each owner to have one.
    """
    if record_count < owner_count * (owner_count + 1) // 2:
        raise InputError(
            "too-few-records",
            f"{record_count} records cannot be split between {owner_count} owners",
            "give a larger file or fewer --owners",
        )
    whole = owner_count * (owner_count + 1) // 2
    ends = [0]
    for weight in range(owner_count, 0, -1):
        ends.append(ends[-1] + weight)
    cuts = [record_count * end // whole for end in ends]
    return tuple(after - before for before, after in pairwise(cuts))


def split(table: pa.Table, owner_count: int) -> tuple[pa.Table, ...]:
    """Consecutive rows of `table`, one part for each owner."""
    parts, start = [], 0
    for size in part_sizes(table.num_rows, owner_count):
        parts.append(table.slice(start, size))
        start += size
    return tuple(parts)


def write_parts(parts: Sequence[pa.Table], folder: Path) -> tuple[Path, ...]:
    """Write one Parquet file for each owner to `folder`."""
    paths = tuple(folder / f"owner-{number}.parquet" for number in range(1, len(parts) + 1))
    for part, path in zip(parts, paths, strict=True):
        pq.write_table(part, path)
    return paths
