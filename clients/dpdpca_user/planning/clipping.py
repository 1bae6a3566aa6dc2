"""How a study asks what clipping did: for which part of ρ, and up to which length."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from dpdpca_user.planning.histograms import above_noise
from dpdpca_user.planning.prestudy import Histogram

CLIP_SHARE = "0.005"
"""The part of ρ that drafts give to each of the two numbers about clipping."""
CLIP_SHARES = (CLIP_SHARE, "0.01", "0.02")

_MISSED = 0.05
_NOISE = 0.1


@dataclass(frozen=True, slots=True)
class ClipTerms:
    """Members of a draft that ask what clipping did.

    Attributes:
        share: `clip_share`.
        cap: `clip_cap`, in the unit of the clip norm.
    """

    share: str
    cap: float


def clip_terms(norms: Histogram, counted: int, rows: int, clip_norm: float, rho: float) -> ClipTerms | None:
    """What the last study of a chain should ask about clipping.

    A cap that is too short misses what longer rows have beyond it, and nothing shows how much. So the cap is
    the least edge beyond which a twentieth of all squared lengths lies at most. The share is the least one
    with which the noise of the sum is a tenth of the total, or the largest.

    Args:
        norms: a released histogram of the rows' lengths, in the unit of `clip_norm`.
        counted: how many lengths it counts.
        rows: how many rows the study will have.
        clip_norm: r of the study.
        rho: what the whole study spends.

    Returns:
        The terms; None if the histogram shows fewer than half of the lengths above its noise.
    """
    counts = above_noise(norms)
    if 2 * sum(counts) < max(counted, 1):
        return None
    lengths = list(zip(counts, norms.edges, strict=True))
    total = sum(count * edge**2 for count, edge in lengths)
    edges = (edge for edge in norms.edges if edge >= clip_norm)
    cap = next((edge for edge in edges if _beyond(lengths, edge) <= _MISSED * total), norms.edges[-1])
    wanted = _NOISE * rows / sum(counts) * sum(count * min(edge, clip_norm) ** 2 for count, edge in lengths)
    for share in CLIP_SHARES:
        if cap**2 / sqrt(2 * float(share) * rho) <= wanted:
            break
    return ClipTerms(share, max(cap, clip_norm))


def _beyond(lengths: Sequence[tuple[int, float]], cap: float) -> float:
    return sum(count * max(edge**2 - cap**2, 0.0) for count, edge in lengths)
