"""What a study's rules would do to an owner's data, for this owner's eyes only."""

from dataclasses import dataclass
from typing import Any

from dpdpca_protocol.records.encoding import BatchReport
from dpdpca_protocol.terms.manifest import Manifest


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the manifest's rules do to the owner's data. This result stays on this machine.

    Attributes:
        columns: the owner's column for each feature.
        report: how many records were read, dropped and clipped.
        notes: one sentence for each thing that is unusual but accepted.
        suspected_units: one sentence for each feature that seems to be in another unit than the study's.
    """

    columns: tuple[str, ...]
    report: BatchReport
    notes: tuple[str, ...]
    suspected_units: tuple[str, ...] = ()

    def to_json(self, manifest: Manifest) -> dict[str, Any]:
        report = self.report
        return {
            "records": report.records,
            "records_that_count": report.accepted,
            "records_dropped": report.dropped,
            "records_clipped": report.clipped,
            "notes": list(self.notes),
            "suspected_units": list(self.suspected_units),
            "features": [
                {
                    "name": feature.name,
                    "column": column,
                    "missing": missing,
                    "unusable": unusable,
                    "out_of_bounds": outside,
                }
                for feature, column, missing, unusable, outside in zip(
                    manifest.features,
                    self.columns,
                    report.missing,
                    report.unusable,
                    report.out_of_bounds,
                    strict=True,
                )
            ],
        }
