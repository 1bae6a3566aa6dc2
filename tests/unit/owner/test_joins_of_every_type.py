"""One study, one table, five owners: each has the table in another format, each column in its own type.

Every type that a study takes goes through a whole join to a running proxy. What arrives there, decrypted,
must be the sums that Python's integers and fractions give.
"""

import dataclasses
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from column_types import RECORDS, Stored, arrow_columns, numpy_columns
from owner_world import desk_of, make_owner_home
from proxy_world import OpenStudy, ProxyWorld
from study_parties import MakeManifest, Parties

from dpdpca_owner import actions
from dpdpca_owner.projection import project
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.paillier.chunks import decode_chunk
from dpdpca_protocol.release.vectors import PaillierVectors
from dpdpca_protocol.result.components import Components, EncodedSpace
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.salts import unsalted
from dpdpca_protocol.wire.sealing import chunk_info, open_sealed
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience
from dpdpca_user.results.tables import rows_of_table

HALF_RANGE = 1024
WRAPPED_EVERY = 7
"""Of types behind a dictionary or in runs, each seventh joins; `test_column_types` reads all."""
ONE_ORDER = tuple(f">{code}" for code in "bhilBHILQfg")
"""Types whose other byte order joins alone."""


def joined_columns() -> Iterator[tuple[str, bool, Stored]]:
    """Header, whether it is a categorical feature, and the column."""
    arrow = list(arrow_columns())
    plain = [each for each in arrow if " of " not in each.name]
    wrapped = [
        each for each in arrow if " of " in each.name and "bool8" not in each.name and "uuid" not in each.name
    ]
    of_numpy = [each for each in numpy_columns() if not each.name.startswith(ONE_ORDER)]
    for place, stored in enumerate([*plain, *wrapped[::WRAPPED_EVERY], *of_numpy]):
        if stored.numbers is not None and any(number is not None for number in stored.numbers):
            yield f"n{place}", False, stored
        if stored.levels is not None and any(level is not None for level in stored.levels):
            yield f"c{place}", True, stored


COLUMNS = list(joined_columns())


def feature(name: str, is_categorical: bool, stored: Stored) -> dict[str, Any]:
    if not is_categorical:
        return {"name": name, "lower": -HALF_RANGE, "upper": HALF_RANGE}
    return {"name": name, "levels": sorted({level for level in stored.levels or () if level is not None})}


def values_of(is_categorical: bool, stored: Stored) -> Sequence[Any]:
    found = stored.levels if is_categorical else stored.numbers
    assert found is not None
    return found


def plain(is_categorical: bool, stored: Stored) -> list[Any]:
    """The column for a format that does not have its type."""
    values = values_of(is_categorical, stored)
    return list(values) if is_categorical else [None if each is None else float(each) for each in values]


def write_arrow(path: Path, save: Callable[[pa.Table, Path], None]) -> None:
    columns: dict[str, Any] = {}
    for name, is_categorical, stored in COLUMNS:
        columns[name] = pa.array(plain(is_categorical, stored))
        if isinstance(stored.array, pa.Array):
            try:
                save(pa.table({name: stored.array}), path)
                columns[name] = stored.array
            except (pa.ArrowException, OSError):
                assert path.suffix == ".parquet"
    save(pa.table(columns), path)


def write_parquet(path: Path) -> DataLocation:
    write_arrow(path, pa.parquet.write_table)
    return DataLocation(str(path))


def write_feather(path: Path) -> DataLocation:
    def save(table: pa.Table, to: Path) -> None:
        with pa.OSFile(str(to), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    write_arrow(path, save)
    return DataLocation(str(path))


def write_npz(path: Path) -> DataLocation:
    arrays: dict[str, Any] = {}
    for name, is_categorical, stored in COLUMNS:
        values = plain(is_categorical, stored)
        gap = "" if is_categorical else np.nan
        arrays[name] = (
            stored.array
            if isinstance(stored.array, np.ndarray)
            else np.array([gap if value is None else value for value in values])
        )
    np.savez(path, **arrays)
    return DataLocation(str(path))


def write_csv(path: Path) -> DataLocation:
    columns = [plain(is_categorical, stored) for _, is_categorical, stored in COLUMNS]
    rows = [
        ",".join("" if value is None else str(value) for value in row) for row in zip(*columns, strict=True)
    ]
    path.write_text("\n".join([",".join(name for name, _, _ in COLUMNS), *rows]) + "\n", encoding="utf-8")
    return DataLocation(str(path))


def write_sql(path: Path) -> DataLocation:
    columns = [plain(is_categorical, stored) for _, is_categorical, stored in COLUMNS]
    kinds = ", ".join(f"{name} {'TEXT' if is_level else 'REAL'}" for name, is_level, _ in COLUMNS)
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE t ({kinds})")
        marks = ", ".join("?" * len(COLUMNS))
        database.executemany(f"INSERT INTO t VALUES ({marks})", zip(*columns, strict=True))
    database.close()
    return DataLocation(f"sqlite:///{path}", "SELECT * FROM t")


def expected_records(manifest: Manifest) -> list[list[int]]:
    """Encoded records by the specification, section 4, in fractions; no record is long enough to be cut."""
    q = manifest.figures.grid
    records: list[list[int]] = [[] for _ in range(RECORDS)]
    for (_, is_categorical, stored), each in zip(COLUMNS, manifest.features, strict=True):
        for record, value in zip(records, values_of(is_categorical, stored), strict=True):
            if is_categorical:
                record += [q * (level == value) for level in each.levels]
            else:
                record.append(round(min(Fraction(value or 0) / HALF_RANGE, Fraction(1)) * q))  # ties to even
    room = manifest.clip_norm * q - Fraction(manifest.figures.encoded_features, 2)
    assert all(sum(z * z for z in record) < room**2 for record in records)
    return records


def expected_values(records: list[list[int]]) -> list[int]:
    """N, v, and the upper triangle of R by rows."""
    columns = list(zip(*records, strict=True))
    triangle = [
        sum(a * b for a, b in zip(left, right, strict=True))
        for place, left in enumerate(columns)
        for right in columns[place:]
    ]
    return [len(records), *map(sum, columns), *triangle]


@dataclasses.dataclass
class Recorder:
    """What one owner sends to the proxy, opened with the proxy's key and decrypted with the data user's."""

    study: OpenStudy
    owner: IdentityKey
    chunks: dict[int, bytes] = dataclasses.field(default_factory=dict)

    def connect(self, url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
        recorder = self

        class Recording(ProxyClient):
            def put_chunk(self, study: StudyId, version: int, index: int, sealed: bytes) -> None:
                super().put_chunk(study, version, index, sealed)
                info = chunk_info(study, recorder.owner.public.party_id, version, index)
                proxy = recorder.study.world.proxy.key
                recorder.chunks[index] = open_sealed(sealed, proxy.opening_key, info)

        return Recording(url, key, pinned, patience=Patience(seconds=0.0))

    def sums(self) -> list[int]:
        secret, figures = self.study.world.secret, self.study.manifest.figures
        ciphertexts = [
            c
            for _, chunk in sorted(self.chunks.items())
            for c in decode_chunk(unsalted(chunk), secret.public)
        ]
        vectors = PaillierVectors(secret.public, figures.slot_bits)
        return vectors.decrypt_vector(secret, ciphertexts, figures.value_count)


@pytest.fixture
def world(tmp_path: Path, parties: Parties) -> Iterator[ProxyWorld]:
    owners = [IdentityKey.generate() for _ in range(5)]
    world = ProxyWorld(tmp_path / "proxy", parties.user, owners, parties.secret, parties.proof)
    world.start()
    world.enrol_all()
    yield world
    world.stop()


def test_one_table_is_one_share_in_every_type_and_format(world: ProxyWorld, tmp_path: Path) -> None:
    study = world.open_study(
        features=[feature(*column) for column in COLUMNS],
        missing="midpoint",
        clip_norm=int(len(COLUMNS) ** 0.5) + 1,
        max_records=1000,
        fraction_bits=16,
    )
    expected = expected_values(expected_records(study.manifest))
    locations = [
        write_parquet(tmp_path / "t.parquet"),
        write_feather(tmp_path / "t.arrow"),
        write_npz(tmp_path / "t.npz"),
        write_csv(tmp_path / "t.csv"),
        write_sql(tmp_path / "t.db"),
    ]
    address = StudyAddress(world.url, study.study)
    for place, location in enumerate(locations):
        recorder = Recorder(study, world.owners[place])
        home = make_owner_home(tmp_path / f"owner{place}", world, place=place)
        desk = dataclasses.replace(desk_of(home), connect=recorder.connect)
        assert actions.review(desk, address, location).dry_run is not None
        prepared = actions.prepare_join(desk, address, location)
        actions.join(desk, address, prepared, Watcher())
        assert recorder.sums() == expected, location.data
    contents = [read_contribution(location, study.manifest, b"k" * 32).content for location in locations]
    assert all(one == other for one, other in pairwise(contents))
    study.close()
    assert study.wait_state("released") == "released"


def test_projections_of_the_same_table_are_the_same(make_manifest: MakeManifest, tmp_path: Path) -> None:
    """Scores on the axes themselves are the values that were read."""
    manifest = make_manifest(
        features=[feature(*column) for column in COLUMNS], missing="midpoint", clip_norm=10, fraction_bits=16
    )
    q = manifest.figures.grid
    rows = np.array(expected_records(manifest)) / q
    space = EncodedSpace.of(manifest)
    d, ones = len(space.names), np.ones(len(space.names))
    components = Components(
        space=space, count=RECORDS, vectors=np.eye(d), eigenvalues=ones, noise_edges=ones, captured=ones,
        signals=ones, overlaps=ones, noise_scale=1.0, noise_edge=1.0, total_variance=1.0, mean=space.centre,
    )  # fmt: skip
    for location in (
        write_parquet(tmp_path / "t.parquet"),
        write_npz(tmp_path / "t.npz"),
        write_csv(tmp_path / "t.csv"),
    ):
        out = tmp_path / "scores.parquet"
        assert project(location, manifest, components, out).records == RECORDS
        scores = np.column_stack([column.to_numpy() for column in pa.parquet.read_table(out).columns])
        np.testing.assert_allclose(scores, rows, atol=1 / q)
    table = pa.parquet.read_table(tmp_path / "t.parquet")
    np.testing.assert_allclose(components.scores(rows_of_table(table, manifest)), rows, atol=1 / q)
