"""Studies that extend others: an owner brings only records that were not in them."""

from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.home import OwnerHome
from dpdpca_protocol.errors import DpdpcaError, PolicyError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import verify_statement


def check_new_records(manifest: Manifest, home: OwnerHome, ledger: Ledger, data_set: str | None) -> None:
    """Refuse an extension whose records count in a data set that is in the extended study already.

    The name of another data set is how an owner states that its records are of other people.

    Raises:
        PolicyError: `not-new`.
    """
    if manifest.extends is None or data_set is None:
        return
    for study in (manifest.extends, *_extensions(home, manifest)):
        spend = ledger.spend(study)
        if spend is None or not spend.is_live:
            continue
        if spend.data_set is None or ledger.root(spend.data_set) == ledger.root(data_set):
            raise PolicyError(
                "not-new",
                f"this study adds to study {manifest.extends.hex()}, and the data set '{data_set}' is part of"
                f" that through study {study.hex()}",
                "if all of these records are of other people, name another data set with --dataset; records"
                " that were in an earlier study must be left out",
            )


def _extensions(home: OwnerHome, manifest: Manifest) -> list[StudyId]:
    """Other joined studies that extend the same one."""
    return [
        folder.study
        for folder in home.joined()
        if folder.study != manifest.study_id and _extended_by(folder.manifest(), home) == manifest.extends
    ]


def _extended_by(statement: bytes | None, home: OwnerHome) -> StudyId | None:
    if statement is None:
        return None
    try:
        return parse_manifest(verify_statement("manifest", statement).body, home.feature_lists).extends
    except DpdpcaError:
        return None  # of another version; its spend in the ledger is unknown to this rule
