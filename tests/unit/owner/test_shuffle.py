"""Larger than memory or not, in any batches, with any values: one order, and one pair that changes."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdpca_owner.records.shuffle import Shuffle, order_of
from dpdpca_protocol.records.pairing import differences

SEED = bytes(range(32))


def through(
    z: NDArray[np.int64],
    folder: Path,
    cuts: tuple[int, ...] = (),
    memory_values: int = 2**24,
    seed: bytes = SEED,
) -> NDArray[np.int64]:
    shuffle = Shuffle(z.shape[1], seed, folder, memory_values)
    for part in np.split(z, cuts):
        shuffle.add(part)
    assert shuffle.count == len(z)
    return np.concatenate(list(shuffle.batches()))


@pytest.fixture
def records() -> NDArray[np.int64]:
    return np.arange(3000, dtype=np.int64).reshape(1000, 3)


@pytest.mark.parametrize("memory_values", [2**24, 300, 1])
@pytest.mark.parametrize("cuts", [(), (1, 2, 500), tuple(range(0, 1000, 7))])
def test_the_order_depends_on_neither_batches_nor_memory(
    records: NDArray[np.int64], tmp_path: Path, cuts: tuple[int, ...], memory_values: int
) -> None:
    expected = through(records, tmp_path)
    assert sorted(expected[:, 0].tolist()) == records[:, 0].tolist()
    assert (through(records, tmp_path, cuts, memory_values) == expected).all()
    assert list(Path(tmp_path).iterdir()) == []  # what was on the disk had no name


@pytest.mark.parametrize("count", [0, 1, 2, 255, 1000])
def test_the_order_is_known_before_the_records(count: int, tmp_path: Path) -> None:
    records = np.arange(count, dtype=np.int64)[:, None]
    assert order_of(count, SEED).tolist() == through(records, tmp_path)[:, 0].tolist()


def test_the_order_depends_on_the_secret(records: NDArray[np.int64], tmp_path: Path) -> None:
    assert (through(records, tmp_path, seed=bytes(32)) != through(records, tmp_path)).any()


def test_a_replaced_record_changes_its_own_pair_and_no_other(
    records: NDArray[np.int64], tmp_path: Path
) -> None:
    other = records.copy()
    other[417] = -5
    before, after = (np.concatenate(list(differences([through(z, tmp_path)]))) for z in (records, other))
    assert len(before) == 500
    assert np.count_nonzero((before != after).any(axis=1)) == 1


def test_sorted_records_are_paired_across_the_whole_file(tmp_path: Path) -> None:
    """A file that is sorted: pairs of neighbours in it would have differences of nothing."""
    z = np.arange(20_000, dtype=np.int64)[:, None]
    y = np.concatenate(list(differences([through(z, tmp_path)])))
    # E (i − j)² = (n² − 1)/6 for i ≠ j at random; its mean over 10,000 pairs is within 1.2 %, one sd.
    assert float((y.astype(float) ** 2).mean()) == pytest.approx(20_000**2 / 6, rel=0.08)


def test_no_records_give_empty_batches(tmp_path: Path) -> None:
    assert sum(len(part) for part in Shuffle(2, SEED, tmp_path).batches()) == 0
