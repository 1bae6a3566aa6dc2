"""How a study asks what clipping did: for which part of ρ, and up to which length."""

from math import hypot, sqrt

from dpdpca_user.planning.prestudy import Histogram

CLIP_SHARE = "0.005"
"""The part of ρ that drafts give to each of the two numbers about clipping."""

_SIGMAS = 2.0
_NEARLY_ALL = 0.95
_UNSEEN = 2
"""Bins above the last one that shows, each of which may hold as many rows as the noise hides."""


def clip_cap(norms: Histogram, counted: int, rows: int, clip_norm: float, rho: float) -> float | None:
    """The length up to which the squared lengths of clipped rows should be summed.

    A short cap misses what longer rows have beyond it. A long one makes the noise large, because the noise
    grows with the square of the cap. The best cap is the edge of the histogram with the smallest error of the
    two together. Only bins that are connected with the highest one count, because others may be noise, unless
    most lengths are in others.

    Args:
        norms: a released histogram of the rows' lengths, in the unit of `clip_norm`.
        counted: how many lengths it counts.
        rows: how many rows the study will have.
        clip_norm: r of the study.
        rho: what the number spends.

    Returns:
        The cap, at least `clip_norm`; None if the histogram shows nothing above its noise.
    """
    peak = max(range(len(norms.counts)), key=lambda index: norms.counts[index])
    least = _SIGMAS * norms.noise
    if norms.counts[peak] < least:
        return None
    last = peak
    while last + 1 < len(norms.counts) and (
        norms.counts[last + 1] >= least or sum(norms.counts[: last + 1]) < _NEARLY_ALL * counted
    ):
        last += 1
    counts = [float(max(count, 0)) for count in norms.counts[: last + 1]]
    counts += [norms.noise] * min(_UNSEEN, len(norms.counts) - len(counts))
    lengths = list(zip(counts, norms.edges, strict=False))

    def error(cap: float) -> float:
        missed = sum(count * max(edge**2 - cap**2, 0.0) for count, edge in lengths)
        return hypot(missed * rows / sum(counts), cap**2 / sqrt(2 * rho))

    return min((max(edge, clip_norm) for _, edge in lengths), key=error)
