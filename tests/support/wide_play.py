"""The rounds of a release for many features, played in numpy on records in memory.

Records are whole numbers on a grid, as owners encode them, and so are the sketch, the lift and the scores of
each record. Noise is continuous. This is not the product's encoder: the readings of the data user are tested
with it.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor, isqrt, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.privacy.mechanisms import NoiseLaw
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.terms.terms import LIFT_BOUND
from dpdpca_user.results.wide.rule import LiftRule

Floats = NDArray[np.float64]
_BATCH = 2**24


def hashed_columns(seed: bytes, d: int, m: int) -> tuple[NDArray[np.int64], Floats]:
    """(2, d) the rows in which each column of P₀ has its two entries, and (2, d) these entries, ±1."""
    text = b"dpdpca/sketch/v1\x00" + seed + d.to_bytes(4, "big") + m.to_bytes(4, "big")
    drawn = np.frombuffer(hashlib.shake_256(text).digest(4 * d), dtype=">u2").reshape(d, 2).T.astype(np.int64)
    half = m // 2
    places = ((drawn >> 1) * half >> 15) + np.array([[0], [half]])
    return places, np.where(drawn & 1, -1.0, 1.0)


def sketch_matrix(seed: bytes, d: int, m: int) -> Floats:
    """(m, d) P₀."""
    places, signs = hashed_columns(seed, d, m)
    matrix = np.zeros((m, d))
    for where, sign in zip(places, signs, strict=True):
        matrix[where, np.arange(d)] = sign
    return matrix


def cut_rows(rows: Floats, bound: int) -> Floats:
    """Rows of whole numbers with Σ² ≤ bound: longer ones are scaled to √bound − √n/2 and rounded."""
    squares = np.einsum("ij,ij->i", rows, rows)
    long = squares > bound
    if long.any():
        length = sqrt(bound) - sqrt(rows.shape[1]) / 2
        rows = rows.copy()
        rows[long] = np.rint(rows[long] * (length / np.sqrt(squares[long]))[:, None])
    return rows


@dataclass
class WidePlay:
    """Records, and what is done with them.

    Attributes:
        batches: yields (n, d) whole numbers as float64, uncut, the same each time.
        repeats: how many equal copies of each record there are.
        record_bound: K.
        source: of noise.
    """

    batches: Callable[[], Iterator[Floats]]
    repeats: int
    d: int
    record_bound: int
    source: Any
    of_pairs: bool = False
    draws: int = 1
    seed: bytes = b"\x07" * 32
    matrix: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def sketch(self, m: int, rho: float, draws: int = 2) -> tuple[NoisyScatter, NoiseLaw]:
        self.matrix = sketch_matrix(self.seed, self.d, m)
        bound = 2 * self.record_bound
        return self._released(
            (cut_rows(z @ self.matrix.T, bound) for z in self._rows()), m, bound, rho, draws
        )

    def lift(self, rule: LiftRule, rho: float) -> tuple[Floats, Floats, float]:
        """(d, k) L̃, (k, k) G̃ and t."""
        k = len(rule.matrix)
        towards = (rule.matrix.astype(np.float64) @ self.matrix).T
        offset = np.array([float(each) for each in rule.offset])
        lifted, gram = np.zeros((self.d, k)), np.zeros((k, k))
        for z in self._rows():
            a = cut_rows(np.floor((z @ towards + offset + 2**15) / 2**16), LIFT_BOUND)
            lifted += z.T @ a
            gram += a.T @ a
        t = sqrt(2 * self.record_bound * LIFT_BOUND / rho * self.draws)
        lifted = self.repeats * lifted + t * self.source.standard_normal((self.d, k))
        u = t * sqrt(LIFT_BOUND / self.record_bound)
        return lifted, self.repeats * gram + self._symmetric(k, sqrt(2) * u, u), t

    def scores(self, vectors: Floats, norm: float, rho: float) -> tuple[NoisyScatter, NoiseLaw]:
        """Scores of the directions (k, d), cut to `norm` in grid units."""
        turn = np.rint(2**14 * vectors.astype(np.float32)).astype(np.float64)
        bound = floor(norm**2)
        scores = (cut_rows(np.floor((z @ turn.T + 2**13) / 2**14), bound) for z in self._rows())
        return self._released(scores, len(vectors), bound, rho, self.draws)

    def _rows(self) -> Iterator[Floats]:
        return (cut_rows(batch, self.record_bound) for batch in self.batches())

    def _released(
        self, rows: Iterator[Floats], m: int, bound: int, rho: float, draws: int
    ) -> tuple[NoisyScatter, NoiseLaw]:
        count, total, moment = 0, np.zeros(m), np.zeros((m, m))
        for y in rows:
            count += len(y) * self.repeats
            total += self.repeats * y.sum(axis=0)
            moment += self.repeats * (y.T @ y)
        weight = 0.0 if self.of_pairs else 0.05 * bound
        t = bound / sqrt(rho) if self.of_pairs else (2 * bound + weight) / (2 * sqrt(rho))
        on_sum = 0.0 if self.of_pairs else t**2 / weight * draws
        law = NoiseLaw(
            Fraction(t**2 * draws), Fraction(t**2 / 2 * draws), Fraction(on_sum), isqrt(int(t * 13)), 0
        )
        noisy = moment + self._symmetric(m, t * sqrt(draws), t * sqrt(draws / 2))
        whole = [[int(each) for each in row] for row in noisy]
        if self.of_pairs:
            return NoisyScatter(count, tuple(map(tuple, whole)), None, True), law
        sums = [int(each) for each in total + sqrt(on_sum) * self.source.standard_normal(m)]
        scatter = tuple(tuple(count * whole[i][j] - sums[i] * sums[j] for j in range(m)) for i in range(m))
        return NoisyScatter(count, scatter, tuple(sums)), law

    def _symmetric(self, m: int, diagonal: float, off_diagonal: float) -> Floats:
        upper = np.triu(off_diagonal * self.source.standard_normal((m, m)), 1)
        return np.asarray(upper + upper.T + np.diag(diagonal * self.source.standard_normal(m)))


@dataclass
class NormalPlay(WidePlay):
    """Records of normal components, of which only y is drawn: sums need no more of z than its law given y.

    Attributes:
        variances: (d,) of the components in grid² units. P₀ is turned to them, so that they are no features;
            where they are all equal, that changes nothing.
        count: N.
        is_turned: whether P₀ is turned.
    """

    variances: Floats = field(default_factory=lambda: np.zeros(0))
    count: int = 0
    is_turned: bool = True
    sketched: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    towards: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def sketch(self, m: int, rho: float, draws: int = 2) -> tuple[NoisyScatter, NoiseLaw]:
        self.matrix = sketch_matrix(self.seed, self.d, m)
        if self.is_turned:
            self.matrix = self.matrix @ np.linalg.qr(self.source.standard_normal((self.d, self.d)))[0]
        spread = (self.matrix * self.variances) @ self.matrix.T
        values, vectors = np.linalg.eigh(spread)  # a row without entries has none
        root = vectors * np.sqrt(np.maximum(values, 0))
        self.towards = (np.linalg.pinv(spread, hermitian=True) @ (self.matrix * self.variances)).T
        self.sketched = self.source.standard_normal((self.count, m)) @ root.T
        bound = 2 * self.record_bound
        return self._released(iter([cut_rows(np.rint(self.sketched), bound)]), m, bound, rho, draws)

    def lift(self, rule: LiftRule, rho: float) -> tuple[Floats, Floats, float]:
        k = len(rule.matrix)
        offset = np.array([float(each) for each in rule.offset])
        numbers = self.sketched @ rule.matrix.T.astype(np.float64) + offset
        a = cut_rows(np.floor((numbers + 2**15) / 2**16), LIFT_BOUND)
        gram = a.T @ a
        left = np.maximum(
            self.variances - np.einsum("im,mi->i", self.towards, self.matrix * self.variances), 0
        )
        other = np.sqrt(left)[:, None] * self.source.standard_normal((self.d, k)) @ np.linalg.cholesky(gram).T
        t = sqrt(2 * self.record_bound * LIFT_BOUND / rho * self.draws)
        lifted = self.towards @ (self.sketched.T @ a) + other
        u = t * sqrt(LIFT_BOUND / self.record_bound)
        return (
            lifted + t * self.source.standard_normal((self.d, k)),
            gram + self._symmetric(k, sqrt(2) * u, u),
            t,
        )

    def full(self, rho: float) -> Floats:
        """(d, d) the noisy scatter of a joint release of the records themselves."""
        root = np.sqrt(self.variances)
        t = 1.025 * self.record_bound / sqrt(rho)
        sampled = self.count * np.eye(self.d) + self._symmetric(
            self.d, sqrt(2 * self.count), sqrt(self.count)
        )
        return root[:, None] * sampled * root + self._symmetric(self.d, t, t / sqrt(2))


class Silence:
    """A source of noise that draws nothing but zeros."""

    def standard_normal(self, shape: int | tuple[int, ...]) -> Floats:
        return np.zeros(shape)
