"""Reads an opened lift: the span of the components, and how far each of its directions can be trusted.

A lift is L = Σ z aᵀ, d × k, with independent noise of one scale t on every entry. Its left singular vectors
are the components, apart from their order and their turn within the span. All work is done in blocks of
features, so memory is about three times that of L.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log, sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.result.components import Floats, settle_signs

FALSE_ALARM = 0.01
"""How often noise alone passes the edge, at most."""
GRAM_NOT_POSITIVE = (
    "The sums of products of the lifted numbers are not positive definite, so this release gives no"
    " variances. Its components do not depend on them."
)

_BLOCK = 2**20
_LEAST = 1e-6
"""Singular values below this part of the largest one are rounding, and have no direction."""

Values = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LiftReading:
    """What an opened lift shows.

    Attributes:
        vectors: (k, d) orthonormal rows; the loading with the largest absolute value is positive.
        singular_values: (k,) of L̃, descending, in the units of its integers.
        noise_scale: t, all draws.
        signals: (k,) σ, the singular values without noise; 0 from the first one below the edge on.
        overlaps: (k,) the squared cosine of each direction with that of a lift without noise; 0 likewise.
        lower_bounds: (k,) estimates of Vⱼᵀ(Σ z zᵀ)Vⱼ in grid² units that are usually too low; 0 where there
            is no signal. None if the lifted numbers' sums of products are not positive definite.
    """

    vectors: Floats
    singular_values: Floats
    noise_scale: float
    signals: Floats
    overlaps: Floats
    lower_bounds: Floats | None

    @classmethod
    def of_directions(cls, vectors: Floats, singular_values: Floats, noise_scale: float) -> Self:
        """A reading again from its directions and singular values, without lower bounds."""
        d = vectors.shape[1]
        signals, overlaps = _without_noise(singular_values, d, len(vectors), noise_scale)
        return cls(vectors, singular_values, noise_scale, signals, overlaps, None)

    @property
    def edge(self) -> float:
        """t(√d + √k + √(2 ln 100)): noise alone passes it in at most one of 100 releases.

        Source: the mean of the largest singular value is at most t(√d + √k), and a normal deviate's tail
            bounds what it exceeds its mean by.
        """
        k, d = self.vectors.shape
        return self.noise_scale * (sqrt(d) + sqrt(k) + sqrt(-2 * log(FALSE_ALARM)))

    @property
    def trusted_count(self) -> int:
        """k̂: the number of leading directions above the edge."""
        return int((self.signals > 0).sum())

    def turned(self, rotation: Floats) -> tuple[Floats, Floats]:
        """The directions turned within their span.

        Args:
            rotation: (k, k) orthonormal rows, in the coordinates of `vectors`.

        Returns:
            (k, d) the turned directions with signs by the usual rule, and (k,) ±1, what each row of
            `rotation` was multiplied by for that.
        """
        return _with_signs(rotation @ self.vectors)


def read_lift(values: Values, gram: Values, noise_scale: float) -> LiftReading:
    """What an opened lift shows.

    Args:
        values: (d, k) L̃ with all draws of noise, as it is in the manifest's order, k ≤ d.
        gram: (k, k) G̃ = Σ a aᵀ with its noise, symmetric.
        noise_scale: t of all draws; 0 is allowed.

    Returns:
        The reading. If the lift has less than k singular values above rounding, only those are kept.

    Raises:
        UsageError: the shapes do not match, or L̃ is 0.

    Source: singular vectors from the k × k matrix L̃ᵀL̃, then made orthonormal once more. For one signal σ,
        l² = (σ² + t²d)(σ² + t²k)/σ², and the squared cosine on the side of d is (σ⁴ − t⁴dk)/(σ⁴ + dt²σ²)
        (Benaych-Georges, Nadakuditi 2012). For whatever a was, V·L G⁻¹Lᵀ·V ≤ V·(Σ z zᵀ)·V by Cauchy and
        Schwarz.
    Tested: tests/unit/user/test_wide_lift.py, tests/statistical/test_wide.py.
    """
    d, k = values.shape
    if not 1 <= k <= d or gram.shape != (k, k):
        raise UsageError(
            "wrong-shape", f"a lift of {d} × {k} values does not fit sums of products {gram.shape}"
        )
    squares, right = np.linalg.eigh(_product(values))
    order = np.argsort(squares, kind="stable")[::-1]
    singular = np.sqrt(np.maximum(squares[order], 0))
    kept = int((singular > _LEAST * singular[0]).sum())
    if not kept:
        raise UsageError("wrong-shape", "the lift is 0 in all its values, so it has no directions")
    singular, right = singular[:kept], np.ascontiguousarray(right[:, order[:kept]].T)
    vectors, _ = _with_signs(_orthonormal(_left(values, right / singular[:, None])))
    signals, overlaps = _without_noise(singular, d, k, noise_scale)
    return LiftReading(
        vectors=vectors,
        singular_values=singular,
        noise_scale=noise_scale,
        signals=signals,
        overlaps=overlaps,
        lower_bounds=_lower_bounds(signals, overlaps, right, gram),
    )


def _without_noise(singular: Floats, d: int, k: int, t: float) -> tuple[Floats, Floats]:
    """σ and the squared cosines of singular values in noise of scale t; 0 from the first one below on."""
    edge = t * (sqrt(d) + sqrt(k) + sqrt(-2 * log(FALSE_ALARM)))
    above = np.logical_and.accumulate(singular > edge)
    raised = np.where(above, singular**2 - t**2 * (d + k), 0.0)
    mixed = t**4 * d * k
    squares = (raised + np.sqrt(np.maximum(raised**2 - 4 * mixed, 0))) / 2
    seen = np.where(above, squares, 1.0)
    overlaps = np.where(above, (seen**2 - mixed) / (seen**2 + d * t**2 * seen), 0.0)
    return np.where(above, np.sqrt(squares), 0.0), overlaps


def _lower_bounds(signals: Floats, overlaps: Floats, right: Floats, gram: Values) -> Floats | None:
    gram = gram.astype(np.float64)
    if np.linalg.eigvalsh(gram)[0] <= 0:
        return None
    inverse = np.einsum("jk,kj->j", right, np.linalg.solve(gram, right.T))
    return np.asarray(overlaps * signals**2 * inverse)


def _blocks(values: Values) -> Iterator[slice]:
    step = max(_BLOCK // values.shape[1], 1)
    return (slice(start, start + step) for start in range(0, len(values), step))


def _product(values: Values) -> Floats:
    """(k, k) LᵀL, in blocks of features."""
    total = np.zeros((values.shape[1],) * 2)
    for block in _blocks(values):
        part = values[block].astype(np.float64)
        total += part.T @ part
    return total


def _left(values: Values, right: Floats) -> Floats:
    """(k, d) W·Lᵀ, in blocks of features."""
    left = np.empty((len(right), len(values)))
    for block in _blocks(values):
        np.matmul(right, values[block].T.astype(np.float64), out=left[:, block])
    return left


def _orthonormal(vectors: Floats) -> Floats:
    """The nearest orthonormal rows to rows that are nearly orthonormal. A product of squares loses half of
    the digits where singular values differ much, and this gets them back."""
    squares, turn = np.linalg.eigh(vectors @ vectors.T)
    nearest: Floats = (turn / np.sqrt(squares)) @ turn.T
    for start in range(0, vectors.shape[1], _BLOCK // len(vectors) + 1):
        block = slice(start, start + _BLOCK // len(vectors) + 1)
        vectors[:, block] = nearest @ vectors[:, block]
    return vectors


def _with_signs(vectors: Floats) -> tuple[Floats, Floats]:
    """The rows with signs by the usual rule, in place and one by one to save memory, and these signs."""
    signs = np.empty(len(vectors))
    for index in range(len(vectors)):
        settled = settle_signs(vectors[index : index + 1])
        signs[index] = 1.0 if settled[0] @ vectors[index] > 0 else -1.0
        vectors[index] = settled[0]
    return vectors, signs
