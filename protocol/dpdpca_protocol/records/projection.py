"""The public rules that turn a record into a few integers, for sketch, lift and scores.

All results are exact. A product in float64 is exact here because every partial sum stays below 2⁵³: it is a
product of parts of two vectors whose lengths the terms of the study bound.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdpca_protocol.errors import CryptographicError, UsageError
from dpdpca_protocol.records.encoding import Integers
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.sketch_matrix import SketchMatrix

LIFT_BITS = 16
"""Numbers of a lift are in units of 2¹⁶ of C·P₀z + o."""
SCORE_BITS = 14
"""Components are rounded to multiples of 2⁻¹⁴ before records are projected on them."""
_EXACT = 2**52
_MIXED_AT_ONCE = 4096
"""Features that are mixed at once: fewer fit better into caches, more need fewer additions of results."""


class Projection(Protocol):
    """Turns records into a few integers each."""

    def __call__(self, z: Integers) -> Integers:
        """(n, k) int64 for (n, d) int64 encoded records or differences, exact and not yet cut."""


@dataclass(frozen=True)
class Mixtures:
    """y = P₀z of a sketch, m integers."""

    matrix: SketchMatrix

    def __call__(self, z: Integers) -> Integers:
        mixed = np.zeros((self.matrix.row_count, len(z)))
        for place, sparse in self._sparse:
            mixed += sparse @ np.ascontiguousarray(z[:, place].T, dtype=np.float64)
        return np.asarray(mixed.T, dtype=np.int64)

    @cached_property
    def _sparse(self) -> list[tuple[slice, Any]]:
        """P₀ as sparse matrices of doubles for blocks of features.

        Sums of z stay below 2⁵³, because |Σ ±z_i| ≤ √(d·K).
        """
        from scipy.sparse import csc_array  # takes a second to import, and only owners need it

        columns = np.broadcast_to(np.arange(self.matrix.features), self.matrix.rows.shape)
        shape = (self.matrix.row_count, self.matrix.features)
        places = (self.matrix.rows.ravel(), columns.ravel())
        whole = csc_array((self.matrix.signs.ravel().astype(np.float64), places), shape=shape)
        starts = range(0, self.matrix.features, _MIXED_AT_ONCE)
        blocks = (slice(start, start + _MIXED_AT_ONCE) for start in starts)
        return [(block, whole[:, block].tocsr()) for block in blocks]


@dataclass(frozen=True)
class LinearRule:
    """⌊(M z + o)/2^s + ½⌋, k integers.

    Attributes:
        matrix: M, (k, d) float64 with integer values.
        offset: o, (k,) int64.
        bits: s.
    """

    matrix: NDArray[np.float64]
    offset: Integers
    bits: int

    @classmethod
    def of_lift(cls, manifest: Manifest) -> Self:
        """The rule C·P₀z + o that the manifest of a lift names."""
        assert manifest.lift is not None
        rows = np.array(manifest.lift.matrix, dtype=np.int64)
        matrix = sketch_matrix(manifest).after(rows).astype(np.float64)
        return cls(matrix, np.array(manifest.lift.offset, dtype=np.int64), LIFT_BITS)

    @classmethod
    def of_scores(cls, components: NDArray[np.floating], record_bound: int) -> Self:
        """Scores on k components.

        Args:
            components: V, (k, d), as the owner opened them.
            record_bound: K of the study.

        Raises:
            CryptographicError: `release-implausible`, the components are so long that scores are not exact.
        """
        matrix = np.rint(np.ldexp(components.astype(np.float64), SCORE_BITS))
        longest = float(np.max(np.einsum("ij,ij->i", matrix, matrix)))
        if not longest * record_bound < float(_EXACT) ** 2:
            raise CryptographicError(
                "release-implausible",
                "the components of the lift are no directions: they are far too long",
                "ask the data user to start the chain again",
            )
        return cls(matrix, np.zeros(len(matrix), dtype=np.int64), SCORE_BITS)

    def __call__(self, z: Integers) -> Integers:
        products = (z.astype(np.float64) @ self.matrix.T).astype(np.int64)
        half = 1 << (self.bits - 1)
        return np.asarray((products + self.offset + half) >> self.bits, dtype=np.int64)


def sketch_matrix(manifest: Manifest) -> SketchMatrix:
    """P₀ of a sketch or of a lift."""
    if manifest.sketch is None:
        raise UsageError("bad-argument", f"a {manifest.release} study has no sketch matrix")
    return SketchMatrix.of(manifest.sketch.seed, manifest.encoded_features, manifest.sketch.rows)


def projection_of(manifest: Manifest, components: ArrayLike | None = None) -> Projection | None:
    """The rule of a study that turns records into a few numbers; None for all other releases.

    Args:
        manifest: of the study.
        components: V, k × d, from the lift before it; needed only for scores.

    Raises:
        UsageError: scores without components, or with components of another shape.
        CryptographicError: `release-implausible`, see `LinearRule.of_scores`.
    """
    if manifest.release is ReleaseKind.SKETCH:
        return Mixtures(sketch_matrix(manifest))
    if manifest.release is ReleaseKind.LIFT:
        return LinearRule.of_lift(manifest)
    if manifest.release is not ReleaseKind.SCORES:
        return None
    directions = np.array([] if components is None else components, dtype=np.float64)
    if directions.shape != (manifest.columns, manifest.encoded_features):
        raise UsageError(
            "bad-argument",
            f"scores need {manifest.columns} components of {manifest.encoded_features} features each",
        )
    return LinearRule.of_scores(directions, manifest.figures.record_bound)
