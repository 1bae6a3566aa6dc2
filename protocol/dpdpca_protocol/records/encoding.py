"""Encodes records as integers: bounds, scaling, clipping, rounding, and the check behind the guarantee.

The steps before the check use floating point, but the check uses exact integers. So every record that is
returned obeys Σ z² ≤ K, whatever happened before. The steps are those of "Encoding a record" in the protocol.

Encoding never fails because of what a record contains. If it could fail, the absence of an owner's share
would reveal something about the content of a record.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.records.columns import (
    Column,
    Unusable,
    advised_values,
    pick_columns,
    read_levels,
    read_numbers,
    refuse_unusable,
)
from dpdpca_protocol.terms.features import Feature, feature_units
from dpdpca_protocol.terms.terms import EncodingTerms, record_bound

Integers = NDArray[np.int64]

ABSENT = np.iinfo(np.int64).min
"""Stands for a coordinate that a record lacks, until the record has been paired or added up."""

NONE_LONG: Integers = np.empty(0, dtype=np.int64)
LENGTH_BLOCK = 1024
"""The squared lengths of records are added up over blocks of so many features."""

_EXACT_SQUARES = 2**52
_LONGEST = 2.0**62
"""Squared lengths stop here, where they still fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What the encoding did to some records. This report stays with the owner. The reports of
    several batches can be summed.

    Attributes:
        records: the number of records read.
        dropped: records that were dropped because a value was missing (rule `reject`).
        clipped: records whose norm was clipped to the clip norm, or that became 0 because the integers still
            failed the check.
        missing: for each feature of the manifest, the number of records without a value.
        unusable: for each feature of the manifest, the number of values that are text in a numeric feature,
            an unlisted level, or of another type. Each is replaced by the feature's centre, whatever
            the rule for missing values is.
        out_of_bounds: for each feature of the manifest, the number of values that were moved to a bound.
        advised: how often each feature has an unusable value about which the reader gives advice.
    """

    records: int
    dropped: int
    clipped: int
    missing: tuple[int, ...]
    unusable: tuple[int, ...]
    out_of_bounds: tuple[int, ...]
    advised: Counter[tuple[str, Unusable]] = field(default_factory=Counter)

    @classmethod
    def empty(cls, feature_count: int) -> Self:
        none = (0,) * feature_count
        return cls(0, 0, 0, none, none, none)

    @property
    def accepted(self) -> int:
        return self.records - self.dropped

    def __add__(self, other: "BatchReport") -> "BatchReport":
        if len(self.missing) != len(other.missing):
            raise UsageError("bad-argument", "reports of different studies cannot be added")
        return BatchReport(
            self.records + other.records,
            self.dropped + other.dropped,
            self.clipped + other.clipped,
            _added(self.missing, other.missing),
            _added(self.unusable, other.unusable),
            _added(self.out_of_bounds, other.out_of_bounds),
            self.advised + other.advised,
        )


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Accepted records, in order.

    Attributes:
        z: (n, d) int64 in grid units, Σ z² ≤ K in every row. In a study of pairs or a pre-study the rows are
            not clipped yet, and a missing coordinate is `ABSENT`: clipping comes later, when they are summed.
        report: what was done to the records.
        long: (n,) int64, ⌊|u|²q²⌋ of each record that the clip norm shortened or that became 0, with u the
            scaled record before that; at most 2⁶². Empty if the rows of `z` are not clipped yet.
        gaps: (accepted,) int64, how many encoded values each record lacks. In a study of pairs or a pre-study
            it agrees with `z`.
    """

    z: NDArray[np.int64]
    report: BatchReport
    long: NDArray[np.int64]
    gaps: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncodedTable:
    """Accepted records of a batch that was a table.

    Attributes:
        z, long, gaps: as in `EncodedBatch`.
        dropped: how many records were dropped.
        missing, out_of_bounds: (features,) as in `BatchReport`.
    """

    z: NDArray[np.int64]
    dropped: int
    missing: Integers
    out_of_bounds: Integers
    long: NDArray[np.int64]
    gaps: NDArray[np.int64]


class RecordEncoder:
    """Encodes an owner's records with fixed terms, batch by batch. No batch depends on another.

    Args:
        terms: how records are encoded.
        strict: refuse an unusable value instead of replacing it. Then the content of a record decides whether
            there is a share, and no guarantee covers that.
    """

    def __init__(self, terms: EncodingTerms, *, strict: bool = False) -> None:
        self.features = terms.features
        self.record_bound = record_bound(terms.clip_norm, terms.fraction_bits)
        self.encoded_features = sum(feature.width for feature in terms.features)
        self._strict = strict
        self._drops = terms.missing == "reject"
        self._nonnegative = terms.nonnegative
        self._cuts = terms.rules.clips_records
        grid = 1 << terms.fraction_bits
        self._grid = float(grid)
        self._clip_norm = float(terms.clip_norm) - math.sqrt(self.encoded_features) / (2 * grid)
        self._units = feature_units(terms.features, terms.scaling)
        self._level_centres = [
            np.array([float(origin) for origin in feature.origins]) for feature in terms.features
        ]

    def encode(self, columns: Mapping[str, Column], first_record: int = 0) -> EncodedBatch:
        """The integer records of one batch.

        Args:
            columns: header to (n,) values of the owner's own data: float, integer or object arrays, or lists.
                Extra columns and any order of columns are allowed.
            first_record: the position of the batch's first record in all records, for messages.

        Returns:
            z (accepted, d) int64 and the report.

        Raises:
            InputError: columns are missing, duplicated or of different lengths; if the encoder is strict,
                also an unusable value.

        Guarantee: Σ z² ≤ K in every returned row, and z ≥ 0 if the study is nonnegative. Both conditions are
            checked with integers. Unless the encoder is strict, no value causes an error.
        Source: docs/claims.md, C1 and C9.
        Tested: tests/properties/test_encoding_properties.py.
        """
        picked = pick_columns(columns, self.features)
        count = len(picked[0])
        scaled = np.zeros((count, self.encoded_features))
        lacks = np.zeros(scaled.shape, dtype=bool)
        gaps = np.zeros((len(self.features), count), dtype=bool)
        unusable = np.zeros_like(gaps)
        out_of_bounds = []
        advised: Counter[tuple[str, Unusable]] = Counter()
        start = 0
        for index, (feature, column) in enumerate(zip(self.features, picked, strict=True)):
            columns_of_feature = scaled[:, start : start + feature.width]
            if feature.is_categorical:
                positions, unusable[index] = read_levels(column, feature.levels)
                absent = positions < 0
                columns_of_feature[~absent] = -self._level_centres[index]
                columns_of_feature[~absent, positions[~absent]] += 1.0
                out_of_bounds.append(0)
            else:
                origin, unit = self._units[start]
                values, unusable[index] = read_numbers(column)
                absent = np.isnan(values)
                lower, upper = _bounds(feature)
                out_of_bounds.append(int(np.count_nonzero((values < lower) | (values > upper))))
                clipped = np.clip(values, lower, upper)
                columns_of_feature[:, 0] = np.where(absent, 0.0, (clipped - float(origin)) / float(unit))
            if self._strict:
                refuse_unusable(column, unusable[index], feature, first_record)
            advised.update((feature.name, each) for each in advised_values(column, unusable[index]))
            gaps[index] = absent & ~unusable[index]
            lacks[:, start : start + feature.width] = absent[:, None]
            start += feature.width
        dropped = gaps.any(axis=0) if self._drops else np.zeros(count, dtype=bool)
        z, long = self._to_grid(scaled[~dropped])
        if not self._cuts:
            z[lacks[~dropped]] = ABSENT
        lacking = np.count_nonzero(lacks[~dropped], axis=1)
        report = BatchReport(
            records=count,
            dropped=int(np.count_nonzero(dropped)),
            clipped=len(long),
            missing=_counted(gaps),
            unusable=_counted(unusable),
            out_of_bounds=tuple(out_of_bounds),
            advised=advised,
        )
        return EncodedBatch(z, report, long, lacking)

    def encode_table(self, values: NDArray[Any]) -> EncodedTable:
        """The same as `encode`, for one batch of a table of numbers. It is much faster for many features.

        Args:
            values: (n, features) numbers in the order of the features, which are all numeric; NaN for a
                missing value. It is not changed.

        Raises:
            UsageError: a feature is categorical, or the shape or type is wrong.
        """
        if values.ndim != 2 or values.shape[1] != len(self.features) or values.dtype.kind not in "fiub":
            raise UsageError("bad-argument", f"a table needs numbers for {len(self.features)} features")
        lower, upper, origin, unit = self._numbers
        rows: NDArray[Any] = np.empty(values.shape, np.float64 if self._cuts else np.int64)
        lengths, kept = np.zeros(len(values)), np.ones(len(values), dtype=bool)
        missing, outside = (np.zeros(len(self.features), dtype=np.int64) for _ in range(2))
        gaps = np.zeros(len(values), dtype=np.int64)
        for place in blocks_of(len(self.features)):
            numbers = _doubles(values[:, place])
            absent = ~np.isfinite(numbers)
            is_lacking = bool(absent.any())
            if is_lacking:
                numbers[absent] = math.nan
                if self._drops:
                    kept &= ~absent.any(axis=1)
                missing[place] = np.count_nonzero(absent, axis=0)
                gaps += np.count_nonzero(absent, axis=1)
            is_outside = (numbers < lower[place]) | (numbers > upper[place])
            if is_outside.any():
                outside[place] = np.count_nonzero(is_outside, axis=0)
                np.clip(numbers, lower[place], upper[place], out=numbers)
            numbers -= origin[place]
            if self._divides:
                numbers /= unit[place]
            numbers *= self._grid
            if is_lacking:
                numbers[absent] = 0.0
            if self._cuts:
                lengths += np.einsum("ij,ij->i", numbers, numbers)
                rows[:, place] = numbers
            else:
                z = np.rint(numbers, out=numbers).astype(np.int64)
                if is_lacking:
                    z[absent] = ABSENT
                rows[:, place] = z
        if not kept.all():
            rows, lengths, gaps = rows[kept], lengths[kept], gaps[kept]
        z, long = self._cut(rows, lengths) if self._cuts else (rows, NONE_LONG)
        return EncodedTable(z, int(np.count_nonzero(~kept)), missing, outside, long, gaps)

    @cached_property
    def _numbers(self) -> tuple[NDArray[np.float64], ...]:
        """Lower bounds, upper bounds, origins and divisors of all features, which must be numeric."""
        bounds = np.array([_bounds(feature) for feature in self.features])
        units = np.array([[float(origin), float(unit)] for origin, unit in self._units])
        return bounds[:, 0], bounds[:, 1], units[:, 0], units[:, 1]

    @cached_property
    def _divides(self) -> bool:
        return bool((self._numbers[3] != 1).any())

    def _to_grid(self, scaled: NDArray[np.float64]) -> tuple[Integers, Integers]:
        """Step 3 for (n, d) scaled records, and the squared lengths of the records that it changed."""
        scaled *= self._grid
        if not self._cuts:
            return np.rint(scaled).astype(np.int64), NONE_LONG
        return self._cut(scaled, _squared_lengths(scaled))

    def _cut(self, rows: NDArray[np.float64], lengths: NDArray[np.float64]) -> tuple[Integers, Integers]:
        """The same for records in grid units with these squared lengths."""
        z, clipped = _shorten(rows, lengths, self._clip_norm * self._grid, self.record_bound)
        if self._nonnegative:
            negative = (z < 0).any(axis=1)
            z[negative], clipped = 0, clipped | negative
        return z, np.minimum(lengths, _LONGEST).astype(np.int64)[clipped]


def at_centre(z: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n, d) int64: the rows with every `ABSENT` coordinate at the centre, which is 0; perhaps `z` itself."""
    absent = z == ABSENT
    return np.where(absent, 0, z) if absent.any() else z


def cut_to_bound(z: NDArray[np.int64], record_bound: int) -> tuple[NDArray[np.int64], int]:
    """The integer rows, with those that exceed Σ z² ≤ K shortened, and the number of shortened rows.

    Args:
        z: (n, d) int64, absolute values below 2⁵³.
        record_bound: K < 2⁶².

    Guarantee: Σ z² ≤ K in every returned row, checked with integers.
    Tested: tests/unit/test_encoding.py.
    """
    long = np.flatnonzero(~obeys_bound(z, record_bound))
    if long.size:
        z = z.copy()
        most = math.sqrt(record_bound) - math.sqrt(z.shape[1]) / 2
        rows = z[long].astype(np.float64)
        z[long], _ = _shorten(rows, _squared_lengths(rows), most, record_bound)
    return z, len(long)


def _shorten(
    rows: NDArray[np.float64], lengths: NDArray[np.float64], most: float, record_bound: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Rows in grid units, clipped to norm `most`, rounded and checked; and (n,) whether each row was clipped
    or set to 0.

    A row that fails the check is truncated and checked again. A row that fails again becomes 0.

    Args:
        rows: (n, d), which this changes.
        lengths: (n,) their squared lengths.
    """
    norms = np.sqrt(lengths)
    clipped = norms > most
    factors = np.divide(most, norms, out=np.ones(len(rows)), where=clipped)
    z, squares = np.empty(rows.shape, dtype=np.int64), np.zeros(len(rows))
    for place in blocks_of(rows.shape[1]):
        block = rows[:, place]
        if clipped.any():
            block *= factors[:, None]
        rounded = np.rint(block)
        squares += np.einsum("ij,ij->i", rounded, rounded)
        z[:, place] = rounded
    failing = np.flatnonzero(~_obeyed(squares, z, record_bound))
    if failing.size:
        z[failing] = np.trunc(rows[failing]).astype(np.int64)
        failing = failing[~obeys_bound(z[failing], record_bound)]
        z[failing] = 0
        clipped[failing] = True
    return z, clipped


def blocks_of(features: int) -> Iterator[slice]:
    """The features in blocks: a few records of a block fit into the caches of a processor."""
    for start in range(0, features, LENGTH_BLOCK):
        yield slice(start, min(start + LENGTH_BLOCK, features))


def _doubles(values: NDArray[Any]) -> NDArray[np.float64]:
    """A new array of these numbers; only those that are missing are not finite."""
    if values.dtype.itemsize > np.dtype(np.float64).itemsize:
        return read_numbers(values.ravel())[0].reshape(values.shape)
    return np.array(values, dtype=np.float64, order="C")


def _squared_lengths(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ u² of each row, added up over blocks of features in their order.

    The blocks make the sums the same, bit for bit, however many rows or features are read at a time.
    """
    total = np.zeros(len(rows))
    for place in blocks_of(rows.shape[1]):
        block = np.ascontiguousarray(rows[:, place])
        total += np.einsum("ij,ij->i", block, block)
    return total


def obeys_bound(z: NDArray[np.int64], record_bound: int) -> NDArray[np.bool_]:
    """Whether Σ z² ≤ K holds exactly in each row of (n, d) int64, for any K < 2⁶² and d ≤ 2³⁰.

    For K < 2⁵² doubles decide: a sum up to K is exact, and rounding cannot bring a larger one below 2⁵².
    Otherwise squares are added in two halves of 31 bits, so that no sum overflows.
    """
    squares = np.zeros(len(z))
    if record_bound < _EXACT_SQUARES:
        for place in blocks_of(z.shape[1]):
            block = z[:, place].astype(np.float64)
            squares += np.einsum("ij,ij->i", block, block)
    return _obeyed(squares, z, record_bound)


def _obeyed(squares: NDArray[np.float64], z: NDArray[np.int64], record_bound: int) -> NDArray[np.bool_]:
    """`obeys_bound`, given the squared lengths in doubles; they decide only where that is exact."""
    if record_bound < _EXACT_SQUARES:
        return np.asarray(squares <= record_bound)
    root = math.isqrt(record_bound)
    small: NDArray[np.bool_] = np.all((z >= -root) & (z <= root), axis=1)
    exact = np.where(small[:, None], z, 0) ** 2
    low = (exact & 0x7FFFFFFF).sum(axis=1)
    high = (exact >> 31).sum(axis=1) + (low >> 31)
    low &= 0x7FFFFFFF
    bound_high, bound_low = record_bound >> 31, record_bound & 0x7FFFFFFF
    fits: NDArray[np.bool_] = small & ((high < bound_high) | ((high == bound_high) & (low <= bound_low)))
    return fits


def _counted(marks: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(count) for count in np.count_nonzero(marks, axis=1))


def _added(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def _bounds(feature: Feature) -> tuple[float, float]:
    if feature.lower is None or feature.upper is None:
        raise UsageError("bad-argument", "a categorical feature has no bounds")
    return float(feature.lower), float(feature.upper)
