"""The drafts of the demo's studies, all made from one draft."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpdpca_protocol.study import ReleaseKind
from dpdpca_user.planning.draft import with_noise_by_proxy
from dpdpca_user.planning.plan import as_release

_BLINDED = {"blinding": "pairwise", "max_colluding": 1}
_SAYS_HOW = {"suite", "noise_by", *_BLINDED}
_CHOSEN = ("release", "clip_norm", "sum_weight", "nonnegative", "suite")
"""Members that a chain chooses itself."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of the same study in the three ways in which the demo runs it.

    Attributes:
        masked: the paper's protocol, under Paillier; never blinded.
        joint: one joint study.
        chain: the base draft of a chain. Incomplete records must count.
    """

    masked: dict[str, Any]
    joint: dict[str, Any]
    chain: dict[str, Any]


def drafts_of(draft: Mapping[str, Any], owners: int) -> Drafts:
    """The demo's drafts.

    Joint study and chain are blinded, unless the draft itself says how values are hidden or who draws the
    noise. A single owner has nobody with whom it could share masks, so the proxy draws the noise.

    Args:
        draft: the draft from which all are made.
        owners: the number of owners.
    """
    if owners < 2:
        flat = with_noise_by_proxy(draft)
    else:
        flat = {**draft, **({} if _SAYS_HOW & draft.keys() else _BLINDED)}
    chain = {name: value for name, value in flat.items() if name not in _CHOSEN} | {"missing": "midpoint"}
    return Drafts(as_release(flat, ReleaseKind.MASKED), as_release(flat, ReleaseKind.JOINT), chain)
