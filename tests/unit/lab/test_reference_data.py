"""The loader of data sets: shapes, what stands in for a missing file, and where files are looked for."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpdpca_lab.reference_data import NAMES, Repeatable, digest, load, reference_folder, stand_in
from dpdpca_protocol.errors import InputError, UsageError


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_missing_file_has_a_stand_in_of_the_same_columns(name: str, tmp_path: Path) -> None:
    made = load(name, tmp_path, 50)
    assert "stand-in" in made.origin or "bundled" in made.origin
    assert len(made.rows) == len(made.labels) == 50
    classes = {"covtype-10": {1, 2}, "genomes": set(range(5))}
    assert set(made.labels.tolist()) == classes.get(name, set(range(10)))
    again = load(name, None, 50)
    assert (made.rows == again.rows).all()
    assert digest(name, tmp_path) == digest(name, None)


def test_stand_ins_have_the_columns_of_the_papers() -> None:
    assert stand_in("kddcup", 10).rows.shape == (10, 116)
    assert stand_in("insurance", 10).rows.shape == (10, 150)


def test_a_file_is_read_in_equal_steps_and_its_content_counts(tmp_path: Path) -> None:
    def write(first: int) -> None:
        columns = {"a": [first, 1, 2, 3, 4, 5], "b": [1.5] * 6, "Cover_Type": [1, 1, 2, 2, 3, 3]}
        pq.write_table(pa.table(columns), tmp_path / "covtype_sample20k.parquet")

    write(0)
    read = load("covtype", tmp_path, 3)
    assert read.rows.tolist() == [[0, 1.5], [2, 1.5], [4, 1.5]]
    assert read.labels.tolist() == [1, 2, 3]
    assert read.origin == "covtype_sample20k.parquet, 3 of its rows"
    before = digest("covtype", tmp_path)
    write(7)
    assert digest("covtype", tmp_path) != before


def test_text_becomes_columns_and_normal_traffic_a_class(tmp_path: Path) -> None:
    protocols = pa.array(["tcp", "udp", "tcp"]).dictionary_encode()
    columns = {"duration": [1.0, 0.0, 2.0], "protocol": protocols, "label": ["normal", "smurf", "normal"]}
    pq.write_table(pa.table(columns), tmp_path / "kddcup99_10pct.parquet")
    read = load("kddcup", tmp_path)
    assert read.rows.tolist() == [[0.5, 1, 0], [0, 0, 1], [1, 1, 0]]
    assert read.labels.tolist() == [0, 1, 0]


def test_the_folder_is_the_given_one_or_that_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDPCA_REFERENCE_DATA", str(tmp_path))
    assert reference_folder() == tmp_path
    inner = tmp_path / "inner"
    with pytest.raises(InputError, match="inner"):
        reference_folder(inner)
    inner.mkdir()
    assert reference_folder(inner) == inner
    monkeypatch.setenv("DPDPCA_REFERENCE_DATA", str(tmp_path / "gone"))
    assert reference_folder() is None


def test_unknown_sets_are_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match="kddcup"):
        load("census", None)


def test_repeatable_draws_repeat_and_differ_by_seed() -> None:
    one, two, other = Repeatable(1), Repeatable(1), Repeatable(2)
    first = one.bytes(8)
    assert first == two.bytes(8) != other.bytes(8)
    assert one.bytes(8) != first
    drawn = [Repeatable(seed).below(10) for seed in range(300)]
    assert np.bincount(drawn, minlength=10).min() > 10
