"""The demo's own data: what its source file says, and how it is split."""

import tomllib

import pyarrow as pa
import pytest

from dpdpca_cli.demo.records import bundled_draft, bundled_records, part_sizes, split
from dpdpca_protocol.errors import InputError


def test_bundled_file_has_the_columns_of_its_draft_in_order() -> None:
    features = tomllib.loads(bundled_draft())["features"]
    assert bundled_records().column_names == [feature["name"] for feature in features]
    assert bundled_records().num_rows == 20_000


def test_public_bounds_hold_for_every_bundled_record() -> None:
    """They were set from what the quantities are; that they also fit is luck worth keeping."""
    table = bundled_records()
    for feature in tomllib.loads(bundled_draft())["features"]:
        column = table[feature["name"]].to_numpy()
        assert feature["lower"] <= column.min() <= column.max() <= feature["upper"]


def test_parts_are_uneven_and_complete() -> None:
    assert part_sizes(20_000, 3) == (10_000, 6_666, 3_334)
    parts = split(bundled_records(), 3)
    assert pa.concat_tables(parts).equals(bundled_records())


@pytest.mark.parametrize("owners", [1, 2, 7])
def test_least_file_gives_everyone_a_record(owners: int) -> None:
    least = owners * (owners + 1) // 2
    assert min(part_sizes(least, owners)) >= 1
    with pytest.raises(InputError):
        part_sizes(least - 1, owners)
