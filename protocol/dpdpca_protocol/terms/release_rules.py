"""The properties of each kind of release, one row each.

Code that handles releases reads these rows and never compares names of releases.
"""

from dataclasses import dataclass

from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.mechanisms import Quantity
from dpdpca_protocol.study import ReleaseKind, SummedOver


@dataclass(frozen=True, slots=True)
class ReleaseRules:
    """One kind of release.

    Attributes:
        kind: its name in messages. The kind also knows whether it needs a count and whether it has
            components.
        quantity: what the noise is added to.
        blocks: what is released, in order. Empty if the release is a matrix under a mask.
        names_blocks: whether the manifest chooses further blocks.
        is_masked: N·S is released under a mask. The proxy learns N, and every owner must be honest.
        of_pairs: differences of two records are summed, and pairs are counted.
        clips_records: each record is clipped to the clip norm. In other studies, the integers are clipped
            when they are summed.
        has_mean: a private mean comes with the components.
        weighs_sum: the manifest says how much of the noise goes to the sums.
        tells_clipping: the manifest may ask what clipping did.
        is_wide: the release is a round of a chain for many features: what is summed are a few numbers that a
            public rule makes of each record or difference, alone or times the record.
    """

    kind: ReleaseKind
    quantity: Quantity
    blocks: tuple[BlockName, ...] = ()
    names_blocks: bool = False
    is_masked: bool = False
    of_pairs: bool = False
    clips_records: bool = False
    has_mean: bool = False
    weighs_sum: bool = False
    tells_clipping: bool = False
    is_wide: bool = False


def _joint(kind: ReleaseKind, *, is_wide: bool) -> ReleaseRules:
    """Records, or numbers made of them, are summed with their products."""
    return ReleaseRules(
        kind,
        Quantity.JOINT,
        (BlockName.COUNT, BlockName.SUM, BlockName.SECOND_MOMENT),
        clips_records=True,
        has_mean=True,
        weighs_sum=True,
        tells_clipping=not is_wide,
        is_wide=is_wide,
    )


def _pairs(kind: ReleaseKind, *, is_wide: bool) -> ReleaseRules:
    """Products of differences, or of numbers made of them, are summed."""
    return ReleaseRules(
        kind,
        Quantity.PAIRS,
        (BlockName.COUNT, BlockName.PAIR_MOMENT),
        of_pairs=True,
        tells_clipping=not is_wide,
        is_wide=is_wide,
    )


def _lift(*, of_pairs: bool) -> ReleaseRules:
    return ReleaseRules(
        ReleaseKind.LIFT,
        Quantity.LIFT,
        (BlockName.COUNT, BlockName.LIFTED, BlockName.GRAM),
        clips_records=not of_pairs,
        of_pairs=of_pairs,
        is_wide=True,
    )


_ROWS = (
    ReleaseRules(ReleaseKind.MASKED, Quantity.SCATTER, is_masked=True, clips_records=True),
    _joint(ReleaseKind.JOINT, is_wide=False),
    _pairs(ReleaseKind.PAIRS, is_wide=False),
    ReleaseRules(ReleaseKind.PRE_STUDY, Quantity.PRE_STUDY, (BlockName.COUNT,), names_blocks=True),
)
_WIDE = {
    SummedOver.RECORDS: (
        _joint(ReleaseKind.SKETCH, is_wide=True),
        _lift(of_pairs=False),
        _joint(ReleaseKind.SCORES, is_wide=True),
    ),
    SummedOver.PAIRS: (
        _pairs(ReleaseKind.SKETCH, is_wide=True),
        _lift(of_pairs=True),
        _pairs(ReleaseKind.SCORES, is_wide=True),
    ),
}
WIDE = frozenset(rules.kind for rules in _WIDE[SummedOver.RECORDS])
"""The rounds of a chain for many features."""
_RULES: dict[tuple[ReleaseKind, SummedOver | None], ReleaseRules] = {
    (rules.kind, None): rules for rules in _ROWS
} | {(rules.kind, summed): rules for summed, rows in _WIDE.items() for rules in rows}


def rules_of(kind: ReleaseKind, summed: SummedOver | None = None) -> ReleaseRules:
    """The row for a kind of release.

    Args:
        kind: what is released.
        summed: what a wide release adds up; records if it is None. Other releases ignore it.
    """
    return _RULES[kind, (summed or SummedOver.RECORDS) if kind in WIDE else None]
