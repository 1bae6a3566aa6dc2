"""Second moments: exact, whatever the chunk and the size of the bound."""

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.records import scatter
from dpdpca_protocol.records.scatter import SecondMoments


def brute_force(rows: list[list[int]], d: int) -> list[list[int]]:
    return [[sum(row[i] * row[j] for row in rows) for j in range(d)] for i in range(d)]


def filled(rows: list[list[int]] | NDArray[np.int64], bound: int) -> SecondMoments:
    moments = SecondMoments(len(rows[0]), bound)
    moments.add(np.array(rows, dtype=np.int64))
    return moments


@pytest.mark.parametrize("bits", [1, 5, 20, 26, 27, 29])
def test_every_size_of_entry_is_exact(bits: int) -> None:
    """From entries of one bit to K near 2⁵⁹, past what any double holds."""
    source = random.Random(bits)
    largest = 2**bits - 1
    rows = [
        [source.choice((-1, 1)) * source.randint(largest // 2, largest) for _ in range(3)] for _ in range(5)
    ]
    moments = filled(rows, 3 * largest**2)
    assert moments.second_moment.tolist() == brute_force(rows, 3)
    assert moments.sum.tolist() == [sum(column) for column in zip(*rows, strict=True)]
    assert moments.count == 5


def test_a_chunk_as_large_as_a_double_allows_is_still_exact() -> None:
    """K such that a chunk holds three records: partial sums stand just below 2⁵³ and are odd."""
    bound = (2**53 - 1) // 3
    side = int(bound**0.5) - 1
    rows = [[side - (k % 2), 1] for k in range(11)]
    moments = filled(rows, bound)
    assert moments.second_moment.tolist() == brute_force(rows, 2)


def test_chunks_and_batches_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(-300, 300, dtype=np.int64).reshape(200, 3)
    whole = filled(rows, 300**2 * 3)
    monkeypatch.setattr(scatter, "_CHUNK_VALUES", 21)
    parts = SecondMoments(3, 300**2 * 3)
    for part in np.array_split(rows, 7):
        parts.add(part)
    assert list(parts.stream()) == list(whole.stream())


def test_values_are_in_the_order_of_the_joint_release() -> None:
    moments = filled([[1, 2, 3], [-1, 0, 5]], 100)
    values = list(moments.stream())
    assert moments.values().tolist() == values
    assert values == [2, 0, 2, 8, 2, 2, -2, 4, 6, 34]
    assert all(type(value) is int for value in values)


def test_no_records_are_no_error() -> None:
    moments = SecondMoments(2, 10)
    moments.add(np.zeros((0, 2), dtype=np.int64))
    assert list(moments.stream()) == [0] * 6


def test_a_record_above_the_bound_is_refused() -> None:
    with pytest.raises(UsageError, match="norm bound"):
        filled([[3, 4], [3, 5]], 25)


@pytest.mark.parametrize(
    "z",
    [
        np.zeros(3, dtype=np.int64),
        np.zeros((1, 2), dtype=np.int64),
        np.zeros((1, 3)),
        np.zeros((1, 3), np.int32),
    ],
)
def test_another_shape_or_type_is_refused(
    z: NDArray[Any],
) -> None:
    with pytest.raises(UsageError):
        SecondMoments(3, 10).add(z)


def test_sums_that_could_wrap_are_refused() -> None:
    moments = SecondMoments(1, 2**61)
    moments.add(np.array([[2**30]], dtype=np.int64))
    with pytest.raises(InputError, match="more records than the manifest allows"):
        moments.add(np.array([[2**30]], dtype=np.int64))
    assert moments.count == 1


@pytest.mark.parametrize(("d", "bound"), [(0, 1), (1, 0), (1, 2**62)])
def test_impossible_shapes_are_refused(d: int, bound: int) -> None:
    with pytest.raises(UsageError):
        SecondMoments(d, bound)
