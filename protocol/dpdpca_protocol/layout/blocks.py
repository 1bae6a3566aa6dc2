"""The flat layout: a release is a list of named blocks of integers, one after the other.

The first block is a count and has no noise. Code that encodes, aggregates, adds noise or decodes works from
the list of blocks; it does not need to know what a block means. The terms of a study determine its blocks
(`figures.blocks`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import UsageError

Values = Sequence[int] | NDArray[np.int64]
"""Exact integers: of any size, or an array of 64-bit integers, which takes less memory and time."""

NORM_BINS = 49
"""Bins of a histogram of norms. Each upper edge is 2^(1/4) times the edge before it."""
OCTAVES = 12
"""Bins of the histogram of differences of one feature. Each upper edge is twice the edge before it."""


class BlockName(StrEnum):
    """What a block holds, summed over all records (or pairs of records of one owner).

    `COUNT`: their number. `SUM`: v. `SECOND_MOMENT`, `PAIR_MOMENT`: the upper triangle of Σ z zᵀ or of Σ y
    yᵀ, where y is the difference of a pair. `LIFTED`: Σ z aᵀ by features, where a are the k numbers that a
    public rule makes of a record. `GRAM`: the upper triangle of Σ a aᵀ. `NORMS`, `PAIR_NORMS`: histograms of
    |z| and of |y|/√2. `OCTAVES`: for each encoded feature, a histogram of |y_j|/√2. `FAR_PAIRS`: in how
    many pairs the records are closer to each other than, on average, to the public centre. `CLIPPED`: how
    many rows (records, or differences) the clip norm shortened. `CLIPPED_SQUARES`: the sum of their squared
    lengths before that, each at most C. `GAPS`: how many values the records lack, each record with at most
    half of its encoded features.
    """

    COUNT = "count"
    NORMS = "norms"
    PAIR_NORMS = "pair-norms"
    SUM = "sum"
    OCTAVES = "octaves"
    FAR_PAIRS = "far-pairs"
    SECOND_MOMENT = "second-moment"
    PAIR_MOMENT = "pair-moment"
    LIFTED = "lifted"
    GRAM = "gram"
    CLIPPED = "clipped"
    CLIPPED_SQUARES = "clipped-squares"
    GAPS = "gaps"


PRE_STUDY_BLOCKS = (
    BlockName.NORMS,
    BlockName.PAIR_NORMS,
    BlockName.SUM,
    BlockName.OCTAVES,
    BlockName.FAR_PAIRS,
)
"""The blocks that a pre-study can ask for, in the order in which they are sent."""
CLIPPING = (BlockName.CLIPPED, BlockName.CLIPPED_SQUARES)
"""What clipping did, one integer each. Both follow the other blocks of a study that asks for them."""
_OF_EITHER = frozenset({*CLIPPING, BlockName.LIFTED, BlockName.GRAM})
TOLD = (*CLIPPING, BlockName.GAPS)
"""What a study may tell beside its matrix, one integer each: what clipping did and, where a missing value
counts as the centre, how many values are missing."""
OF_PAIRS = frozenset({BlockName.PAIR_NORMS, BlockName.OCTAVES, BlockName.FAR_PAIRS, BlockName.PAIR_MOMENT})

TRIANGLES = frozenset({BlockName.SECOND_MOMENT, BlockName.PAIR_MOMENT, BlockName.GRAM})
"""The blocks that hold the upper triangle of a matrix."""
COUNTED = frozenset(
    {
        BlockName.NORMS,
        BlockName.PAIR_NORMS,
        BlockName.OCTAVES,
        BlockName.FAR_PAIRS,
        BlockName.CLIPPED,
        BlockName.GAPS,
    }
)
"""The blocks of noisy counts. A finer grid does not change these counts."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a release over a whole cohort.

    Attributes:
        length: the number of its integers.
        bound: the largest absolute value of an integer before noise.
        tail: the largest absolute value of the noise on an integer; 0 if the block has no noise.
    """

    name: BlockName
    length: int
    bound: int
    tail: int


def matrix_size(name: BlockName, features: int, columns: int = 0) -> int:
    """The number of rows of the symmetric matrix whose upper triangle a block holds."""
    return columns if name is BlockName.GRAM else features


def gap_bound(features: int) -> int:
    """G: how many missing values of one record count, which is half of its encoded features, rounded up."""
    return (features + 1) // 2


def block_length(name: BlockName, features: int, columns: int = 0) -> int:
    """The number of integers in a block.

    Args:
        name: of the block.
        features: the number of coordinates of what is summed.
        columns: k of a lift.
    """
    if name in (BlockName.COUNT, BlockName.FAR_PAIRS) or name in TOLD:
        return 1
    if name in TRIANGLES:
        size = matrix_size(name, features, columns)
        return size * (size + 1) // 2
    if name is BlockName.LIFTED:
        return features * columns
    if name is BlockName.SUM:
        return features
    return features * OCTAVES if name is BlockName.OCTAVES else NORM_BINS


def block_bound(
    name: BlockName,
    max_records: int,
    record_bound: int,
    sum_bound: int,
    clip_bound: int = 0,
    of_pairs: bool = False,
    score_bound: int = 0,
    gap_bound: int = 0,
) -> int:
    """The largest absolute value of an entry that is summed over N̄ = `max_records` records or N̄/2 pairs.

    Args:
        record_bound: K, the bound on Σ z² of a record or a difference.
        sum_bound: V = ⌈√K⌉.
        clip_bound: C, the bound on a squared length in `CLIPPED_SQUARES`.
        of_pairs: whether differences are clipped instead of records.
        score_bound: B, the bound on Σ a² in a lift.
        gap_bound: G, how many missing values of a record count in `GAPS`.
    """
    pairs = name in OF_PAIRS or (of_pairs and name in _OF_EITHER)
    most = max_records // 2 if pairs else max_records
    if name is BlockName.LIFTED:
        return most * _root_up(record_bound * score_bound)
    if name is BlockName.GRAM:
        return most * score_bound
    if name is BlockName.CLIPPED_SQUARES:
        return most * clip_bound
    if name is BlockName.GAPS:
        return most * gap_bound
    if name in TRIANGLES:
        return most * record_bound
    return most * sum_bound if name is BlockName.SUM else most


def cut_blocks(blocks: Sequence[Block], values: Values) -> dict[BlockName, Values]:
    """The values of each block. The blocks of an array are views of it.

    Raises:
        UsageError: the number of values differs from the number that the blocks hold.
    """
    if len(values) != value_count(blocks):
        raise UsageError("wrong-length", f"got {len(values)} values; the blocks have {value_count(blocks)}")
    cut: dict[BlockName, Values] = {}
    start = 0
    for block in blocks:
        cut[block.name] = values[start : start + block.length]
        start += block.length
    return cut


def whole_numbers(values: Values) -> list[int]:
    """The values as Python's integers, which have any size."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def value_count(blocks: Iterable[Block]) -> int:
    return sum(block.length for block in blocks)


def _root_up(square: int) -> int:
    """⌈√square⌉ of a positive integer."""
    return isqrt(square - 1) + 1
