"""Checks a study's paper trail offline, from what the proxy has stored: signatures, chain, release."""

from collections.abc import Callable
from dataclasses import dataclass

from dpdpca_protocol.errors import DpdpcaError, MessageError
from dpdpca_protocol.fields import read_time
from dpdpca_protocol.identifiers import Digest, StudyId
from dpdpca_protocol.log import LogEntry
from dpdpca_protocol.manifest import open_manifest
from dpdpca_protocol.messages import ReleaseStatement
from dpdpca_protocol.share import CohortMember, Receipt, ShareStatement, cohort_digest
from dpdpca_protocol.signing import hex_bytes, verify_statement
from dpdpca_protocol.transcript import Event, verify_transcript
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.shares import replaced_folders
from dpdpca_proxy.store.files import release_name, sealed_folder
from dpdpca_proxy.store.log import LOSS, entries
from dpdpca_proxy.store.parties import PartyRow, find_party
from dpdpca_proxy.store.releases import find_components, find_data_key
from dpdpca_proxy.store.shares import Contradiction, SignedShare, find_signed, list_contradictions
from dpdpca_proxy.store.studies import StudyRow, frozen_cohort, list_events, load_blob, load_study
from dpdpca_proxy.store.witness import START

HOLDS = "holds"


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked, and `HOLDS` or what is wrong."""

    what: str
    outcome: str


@dataclass(frozen=True, slots=True)
class _Trail:
    """All that is stored of a study, read in one view."""

    row: StudyRow
    manifest: bytes
    release: bytes | None
    events: list[bytes]
    members: tuple[CohortMember, ...]
    claims: list[tuple[PartyRow | None, SignedShare | None]]
    components: bytes | None
    has_key: bool
    log: list[tuple[LogEntry, Digest]]


def contradictions_of(proxy: Proxy, study: StudyId) -> list[Contradiction]:
    """What owners signed twice under one version; both signatures hold, or it would not be kept."""
    with proxy.database.reading("list contradictions") as connection:
        return list_contradictions(connection, study)


def audit_study(proxy: Proxy, study: StudyId) -> list[Check]:
    """Every check that applies to the study in its state; one that fails says what is wrong.

    Raises:
        NotFoundError: no such study.
    """
    trail = _read(proxy, study)
    acts: list[tuple[str, Callable[[], object]]] = [
        ("manifest: signature, figures and modulus", lambda: _check_manifest(proxy, trail)),
        ("transcript: every signature and link", lambda: _events(proxy, trail)),
        ("log: every link, and the transcript in it", lambda: _check_log(proxy, trail)),
    ]
    if trail.row.cohort_digest is not None:
        acts.append(("cohort: the frozen digest", lambda: _check_cohort(proxy, trail)))
        acts.append(("cohort: share statements and receipts", lambda: _check_claims(proxy, trail)))
    if trail.release is not None:
        acts.append(("release: signature, cohort and chunks", lambda: _check_release(proxy, trail)))
    if not trail.has_key:
        acts.append(("shares, noise and mask: deleted", lambda: _check_gone(proxy, trail)))
    else:
        acts.append(("replaced and withdrawn shares: deleted", lambda: _check_replaced(proxy, trail)))
    if trail.components is not None:
        acts.append(("components: signature", lambda: _check_components(proxy, trail)))
    return [Check(what, _outcome(act)) for what, act in acts]


def _read(proxy: Proxy, study: StudyId) -> _Trail:
    with proxy.database.reading("audit study") as connection:
        row = load_study(connection, study)
        manifest = load_blob(connection, study, "manifest")
        assert manifest is not None
        members = frozen_cohort(connection, study)
        components = find_components(connection, study)
        return _Trail(
            row=row,
            manifest=manifest,
            release=load_blob(connection, study, "release"),
            events=list_events(connection, study),
            members=members,
            claims=[
                (
                    find_party(connection, member.owner),
                    find_signed(connection, study, member.owner, member.version),
                )
                for member in members
            ],
            components=components[1] if components else None,
            has_key=find_data_key(connection, study) is not None,
            log=list(entries(connection)),
        )


def _outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except DpdpcaError as error:
        return error.problem
    return HOLDS


def _check_manifest(proxy: Proxy, trail: _Trail) -> None:
    signed = open_manifest(trail.manifest, least_modulus_bits=proxy.least_modulus_bits)
    _demand(signed.study_id == trail.row.study, "the manifest belongs to another study")


def _events(proxy: Proxy, trail: _Trail) -> tuple[Event, ...]:
    events = verify_transcript(trail.events, trail.row.study, _signer(proxy, trail))
    _demand(bool(events) and events[0].kind == "manifest", "the transcript does not begin with the manifest")
    return events


def _check_log(proxy: Proxy, trail: _Trail) -> None:
    """The log is one chain, holds each event since it began, and closed the release over its own head."""
    proxy.database.settle_witness()
    previous, before = START.head, START.generation
    subjects: dict[Digest, str] = {}
    heads = {START.head}
    for entry, digest in trail.log:
        _demand(entry.digest == digest, f"entry {entry.position} of the log was altered")
        follows = entry.previous == previous and (entry.position == before + 1 or entry.kind == LOSS)
        _demand(follows, f"entry {entry.position} of the log does not follow the one before")
        previous, before = digest, entry.position
        subjects[entry.subject] = entry.kind
        heads.add(digest)
    first = trail.log[0][0].time if trail.log else None
    for event, encoded in zip(_events(proxy, trail), trail.events, strict=True):
        if first is None or read_time(event.time, "time") < first:
            continue  # of a version before the log
        told = verify_statement("event", encoded).digest
        _demand(subjects.get(told) == event.kind, f"the log does not hold the event {event.kind}")
        if event.kind == "release" and "log" in event.detail:
            _demand(
                Digest.parse(event.detail["log"]) in heads, "the release closed over a head that is not there"
            )


def _check_cohort(proxy: Proxy, trail: _Trail) -> None:
    digest = cohort_digest(trail.members)
    _demand(digest == trail.row.cohort_digest, "the cohort is not the one that was frozen")
    told = [event.detail.get("cohort") for event in _events(proxy, trail) if event.kind == "closed"]
    _demand(told == [digest.hex()], "the transcript closed another cohort")


def _check_claims(proxy: Proxy, trail: _Trail) -> None:
    for member, (party, signed) in zip(trail.members, trail.claims, strict=True):
        if party is None or signed is None:
            raise MessageError("audit-failed", "a statement of the cohort is missing")
        claim = ShareStatement.parse(verify_statement("share", signed.statement, party.ed25519))
        receipt = Receipt.parse(verify_statement("receipt", signed.receipt, _signer(proxy, trail)))
        _demand(
            claim.study == receipt.study == trail.row.study
            and CohortMember(party.party, claim.version, signed.digest) == member
            and CohortMember(receipt.owner, receipt.version, receipt.statement) == member,
            "a share statement, its receipt and the cohort differ",
        )


def _check_release(proxy: Proxy, trail: _Trail) -> None:
    assert trail.release is not None
    statement = verify_statement("release", trail.release, _signer(proxy, trail))
    said = ReleaseStatement.parse(statement)
    _demand(
        said.cohort == trail.members and said.cohort_digest == trail.row.cohort_digest,
        "the release names another cohort",
    )
    told = [event.detail.get("statement") for event in _events(proxy, trail) if event.kind == "release"]
    _demand(told == [statement.digest.hex()], "the transcript does not hold this release exactly once")
    for position, digest in enumerate(said.chunk_digests):
        content = proxy.files.read(release_name(trail.row.study, trail.row.release_folder or "", position))
        _demand(Digest.of(content) == digest, f"chunk {position} of the release was altered")


def _signer(proxy: Proxy, trail: _Trail) -> bytes:
    """The key that the manifest names, which need not be the proxy's present one."""
    named = hex_bytes(verify_statement("manifest", trail.manifest).body["proxy"]["ed25519"], 32, "ed25519")
    _demand(proxy.keys.of(named) is not None, "the manifest names no key of this proxy")
    return named


def _check_gone(proxy: Proxy, trail: _Trail) -> None:
    left = sealed_folder(trail.row.study) in proxy.files.folders(trail.row.study)
    _demand(not left, "sealed files are left; start the proxy, which removes them")


def _check_replaced(proxy: Proxy, trail: _Trail) -> None:
    left = replaced_folders(proxy, trail.row.study)
    _demand(not left, f"{len(left)} of them are left; a running proxy removes them within a minute")


def _check_components(proxy: Proxy, trail: _Trail) -> None:
    assert trail.components is not None
    user = proxy.terms(trail.row.study).manifest.user.ed25519
    verify_statement("components", trail.components, user)


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise MessageError("audit-failed", otherwise)
