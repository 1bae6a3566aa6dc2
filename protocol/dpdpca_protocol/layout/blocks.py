"""The flat layout: a release as named blocks of integers, laid end to end. The first counts, without noise.

Whoever encodes, aggregates, adds noise or reads back goes by a list of blocks and need not know what they are
of. Which blocks a release has follows from its terms (`figures.blocks`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dpdpca_protocol.errors import UsageError

NORM_BINS = 49
"""Bins of a histogram of norms; each upper edge is 2^(1/4) times the one before."""
OCTAVES = 12
"""Bins of a feature's histogram of differences; each upper edge is twice the one before."""


class BlockName(StrEnum):
    """What a block holds, summed over all records (or pairs of records of one owner).

    `COUNT`: how many they are. `SUM`: v. `SECOND_MOMENT`, `PAIR_MOMENT`: upper triangle of Σ z zᵀ or Σ y yᵀ,
    y the difference of a pair. `NORMS`, `PAIR_NORMS`: histograms of |z| and of |y|/√2. `OCTAVES`: for each
    encoded feature one of |y_j|/√2.
    """

    COUNT = "count"
    NORMS = "norms"
    PAIR_NORMS = "pair-norms"
    SUM = "sum"
    OCTAVES = "octaves"
    SECOND_MOMENT = "second-moment"
    PAIR_MOMENT = "pair-moment"


PRE_STUDY_BLOCKS = (BlockName.NORMS, BlockName.PAIR_NORMS, BlockName.SUM, BlockName.OCTAVES)
"""What a pre-study can ask for, in the order in which it travels."""
OF_PAIRS = frozenset({BlockName.PAIR_NORMS, BlockName.OCTAVES, BlockName.PAIR_MOMENT})

_TRIANGLES = (BlockName.SECOND_MOMENT, BlockName.PAIR_MOMENT)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a release over a whole cohort.

    Attributes:
        length: how many integers it has.
        bound: largest size of one of them without noise.
        tail: largest size of the noise on one of them; 0 where there is none.
    """

    name: BlockName
    length: int
    bound: int
    tail: int


def block_length(name: BlockName, encoded_features: int) -> int:
    """How many integers a block has."""
    if name is BlockName.COUNT:
        return 1
    if name in _TRIANGLES:
        return encoded_features * (encoded_features + 1) // 2
    if name is BlockName.SUM:
        return encoded_features
    return encoded_features * OCTAVES if name is BlockName.OCTAVES else NORM_BINS


def block_bound(name: BlockName, max_records: int, record_bound: int, sum_bound: int) -> int:
    """The largest size of an entry, when it is summed over N̄ = `max_records` records or half as many pairs.

    Args:
        record_bound: K, of a record or a difference.
        sum_bound: V = ⌈√K⌉.
    """
    most = max_records // 2 if name in OF_PAIRS else max_records
    if name in _TRIANGLES:
        return most * record_bound
    return most * sum_bound if name is BlockName.SUM else most


def cut_blocks(blocks: Sequence[Block], values: Sequence[int]) -> dict[BlockName, list[int]]:
    """The values of each block.

    Raises:
        UsageError: there are more or fewer values than the blocks have.
    """
    if len(values) != value_count(blocks):
        raise UsageError("wrong-length", f"{len(values)} values instead of {value_count(blocks)}")
    cut, start = {}, 0
    for block in blocks:
        cut[block.name] = list(values[start : start + block.length])
        start += block.length
    return cut


def value_count(blocks: Iterable[Block]) -> int:
    return sum(block.length for block in blocks)
