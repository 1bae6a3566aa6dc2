"""Encodes a local numeric table like an owner's records: as integers within a norm bound."""

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import Feature, check_resolution
from dpdpca_protocol.terms.figures import default_fraction_bits
from dpdpca_protocol.terms.release_rules import ReleaseRules, rules_of
from dpdpca_user.estimator import ParameterError, check_numbers

Floats = NDArray[np.float64]


_JOINT = rules_of(ReleaseKind.JOINT)


@dataclass(frozen=True, slots=True)
class EncodedTable:
    """Records relative to a public centre, in grid units, with their sums.

    Attributes:
        z: (n, d) int64, with Σ z² ≤ K in every row.
        moments: N, v and R.
        record_bound: K.
        grid: q, the number of grid units in a half-range.
        centre, half_range: (d,) public, in original units.
    """

    z: NDArray[np.int64]
    moments: SecondMoments
    record_bound: int
    grid: int
    centre: Floats
    half_range: Floats

    @property
    def second_moment(self) -> Floats:
        """R relative to the public centre, (d, d), in the units of `record_bound`."""
        return self.moments.second_moment.astype(np.float64)

    @property
    def scatter(self) -> Floats:
        """S = R − v vᵀ/N of the encoded records, (d, d)."""
        total = self.moments.sum.astype(np.float64)
        return self.second_moment - np.outer(total, total) / self.moments.count


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms of the encoding, for a table that has no manifest."""

    features: tuple[Feature, ...]
    clip_norm: Fraction
    fraction_bits: int
    scaling: str = "range"
    missing: str = "reject"
    nonnegative: bool = False
    rules: ReleaseRules = _JOINT


def encode_table(rows: Any, bounds: Any, clip_norm: float | None = None) -> EncodedTable:
    """Encode finite numbers as an owner would with `range` scaling.

    Args:
        rows: (n, d) finite numbers in original units.
        bounds: public (lower, upper) for all features, or one such pair for each. Never taken from the data.
        clip_norm: r, in half-ranges; None means √d, which clips nothing.

    Raises:
        ParameterError: a shape, a bound or the clip norm is out of range.
    """
    check_numbers(rows)
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ParameterError("wrong-shape", "rows must be a table of finite numbers")
    d = values.shape[1]
    lower, upper = _bounds(bounds, d)
    wanted = d**0.5 if clip_norm is None else float(clip_norm)
    # A double may lie a little above the root that it stands for.
    if not 0 < wanted <= d**0.5:
        raise ParameterError("bad-argument", f"clip_norm must be in (0, √{d}]")
    norm = min(Fraction(wanted), Fraction(isqrt(d * 4**60), 2**60))
    features = tuple(
        Feature(f"{j}", "numeric", Fraction(low), Fraction(high))
        for j, (low, high) in enumerate(zip(lower.tolist(), upper.tolist(), strict=True))
    )
    try:
        fraction_bits = default_fraction_bits(d, norm)
        check_resolution(features, "range", 1 << fraction_bits)
    except PolicyError as error:
        raise ParameterError("bad-argument", error.problem, error.next_step) from error
    terms = _Terms(features, norm, fraction_bits)
    encoder = RecordEncoder(terms)
    z = encoder.encode({feature.name: values[:, j] for j, feature in enumerate(features)}).z
    moments = SecondMoments(d, encoder.record_bound)
    moments.add(z)
    grid = 1 << terms.fraction_bits
    return EncodedTable(z, moments, encoder.record_bound, grid, (lower + upper) / 2, (upper - lower) / 2)


def _bounds(bounds: Any, d: int) -> tuple[Floats, Floats]:
    if bounds is None:
        raise ParameterError(
            "bounds-missing",
            "public bounds of the features are required, because bounds taken from the data would leak it",
            "give bounds=(lower, upper), or one such pair for each feature",
        )
    pairs = np.asarray(bounds, dtype=np.float64)
    if pairs.shape == (2,):
        pairs = np.tile(pairs, (d, 1))
    if pairs.shape != (d, 2) or not np.isfinite(pairs).all() or not (pairs[:, 0] < pairs[:, 1]).all():
        raise ParameterError(
            "bad-argument",
            f"bounds must be (lower, upper) or {d} such pairs, with finite numbers and lower below upper",
        )
    return pairs[:, 0], pairs[:, 1]
