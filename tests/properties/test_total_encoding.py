"""No content of a record stops a share, and none moves a release further than is claimed."""

import csv
import sqlite3
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import wide_studies as wide
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_data import Seeded
from scripted import SILENCE
from small_studies import KINDS
from study_parties import MakeManifest

from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.layout.blocks import TRIANGLES, BlockName, cut_blocks, matrix_size
from dpdpca_protocol.layout.packing import symmetric_rows
from dpdpca_protocol.privacy.sensitivity import (
    block_sensitivity_squared,
    joint_sensitivity_squared,
    lift_sensitivity_squared,
    scatter_sensitivity_bound,
    second_moment_sensitivity_squared,
)
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.projection import projection_of
from dpdpca_protocol.reference import owner_sums, run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import LIFT_BOUND

SHARED = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NAMES = ("a", "b", "c")
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**9), 10**9), st.booleans()
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
OTHERS = st.one_of(
    st.text(min_size=1, max_size=5).filter(str.strip),
    st.binary(min_size=1, max_size=3).filter(bytes.strip),
    st.dates(),
    st.datetimes(),
    st.times(),
    st.timedeltas(),
    st.complex_numbers(allow_nan=False),
    st.uuids(),
    st.lists(st.integers(), max_size=2),
    st.just(object()),
)
PRESENT = st.one_of(NUMBERS, OTHERS, st.sampled_from(["x", "y"]))
CELLS = st.one_of(PRESENT, st.none(), st.floats(), st.just(""), st.decimals(), st.just(10**400))


def table(rows: list[list[Any]]) -> dict[str, list[Any]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(NAMES)}


def wide_table(rows: list[list[Any]]) -> dict[str, list[Any]]:
    """The three columns again and again, under the names of a study of many features."""
    return {f"x{place}": [row[place % 3] for row in rows] for place in range(wide.D)}


@SHARED
@given(
    rows=st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=6),
    kind=st.sampled_from([*KINDS, *wide.CHAIN]),
)
@pytest.mark.parametrize("missing", ["reject", "midpoint"])
def test_any_table_of_the_right_columns_encodes(
    make_manifest: MakeManifest, missing: str, rows: list[list[Any]], kind: str
) -> None:
    if kind in wide.CHAIN:
        manifest, columns = wide.CHAIN[kind](make_manifest), wide_table(rows)
    else:
        terms = KINDS[kind] | ({} if kind.startswith(("pairs", "pre-study")) else {"missing": missing})
        manifest, columns = make_manifest(**terms), table(rows)
    encoder = RecordEncoder(manifest)
    batch = encoder.encode(columns)
    assert batch.report.records == len(rows)
    assert len(batch.z) == batch.report.accepted
    assert batch.report.dropped == 0 or manifest.missing == "reject"
    if manifest.rules.clips_records:
        assert all(sum(int(x) ** 2 for x in z) <= encoder.record_bound for z in batch.z)


@SHARED
@given(
    before=st.lists(PRESENT, min_size=3, max_size=3),
    after=st.lists(PRESENT, min_size=3, max_size=3),
    rest=st.lists(st.lists(PRESENT, min_size=3, max_size=3), min_size=1, max_size=5),
)
@pytest.mark.parametrize("kind", ["joint", "joint, reject", "masked", "masked, reject", "pairs", "pre-study"])
def test_whatever_replaces_a_record_moves_the_release_by_no_more_than_is_claimed(
    make_manifest: MakeManifest, kind: str, before: list[Any], after: list[Any], rest: list[list[Any]]
) -> None:
    name, _, missing = kind.partition(", ")
    manifest = make_manifest(**KINDS[name] | {"missing": missing or "midpoint"})
    old, new = (exact_release(manifest, [first, *rest]) for first in (before, after))
    assert old.pop("N") == new.pop("N")
    moved = {block: sum((x - y) ** 2 for x, y in zip(old[block], new[block], strict=True)) for block in old}
    d, bound, n = 4, manifest.figures.record_bound, len(rest) + 1
    if manifest.release is ReleaseKind.MASKED:
        assert moved["N S"] <= (n * scatter_sensitivity_bound(bound)) ** 2
    elif manifest.release is ReleaseKind.JOINT:
        weight = manifest.sum_weight * bound
        assert moved["R"] + weight * moved["v"] <= joint_sensitivity_squared(bound, weight)
    elif manifest.release is ReleaseKind.PAIRS:
        assert moved["R"] <= second_moment_sensitivity_squared(bound)
    else:
        for block in manifest.figures.blocks[1:]:
            assert moved[block.name] <= block_sensitivity_squared(block.name, d, bound)


@SHARED
@given(
    before=st.lists(PRESENT, min_size=3, max_size=3),
    after=st.lists(PRESENT, min_size=3, max_size=3),
    rest=st.lists(st.lists(PRESENT, min_size=3, max_size=3), min_size=1, max_size=5),
)
@pytest.mark.parametrize("of", ["records", "pairs"])
@pytest.mark.parametrize("release", wide.CHAIN)
def test_whatever_replaces_a_record_moves_a_round_for_many_features_by_no_more_than_is_claimed(
    make_manifest: MakeManifest, release: str, of: str, before: list[Any], after: list[Any], rest: list[Any]
) -> None:
    manifest = wide.CHAIN[release](make_manifest, of)
    old, new = (wide_release(manifest, [first, *rest]) for first in (before, after))
    assert old.pop(BlockName.COUNT) == new.pop(BlockName.COUNT)
    moved = {block: sum((x - y) ** 2 for x, y in zip(old[block], new[block], strict=True)) for block in old}
    figures = manifest.figures
    if release == "lift":
        lifted, gram = moved[BlockName.LIFTED], moved[BlockName.GRAM]
        weight = Fraction(figures.record_bound, 2 * LIFT_BOUND)
        assert lifted + weight * gram <= lift_sensitivity_squared(figures.record_bound, LIFT_BOUND)
    elif of == "pairs":
        assert moved[BlockName.PAIR_MOMENT] <= second_moment_sensitivity_squared(figures.summed_bound)
    else:
        squared = joint_sensitivity_squared(figures.summed_bound, figures.alpha_squared)
        assert moved[BlockName.SECOND_MOMENT] + figures.alpha_squared * moved[BlockName.SUM] <= squared


def wide_release(manifest: Manifest, rows: list[list[Any]]) -> dict[BlockName, list[int]]:
    """The blocks of a round for many features without noise; matrices as all their entries."""
    z = RecordEncoder(manifest).encode(wide_table(rows)).z
    values = owner_sums(manifest.figures, z, projection=projection_of(manifest, wide.COMPONENTS))
    setting = manifest.figures.mechanism.setting
    blocks = {}
    for name, block in cut_blocks(manifest.figures.blocks, values).items():
        blocks[name] = list(block)
        if name in TRIANGLES:
            size = matrix_size(name, setting.encoded_features, setting.columns)
            blocks[name] = [x for row in symmetric_rows(size, block) for x in row]
    return blocks


def exact_release(manifest: Manifest, rows: list[list[Any]]) -> dict[str, list[Fraction | int]]:
    """The blocks of a release without noise, as (n,) values; R and S as all d² entries."""
    released = run_study(manifest, [table(rows)], Seeded(5), SILENCE, UNENCRYPTED)
    if not isinstance(released, NoisyScatter):
        blocks: dict[str, list[Fraction | int]] = {name: list(values) for name, values in released.items()}
        return {"N": blocks.pop(BlockName.COUNT)} | blocks
    found: dict[str, list[Fraction | int]] = {"N": [released.count]}
    entries = [[int(x) for x in row] for row in released.scaled_scatter]
    if released.sum is None:
        # S of pairs is P/2 over the number of pairs; of a masked study it is N·S as it stands.
        name = "R" if released.of_pairs else "N S"
        return found | {name: [x for row in entries for x in row]}
    v, n = [int(x) for x in released.sum], released.count
    moment = [Fraction(entries[i][j] + v[i] * v[j], n) for i in range(len(v)) for j in range(len(v))]
    return found | {"v": list(v), "R": list(moment)}


@SHARED
@given(rows=st.lists(st.lists(TEXTS, min_size=3, max_size=3), min_size=1, max_size=5))
def test_any_texts_are_read_from_every_format(
    make_manifest: MakeManifest, tmp_path: Path, rows: list[list[str]]
) -> None:
    """Empty fields of a text file are missing values, and so are the words that mean the same."""
    manifest = make_manifest(**KINDS["joint"])
    with (tmp_path / "t.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([NAMES, *rows])
    columns = table(rows)
    pa.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    arrays: dict[str, Any] = {name: np.array(column) for name, column in columns.items()}
    np.savez(tmp_path / "t.npz", **arrays)
    (tmp_path / "t.db").unlink(missing_ok=True)
    with sqlite3.connect(tmp_path / "t.db") as database:
        database.execute("CREATE TABLE t (a, b, c)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    database.close()
    locations = [DataLocation(str(tmp_path / name)) for name in ("t.csv", "t.parquet", "t.npz")]
    locations.append(DataLocation(f"sqlite:///{tmp_path / 't.db'}", "SELECT * FROM t"))
    for location in locations:
        report = read_contribution(location, manifest, bytes(32)).report
        assert (report.records, report.accepted) == (len(rows), len(rows))
