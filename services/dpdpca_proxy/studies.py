"""Operations on a whole study: accept its manifest, close, cancel, fail, and describe it to readers."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from dpdpca_protocol.errors import (
    ConflictError,
    CryptographicError,
    MessageError,
    NotAllowedError,
    PolicyError,
)
from dpdpca_protocol.messages.share import cohort_digest
from dpdpca_protocol.messages.study_messages import StudyAct, StudyMark
from dpdpca_protocol.study import ReleaseKind, StudyEvent, StudyState
from dpdpca_protocol.terms.features import feature_key
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest
from dpdpca_protocol.wire.canonical import named_list, parse_canonical
from dpdpca_protocol.wire.fields import decimal_text, time_text
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.sealing import DATA_KEY_BYTES, seal
from dpdpca_protocol.wire.signing import Statement, verify_statement
from dpdpca_proxy.enrolment import check_named_parties
from dpdpca_proxy.feature_lists import missing_list
from dpdpca_proxy.proxy import Proxy, data_key_info
from dpdpca_proxy.rotation import check_in_use
from dpdpca_proxy.store.cohorts import check_planned_distance
from dpdpca_proxy.store.feature_lists import name_list
from dpdpca_proxy.store.files import sealed_folder
from dpdpca_proxy.store.log import last_mark
from dpdpca_proxy.store.parties import PartyRow, keys_of_party, list_parties
from dpdpca_proxy.store.releases import delete_secrets, find_data_key, insert_data_key
from dpdpca_proxy.store.shares import list_declines, list_shares
from dpdpca_proxy.store.studies import (
    StudyRow,
    append_event,
    complete_members,
    count_complete,
    find_study,
    freeze_cohort,
    frozen_cohort,
    insert_study,
    list_events,
    list_readable,
    load_blob,
    load_study,
    modulus_is_known,
    move_study,
    named_by_study,
    named_participants,
)
from dpdpca_runtime.database import as_written, rows_damaged


@dataclass(frozen=True, slots=True)
class Accepted:
    study: StudyId
    is_new: bool


def accept_manifest(proxy: Proxy, caller: PartyRow, untrusted: bytes) -> Accepted:
    """Opens a study with the signed manifest in `untrusted`. A known manifest returns the existing study.

    Raises:
        MessageError, AuthenticationError, PolicyError, CryptographicError: like `open_manifest`.
        NotAllowedError: `not-the-study-owner`, the manifest names another data user than the caller.
        PolicyError: `manifest-refused`, the manifest names another proxy, its closing time has passed, or its
            parties are not enrolled under the names and keys in it.
        NotFoundError: `feature-list-missing`.
        PolicyError: `cohort-too-close`, the study is blinded, and its cohort would be too close to another.
        CryptographicError: `unfit-modulus`, the modulus was used in another study.
    """
    known = StudyId(verify_statement("manifest", untrusted).digest)
    with proxy.database.reading("find study") as connection:
        present = find_study(connection, known)
    if present is not None:
        check_user(present, caller)
        return Accepted(known, is_new=False)
    signed = open_manifest(untrusted, key_rules=proxy.key_rules, feature_lists=proxy.feature_lists)
    manifest, now = signed.manifest, proxy.now()
    if manifest.user.ed25519 != caller.ed25519:
        raise NotAllowedError(
            "not-the-study-owner",
            "the manifest names another data user",
            "sign a manifest that names your own key",
        )
    check_in_use(caller)
    mine = proxy.key.public
    if (manifest.proxy.ed25519, manifest.proxy.kem) != (mine.ed25519, mine.kem):
        raise PolicyError(
            "manifest-refused", "the manifest names another proxy", "create the manifest for this proxy"
        )
    if manifest.closes_at <= now:
        raise PolicyError(
            "manifest-refused",
            f"closes_at is {time_text(manifest.closes_at)}, but it is already {time_text(now)}",
            "choose a later time",
        )
    check_named_parties(proxy, manifest)
    row = row_of(signed, now)
    key = seal(proxy.randomness.bytes(DATA_KEY_BYTES), mine.sealing_key, data_key_info(row.study))
    with proxy.database.transaction("accept manifest") as connection:
        if find_study(connection, row.study) is not None:
            return Accepted(row.study, is_new=False)
        digest = manifest.key.digest
        if modulus_is_known(connection, digest):
            raise CryptographicError(
                "unfit-modulus",
                "the study's key was used in another study",
                "create the study again with a new key",
            )
        insert_study(
            connection,
            row,
            manifest=untrusted,
            modulus_digest=digest,
            named=[PartyId.of(owner.ed25519) for owner in manifest.participants],
            features=[feature_key(feature.name) for feature in manifest.features],
        )
        reference = manifest.feature_list
        if reference is not None and not name_list(connection, reference.sha256, row.study):
            raise missing_list(reference.sha256)
        if manifest.is_blinded:
            check_planned_distance(connection, row)
        insert_data_key(connection, row.study, key)
        append_event(
            connection, proxy.key, row.study, "manifest", {"statement": signed.statement.digest.hex()}, now
        )
    proxy.wake()
    return Accepted(row.study, is_new=True)


def row_of(signed: SignedManifest, now: datetime) -> StudyRow:
    """The row of a study that is opened now."""
    manifest = signed.manifest
    return StudyRow(
        study=signed.study_id,
        user=PartyId.of(manifest.user.ed25519),
        title=manifest.title,
        release_kind=ReleaseKind(manifest.release),
        closing=manifest.closing,
        closes_at=manifest.closes_at,
        epsilon=decimal_text(manifest.epsilon),
        delta=decimal_text(manifest.delta),
        share_bytes=manifest.figures.share_bytes,
        min_owners=manifest.min_owners,
        max_owners=manifest.max_owners,
        cohort_distance=manifest.cohort_distance,
        created_at=now,
        state=StudyState.OPEN,
        revision=0,
        closed_at=None,
        cohort_digest=None,
        noise_drawn_at=None,
        records=None,
        release_folder=None,
        released_at=None,
        failure=None,
        failure_detail=None,
    )


def close_by_user(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> None:
    """Closes an open study early. Closing a closed study changes nothing.

    Raises:
        NotAllowedError: the caller is not the study's data user.
        ConflictError: `cohort-too-small`, or the study was cancelled or failed.
    """
    _check_act(caller, study, "close", untrusted)
    with proxy.database.transaction("close study", study) as connection:
        now = proxy.now()
        row = load_study(connection, study)
        check_user(row, caller)
        if row.state in _AFTER_CLOSING:
            return
        _close(proxy, connection, row, now, reason="by the data user", by_hand=True)
    proxy.wake()


def close_if_due(proxy: Proxy, study: StudyId) -> None:
    """Closes an open study if it is due, or if all named owners have delivered.

    Fails the study if too few owners have delivered.
    """
    if not is_due(proxy, study):
        return
    with proxy.database.transaction("close study when due", study) as connection:
        now = proxy.now()
        row = load_study(connection, study)
        if not _is_due(connection, row, now):
            return
        if len(complete_members(connection, study)) < row.min_owners:
            _fail_too_few(proxy, connection, row, now)
        else:
            on_time = now >= row.closes_at
            _close(
                proxy,
                connection,
                row,
                now,
                reason="on time" if on_time else "all owners are in",
                by_hand=False,
            )
    sweep(proxy, study)
    proxy.wake()


def _fail_too_few(proxy: Proxy, connection: Connection, row: StudyRow, now: datetime) -> None:
    slug, detail = "too-few-owners", "too few owners had complete shares at the closing time"
    if proxy.terms(row.study).manifest.is_blinded:
        slug = "cohort-incomplete"
        detail = "not all owners of this blinded study had complete shares at the closing time"
    fail_study(proxy, connection, row, now, slug, detail)


def is_due(proxy: Proxy, study: StudyId) -> bool:
    """Whether `close_if_due` has something to do."""
    with proxy.database.reading("is it due") as connection:
        return _is_due(connection, load_study(connection, study), proxy.now())


def cancel(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> None:
    """Cancels a study whose noise was not drawn yet. Cancelling a cancelled study changes nothing.

    Raises:
        NotAllowedError: the caller is not the study's data user.
        ConflictError: `noise-already-drawn`, or the study was released or has failed.
    """
    statement = _check_act(caller, study, "cancel", untrusted)
    with proxy.database.transaction("cancel study", study) as connection:
        now = proxy.now()
        row = load_study(connection, study)
        check_user(row, caller)
        if row.state is StudyState.CANCELLED:
            return
        move_study(connection, row, StudyEvent.CANCEL, cancel=statement.encoded)
        delete_secrets(connection, study)
        told = {"statement": statement.digest.hex()}
        append_event(connection, proxy.key_of(study), study, "cancelled", told, now)
    sweep(proxy, study)
    proxy.wake()


def fail(proxy: Proxy, row: StudyRow, slug: str, detail: str) -> None:
    """Fails a study that cannot be released, and deletes its shares.

    Raises ConflictError if the study can no longer fail.
    """
    with proxy.database.transaction("fail study", row.study) as connection:
        now = proxy.now()
        fail_study(proxy, connection, load_study(connection, row.study), now, slug, detail)
    sweep(proxy, row.study)
    proxy.wake()


def sweep(proxy: Proxy, study: StudyId) -> None:
    """Removes the sealed files of a study whose data key was deleted.

    This function can be repeated. The study's folder is removed last. As long as the folder exists, tidying
    calls this function again, for example if a reader still keeps the deleted key in the database's log.
    """
    with proxy.database.reading("check deleted key") as connection:
        if find_data_key(connection, study) is not None:
            return
    if sealed_folder(study) in proxy.files.folders(study) and proxy.database.forget_deleted():
        proxy.files.remove(sealed_folder(study))


def manifest_bytes(proxy: Proxy, study: StudyId) -> bytes:
    with proxy.database.reading("read manifest") as connection:
        load_study(connection, study)
        encoded = load_blob(connection, study, "manifest")
    assert encoded is not None
    return encoded


def transcript_of(proxy: Proxy, study: StudyId) -> bytes:
    """The events of a study, and the data user's statements that the events `cancelled` and `opened` name."""
    with proxy.database.reading("read transcript") as connection:
        load_study(connection, study)
        events = list_events(connection, study)
        cancel, opened = (load_blob(connection, study, name) or b"null" for name in ("cancel", "opened"))
    return b'{"cancel":' + cancel + b"," + named_list("events", events) + b',"opened":' + opened + b"}"


def summaries(proxy: Proxy) -> list[dict[str, Any]]:
    """One object for each study whose row can be read, for lists."""
    with proxy.database.reading("list studies") as connection:
        complete = count_complete(connection)
        return [_summary(row, complete.get(row.study, 0)) for row in list_readable(connection).rows]


def inbox(proxy: Proxy, caller: PartyRow) -> list[dict[str, Any]]:
    """Like `summaries`, for the open studies that name a key of the caller or that anybody may join."""
    with proxy.database.reading("list the studies for an owner") as connection:
        complete, keys = count_complete(connection), keys_of_party(connection, caller.party)
        named = named_by_study(connection)
        return [
            _summary(row, complete.get(row.study, 0))
            for row in list_readable(connection, besides=_NOT_OPEN).rows
            if row.study not in named or named[row.study] & keys
        ]


def check_all_readable(proxy: Proxy) -> None:
    """Raises IntegrityError if `summaries` leaves out any studies. The error names the stored ids of these
    studies."""
    with proxy.database.reading("are all studies readable") as connection:
        unread = list_readable(connection).unread
    if unread:
        raise rows_damaged("studies", unread, proxy.database.place)


def detail(proxy: Proxy, caller: PartyRow, study: StudyId) -> dict[str, Any]:
    """What an enrolled party may know of a study, except the progress of its jobs.

    N of a masked study is only for its data user: with two owners, each could compute the other's number of
    records. So are owners' declines.
    """
    with proxy.database.reading("read study") as connection:
        row = load_study(connection, study)
        names = {party.party: party.name for party in list_parties(connection)}
        rows = list_shares(connection, study)
        declined = list_declines(connection, study) if row.user == caller.party else {}
        named = named_participants(connection, study)
        members = frozen_cohort(connection, study) if row.cohort_digest else ()
        last = last_mark(connection)
    mark = StudyMark(study, row.state, last.generation, last.head, time_text(proxy.now()))
    signed = mark.sign(proxy.key_of(study))
    states = {share.owner: share for share in rows}
    with as_written():
        declines = [parse_canonical(statement) for statement in declined.values()]
    owners = [
        {
            "name": names.get(owner, ""),
            "owner": owner.hex(),
            "state": str(states[owner].state) if owner in states else "absent",
            "version": states[owner].signed_version if owner in states else 0,
        }
        for owner in sorted(named | states.keys() | declined.keys())
    ]
    complete = sum(owner["state"] == "complete" for owner in owners)
    return _summary(row, complete) | {
        "cohort": row.cohort_digest.hex() if row.cohort_digest else None,
        "cohort_members": [member.to_body() for member in members],
        "declines": declines,
        "failure_detail": row.failure_detail,
        "mark": parse_canonical(signed.encoded),
        "owners": owners,
        "records": row.records if row.user == caller.party else None,
    }


_NOT_OPEN = frozenset(StudyState) - {StudyState.OPEN}
_AFTER_CLOSING = frozenset({StudyState.CLOSED, StudyState.COUNTED, StudyState.RELEASED, StudyState.PUBLISHED})


def _summary(row: StudyRow, complete: int) -> dict[str, Any]:
    return {
        "closed_at": time_text(row.closed_at) if row.closed_at else None,
        "closes_at": time_text(row.closes_at),
        "closing": row.closing,
        "created_at": time_text(row.created_at),
        "delta": row.delta,
        "epsilon": row.epsilon,
        "failure": row.failure,
        "max_owners": row.max_owners,
        "min_owners": row.min_owners,
        "owners_complete": complete,
        "share_bytes": row.share_bytes,
        "release": str(row.release_kind),
        "released_at": time_text(row.released_at) if row.released_at else None,
        "state": str(row.state),
        "study": row.study.hex(),
        "title": row.title,
        "user": row.user.hex(),
    }


def _is_due(connection: Connection, row: StudyRow, now: datetime) -> bool:
    if row.state is not StudyState.OPEN:
        return False
    if now >= row.closes_at:
        return True
    if row.closing != "when-complete":
        return False
    named = named_participants(connection, row.study)
    return bool(named) and named == {member.owner for member in complete_members(connection, row.study)}


def _close(
    proxy: Proxy, connection: Connection, row: StudyRow, now: datetime, *, reason: str, by_hand: bool
) -> None:
    """Freezes the cohort in the transaction that closes the study."""
    members = complete_members(connection, row.study)
    if by_hand and row.state is StudyState.OPEN and len(members) < row.min_owners:
        raise ConflictError(
            "cohort-too-small",
            f"{len(members)} owners have complete shares, but the manifest requires {row.min_owners}",
            "wait for more owners",
        )
    digest = cohort_digest(members)
    move_study(connection, row, StudyEvent.CLOSE, closed_at=now, cohort_digest=digest)
    freeze_cohort(connection, row.study, members)
    append_event(
        connection,
        proxy.key_of(row.study),
        row.study,
        "closed",
        {"cohort": digest.hex(), "owners": len(members), "reason": reason},
        now,
    )


def fail_study(
    proxy: Proxy, connection: Connection, row: StudyRow, now: datetime, slug: str, detail: str
) -> None:
    """Like `fail`, but in an open transaction. The caller then removes the study's files with `sweep`."""
    move_study(connection, row, StudyEvent.FAIL, failure=slug, failure_detail=detail)
    delete_secrets(connection, row.study)
    append_event(connection, proxy.key_of(row.study), row.study, "failed", {"reason": slug}, now)


def _check_act(caller: PartyRow, study: StudyId, kind: str, untrusted: bytes) -> Statement:
    statement = verify_statement(kind, untrusted, caller.ed25519)
    if StudyAct.parse(statement).study != study:
        raise MessageError("malformed", "the statement and the path name different studies")
    return statement


def check_user(row: StudyRow, caller: PartyRow) -> None:
    if row.user != caller.party:
        raise NotAllowedError(
            "not-the-study-owner",
            "this study belongs to another data user",
            "only that data user can do this",
        )
