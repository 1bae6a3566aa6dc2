"""How a study asks what clipping did: for which part of ρ, and up to which length."""

from dataclasses import dataclass
from math import hypot, log, pow, sqrt
from typing import Self

from dpdpca_user.planning.histograms import above_noise, quantile
from dpdpca_user.planning.prestudy import Histogram

CLIP_SHARE = "0.005"
"""The part of ρ that drafts give to each number about clipping and missing values."""
CLIP_CAP = 3
"""A usual `clip_cap`, in units of the clip norm: few rows are longer, and a longer cap makes more noise."""
CLIP_SHARES = (CLIP_SHARE, "0.01", "0.02")

_MOST_MISSED = 0.1
_SMALL_NOISE = 0.03
_LEAST_INDEX = 4.0


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

    A cap that is too short misses what longer rows have beyond it, and nothing shows how much. A cap that is
    too long makes noise. So the cap is the edge at which both together are least, if it misses at most a
    tenth of all squared lengths. The share is the least one with which the noise is small, or the largest.

    Args:
        norms: a released histogram of the rows' lengths, in the unit of `clip_norm`.
        counted: how many lengths it counts.
        rows: how many rows the study will have.
        clip_norm: r of the study.
        rho: what the whole study spends, divided by the draws of its noise.

    Returns:
        The terms; None if the histogram shows nothing above its noise.
    """
    lengths = _Lengths.of(norms, counted)
    if lengths is None:
        return None
    total = lengths.beyond(0.0)

    def missed(cap: float) -> float:
        return lengths.beyond(cap) / total

    def noise(cap: float, share: str) -> float:
        return cap**2 * lengths.count / (rows * sqrt(2 * float(share) * rho) * total)

    edges = [clip_norm, *(edge for edge in norms.edges if edge > clip_norm)]
    caps = [edge for edge in edges if missed(edge) <= _MOST_MISSED] or edges[-1:]
    cap = min(caps, key=lambda cap: hypot(missed(cap), noise(cap, CLIP_SHARES[-1])))
    share = next((share for share in CLIP_SHARES if noise(cap, share) <= _SMALL_NOISE), CLIP_SHARES[-1])
    return ClipTerms(share, cap)


@dataclass(frozen=True, slots=True)
class _Lengths:
    """The lengths of rows that a histogram shows above its noise, and a guess at longer ones.

    A row that is longer than `last` is longer than x·`last` with the probability x^(−`index`). This is a
    Pareto tail through the middle of all lengths. It falls at least as fast as the fourth power, because a
    slower tail would have no second moment of squared lengths, and every cap would be too short.

    Attributes:
        bins: counts above the noise, with the upper edges of their bins.
        last: the last of these edges.
        longer: how many rows are probably longer than it.
        index: of the tail.
    """

    bins: tuple[tuple[int, float], ...]
    last: float
    longer: float
    index: float

    @classmethod
    def of(cls, norms: Histogram, counted: int) -> Self | None:
        """The lengths in a histogram of `counted` lengths; None if it shows none above its noise."""
        counts, middle = above_noise(norms), quantile(norms, 0.5)
        bins = tuple((count, edge) for count, edge in zip(counts, norms.edges, strict=True) if count > 0)
        if not bins or middle is None:
            return None
        seen, last = sum(counts), bins[-1][1]
        if last == norms.edges[-1]:  # the last bin contains everything above its edge
            return cls(bins, last, 0.0, _LEAST_INDEX)
        # If most lengths are below the noise, they are probably near those that are seen.
        longer = max(counted - seen if 2 * seen > counted else 0, norms.noise)
        index = log((seen + longer) / (2 * longer)) / log(last / middle)
        return cls(bins, last, longer, max(index, _LEAST_INDEX))

    @property
    def count(self) -> float:
        return sum(count for count, _ in self.bins) + self.longer

    def beyond(self, cap: float) -> float:
        """The sum of what squared lengths have beyond the square of this cap."""
        seen = sum(count * max(edge**2 - cap**2, 0.0) for count, edge in self.bins)
        start = max(cap, self.last)
        of_tail = start**2 * pow(start / self.last, -self.index) * 2 / (self.index - 2)
        return seen + self.longer * (max(self.last**2 - cap**2, 0.0) + of_tail)
