"""An owner's records become the exact integers that it contributes. Nothing leaves the machine here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import gettempdir

from dpdpca_owner.accounts.charge import Content
from dpdpca_owner.records.fingerprint import RecordsFingerprint
from dpdpca_owner.records.matching import match_columns
from dpdpca_owner.records.notes import notes_on
from dpdpca_owner.records.open import open_source, read_batches
from dpdpca_owner.records.shuffle import Shuffle
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.records.block_sums import BlockSums, new_sums
from dpdpca_protocol.records.encoding import BatchReport, RecordEncoder
from dpdpca_protocol.records.pairing import differences, pairing_seed
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.terms.features import column_key
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import Digest


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one owner's records add up to, from which columns, and what the encoding did to them.

    Attributes:
        notes: a sentence for each thing that is unusual and yet admitted.
        content: by what the ledger knows the records again.
    """

    columns: tuple[str, ...]
    sums: SecondMoments | BlockSums
    report: BatchReport
    notes: tuple[str, ...]
    content: Content

    @property
    def digest(self) -> Digest:
        """The same for the same integers; kept on this machine alone, since it would confirm a guess."""
        return Digest.of(b"dpdpca/moments\x00" + self.sums.to_bytes())


def read_contribution(
    location: DataLocation,
    manifest: Manifest,
    key: bytes,
    on_records: Callable[[int], None] = lambda records: None,
    spool: Path | None = None,
) -> Contribution:
    """Read and encode all records, in batches.

    Args:
        location: the owner's data.
        manifest: opened and checked.
        key: of this owner's fingerprints; the order of pairing comes from it too.
        on_records: told how many records were read so far.
        spool: where records that are to be paired are kept while they are too many for the memory; the
            folder for temporary files if None.

    Raises:
        InputError: the data does not fit the manifest, holds no record that counts, or more than it allows.
    """
    encoder = RecordEncoder(manifest)
    sums = new_sums(manifest.figures)
    shuffle = None
    if isinstance(sums, BlockSums) and sums.has_pairs:
        seed = pairing_seed(key, manifest.study_id)
        shuffle = Shuffle(encoder.encoded_features, seed, spool or Path(gettempdir()))
    report = BatchReport.empty(len(manifest.features))
    source = open_source(location, manifest.features)
    found = match_columns(source.names, manifest.features)
    fingerprint = RecordsFingerprint(key)
    for columns in read_batches(source, manifest.features, fingerprint.add):
        encoded = encoder.encode(columns, report.records)
        report += encoded.report
        if report.accepted > manifest.max_records:
            raise InputError(
                "too-many-records",
                f"the data holds more records than the {manifest.max_records} that the study takes in all",
                "ask the data user for a study with a larger max_records",
            )
        sums.add(encoded.z)
        if shuffle is not None:
            shuffle.add(encoded.z)
        on_records(report.records)
    if not report.accepted:
        raise InputError(
            "no-records",
            f"all {report.records} records have a missing value, and the study drops those",
            "give at least one complete record",
        )
    if isinstance(sums, BlockSums):
        if shuffle is not None:
            _add_pairs(sums, shuffle)
        report = replace(report, clipped=sums.cut)
    columns_used = tuple(column_key(source.names[place]) for place in found)
    notes = notes_on(source.names, found, manifest, sums, report)
    return Contribution(columns_used, sums, report, notes, fingerprint.content)


def _add_pairs(sums: BlockSums, shuffle: Shuffle) -> None:
    if shuffle.count < 2:
        raise InputError(
            "no-pair", "the data holds one record, and the study pairs records", "give at least two"
        )
    for y in differences(shuffle.batches()):
        sums.add_pairs(y)
