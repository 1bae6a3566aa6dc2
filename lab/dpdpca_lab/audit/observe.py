"""Turns views into numbers (noise in its stated scale, residues, matches, copies) and computes the
statistics.

Integers are compared before anything is rounded, because a leak may be in the last bit of a number of 200
bits. A statistic may depend only on the view. If a statistic were computed from the noise and then shifted by
the difference of the data sets, it would be rounded differently on each side, and the audit would detect its
own rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.audit.neighbours import Neighbours
from dpdpca_lab.audit.releases import Coordinate, Integers, Law, Release, Views

CELLS = 16

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen on one side of a pair.

    Attributes:
        seen: (runs, m) distance from the true values of the first data set, on both sides, in units of the
            stated scale.
        exact, residues, veiled_residues: (runs,) number of coordinates that agree with the true values of the
            second data set but not with those of the first, minus the reverse. `exact` compares whole
            numbers, `residues` compares residues modulo the granularity, and `veiled_residues` compares v′
            modulo N.
        veiled_most: (runs,) the largest step of a v′ᵢ from the first sum towards the second, in units of the
            distance between them. Values that only one side can reach are at the ends of the mask.
        residue_cells: (m, cells) counts of the noise modulo the granularity; (m, 0) if none is stated.
        veiled_cells: (k, cells) counts of the mask modulo N.
        veil_cells: (k, cells + 1) counts of the mask within its range; the last one counts values outside.
        zeros: (m,) how often a coordinate had no noise.
        divisors: (m,) greatest common divisor of all noise of a coordinate.
        asymmetric: number of runs in which a copy of an entry differed from it.
    """

    seen: Floats
    exact: Floats
    residues: Floats
    veiled_residues: Floats
    veiled_most: Floats
    residue_cells: Counts
    veiled_cells: Counts
    veil_cells: Counts
    zeros: Counts
    divisors: Integers
    asymmetric: int

    @property
    def runs(self) -> int:
        return len(self.seen)

    @classmethod
    def joined(cls, parts: "Sequence[Observed]") -> Self:
        """The runs of all parts, in order."""
        return cls(
            seen=np.concatenate([part.seen for part in parts]),
            exact=np.concatenate([part.exact for part in parts]),
            residues=np.concatenate([part.residues for part in parts]),
            veiled_residues=np.concatenate([part.veiled_residues for part in parts]),
            veiled_most=np.concatenate([part.veiled_most for part in parts]),
            residue_cells=np.sum([part.residue_cells for part in parts], axis=0),
            veiled_cells=np.sum([part.veiled_cells for part in parts], axis=0),
            veil_cells=np.sum([part.veil_cells for part in parts], axis=0),
            zeros=np.sum([part.zeros for part in parts], axis=0),
            divisors=np.gcd.reduce([part.divisors for part in parts], axis=0),
            asymmetric=sum(part.asymmetric for part in parts),
        )


class Lens:
    """Reads the views of one pair.

    Args:
        release: the mechanism that made them.
        pair: the neighbouring data sets.
    """

    def __init__(self, release: Release, pair: Neighbours) -> None:
        count = pair.first.count
        self.law = release.law
        self.coordinates = release.coordinates(count)
        self.count = count
        self.granularity = release.granularity(count)
        self.veil = release.veil
        self.truths = tuple(
            np.array(release.truth(totals), dtype=object) for totals in (pair.first, pair.second)
        )
        self.sums = tuple(np.array(totals.sum, dtype=object) for totals in (pair.first, pair.second))
        self.scales = np.array([coordinate.scale for coordinate in self.coordinates])
        self.shift: Floats = (self.truths[1] - self.truths[0]).astype(np.float64) / self.scales
        self.own = np.array([c.copy_of is None for c in self.coordinates])

    def read(self, views: Views, side: int) -> Observed:
        """What is seen in `views` of data set `side` (0 or 1)."""
        noise = views.values - self.truths[side]
        runs = len(noise)
        veiled = views.veiled.shape[1] > 0
        sums = self.sums if veiled else tuple(np.empty(0, dtype=object) for _ in self.sums)
        exact = _agreement(views.values, *self.truths) + _agreement(views.veiled, *sums)
        modulus = self.granularity
        residues = (
            _agreement(views.values % modulus, *(t % modulus for t in self.truths)) if modulus else exact
        )
        n = self.count
        return Observed(
            seen=(views.values - self.truths[0]).astype(np.float64) / self.scales,
            exact=exact,
            residues=residues,
            veiled_residues=_agreement(views.veiled % n, *(s % n for s in sums)),
            veiled_most=self._most(views.veiled) if veiled else np.zeros(runs),
            residue_cells=_cells(noise, modulus)
            if modulus
            else np.zeros((noise.shape[1], 0), dtype=np.int64),
            veiled_cells=_cells(views.veiled - sums[side], n),
            veil_cells=_cells(views.veiled - sums[side] + self.veil // 2, self.veil, outside=True),
            zeros=(noise == 0).sum(axis=0).astype(np.int64),
            divisors=np.gcd.reduce(noise, axis=0),
            asymmetric=int(self._asymmetric(views.values).sum()),
        )

    def noise(self, observed: Observed, side: int) -> Floats:
        """(runs, m) the noise in its stated scale, for checks of its distribution and not for statistics."""
        return observed.seen - self.shift if side else observed.seen

    def statistics(self, first: Observed, second: Observed) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Statistics of both sides. Parameters are estimated from the first half of the runs."""
        half = first.runs // 2
        weights = _discriminant(first.seen[:half], second.seen[:half])
        between = self._matrices(self.shift[None])
        sides: list[dict[str, Floats]] = []
        for observed in (first, second):
            seen = observed.seen
            matrix = self._matrices(seen)
            sides.append(
                {
                    "likelihood ratio": self._log_ratio(seen),
                    "linear discriminant": seen @ weights,
                    "least eigenvalue relative to the first data set": _least_eigenvalue(matrix),
                    "least eigenvalue relative to the second data set": _least_eigenvalue(matrix - between),
                    "entries without noise": observed.exact,
                    "residues": observed.residues,
                    "residues of the masked sums": observed.veiled_residues,
                    "furthest masked sum": observed.veiled_most,
                }
            )
        return sides[0], sides[1]

    def _log_ratio(self, seen: Floats) -> Floats:
        """log(second/first) of the stated densities, up to a constant and a factor; linear if Gaussian."""
        values, shift = seen[:, self.own], self.shift[self.own]
        if self.law is Law.LAPLACE:
            return np.asarray((np.abs(values) - np.abs(values - shift)).sum(axis=1))
        return np.asarray(values @ shift)

    def _matrices(self, values: Floats) -> Floats:
        """Symmetric matrices, (runs, d, d), of the matrix coordinates, in units of their largest scale."""
        entries = [(k, c.entry) for k, c in enumerate(self.coordinates) if c.entry and c.copy_of is None]
        if not entries:  # a pre-study has no matrix
            return np.zeros((len(values), 1, 1))
        d = 1 + max(max(entry) for _, entry in entries)
        unit = max(self.scales[k] for k, _ in entries)
        matrices = np.zeros((len(values), d, d))
        for k, (i, j) in entries:
            matrices[:, i, j] = matrices[:, j, i] = values[:, k] * (self.scales[k] / unit)
        return matrices

    def _most(self, veiled: Integers) -> Floats:
        moved = self.sums[1] - self.sums[0]
        steps = (veiled - self.sums[0]) * np.sign(moved) / max(1, *(abs(step) for step in moved))
        return np.asarray(steps.max(axis=1), dtype=np.float64)

    def _asymmetric(self, values: Integers) -> NDArray[np.bool_]:
        differs = np.zeros(len(values), dtype=bool)
        for k, coordinate in enumerate(self.coordinates):
            if coordinate.copy_of is not None:
                differs |= (values[:, k] != values[:, coordinate.copy_of]).astype(bool)
        return differs


def likelihood_shift(first: Mapping[str, Floats], second: Mapping[str, Floats]) -> tuple[float, float]:
    """μ̂ of the likelihood ratio, shift over deviation, and its standard error."""
    a, b = first["likelihood ratio"], second["likelihood ratio"]
    deviation = float(np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2))
    if deviation == 0:
        return (np.inf if a.mean() != b.mean() else 0.0), 0.0
    estimate = float(b.mean() - a.mean()) / deviation
    return estimate, float(np.sqrt(2 / len(a) + estimate**2 / (4 * len(a))))


def own_coordinates(coordinates: tuple[Coordinate, ...]) -> list[int]:
    """Positions of the coordinates that are not copies of others."""
    return [k for k, coordinate in enumerate(coordinates) if coordinate.copy_of is None]


def _agreement(values: Integers, first: Integers, second: Integers) -> Floats:
    """(runs,) number of coordinates equal to `second` minus those equal to `first`, where the two differ."""
    telling = np.flatnonzero(first != second)
    chosen = values[:, telling]
    agree = (chosen == second[telling]).astype(np.int64) - (chosen == first[telling]).astype(np.int64)
    return np.asarray(agree.sum(axis=1), dtype=np.float64)


def _cells(values: Integers, modulus: int, *, outside: bool = False) -> Counts:
    """(m, cells) counts of residues in equal cells; with `outside`, (m, cells + 1) counts of whole values."""
    cells = min(CELLS, modulus)
    residues = values if outside else values % modulus
    found = (residues * cells // max(1, modulus)).astype(object)
    found = np.where((found < 0) | (found >= cells), cells, found).astype(np.int64)
    length = cells + outside
    counts = [np.bincount(column, minlength=length) for column in found.T]
    return np.array(counts, dtype=np.int64).reshape(values.shape[1], length)


def _least_eigenvalue(matrices: Floats) -> Floats:
    return np.asarray(np.linalg.eigvalsh(matrices)[:, 0], dtype=np.float64)


def _discriminant(first: Floats, second: Floats) -> Floats:
    """Fisher's direction. A tiny ridge keeps the direction finite, and makes noise that cancels out
    visible."""
    covariance = np.atleast_2d(np.cov(first.T) + np.cov(second.T)) / 2
    size = max(float(np.trace(covariance)) / len(covariance), np.finfo(float).tiny)
    ridge = 1e-9 * size * np.eye(len(covariance))
    weights: Floats = np.linalg.solve(covariance + ridge, second.mean(axis=0) - first.mean(axis=0))
    return weights
