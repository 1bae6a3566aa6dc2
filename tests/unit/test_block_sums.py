"""What owners add up for pairs and pre-studies, against plain arithmetic in exact numbers."""

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from study_parties import MakeManifest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.records.block_sums import BlockSums, are_far, norm_edges, octave_edges, squares
from dpdpca_protocol.records.encoding import ABSENT


@pytest.fixture
def sums_of(make_manifest: MakeManifest) -> Callable[..., Any]:
    def make(**changes: str) -> BlockSums:
        return BlockSums(make_manifest(**changes).figures)

    return make


@pytest.mark.parametrize("record_bound", [1, 7, 10**6, 2**61 - 1])
@pytest.mark.parametrize("scale", [1, 2])
def test_edges_of_norms_are_floors_of_exact_squares(record_bound: int, scale: int) -> None:
    edges = norm_edges(record_bound, scale) if scale * record_bound < 2**62 else norm_edges(2**60, scale)
    top = scale * (record_bound if scale * record_bound < 2**62 else 2**60)
    assert len(edges) == 48
    for b, edge in enumerate(edges.tolist()):
        # edge ≤ top·2^(−(48−b)/2) < edge + 1, squared
        square = Fraction(top**2, 2 ** (48 - b))
        assert edge**2 <= square < (edge + 1) ** 2


def test_edges_of_octaves_are_floors_of_exact_squares() -> None:
    for grid in (1, 2**10, 2**16 + 1):
        for o, edge in enumerate(octave_edges(grid).tolist()):
            assert edge == math.floor(2 * Fraction(grid) ** 2 / 4 ** (11 - o))


def by_hand(values: list[int], edges: list[int]) -> list[int]:
    counts = [0] * (len(edges) + 1)
    for value in values:
        counts[next((b for b, edge in enumerate(edges) if value <= edge), len(edges))] += 1
    return counts


def test_histograms_and_sums_are_those_that_plain_loops_find(
    sums_of: Callable[..., Any], make_manifest: MakeManifest
) -> None:
    blocks = dict.fromkeys(("norms", "pair-norms", "sum", "octaves", "far-pairs"), "0.2")
    manifest = make_manifest(release="pre-study", blocks=blocks)
    figures, source = manifest.figures, random.Random(7)
    grid, bound = figures.grid, figures.record_bound
    rows = [
        [source.randint(-(2**size), 2**size) for _ in range(3)]
        for size in range(grid.bit_length() + 1)
        for _ in range(3)
    ]
    rows += [[0, 0, 0], [2 * grid] * 3]
    z = np.array(rows, dtype=np.int64)
    sums = BlockSums(figures)
    sums.add(z[:10])
    sums.add(z[10:])
    first, second = z[0:-1:2], z[1::2]
    sums.add_pairs(first, second)
    y = first - second
    count, *values = sums.stream()
    assert sums.values().tolist() == [count, *values]
    assert count == len(rows)
    assert values[:49] == by_hand([sum(x * x for x in row) for row in rows], norm_edges(bound).tolist())
    assert values[49:98] == by_hand(
        [sum(int(x) ** 2 for x in row) for row in y], norm_edges(bound, 2).tolist()
    )
    octaves = octave_edges(grid).tolist()
    for j in range(3):
        start = 101 + 12 * j
        assert values[start : start + 12] == by_hand([int(row[j]) ** 2 for row in y], octaves)
    # 2|z − x|² < |z|² + |x|² if and only if |z|² + |x|² < 4 z·x
    of_two = list(zip(rows[::2], rows[1::2], strict=False))
    far = sum(sum(a * a + b * b - 4 * a * b for a, b in zip(z, x, strict=True)) < 0 for z, x in of_two)
    assert values[137:] == [far]
    assert 0 < far < len(of_two)
    # Records beyond the bound are cut, none of the others is touched.
    cut = [row for row in rows if sum(x * x for x in row) > bound]
    kept = [row for row in rows if sum(x * x for x in row) <= bound]
    assert sums.cut == len(cut) > 0
    root = math.isqrt(bound)
    rest = np.array(values[98:101]) - np.array(kept).sum(axis=0)
    assert np.linalg.norm(rest) <= len(cut) * (root + 1)


def test_pairs_are_cut_and_counted(sums_of: Callable[..., Any], make_manifest: MakeManifest) -> None:
    figures = make_manifest(release="pairs", clip_norm=1).figures
    sums = BlockSums(figures)
    y = np.array([[3, -4, 0], [figures.grid * 2, 0, 0], [0, 0, 0]], dtype=np.int64)
    sums.add(np.zeros((6, 3), dtype=np.int64))
    sums.add_pairs(y, np.zeros_like(y))
    count, *moment = sums.stream()
    assert sums.values().tolist() == [count, *moment]
    assert (count, sums.cut) == (3, 1)
    length = moment[0] - 9
    assert 0.99 * figures.record_bound < length <= figures.record_bound
    assert moment[1:] == [-12, 0, 16, 0, 0]


def test_the_same_sums_have_the_same_bytes(sums_of: Callable[..., Any]) -> None:
    first, second = sums_of(release="pairs"), sums_of(release="pairs")
    y = np.array([[3, -4, 0]], dtype=np.int64)
    first.add_pairs(y, 0 * y)
    assert first.to_bytes() != second.to_bytes()
    second.add_pairs(0 * y, y)
    assert first.to_bytes() == second.to_bytes()


def test_a_pair_is_far_if_its_records_are_closer_to_each_other_than_on_average_to_the_centre() -> None:
    z = np.array([[3, 3], [0, 0], [2, 0], [2**30, 0], [5, 5]], dtype=np.int64)
    x = np.array([[3, 3], [0, 0], [1, 1], [2**30 - 1, 0], [-5, -5]], dtype=np.int64)
    assert are_far(z, x).tolist() == [True, False, True, True, False]
    equal = np.array([[1, 1, 0]], dtype=np.int64), np.array([[1, 0, 1]], dtype=np.int64)  # 2·2 = 2 + 2
    assert not are_far(*equal).any()


def test_a_missing_value_of_a_far_pair_counts_as_the_centre(sums_of: Callable[..., Any]) -> None:
    """If only coordinates that both records have counted, all three pairs would be far."""
    sums = sums_of(release="pre-study", blocks={"far-pairs": "1"})
    first = np.array([[5, 5, ABSENT], [5, 5, ABSENT], [5, ABSENT, ABSENT]], dtype=np.int64)
    second = np.array([[5, 5, ABSENT], [5, ABSENT, ABSENT], [5, 5, 9]], dtype=np.int64)
    sums.add_pairs(first, second)  # 0 < 100; 50 < 75; 212 > 156
    assert sums.values().tolist() == [0, 2]


def test_squares_are_exact_where_figures_allow_them() -> None:
    z = np.array([[2**30, -(2**30), 1]], dtype=np.int64)
    assert squares(z).tolist() == [2**61 + 1]


def test_rows_of_another_shape_are_refused(sums_of: Callable[..., Any]) -> None:
    sums = sums_of(release="pairs")
    for wrong in (np.zeros((2, 2), dtype=np.int64), np.zeros((2, 3)), np.zeros(3, dtype=np.int64)):
        with pytest.raises(UsageError, match="records must be int64"):
            sums.add(wrong)
        with pytest.raises(UsageError, match="records must be int64"):
            sums.add_pairs(wrong, np.zeros((2, 3), dtype=np.int64))
        with pytest.raises(UsageError, match="records must be int64"):
            sums.add_pairs(np.zeros((2, 3), dtype=np.int64), wrong)
