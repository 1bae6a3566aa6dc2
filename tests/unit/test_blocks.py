"""Blocks laid end to end: their lengths, what bounds them, and how values are cut back into them."""

import numpy as np
import pytest
from study_parties import MakeManifest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import (
    CLIPPING,
    Block,
    BlockName,
    block_bound,
    block_length,
    cut_blocks,
    value_count,
    whole_numbers,
)


def test_lengths() -> None:
    lengths = {name: block_length(name, 5, 3) for name in BlockName}
    assert lengths == {
        "count": 1,
        "norms": 49,
        "pair-norms": 49,
        "sum": 5,
        "octaves": 60,
        "far-pairs": 1,
        "second-moment": 15,
        "pair-moment": 15,
        "lifted": 15,
        "gram": 6,
        "clipped": 1,
        "clipped-squares": 1,
        "gaps": 1,
    }


def test_bounds_count_pairs_by_halves() -> None:
    bounds = {name: block_bound(name, 101, 16, 4, 25, score_bound=5, gap_bound=3) for name in BlockName}
    assert bounds == {
        "count": 101,
        "norms": 101,
        "pair-norms": 50,
        "sum": 404,
        "octaves": 50,
        "far-pairs": 50,
        "second-moment": 1616,
        "pair-moment": 800,
        "lifted": 909,
        "gram": 505,
        "clipped": 101,
        "clipped-squares": 2525,
        "gaps": 303,
    }
    assert block_bound(BlockName.GAPS, 101, 16, 4, 25, of_pairs=True, gap_bound=3) == 303  # of records
    either = (*CLIPPING, BlockName.LIFTED, BlockName.GRAM)
    of_pairs = [block_bound(name, 101, 16, 4, 25, of_pairs=True, score_bound=5) for name in either]
    assert of_pairs == [50, 1250, 450, 250]


def test_values_are_cut_back_into_their_blocks() -> None:
    blocks = [Block(BlockName.COUNT, 1, 9, 0), Block(BlockName.SUM, 2, 9, 3), Block(BlockName.NORMS, 3, 9, 3)]
    assert value_count(blocks) == 6
    expected = {"count": [0], "sum": [1, 2], "norms": [3, 4, 5]}
    assert cut_blocks(blocks, list(range(6))) == expected
    of_array = cut_blocks(blocks, np.arange(6))
    assert {name: whole_numbers(values) for name, values in of_array.items()} == expected
    assert all(isinstance(values, np.ndarray) and values.base is not None for values in of_array.values())
    for wrong in (5, 7):
        with pytest.raises(UsageError, match="the blocks have 6"):
            cut_blocks(blocks, range(wrong))


@pytest.mark.parametrize("release", ["joint", "pairs", "pre-study"])
def test_figures_have_the_blocks_of_their_release_and_slots_that_hold_them(
    make_manifest: MakeManifest, release: str
) -> None:
    blocks = {"blocks": {"octaves": "0.5", "norms": "0.5"}} if release == "pre-study" else {}
    figures = make_manifest(release=release, **blocks).figures
    expected = {
        "joint": ["count", "sum", "second-moment"],
        "pairs": ["count", "pair-moment"],
        "pre-study": ["count", "norms", "octaves"],
    }
    assert [block.name for block in figures.blocks] == expected[release]
    assert figures.value_count == value_count(figures.blocks)
    assert figures.blocks[0].tail == 0
    assert all(block.tail > 0 for block in figures.blocks[1:])
    most = 2 ** (figures.slot_bits - 1) if figures.slot_bits else 2**62
    assert all(block.bound + block.tail < most for block in figures.blocks)
    assert len(figures.mechanism.draw(1)) == figures.value_count


def test_a_masked_release_has_none(make_manifest: MakeManifest) -> None:
    assert make_manifest(release="masked").figures.blocks == ()
