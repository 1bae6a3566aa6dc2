"""The properties of each kind of release, one row each.

Code that handles releases reads these rows and never compares names of releases.
"""

from dataclasses import dataclass

from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.mechanisms import Quantity
from dpdpca_protocol.study import ReleaseKind


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


_ROWS = (
    ReleaseRules(ReleaseKind.MASKED, Quantity.SCATTER, is_masked=True, clips_records=True),
    ReleaseRules(
        ReleaseKind.JOINT,
        Quantity.JOINT,
        (BlockName.COUNT, BlockName.SUM, BlockName.SECOND_MOMENT),
        clips_records=True,
        has_mean=True,
        weighs_sum=True,
        tells_clipping=True,
    ),
    ReleaseRules(
        ReleaseKind.PAIRS,
        Quantity.PAIRS,
        (BlockName.COUNT, BlockName.PAIR_MOMENT),
        of_pairs=True,
        tells_clipping=True,
    ),
    ReleaseRules(ReleaseKind.PRE_STUDY, Quantity.PRE_STUDY, (BlockName.COUNT,), names_blocks=True),
)
_RULES = {rules.kind: rules for rules in _ROWS}


def rules_of(kind: ReleaseKind) -> ReleaseRules:
    """The row for a kind of release."""
    return _RULES[kind]
