"""Turns an owner's records into the exact integers that it contributes. Nothing is sent here."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import gettempdir

from dpdpca_owner.accounts.charge import Content
from dpdpca_owner.records.matching import match_columns
from dpdpca_owner.records.notes import notes_on
from dpdpca_owner.records.open import no_records, open_source, parquet_parts
from dpdpca_owner.records.shuffle import Shuffle, order_of
from dpdpca_owner.records.source import ColumnSource, DataLocation
from dpdpca_owner.records.summed import SummedRecords, SumParts, can_order, part_calls
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.records.block_sums import Sums
from dpdpca_protocol.records.columns import Column, Unusable
from dpdpca_protocol.records.encoding import BatchReport, Integers
from dpdpca_protocol.records.pairing import pairing_seed, pairs
from dpdpca_protocol.records.projection import Projection
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.records.seeded_noise import owners_noise_seed, seeded_samplers
from dpdpca_protocol.terms.features import Feature, column_key
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import Digest

Batch = tuple[Mapping[str, Column], Integers]
"""Records as they were read, and as they were encoded."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """The sums of one owner's records, the columns they come from, and what the encoding did to the records.

    Attributes:
        columns: the owner's column for each feature.
        sums: the exact integers.
        report: how many records were read, dropped and clipped.
        notes: one sentence for each thing that is unusual but accepted.
        content: the number and fingerprint by which the ledger recognises the records.
        digest: digest of the integers. It never leaves this machine, because it could confirm a guess.
        noise_seed: the seed of this owner's noise on these integers in this study.
        suspected_units: one sentence for each feature that seems to be in another unit than the study's.
    """

    columns: tuple[str, ...]
    sums: Sums
    report: BatchReport
    notes: tuple[str, ...]
    content: Content
    digest: Digest
    noise_seed: bytes = field(repr=False)
    suspected_units: tuple[str, ...] = ()

    def own_noise(self) -> Samplers:
        """Where this owner's noise comes from, always beginning anew with the same draws."""
        return seeded_samplers(self.noise_seed)


def read_contribution(
    location: DataLocation,
    manifest: Manifest,
    key: bytes,
    on_records: Callable[[int], None] = lambda records: None,
    spool: Path | None = None,
    *,
    strict: bool = False,
    sum_parts: SumParts | None = None,
    projection: Projection | None = None,
) -> Contribution:
    """Read and encode all records, in batches. Unless `strict`, no value of a record causes an error.

    Args:
        location: the owner's data.
        manifest: opened and checked.
        key: the key of this owner's ledger. The fingerprints, the pairing of records and this owner's noise
            are derived from it.
        on_records: called with the number of records read so far.
        spool: folder for records that wait to be paired or to be read by rows and do not fit into memory;
            None means the system's folder for temporary files.
        strict: refuse a value that is text in a numeric feature, an unlisted level, or of another type.
        sum_parts: sums the parts of a table of several Parquet files, unless the study pairs records; None
            means that all is read here.
        projection: the public rule of a sketch, a lift or scores (`projection_of`).

    Raises:
        InputError: columns do not fit the manifest, or no record counts, or there are too many; if `strict`,
            also a value that does not fit.
        UnavailableError: `sum_parts` cannot do it now.
    """
    source = open_source(location, manifest.features, spool)
    found = match_columns(source.names, manifest.features)
    summed = SummedRecords(manifest, key, strict=strict, projection=projection)
    shuffle, order = None, None
    has_pairs = not isinstance(summed.sums, SecondMoments) and summed.sums.has_pairs
    if has_pairs:
        seed = pairing_seed(key, manifest.study_id)
        if isinstance(source, ColumnSource) and can_order(source, manifest):
            order = order_of(source.records, seed)
        else:
            shuffle = Shuffle(manifest.figures.encoded_features, seed, spool or Path(gettempdir()))
    parts = parquet_parts(location) if sum_parts is not None and not has_pairs else []
    has_units = False
    if sum_parts is not None and parts:
        for summed_part in sum_parts(part_calls(parts, manifest, key, strict=strict, projection=projection)):
            summed.merge(summed_part)
            on_records(summed.records)
    elif order is not None:
        batches = (z for _, z in _told(summed.add_all(source, order), summed, on_records))
        _add_pairs(summed.sums, batches)
    else:
        for columns, z in _told(summed.add_all(source), summed, on_records):
            if source.is_text and summed.records == len(columns[manifest.features[0].name]):
                has_units = _has_units(columns, manifest.features)
            if shuffle is not None:
                shuffle.add(z)
    sums, report = summed.sums, summed.report
    if not report.records:
        raise no_records()
    if not report.accepted:
        raise InputError(
            "no-records",
            f"all {report.records} records have a missing value, and the study drops such records",
            "give at least one complete record",
        )
    if not isinstance(sums, SecondMoments):
        if has_pairs and report.accepted < 2:
            raise InputError(
                "no-pair",
                "the data has one record, but the study pairs records",
                "give at least two records",
            )
        if shuffle is not None:
            _add_pairs(sums, shuffle.batches())
        if not manifest.rules.clips_records:
            report = replace(report, clipped=sums.cut)
    columns_used = tuple(column_key(source.names[place]) for place in found)
    notes = source.remarks + notes_on(source.names, found, manifest, sums, report, has_units=has_units)
    digest = Digest.of(b"dpdpca/moments\x00" + sums.to_bytes())
    noise_seed = owners_noise_seed(key, manifest.study_id, digest)
    return Contribution(
        columns_used,
        sums,
        report,
        notes,
        summed.fingerprint.content,
        digest,
        noise_seed,
        summed.units.suspected(),
    )


def _has_units(columns: Mapping[str, Column], features: Sequence[Feature]) -> bool:
    """Whether the first record has a text in every column of numbers, like a line of units.

    This decides only whether the owner sees a note. The record counts, whatever it is: if its content could
    make it a line of units, its content would decide how many records there are.
    """
    firsts = [columns[feature.name][0] for feature in features if not feature.is_categorical]
    return bool(firsts) and all(isinstance(first, str | Unusable) for first in firsts)


def _told(
    batches: Iterator[Batch], summed: SummedRecords, on_records: Callable[[int], None]
) -> Iterator[Batch]:
    """The same batches; `on_records` is told how many records were read so far."""
    for batch in batches:
        on_records(summed.records)
        yield batch


def _add_pairs(sums: Sums, batches: Iterable[Integers]) -> None:
    assert not isinstance(sums, SecondMoments)
    for first, second in pairs(batches):
        sums.add_pairs(first, second)
