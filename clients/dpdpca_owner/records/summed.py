"""What some of an owner's records add up to: the sums of a study, and what the owner is told about them.

The sums are exact integers, so the parts of a table can be summed one by one, anywhere, and then merged: the
result is the same, bit for bit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_owner.records.fingerprint import RecordsFingerprint
from dpdpca_owner.records.open import Part, batches_of, open_source, tables_of
from dpdpca_owner.records.source import CALLS, ColumnSource, DataLocation, Listener, RecordSource
from dpdpca_owner.records.units import UnitCheck
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.block_sums import Sums, merge_sums, new_sums
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.records.encoding import (
    BatchReport,
    EncodedBatch,
    EncodedTable,
    Integers,
    RecordEncoder,
)
from dpdpca_protocol.records.projection import Projection
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.release.prefetch import prefetch_results
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_runtime.workers import WorkerThreads

MANY_FEATURES = 1_000
"""From so many features on, a step for each feature of each batch takes longer than all the arithmetic."""
_TABLES_AHEAD = 2


class SummedRecords:
    """Running sums over the records of a table, or of a part of one.

    Args:
        manifest: opened and checked.
        key: the key of this owner's ledger.
        strict: refuse a value that does not fit its feature.
        before: how many records of the table come before these.
        projection: the public rule of a sketch, a lift or scores.

    Attributes:
        sums: the exact integers of the study, without pairs.
        units: suspects that a feature is in another unit.
        fingerprint: the ledger recognises the records by it.
    """

    def __init__(
        self,
        manifest: Manifest,
        key: bytes,
        *,
        strict: bool,
        before: int = 0,
        projection: Projection | None = None,
    ) -> None:
        self._manifest, self._before = manifest, before
        self._encoder = RecordEncoder(manifest, strict=strict)
        self.sums: Sums = new_sums(manifest.figures, projection)
        self._of_batches = BatchReport.empty(len(manifest.features))
        self._of_tables = _TableCounts(len(manifest.features))
        self.units = UnitCheck(manifest.features, before)
        self.fingerprint = RecordsFingerprint(key)

    @property
    def records(self) -> int:
        """How many records were read."""
        return self._of_batches.records + self._of_tables.records

    @property
    def report(self) -> BatchReport:
        """How many records were read, dropped and clipped."""
        return self._of_batches + self._of_tables.report()

    def add_all(
        self, source: RecordSource, order: Integers | None = None
    ) -> Iterator[tuple[Mapping[str, Column], Integers]]:
        """Reads and adds all records of `source`, and yields each batch as it was read and as it was encoded.

        Args:
            source: the records.
            order: in which they are read, if `can_order` says that this is possible.

        Raises:
            InputError: columns do not fit the manifest, or there are too many records; if `strict`, also a
                value that does not fit.
        """
        listener: Listener | None = self.fingerprint.add
        if isinstance(source, ColumnSource) and (counts := source.call_counts()) is not None:
            self.fingerprint.add_counted(CALLS, counts)
            listener = None
        features = self._manifest.features
        if (
            len(features) >= MANY_FEATURES
            and (tables := tables_of(source, features, listener, order)) is not None
        ):
            for z in self._add_tables(tables, has_units=listener is not None):
                yield {}, z
            return
        for columns in batches_of(source, features, listener):
            yield columns, self._add(columns)

    def merge(self, following: "SummedRecords") -> None:
        """Adds what was summed of the records that come next. Raises InputError: there are too many."""
        self._of_batches += following.report
        self._check_room()
        self.units.merge(following.units)
        self.fingerprint.merge(following.fingerprint)
        merge_sums(self.sums, following.sums)

    def _add(self, columns: Mapping[str, Column]) -> Integers:
        encoded = self._encoder.encode(columns, self._before + self.records)
        self.units.add(columns)
        self._of_batches += encoded.report
        return self._add_encoded(encoded)

    def _add_tables(self, tables: Iterable[NDArray[Any]], *, has_units: bool) -> Iterator[Integers]:
        """A thread encodes tables while this one reads the next and adds up those before."""
        with WorkerThreads(1) as thread:
            calls = (partial(self._encode_table, table) for table in tables)
            for table, encoded in prefetch_results(thread, _TABLES_AHEAD, calls):
                if has_units and not self.records:
                    names = (feature.name for feature in self._manifest.features)
                    self.units.add(dict(zip(names, table.T, strict=True)))
                self._of_tables.add(len(table), encoded)
                yield self._add_encoded(encoded)

    def _encode_table(self, table: NDArray[Any]) -> tuple[NDArray[Any], EncodedTable]:
        return table, self._encoder.encode_table(table)

    def _add_encoded(self, encoded: EncodedBatch | EncodedTable) -> Integers:
        self._check_room()
        self.sums.add(encoded.z)
        if isinstance(self.sums, SecondMoments):
            self.sums.add_clipped(encoded.long)
            self.sums.add_gaps(encoded.gaps)
        return encoded.z

    def _check_room(self) -> None:
        most = self._manifest.max_records
        if self._of_batches.accepted + self._of_tables.accepted > most:
            raise InputError(
                "too-many-records",
                f"the data has more records than the {most} that the study allows in all",
                "ask the data user for a study with a larger max_records",
            )


class _TableCounts:
    """What the encoding did to the records of a table so far. With many features, arrays add up faster."""

    def __init__(self, features: int) -> None:
        self.records = self._dropped = self._clipped = 0
        self._missing, self._outside = (np.zeros(features, dtype=np.int64) for _ in range(2))

    def add(self, records: int, encoded: EncodedTable) -> None:
        self.records += records
        self._dropped += encoded.dropped
        self._clipped += len(encoded.long)
        self._missing += encoded.missing
        self._outside += encoded.out_of_bounds

    @property
    def accepted(self) -> int:
        return self.records - self._dropped

    def report(self) -> BatchReport:
        return BatchReport(
            records=self.records,
            dropped=self._dropped,
            clipped=self._clipped,
            missing=tuple(self._missing.tolist()),
            unusable=(0,) * len(self._missing),
            out_of_bounds=tuple(self._outside.tolist()),
        )


def can_order(source: RecordSource, manifest: Manifest) -> bool:
    """Whether the records of a source can be read in any order, because its number of records is known, no
    record is dropped, and it is read as a table."""
    features = manifest.features
    return (
        isinstance(source, ColumnSource)
        and manifest.missing != "reject"
        and len(features) >= MANY_FEATURES
        and not any(feature.is_categorical for feature in features)
    )


def sum_part(
    location: DataLocation,
    manifest: Manifest,
    key: bytes,
    before: int = 0,
    *,
    strict: bool = False,
    projection: Projection | None = None,
) -> SummedRecords:
    """The sums over one part of a table, such as a Parquet file. A part may be empty.

    The sums of all parts, merged in the order of the table, are those of the whole table. This does not hold
    for a study that pairs records, because a pair may have its records in two parts.

    Args:
        location: the part.
        manifest: opened and checked.
        key: the key of this owner's ledger.
        before: how many records are in the parts before this one. It decides which records the unit check
            looks at, and the positions in errors.
        strict: refuse a value that does not fit its feature.
        projection: the public rule of a sketch, a lift or scores.

    Raises:
        InputError: see `SummedRecords.add_all`.
    """
    summed = SummedRecords(manifest, key, strict=strict, before=before, projection=projection)
    for _ in summed.add_all(open_source(location, manifest.features)):
        pass
    return summed


PartCall = Callable[[], SummedRecords]
"""Sums one part. It can be pickled, and called wherever the part can be read."""
SumParts = Callable[[Sequence[PartCall]], Iterable[SummedRecords]]
"""Makes these calls somewhere, and gives their results in the same order."""


def part_calls(
    parts: Sequence[Part],
    manifest: Manifest,
    key: bytes,
    *,
    strict: bool,
    projection: Projection | None = None,
) -> list[PartCall]:
    """A call of `sum_part` for each part of a table."""
    befores = accumulate((part.records for part in parts), initial=0)
    return [
        partial(sum_part, part.location, manifest, key, before, strict=strict, projection=projection)
        for part, before in zip(parts, befores, strict=False)
    ]
