"""The exact integer sums of one owner for a study of pairs or a pre-study, block by block.

Integer comparisons decide into which bin a record falls. Every edge of a histogram of norms is an integer:
the square of a norm, rounded down. Values above the last edge count in the last bin, and values below the
first edge in the first bin.
"""

from collections.abc import Iterator
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import NORM_BINS, OCTAVES, OF_PAIRS, TOLD, BlockName, gap_bound
from dpdpca_protocol.records.clipping import ClippedRows
from dpdpca_protocol.records.encoding import ABSENT, Integers, at_centre, cut_to_bound, obeys_bound
from dpdpca_protocol.records.pairing import difference
from dpdpca_protocol.records.projected_sums import ProjectedSums
from dpdpca_protocol.records.projection import Projection
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.terms.figures import Figures


def norm_edges(record_bound: int, scale: int = 1) -> Integers:
    """The squares of the 48 upper edges of a histogram of norms; the last bin has no upper edge here.

    Args:
        record_bound: K. The last bin ends at √K, and each edge is 2^(−1/4) times the next one.
        scale: the factor by which compared squares exceed those of the counted norms: 2 for |y|/√2.

    Returns:
        (48,) int64: edge b is ⌊scale·K·2^(−(48−b)/2)⌋.
    """
    top = (scale * record_bound) ** 2
    return np.array([isqrt(top >> (NORM_BINS - 1 - b)) for b in range(NORM_BINS - 1)], dtype=np.int64)


def octave_edges(grid: int) -> Integers:
    """The 11 upper edges of the bins, as squares of y_j: bin o ends where |y_j|/√2 is 2^(o−11) scaled units.

    Args:
        grid: q, one scaled unit.

    Returns:
        (11,) int64: edge o is ⌊2·q²·4^(o−11)⌋.
    """
    return np.array([2 * grid**2 >> 2 * (OCTAVES - 1 - o) for o in range(OCTAVES - 1)], dtype=np.int64)


class BlockSums:
    """Running sums over one owner's records and pairs, in the blocks of the study.

    Args:
        figures: the figures of a study of pairs or a pre-study.

    Attributes:
        count: the number of records or, in a study of pairs, of pairs.
        cut: the number of records or differences that were clipped so far.
    """

    def __init__(self, figures: Figures) -> None:
        self._names = tuple(block.name for block in figures.blocks[1:])
        self._bound, self._d = figures.record_bound, figures.encoded_features
        self._counts_pairs = figures.rules.of_pairs
        self._octave_edges = octave_edges(figures.grid)
        self._sums: dict[BlockName, Integers] = {
            block.name: np.zeros(block.length, dtype=np.int64)
            for block in figures.blocks[1:]
            if block.name is not BlockName.PAIR_MOMENT and block.name not in TOLD
        }
        self._clipped = clipped_rows(figures)
        self._moments = SecondMoments(self._d, self._bound) if self._counts_pairs else None
        self.count = 0
        self.cut = 0

    @property
    def has_pairs(self) -> bool:
        """Whether the study has blocks of pairs."""
        return any(name in OF_PAIRS for name in self._names)

    def add(self, z: Integers) -> None:
        """Adds records, (n, d) int64, before clipping. A coordinate that is `ABSENT` counts as 0."""
        self._check(z)
        if self._clipped is not None and self._clipped.gaps is not None:
            self._clipped.add_gaps(np.count_nonzero(z == ABSENT, axis=1))
        z = at_centre(z)
        if not self._counts_pairs:
            self.count += len(z)
        if BlockName.NORMS in self._names:
            self._sums[BlockName.NORMS] += _histogram(norm_edges(self._bound), squares(z))
        if BlockName.SUM in self._names:
            z, cut = cut_to_bound(z, self._bound)
            self._sums[BlockName.SUM] += z.sum(axis=0)
            self.cut += cut

    def add_pairs(self, first: Integers, second: Integers) -> None:
        """Adds pairs of records, each (n, d) int64, before clipping, with `ABSENT` for what they lack."""
        self._check(first)
        self._check(second)
        if BlockName.FAR_PAIRS in self._names:
            self._sums[BlockName.FAR_PAIRS] += np.count_nonzero(are_far(at_centre(first), at_centre(second)))
        y = difference(first, second)
        if BlockName.PAIR_NORMS in self._names:
            self._sums[BlockName.PAIR_NORMS] += _histogram(norm_edges(self._bound, 2), squares(y))
        if BlockName.OCTAVES in self._names:
            bins = np.searchsorted(self._octave_edges, y**2) + OCTAVES * np.arange(self._d)
            self._sums[BlockName.OCTAVES] += np.bincount(bins.ravel(), minlength=OCTAVES * self._d)
        if self._moments is not None:
            if self._clipped is not None:
                self._clipped.add(squares(y)[~obeys_bound(y, self._bound)])
            y, cut = cut_to_bound(y, self._bound)
            self._moments.add(y)
            self.count += len(y)
            self.cut += cut

    def merge(self, other: "BlockSums") -> None:
        """Adds the sums over other records and other pairs, under the same figures."""
        for name, sums in other._sums.items():
            self._sums[name] += sums
        if self._moments is not None and other._moments is not None:
            self._moments.merge(other._moments)
        if self._clipped is not None and other._clipped is not None:
            self._clipped.merge(other._clipped)
        self.count += other.count
        self.cut += other.cut

    def stream(self) -> Iterator[int]:
        """All values, one at a time, in the order in which they are sent."""
        yield self.count
        if self._moments is not None:
            for index, row in enumerate(self._moments.second_moment):
                yield from row[index:].tolist()
        for counts in self._sums.values():
            yield from counts.tolist()
        if self._clipped is not None:
            yield from self._clipped.values

    def values(self) -> Integers:
        """The values of `stream` as one array."""
        return np.fromiter(self.stream(), dtype=np.int64)

    def to_bytes(self) -> bytes:
        """A unique encoding of the sums."""
        return self.values().astype(">i8").tobytes()

    def _check(self, z: Integers) -> None:
        if z.ndim != 2 or z.shape[1] != self._d or z.dtype != np.int64:
            raise UsageError("bad-argument", f"records must be int64 with shape (n, {self._d})")


Sums = SecondMoments | BlockSums | ProjectedSums
"""One owner's sums, of the kind that its study needs."""


def new_sums(figures: Figures, projection: Projection | None = None) -> Sums:
    """Empty sums of the kind that a study needs.

    Args:
        figures: of the study.
        projection: of a sketch, a lift or scores; None for every other release.

    Raises:
        UsageError: the release needs a projection and there is none.
    """
    if figures.rules.is_wide:
        if projection is None:
            raise UsageError("bad-argument", f"the sums of a {figures.release} study need its projection")
        return ProjectedSums(figures, projection)
    if figures.rules.clips_records:
        return SecondMoments(figures.encoded_features, figures.record_bound, clipped_rows(figures))
    return BlockSums(figures)


def merge_sums(sums: Sums, other: Sums) -> None:
    """Adds the sums over other records of the same study to `sums`."""
    if type(sums) is not type(other):
        raise UsageError("bad-argument", "the two sums are of different kinds, so not of one study")
    sums.merge(other)  # type: ignore[arg-type]  # both are of one kind


def clipped_rows(figures: Figures) -> ClippedRows | None:
    """Empty sums of what clipping did and how many values are missing; None if the study does not ask."""
    setting = figures.mechanism.setting
    if not setting.clip_bound:
        return None
    gaps = gap_bound(figures.encoded_features) if setting.tells_gaps else 0
    return ClippedRows(setting.clip_bound, figures.clip_shift, gaps)


def squares(z: Integers) -> Integers:
    """Σ z² of each row.

    These sums are exact, because the figures refuse studies whose squares could exceed 64 bits.
    """
    return np.asarray(np.einsum("ij,ij->i", z, z), dtype=np.int64)


def are_far(z: Integers, x: Integers) -> NDArray[np.bool_]:
    """Which pairs of records lie far from the public centre: 2·|z − x|² < |z|² + |x|².

    Most pairs do so if the mean of the records is further from the centre than they usually are from their
    mean.

    Args:
        z: (n, d) int64, before clipping, 0 where a value is missing.
        x: their partners, with the same shape.
    """
    return np.asarray(2 * squares(z - x) < squares(z) + squares(x))


def _histogram(edges: Integers, values: Integers) -> Integers:
    """The number of values in each bin (previous edge, edge]."""
    counts: Integers = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
    return counts
