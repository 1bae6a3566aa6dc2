"""Makes many releases in plain integers: what the data user decrypts, without the encryption.

The reference makes the releases (`dpdpca_protocol.reference`). Noise and mask come from the functions that
the proxy calls. Encryption is left out because the cryptosystem is exact: the decrypted integer is the one
that was computed, whatever the randomness (tests/unit/lab/test_audit_releases.py compares both).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.mechanisms import Wishart
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import block_length, value_count
from dpdpca_protocol.layout.packing import symmetric_rows, unpack
from dpdpca_protocol.privacy.gaussian import discrete_gaussian
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Mechanism, NoiseLaw
from dpdpca_protocol.privacy.mechanisms.discrete_laplace import discrete_laplace
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.records.clipping import ClippedRows
from dpdpca_protocol.records.encoding import NONE_LONG
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.reference import block_layout, masked_release, plaintexts, vectors_of
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import draw_mask
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures

Integers = NDArray[np.object_]
"""An array of Python integers: a masked entry has some 200 bits."""

_AHEAD = 4_000
_JOINT_GRANULARITY = 16
_UNIFORM = 2  # modulo m, noise of scale 2m is uniform within 2·exp(−8π²) ≈ 10⁻³⁴


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a cohort before noise, in grid units.

    Attributes:
        count: N.
        sum: v, d integers.
        second_moment: R, d × d integers, symmetric.
        values: all blocks except the count. Only for a study of pairs or a pre-study, which have no v and R.
        clipped: what clipping did to the records of a joint study; left out if it did nothing.
        gaps: how many values the records of a joint study lack, in each at most half.
    """

    count: int
    sum: tuple[int, ...]
    second_moment: tuple[tuple[int, ...], ...]
    values: tuple[int, ...] = ()
    clipped: tuple[int, int] = (0, 0)
    gaps: int = 0

    @classmethod
    def of(
        cls,
        z: NDArray[np.int64],
        record_bound: int,
        long: NDArray[np.int64] = NONE_LONG,
        told: ClippedRows | None = None,
        gaps: NDArray[np.int64] = NONE_LONG,
    ) -> "Totals":
        """The totals of encoded records, of all owners together.

        Args:
            z: (N, d) int64, Σ z² ≤ K in every row; checked.
            record_bound: K.
            long: squared lengths of the clipped records before clipping.
            told: empty sums of what clipping did, or None.
            gaps: how many encoded values each record lacks.
        """
        moments = SecondMoments(z.shape[1], record_bound, told)
        moments.add(z)
        moments.add_clipped(long)
        moments.add_gaps(gaps)
        rows = moments.second_moment.tolist()
        sums = moments.count, tuple(moments.sum.tolist()), tuple(map(tuple, rows))
        if moments.clipped is None:
            return cls(*sums)
        clipped = moments.clipped.count, moments.clipped.squares
        return cls(*sums, clipped=clipped, gaps=moments.clipped.gaps or 0)


class Law(StrEnum):
    """The stated distribution of the noise, which determines the best statistic and the possible checks."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    OTHER = "other"

    @classmethod
    def of(cls, mechanism: Mechanism | Wishart) -> "Law":
        if isinstance(mechanism, Gaussian):
            return cls.GAUSSIAN
        return cls.LAPLACE if isinstance(mechanism, Laplace) else cls.OTHER


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One number that the data user sees, with its stated noise.

    Attributes:
        name: its name, for people.
        scale: standard deviation of its noise (σ of the discrete Gaussian), in grid units.
        entry: (i, j) in the matrix, or None for an entry of the sum.
        copy_of: position of the coordinate to which it must be equal, or None.
    """

    name: str
    scale: float
    entry: tuple[int, int] | None
    copy_of: int | None = None


@dataclass(frozen=True, slots=True)
class Views:
    """What the data user sees in `runs` releases.

    Attributes:
        values: (runs, m) integers, one column for each `Coordinate`.
        veiled: (runs, k) integers with the uniform mask: v′, or no columns.
    """

    values: Integers
    veiled: Integers


class Release(Protocol):
    """A mechanism that the audit can test. `coordinates` gives the stated noise; `play` makes releases."""

    d: int
    law: Law
    veil: int  # B, on how many consecutive integers about 0 the mask is uniform; 0 where there is none

    def granularity(self, count: int) -> int | None:
        """A number modulo which the stated noise is uniform, and so hides the data's residue; else None."""

    def coordinates(self, count: int) -> tuple[Coordinate, ...]:
        """The coordinates of `Views.values`, with their stated noise at N = `count`."""

    def truth(self, totals: Totals) -> tuple[int, ...]:
        """`Views.values` without noise."""

    def play(self, totals: Totals, runs: int) -> Views:
        """`runs` independent releases of the same totals."""


class DrawnAhead:
    """A source of discrete noise that draws many values at once, because each call costs as much as 20
    draws."""

    def __init__(self) -> None:
        self._stock: dict[tuple[Fraction, int | None], list[int]] = {}

    @property
    def samplers(self) -> Samplers:
        return Samplers(self.gaussian, self.laplace)

    def gaussian(self, variance: Fraction, count: int, bound: int) -> list[int]:
        return self._taken((variance, bound), count, lambda least: discrete_gaussian(variance, least, bound))

    def laplace(self, scale: Fraction, count: int) -> list[int]:
        return self._taken((scale, None), count, lambda least: discrete_laplace(scale, least))

    def _taken(
        self, key: tuple[Fraction, int | None], count: int, draw: Callable[[int], list[int]]
    ) -> list[int]:
        stock = self._stock.setdefault(key, [])
        if len(stock) < count:
            stock += draw(max(_AHEAD, count - len(stock)))
        start = len(stock) - count
        taken = stock[start:]
        del stock[start:]
        return taken


class _Played:
    """What both releases have in common: the study's mechanism on the features in the game."""

    def __init__(self, figures: Figures, d: int | None = None) -> None:
        self.figures = narrowed(figures, d)
        self.d = self.figures.encoded_features
        self.mechanism = self.figures.mechanism
        self.law = Law.of(self.mechanism)
        self.sample = DrawnAhead().samplers

    def stated(self, count: int) -> NoiseLaw:
        return self.mechanism.law(count)

    def draw_noise(self, count: int, runs: int) -> Integers:
        """(runs, size of a release) the noise of `runs` releases, as the mechanism draws it."""
        return integers(self.mechanism.draw(count, self.sample) for _ in range(runs))


class JointRelease(_Played):
    """(N, ṽ, R̃) of a joint study. N is exact, and the same for both data sets.

    Args:
        figures: the figures of the study.
        d: number of features in the game, at most that of the study; None means all.
    """

    veil = 0

    def granularity(self, count: int) -> int | None:
        if self.law is not Law.GAUSSIAN:
            return None
        least = min(coordinate.scale for coordinate in self.coordinates(count))
        return _JOINT_GRANULARITY if least >= _UNIFORM * _JOINT_GRANULARITY else None

    def coordinates(self, count: int) -> tuple[Coordinate, ...]:
        law = self.stated(count)
        sums = [Coordinate(f"v{i + 1}", sqrt(law.sum_), None) for i in range(self.d)]
        matrix = triangle("R", self.d, sqrt(law.diagonal), sqrt(law.off_diagonal))
        return (*sums, *matrix, *self._told())

    def _told(self) -> list[Coordinate]:
        told = self.mechanism.setting.told
        if not told:
            return []
        assert isinstance(self.mechanism, Gaussian)
        return [Coordinate(name, sqrt(self.mechanism.variance(name)), None) for name in told]

    def truth(self, totals: Totals) -> tuple[int, ...]:
        told = (*totals.clipped, totals.gaps)[: len(self.mechanism.setting.told)]
        return (*totals.sum, *upper(totals.second_moment), *told)

    def play(self, totals: Totals, runs: int) -> Views:
        values = [totals.count, *self.truth(totals)]
        return flat_views(self.figures, values, self.draw_noise(totals.count, runs))


class MaskedRelease(_Played):
    """A masked release (v′, T), converted to v′ and N·S̃ = T − v′ v′ᵀ, including every copy of an entry.

    Args:
        figures: the figures of the study.
        d: number of features in the game, at most that of the study; None means all.
        randomness: for the mask.
    """

    def __init__(
        self, figures: Figures, d: int | None = None, randomness: Randomness = OS_RANDOMNESS
    ) -> None:
        super().__init__(figures, d)
        self.layout = block_layout(self.figures)
        self.veil = 1 << figures.mask_bits
        self.randomness = randomness

    def granularity(self, count: int) -> int | None:
        if self.law is not Law.GAUSSIAN or count < 2:
            return None
        return count if self.stated(1).off_diagonal >= 2 * _UNIFORM**2 else None

    def coordinates(self, count: int) -> tuple[Coordinate, ...]:
        law = self.stated(count)
        entries = triangle("N·S", self.d, sqrt(law.diagonal), sqrt(law.off_diagonal))
        place = {coordinate.entry: index for index, coordinate in enumerate(entries)}
        copies = [
            Coordinate(f"N·S{i + 1},{j + 1}", entries[place[j, i]].scale, (i, j), place[j, i])
            for i, j in self._left()
        ]
        return (*entries, *copies)

    def truth(self, totals: Totals) -> tuple[int, ...]:
        n, v, r = totals.count, totals.sum, totals.second_moment
        scaled = [[n * r[i][j] - v[i] * v[j] for j in range(self.d)] for i in range(self.d)]
        return (*upper(scaled), *(scaled[i][j] for i, j in self._left()))

    def draw_mask(self, runs: int) -> Integers:
        """(runs, d): the proxy's mask, as its worker draws it."""
        bits = self.figures.mask_bits
        return integers(draw_mask(self.d, bits, self.randomness) for _ in range(runs))

    def place_noise(self, drawn: Sequence[int]) -> Sequence[Sequence[int]]:
        """H, d × d, of the draws for one release."""
        return symmetric_rows(self.d, drawn)

    def play(self, totals: Totals, runs: int) -> Views:
        n = totals.count
        aggregate = plaintexts(self.figures, [n, *totals.sum, *upper(totals.second_moment)])
        entries = [(i, j) for i in range(self.d) for j in range(i, self.d)] + self._left()
        values, veiled = [], []
        for b, drawn in zip(self.draw_mask(runs), self.draw_noise(n, runs), strict=True):
            H = self.place_noise(drawn)
            released = masked_release(self.figures, aggregate, n, b, H, UNENCRYPTED)
            sums, rows = released[: self.d], self._rows(released[self.d :])
            values.append([rows[i, j] - sums[i] * sums[j] for i, j in entries])
            veiled.append(sums)
        return Views(integers(values), integers(veiled))

    def _rows(self, blocks: Sequence[int]) -> dict[tuple[int, int], int]:
        """T from the release, including the copies left of the diagonal, which are not compared."""
        remaining = iter(blocks)
        return {
            (i, j): entry
            for i in range(self.d)
            for _, columns in self.layout.blocks(i)
            for j, entry in zip(
                columns, unpack(next(remaining), self.figures.slot_bits, len(columns)), strict=True
            )
        }

    def _left(self) -> list[tuple[int, int]]:
        """The entries of the release that are left of the diagonal, as copies."""
        return [
            (i, j) for i in range(self.d) for _, columns in self.layout.blocks(i) for j in columns if j < i
        ]


def release_of(figures: Figures, d: int | None = None) -> JointRelease | MaskedRelease:
    """The release that the audit plays for a study."""
    return JointRelease(figures, d) if figures.release is ReleaseKind.JOINT else MaskedRelease(figures, d)


def narrowed(figures: Figures, d: int | None) -> Figures:
    """The figures with d features, at most as many as the study has; None means all.

    The noise of a single entry does not depend on the number of other entries. Octaves are the exception:
    with fewer features, they have the noise of a study with d features.
    """
    if d is None:
        return figures
    if not 1 <= d <= figures.encoded_features:
        raise UsageError("bad-argument", "an audit plays with some of the study's features")
    blocks = tuple(replace(block, length=block_length(block.name, d)) for block in figures.blocks)
    return replace(
        figures,
        encoded_features=d,
        mechanism=replace(figures.mechanism, setting=replace(figures.mechanism.setting, encoded_features=d)),
        blocks=blocks,
        value_count=value_count(blocks) if blocks else 1 + d + d * (d + 1) // 2,
    )


def flat_views(figures: Figures, values: Sequence[int], noise: Integers) -> Views:
    """What the data user sees in flat releases of the same values, without the count.

    Args:
        figures: define the order of the values, and how they are packed.
        values: the totals in the order of a share, with the count first.
        noise: (runs, len(values)).
    """
    vectors = vectors_of(figures, UNENCRYPTED)
    aggregate = vectors.encrypt(values)
    seen = [vectors.decrypt(vectors.add_plain(aggregate, drawn)) for drawn in noise]
    return Views(integers(seen)[:, 1:], np.empty((len(noise), 0), dtype=object))


def triangle(name: str, d: int, diagonal: float, off_diagonal: float) -> list[Coordinate]:
    """The coordinates of a symmetric matrix, with their scales on and off the diagonal."""
    return [
        Coordinate(f"{name}{i + 1},{j + 1}", diagonal if i == j else off_diagonal, (i, j))
        for i in range(d)
        for j in range(i, d)
    ]


def upper(matrix: Sequence[Sequence[int]]) -> list[int]:
    """The upper triangle by rows, in the order of the noise."""
    return [matrix[i][j] for i in range(len(matrix)) for j in range(i, len(matrix))]


def integers(rows: Iterable[Sequence[int]]) -> Integers:
    """Rows of Python integers as an array that keeps them exact."""
    return np.array(list(rows), dtype=object)
