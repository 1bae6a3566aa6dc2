"""The provenance of a model: facts from the signed statements of its release."""

from collections.abc import Mapping, Sequence

from dpdpca_protocol.terms.signed_manifest import SignedManifest
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_user.evidence import VerifiedRelease
from dpdpca_user.results.model import Contribution, Provenance, TrailEntry
from dpdpca_user.results.wide.notes import RoundCount
from dpdpca_user_service.store.studies import StudyRow


def provenance_of(
    signed: SignedManifest,
    verified: VerifiedRelease,
    row: StudyRow,
    seconds: Mapping[str, float],
    rounds: Sequence[RoundCount] = (),
) -> Provenance:
    """Where the model of a study comes from; `rounds` are those of its chain before it."""
    names = {PartyId.of(party.ed25519).hex(): party.name for party in signed.manifest.participants}
    names |= {owner["owner"]: owner["name"] for owner in row.facts.get("owners", []) if owner["name"]}
    return Provenance(
        manifest=signed.statement.digest.hex(),
        release=verified.statement.digest.hex(),
        cohort=verified.release.cohort_digest.hex(),
        owners=tuple(
            Contribution(
                member.owner.hex(), names.get(member.owner.hex(), ""), member.version, member.statement.hex()
            )
            for member in verified.release.cohort
        ),
        trail=tuple(
            TrailEntry(
                event.time, event.kind, str(event.detail.get("statement", event.detail.get("cohort", "")))
            )
            for event in verified.events
        ),
        seconds=dict(seconds),
        software=None if verified.release.software is None else str(verified.release.software),
        rounds=tuple(rounds),
    )
