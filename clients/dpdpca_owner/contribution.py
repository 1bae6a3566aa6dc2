"""An owner's records become the exact integers that it contributes. Nothing leaves the machine here."""

from collections.abc import Callable
from dataclasses import dataclass

from dpdpca_owner.fingerprint import RecordsFingerprint
from dpdpca_owner.matching import match_columns
from dpdpca_owner.notes import notes_on
from dpdpca_owner.sources import DataLocation, open_source, read_batches
from dpdpca_protocol.encoding import BatchReport, RecordEncoder
from dpdpca_protocol.errors import InputError
from dpdpca_protocol.features import column_key
from dpdpca_protocol.identifiers import Digest
from dpdpca_protocol.ledger_charge import Content
from dpdpca_protocol.manifest import Manifest
from dpdpca_protocol.scatter import SecondMoments


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one owner's records add up to, from which columns, and what the encoding did to them.

    Attributes:
        notes: a sentence for each thing that is unusual and yet admitted.
        content: by what the ledger knows the records again.
    """

    columns: tuple[str, ...]
    moments: SecondMoments
    report: BatchReport
    notes: tuple[str, ...]
    content: Content

    @property
    def digest(self) -> Digest:
        """The same for the same integers; kept on this machine alone, since it would confirm a guess."""
        moments = self.moments
        return Digest.of(
            b"dpdpca/moments\x00"
            + moments.count.to_bytes(8, "big")
            + moments.sum.astype(">i8").tobytes()
            + moments.second_moment.astype(">i8").tobytes()
        )


def read_contribution(
    location: DataLocation,
    manifest: Manifest,
    key: bytes,
    on_records: Callable[[int], None] = lambda records: None,
) -> Contribution:
    """Read and encode all records, in batches.

    Args:
        location: the owner's data.
        manifest: opened and checked.
        key: of this owner's fingerprints.
        on_records: told how many records were read so far.

    Raises:
        InputError: the data does not fit the manifest, holds no record that counts, or more than it allows.
    """
    encoder = RecordEncoder(manifest)
    moments = SecondMoments(encoder.encoded_features, encoder.record_bound)
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
        moments.add(encoded.z)
        on_records(report.records)
    if not moments.count:
        raise InputError(
            "no-records",
            f"all {report.records} records have a missing value, and the study drops those",
            "give at least one complete record",
        )
    columns_used = tuple(column_key(source.names[place]) for place in found)
    notes = notes_on(source.names, found, manifest, moments, report)
    return Contribution(columns_used, moments, report, notes, fingerprint.content)
