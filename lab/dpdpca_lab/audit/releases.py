"""Releases in plain integers, many at a time: what the data user decrypts, without the encryption.

Encryption is left out because the cryptosystem is exact: what is decrypted is the integer that was computed,
whatever the randomness (tests/unit/lab/test_audit_releases.py runs both side by side). Noise and mask come
from the functions that the proxy calls, the places of the noise from the function that places it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.privacy.gaussian import discrete_gaussian
from dpdpca_protocol.privacy.mechanisms import Mechanism, NoiseLaw
from dpdpca_protocol.privacy.mechanisms.discrete_laplace import discrete_laplace
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.release.release import draw_mask, noise_row
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures

Integers = NDArray[np.object_]
"""An array of Python integers: a masked entry has some 200 bits."""

_AHEAD = 4_000
_JOINT_GRANULARITY = 16
_UNIFORM = 2  # modulo m, noise of scale 2m is uniform within 2·exp(−8π²) ≈ 10⁻³⁴


@dataclass(frozen=True, slots=True)
class Totals:
    """What the products over the cohort decrypt to, in grid units.

    Attributes:
        count: N.
        sum: v, d integers.
        second_moment: R, d × d integers, symmetric.
        values: all blocks but the count, of a study of pairs or a pre-study, which have no v and no R.
    """

    count: int
    sum: tuple[int, ...]
    second_moment: tuple[tuple[int, ...], ...]
    values: tuple[int, ...] = ()

    @classmethod
    def of(cls, z: NDArray[np.int64], record_bound: int, owners: int = 1) -> "Totals":
        """The totals of encoded records that `owners` owners hold in turns.

        Args:
            z: (N, d) int64, Σ z² ≤ K in every row; checked by each owner's `SecondMoments`.
            record_bound: K.
            owners: L.
        """
        d = z.shape[1]
        shares = [SecondMoments(d, record_bound) for _ in range(min(owners, len(z)))]
        for index, share in enumerate(shares):
            share.add(np.ascontiguousarray(z[index :: len(shares)]))
        sums = np.array([share.sum for share in shares], dtype=object).sum(axis=0)
        moments = np.array([share.second_moment for share in shares], dtype=object).sum(axis=0)
        return cls(
            sum(share.count for share in shares),
            tuple(int(value) for value in sums),
            tuple(tuple(int(value) for value in row) for row in moments),
        )


class Law(StrEnum):
    """What the noise is stated to be; it decides which statistic is best and what can be checked."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    OTHER = "other"

    @classmethod
    def of(cls, mechanism: Mechanism) -> "Law":
        laws = {"gaussian": cls.GAUSSIAN, "mod-sulq": cls.GAUSSIAN, "laplace": cls.LAPLACE}
        return laws.get(mechanism.name, cls.OTHER)


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One number that the data user sees, with the noise that is stated for it.

    Attributes:
        name: for people.
        scale: standard deviation of its noise (σ of the discrete Gaussian), grid units.
        entry: (i, j) in the matrix, or None for an entry of the sum.
        copy_of: position of the coordinate that it must equal, or None.
    """

    name: str
    scale: float
    entry: tuple[int, int] | None
    copy_of: int | None = None


@dataclass(frozen=True, slots=True)
class Views:
    """What the data user sees in `runs` releases.

    Attributes:
        values: (runs, m) integers, one column a `Coordinate`.
        veiled: (runs, k) integers under the uniform mask: v′, or none.
    """

    values: Integers
    veiled: Integers


class Release(Protocol):
    """A mechanism that the audit can play. The stated law is in `coordinates`; `play` is what happens."""

    d: int
    law: Law
    veil: int  # B, on how many consecutive integers about 0 the mask is uniform; 0 where there is none

    def granularity(self, count: int) -> int | None:
        """A number modulo which the stated noise is uniform, and the data must not show; or None."""

    def coordinates(self, count: int) -> tuple[Coordinate, ...]:
        """The coordinates of `Views.values`, with their stated noise at N = `count`."""

    def truth(self, totals: Totals) -> tuple[int, ...]:
        """`Views.values` without noise."""

    def play(self, totals: Totals, runs: int) -> Views:
        """`runs` independent releases of the same totals."""


class DrawnAhead:
    """A source of discrete noise that draws many at once: one call of the sampler costs 20 draws."""

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
    """What both releases have in common: the study's mechanism on the features that are played."""

    def __init__(self, figures: Figures, d: int | None = None) -> None:
        self.figures = figures
        self.d = _features(figures, d)
        # Laws and scales of single entries do not depend on how many others there are.
        setting = replace(figures.mechanism.setting, encoded_features=self.d)
        self.mechanism = replace(figures.mechanism, setting=setting)
        self.law = Law.of(self.mechanism)
        self.sample = DrawnAhead().samplers

    def stated(self, count: int) -> NoiseLaw:
        return self.mechanism.law(count)

    def draw_noise(self, count: int, runs: int) -> Integers:
        """(runs, size of a release): the noise of so many releases, as its mechanism draws it."""
        return integers(self.mechanism.draw(count, self.sample) for _ in range(runs))


class JointRelease(_Played):
    """(N, ṽ, R̃) of a joint study; N is exact, and the same in both data sets.

    Args:
        figures: the study's.
        d: features to play with, at most the study's; all if None.
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
        return (*sums, *triangle("R", self.d, sqrt(law.diagonal), sqrt(law.off_diagonal)))

    def truth(self, totals: Totals) -> tuple[int, ...]:
        return (*totals.sum, *upper(totals.second_moment))

    def play(self, totals: Totals, runs: int) -> Views:
        values = integers([[totals.count, *self.truth(totals)]]) + self.draw_noise(totals.count, runs)
        return Views(values[:, 1:], np.empty((runs, 0), dtype=object))


class MaskedRelease(_Played):
    """(v′, T) of a masked study, seen as (v′, N·S̃ = T − v′ v′ᵀ), with every copy of an entry.

    Args:
        figures: the study's.
        d: features to play with, at most the study's; all if None.
        randomness: of the mask.
    """

    def __init__(
        self, figures: Figures, d: int | None = None, randomness: Randomness = OS_RANDOMNESS
    ) -> None:
        super().__init__(figures, d)
        self.layout = BlockLayout(self.d, figures.slot_bits, figures.slots)
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

    def place_noise(self, i: int, columns: range) -> Sequence[int]:
        """Which draws stand in `columns` of row i."""
        return noise_row(range(self.d * (self.d + 1) // 2), self.d, i, columns)

    def masked(self, totals: Totals, mask: Integers, noise: Integers) -> tuple[Integers, Integers]:
        """The plaintext twin of `make_masked_release`.

        Args:
            totals: N, v and R.
            mask: (runs, d), b.
            noise: (runs, d(d+1)/2), H as upper triangles by rows, at the scale of N·S.

        Returns:
            v′ (runs, d), and T (runs, d, d) where the release holds it, 0 elsewhere.
        """
        n, v, r = totals.count, totals.sum, totals.second_moment
        rows: Integers = np.zeros((len(mask), self.d, self.d), dtype=object)
        for i in range(self.d):
            for _, columns in self.layout.blocks(i):
                for j, draw in zip(columns, self.place_noise(i, columns), strict=True):
                    b_i, b_j = mask[:, i], mask[:, j]
                    rows[:, i, j] = n * r[i][j] + v[i] * b_j + b_i * v[j] + b_i * b_j + noise[:, draw]
        return mask + integers([v]), rows

    def play(self, totals: Totals, runs: int) -> Views:
        n = totals.count
        sums, rows = self.masked(totals, self.draw_mask(runs), self.draw_noise(n, runs))
        entries = [(i, j) for i in range(self.d) for j in range(i, self.d)] + self._left()
        columns = [rows[:, i, j] - sums[:, i] * sums[:, j] for i, j in entries]
        return Views(np.stack(columns, axis=1), sums)

    def _left(self) -> list[tuple[int, int]]:
        """The entries left of the diagonal that the release holds, as copies."""
        return [
            (i, j) for i in range(self.d) for _, columns in self.layout.blocks(i) for j in columns if j < i
        ]


def release_of(figures: Figures, d: int | None = None) -> JointRelease | MaskedRelease:
    """The release of a study."""
    return JointRelease(figures, d) if figures.release is ReleaseKind.JOINT else MaskedRelease(figures, d)


def _features(figures: Figures, d: int | None) -> int:
    if d is not None and not 1 <= d <= figures.encoded_features:
        raise UsageError("bad-argument", "an audit plays with some of the study's features")
    return figures.encoded_features if d is None else d


def triangle(name: str, d: int, diagonal: float, off_diagonal: float) -> list[Coordinate]:
    """The coordinates of a symmetric matrix, with the scales on and off its diagonal."""
    return [
        Coordinate(f"{name}{i + 1},{j + 1}", diagonal if i == j else off_diagonal, (i, j))
        for i in range(d)
        for j in range(i, d)
    ]


def upper(matrix: Sequence[Sequence[int]]) -> list[int]:
    """The upper triangle by rows, as the noise has it."""
    return [matrix[i][j] for i in range(len(matrix)) for j in range(i, len(matrix))]


def integers(rows: Iterable[Sequence[int]]) -> Integers:
    """Rows of Python integers as an array that leaves them exact."""
    return np.array(list(rows), dtype=object)
