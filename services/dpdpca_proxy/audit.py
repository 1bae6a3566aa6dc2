"""Checks a study's stored state offline: state, rows, transcript and log are compared with each other.

Everything in the transcript must be stored, and everything stored must be in the transcript. The same holds
for the log and the transcript. The audit cannot detect the loss of something that no statement mentions yet:
an incomplete upload, a count without an answer, or a product that can be made again.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from dpdpca_protocol.errors import DpdpcaError, IntegrityError, MessageError, UnavailableError
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.messages.share import Decline, Receipt, ShareStatement, Withdrawal, cohort_digest
from dpdpca_protocol.messages.software import told_software
from dpdpca_protocol.messages.study_messages import (
    CountAnswer,
    CountChallenge,
    Opened,
    ReleaseStatement,
    SealedComponents,
)
from dpdpca_protocol.messages.transcript import Event, members_by_receipts
from dpdpca_protocol.study import ShareState, StudyState
from dpdpca_protocol.terms.features import feature_key
from dpdpca_protocol.wire.canonical import parse_canonical
from dpdpca_protocol.wire.fields import read_time, time_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import Statement, naming_head, verify_statement
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.shares import copy_mark, replaced_folders
from dpdpca_proxy.store.audit_queries import is_stored, logged_actions
from dpdpca_proxy.store.files import chunk_name, release_name, sealed_folder
from dpdpca_proxy.store.log import DRAW, LOSS
from dpdpca_proxy.store.releases import find_data_key, list_draw_times, release_chunk_digests
from dpdpca_proxy.store.shares import (
    Contradiction,
    SignedShare,
    copy_marks,
    count_contradictions,
    list_contradictions,
    list_declines,
    uploaded_chunks,
)
from dpdpca_proxy.store.studies import (
    complete_members,
    feature_names,
    load_study,
    modulus_digest,
    named_participants,
)
from dpdpca_proxy.store.witness import START
from dpdpca_proxy.studies import row_of
from dpdpca_proxy.trail import Trail
from dpdpca_runtime.database import RESTORE

HOLDS = "holds"

_LIVE = frozenset({StudyState.OPEN, StudyState.CLOSED, StudyState.COUNTED})
_LAST_EVENTS: Final = {
    StudyState.OPEN: ("manifest", "receipt", "withdrawal"),
    StudyState.CLOSED: ("closed",),
    StudyState.COUNTED: ("count",),
    StudyState.RELEASED: ("release", "opened"),
    StudyState.PUBLISHED: ("components",),
    StudyState.CANCELLED: ("cancelled",),
    StudyState.FAILED: ("failed",),
}
"""The last event of a transcript, by the study's state."""
_STORED_WITH: Final = {
    "closed": ("closed_at", "cohort_digest", "cohort"),
    "count": ("answer", "records"),
    "release": ("release", "release_chunks", "release_folder", "released_at"),
    "components": ("components",),
    "failed": ("failure", "failure_detail"),
}
"""The columns and tables that have content exactly if the transcript has an event of this kind."""
_FIXED: Final = (
    "user",
    "title",
    "release_kind",
    "closing",
    "closes_at",
    "share_bytes",
    "min_owners",
    "max_owners",
    "cohort_distance",
)
"""Columns that repeat the manifest. ε and δ are only for display, and their text may change."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked, and the outcome: `HOLDS`, or what is wrong."""

    what: str
    outcome: str


def contradictions_of(proxy: Proxy, study: StudyId) -> list[Contradiction]:
    """Pairs of different statements that an owner signed under one version. Both signatures were verified."""
    with proxy.database.reading("list contradictions") as connection:
        return list_contradictions(connection, study)


def audit_study(proxy: Proxy, study: StudyId) -> list[Check]:
    """All checks of a study. A failed check says what is wrong, and the other checks are still made.

    Raises:
        NotFoundError: there is no such study.
    """
    # This is read before the view: a running proxy goes on, and its later actions are not in the view.
    generation = Check("generation: the newest database", _outcome(proxy.database.settle_witness))
    with proxy.database.reading("audit study") as connection:
        return [generation, *audit_trail(Trail(proxy, connection, study))]


def check_before_step(proxy: Proxy, study: StudyId) -> None:
    """Checks the rows that decide how a study goes on: they must be as its signed statements say.

    Whatever SQLite cannot notice, such as a flipped bit in a row, is refused here, before anything
    irrevocable is done.

    Raises:
        IntegrityError: `state-corrupt`, with the check that fails.
        RefusedTermsError: nothing is damaged, but this version cannot go on with the study.
    """
    proxy.terms(study)
    with proxy.database.reading("is the study as it was signed") as connection:
        trail = Trail(proxy, connection, study)
        for what, act in _BEFORE_STEP.items():
            try:
                act(trail)
            except UnavailableError:
                raise
            except Exception as error:  # damage can cause any error
                problem = error.problem if isinstance(error, DpdpcaError) else "it cannot be read"
                raise IntegrityError(
                    "state-corrupt", f"{what}: {problem}", RESTORE, place=proxy.database.place
                ) from error


def audit_trail(trail: Trail) -> Iterator[Check]:
    """The checks of the stored state, one after the other. Raises like `audit_study`."""
    if not is_stored(trail.connection, trail.study):
        load_study(trail.connection, trail.study)
    for what, act in _CHECKS.items():
        yield Check(what, _outcome(partial(act, trail)))


def _outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except DpdpcaError as error:
        return f"{error.problem} ({error.place})" if error.place else error.problem
    except Exception as error:  # the other checks must still be made, whatever error the damage causes
        return f"cannot be checked ({type(error).__name__})"
    return HOLDS


def _check_manifest(trail: Trail) -> None:
    signed, row, manifest = trail.signed_manifest, trail.row, trail.manifest
    _demand(signed.study_id == trail.study, "the manifest belongs to another study")
    expected = row_of(signed, row.created_at)
    wrong = [name for name in _FIXED if getattr(row, name) != getattr(expected, name)]
    connection = trail.connection
    named = {PartyId.of(owner.ed25519) for owner in manifest.participants}
    features = {feature_key(feature.name) for feature in manifest.features}
    if named_participants(connection, trail.study) != named:
        wrong.append("participants")
    if feature_names(connection, trail.study) != features:
        wrong.append("features")
    if modulus_digest(connection, trail.study) != signed.manifest.key.digest:
        wrong.append("modulus")
    _demand(not wrong, f"stored columns differ from the manifest: {', '.join(wrong)}")


def _check_transcript(trail: Trail) -> None:
    events = trail.events
    _demand(bool(events) and events[0].kind == "manifest", "the transcript does not begin with the manifest")
    # A study's id is the digest of its manifest.
    _demand(
        events[0].detail == {"statement": trail.study.hex()}, "the transcript begins with another manifest"
    )
    for event, row in zip(events, trail.event_rows, strict=True):
        beside = (row.position, row.kind, time_text(row.time), row.digest)
        told = (event.index, event.kind, event.time, _digest_of("event", row.statement))
        _demand(beside == told, f"the stored columns of event {event.index} differ from its statement")


def _check_state(trail: Trail) -> None:
    """Checks that the state matches the end of the transcript, and that the stored items match the state."""
    row, stored, kinds = trail.row, trail.stored, [event.kind for event in trail.events]
    last = kinds[-1] if kinds else "nothing"
    _demand(last in _LAST_EVENTS[row.state], f"the study is {row.state}, but its transcript ends with {last}")
    for kind, names in _STORED_WITH.items():
        for name in names:
            _demand_both(kind in kinds, f"an event {kind}", name in stored, f"stored {name}")
    times = {"manifest": row.created_at, "closed": row.closed_at, "release": row.released_at}
    for event in trail.events_of(*times):
        at = times[event.kind]
        _demand(
            at is not None and time_text(at) == event.time,
            f"the stored time of the study differs from that of its event {event.kind}",
        )
    for event in trail.events_of("failed"):
        _demand(
            event.detail == {"reason": row.failure},
            "the stored reason for the failure differs from the transcript",
        )
    _check_course(row.release_kind.needs_count, kinds, stored)
    _check_secrets(row.state in _LIVE, "closed" in kinds, stored)


def _check_course(is_masked: bool, kinds: list[str], stored: frozenset[str]) -> None:
    """Checks the count of a masked study, and the noise of every study."""
    if "release" in kinds:
        _demand(
            ("count" in kinds) == is_masked,
            "a masked release must have a count, and no other release may have one",
        )
        _demand("noise_drawn_at" in stored, "there is a release, but no noise was drawn")
    if "count" in kinds:
        _demand("challenge" in stored, "there is an answer to the count, but no stored challenge")
    if "challenge" in stored or "count" in kinds:
        _demand(
            is_masked and "closed" in kinds, "there is a count challenge, but this kind of study has no count"
        )
    if "noise_drawn_at" in stored:
        has_to_be = "closed" in kinds and "cancelled" not in kinds
        _demand(has_to_be, "noise was drawn for a study that had not reached that step")


def _check_secrets(is_live: bool, is_closed: bool, stored: frozenset[str]) -> None:
    _demand_both(is_live, "an unfinished study", "data_keys" in stored, "a stored key of its shares")
    drawn = is_live and "noise_drawn_at" in stored
    _demand_both(drawn, "noise of an unfinished study", "draws" in stored, "a stored draw")
    _demand(is_live or "chunks" not in stored, "chunks are listed although the shares were deleted")
    _demand(
        "aggregate_chunks" not in stored or (is_live and is_closed),
        "products are listed that should have been deleted",
    )


def _check_log(trail: Trail) -> None:
    """Checks that the log is one chain and contains each event since its beginning at the right position."""
    previous, before = START.head, START.generation
    told: dict[tuple[str, Digest], LogEntry] = {}
    for entry, digest in trail.log:
        _demand(entry.digest == digest, f"entry {entry.position} of the log was altered")
        follows = entry.previous == previous and (entry.position == before + 1 or entry.kind == LOSS)
        _demand(follows, f"entry {entry.position} of the log does not follow the entry before it")
        previous, before = digest, entry.position
        told[entry.kind, entry.subject] = entry
    last, drawn_at = START.generation, trail.row.noise_drawn_at
    for event, row in zip(trail.events, trail.event_rows, strict=True):
        if trail.log_begins is None or read_time(event.time, "time") < trail.log_begins:
            continue  # from a version without a log
        if event.kind == "closed" and drawn_at is not None:
            in_log = any((entry.kind, entry.time) == (DRAW, drawn_at) for entry, _ in trail.log)
            _demand(in_log, "the study's noise was drawn, but the log has no entry for it")
        found = told.get((event.kind, _digest_of("event", row.statement)))
        if found is None:
            raise _wrong(f"the log does not contain the event {event.kind}")
        in_place = time_text(found.time) == event.time and found.position > last
        _demand(in_place, f"the log has the event {event.kind} at another position")
        last = found.position
        if event.kind == "release" and "log" in event.detail:
            closes = event.detail["log"] == found.previous.hex()
            _demand(closes, "the release names another head of the log")


def _check_log_is_stored(trail: Trail) -> None:
    """Checks, for all studies, that the database contains every action in the log.

    It also checks that every action since the log began has one log entry.
    """
    stored = list(logged_actions(trail.connection))
    told = Counter((entry.kind, entry.subject) for entry, _ in trail.log if entry.kind not in (LOSS, DRAW))
    missing = told - Counter((act.kind, act.subject) for act in stored)
    for kind, _ in missing:
        raise _wrong(f"the log has {_article(kind)} that is not stored")
    late = [act for act in stored if trail.log_begins is not None and act.time >= trail.log_begins]
    for kind, _ in Counter((act.kind, act.subject) for act in late) - told:
        raise _wrong(f"there is {_article(kind)} without a log entry")
    # A draw is deleted after use; only its time is kept.
    times = Counter(entry.time for entry, _ in trail.log if entry.kind == DRAW)
    drawn = Counter(list_draw_times(trail.connection))
    _demand(not times - drawn, "the log has a draw of noise, but no study has drawn noise at that time")
    if trail.log_begins is not None:
        late_draws = Counter({time: n for time, n in drawn.items() if time >= trail.log_begins})
        _demand(not late_draws - times, "a study has drawn noise, but the log has no entry for it")
    if trail.draw is not None and times:
        subjects = {entry.subject for entry, _ in trail.log if entry.kind == DRAW}
        _demand(Digest.of(bytes.fromhex(trail.draw)) in subjects, "the stored draw is not the one in the log")


def _check_cohort(trail: Trail) -> None:
    closing = trail.events_of("closed")
    if not closing:
        return  # the check of the state verifies that nothing is frozen then
    members, (closed,) = trail.members, closing
    digest = cohort_digest(members)
    _demand(digest == trail.row.cohort_digest, "the cohort is not the frozen one")
    told = (closed.detail.get("cohort"), closed.detail.get("owners"))
    _demand(told == (digest.hex(), len(members)), "the transcript closes another cohort")
    by_receipts = members_by_receipts(trail.events)
    _demand(by_receipts == frozenset(members), "the cohort does not match the receipts before closing")


def _check_complete(trail: Trail) -> None:
    """Checks that an open study, if it closed now, would have the cohort that the receipts give."""
    if trail.row.state is StudyState.OPEN:
        complete = frozenset(complete_members(trail.connection, trail.study))
        _demand(complete == members_by_receipts(trail.events), "the complete shares differ from the receipts")


def _check_statements(trail: Trail) -> None:
    """Checks that each statement has a receipt and an event, and that shares match their last statement."""
    told = Counter(_told(event) for event in trail.events_of("receipt", "withdrawal"))
    newest: dict[PartyId, SignedShare] = {}
    for owner, signed in trail.signed:
        _check_signed(trail, owner, signed)
        receipt = Receipt.parse(verify_statement("receipt", signed.receipt, trail.signer))
        expected = (trail.study, owner, signed.version, signed.subject, signed.digest)
        said = (receipt.study, receipt.owner, receipt.version, receipt.subject, receipt.statement)
        _demand(said == expected, "a share statement and its receipt differ")
        kind = "receipt" if signed.subject == "share" else "withdrawal"
        event = (kind, owner.hex(), signed.version, signed.digest.hex(), receipt.time)
        _demand(told.pop(event, 0) == 1, f"a stored receipt is not an event {kind} of the transcript")
        newest[owner] = max(newest.get(owner, signed), signed, key=lambda one: one.version)
    _demand(not told, "the transcript has a receipt whose statement is not stored")
    _check_shares(trail, dict(newest))
    if trail.row.state in _LIVE:
        _check_chunks(trail, newest)
    kept = count_contradictions(trail.connection, trail.study)
    _demand(
        kept == len(trail.contradictions),
        "a contradiction is stored without the statement that it contradicts",
    )
    for one in trail.contradictions:
        digests = {_signed_by(trail, one.owner, encoded).digest for encoded in (one.statement, one.other)}
        _demand(len(digests) == 2, "a stored contradiction does not contradict the other statement")


def _check_declines(trail: Trail) -> None:
    """Checks that each owner that declined has signed it, and has no complete share. No event tells of a
    decline."""
    complete = {share.owner for share in trail.shares if share.state is ShareState.COMPLETE}
    for owner, encoded in list_declines(trail.connection, trail.study).items():
        said = Decline.parse(_signed_by(trail, owner, encoded))
        _demand(said.study == trail.study, "a stored decline is about another study")
        _demand(owner not in complete, "an owner with a complete share is stored as one that declined")


def _check_shares(trail: Trail, newest: dict[PartyId, SignedShare]) -> None:
    states = {"share": ShareState.COMPLETE, "withdrawal": ShareState.WITHDRAWN}
    named = named_participants(trail.connection, trail.study)
    for share in trail.shares:
        signed = newest.pop(share.owner, None)
        expected = (0, ShareState.PARTIAL) if signed is None else (signed.version, states[signed.subject])
        _demand((share.signed_version, share.state) == expected, "a share differs from its statement")
        _demand(
            not named or share.owner in named, "there is a share of an owner that the manifest does not name"
        )
    _demand(not newest, "there is a statement about a share that is not stored")


def _check_chunks(trail: Trail, newest: dict[PartyId, SignedShare]) -> None:
    """Checks that open shares have exactly the signed chunks, salts included, and those of later uploads."""
    key = trail.proxy.open_data_key(trail.study, find_data_key(trail.connection, trail.study))
    marks = copy_marks(trail.connection, trail.study)
    listed = uploaded_chunks(trail.connection, trail.study)
    for owner, signed in newest.items():
        if signed.subject == "share":
            claim = ShareStatement.parse(verify_statement("share", signed.statement))
            there = listed.pop((owner, signed.version), {})
            _demand(
                there == dict(enumerate(claim.chunk_digests)), "the chunks of a share are not the signed ones"
            )
            for position, digest in there.items():
                name = chunk_name(trail.study, owner, signed.version, position, digest)
                _check_content(trail, name, key, digest, marks[owner, signed.version, position])
    uploads = {(share.owner, share.upload_version) for share in trail.shares}
    _demand(listed.keys() <= uploads, "chunks are listed for a share that is not being uploaded")


def _check_content(trail: Trail, name: str, key: bytes, digest: Digest, mark: Digest) -> None:
    """Checks a chunk's file, salt and ciphertexts, unless it was deleted since the view was opened."""
    files = trail.proxy.files
    try:
        chunk = files.read_sealed(name, key)
    except IntegrityError:
        if not files.exists(name) and trail.has_moved_on():
            return
        raise
    _demand(Digest.of(chunk) == digest, "a chunk of a share was altered")
    _demand(copy_mark(chunk, key) == mark, "the mark by which copies of a chunk are found was altered")


def _check_count(trail: Trail) -> None:
    asked, answered = trail.blob("challenge"), trail.blob("answer")
    if asked is None:
        return
    public = trail.signed_manifest.public_key
    challenge = verify_statement("count-challenge", asked, trail.signer)
    said = CountChallenge.parse(challenge, public.ciphertext_bytes)
    for_us = (said.study, said.cohort) == (trail.study, trail.row.cohort_digest)
    _demand(for_us, "the count challenge is about another cohort")
    if answered is None:
        return
    statement = verify_statement("count-answer", answered, trail.manifest.user.ed25519)
    answer = CountAnswer.parse(statement, public.modulus_bytes)
    expected = (trail.study, challenge.digest, trail.row.records)
    _demand(
        (answer.study, answer.challenge, answer.records) == expected,
        "the count answer does not fit the study, its count challenge and its number of records",
    )
    digests = {"answer": statement.digest.hex(), "challenge": challenge.digest.hex()}
    _demand_told(trail, "count", naming_head(digests, answer.log))


def _check_release(trail: Trail) -> None:
    encoded = trail.blob("release")
    if encoded is None:
        return
    statement, row = verify_statement("release", encoded, trail.signer), trail.row
    said = ReleaseStatement.parse(statement)
    _demand(
        (said.cohort, said.cohort_digest) == (trail.members, row.cohort_digest),
        "the release names another cohort",
    )
    expected = (trail.study, row.release_kind, row.records)
    _demand(
        (said.study, said.release, said.records) == expected,
        "the release belongs to another study, or states another number of records",
    )
    listed = release_chunk_digests(trail.connection, trail.study)
    _demand(listed == dict(enumerate(said.chunk_digests)), "the listed chunks are not the released ones")
    told = [event.detail.get("statement") for event in trail.events_of("release")]
    _demand(told == [statement.digest.hex()], "the transcript must contain this release exactly once")
    software = [told_software(event.detail) for event in trail.events_of("release")]
    _demand(software == [said.software], "the transcript names another software than the release")
    for position, digest in enumerate(said.chunk_digests):
        content = trail.proxy.files.read(release_name(trail.study, row.release_folder or "", position))
        _demand(Digest.of(content) == digest, f"chunk {position} of the release was altered")


def _check_acts(trail: Trail) -> None:
    """Checks the data user's statements that the events `cancelled` and `opened` name."""
    for kind, named_by in (("cancel", "cancelled"), ("opened", "opened")):
        encoded = trail.blob(kind)
        if encoded is None:  # earlier versions did not keep `cancel`, and their events name nothing
            named = any(event.detail for event in trail.events_of(named_by))
            _demand(not named, f"the transcript names a statement {kind} that is not stored")
            continue
        statement = verify_statement(kind, encoded, trail.manifest.user.ed25519)
        _demand_told(trail, named_by, {"statement": statement.digest.hex()})
        if kind == "opened":
            release = _digest_of("release", trail.blob("release") or b"")
            said = (trail.study, trail.row.cohort_digest, release)
            opened = Opened.parse(statement)
            _demand((opened.study, opened.cohort, opened.release) == said, "another release was opened")


def _check_components(trail: Trail) -> None:
    if trail.components is None:
        return
    digest, encoded = trail.components
    statement = verify_statement("components", encoded, trail.manifest.user.ed25519)
    said = SealedComponents.parse(statement)
    _demand(statement.digest == digest, "the stored digest of the components is wrong")
    _demand(said.study == trail.study, "the components belong to another study")
    owners = {member.owner for member in trail.members}
    _demand(set(said.sealed) == owners, "the components are not sealed to the owners of the cohort")
    _demand_told(trail, "components", naming_head({"statement": digest.hex()}, said.log))


def _check_deleted(trail: Trail) -> None:
    """Checks that data without a key or without a use were deleted."""
    if trail.row.state in _LIVE:
        left = replaced_folders(trail.proxy, trail.study)
        _demand(
            not left,
            f"{len(left)} unneeded folders still exist; a running proxy removes them within minutes",
        )
    else:
        sealed = sealed_folder(trail.study) in trail.proxy.files.folders(trail.study)
        _demand(not sealed, "sealed files still exist; start the proxy, which removes them")


_CHECKS: Final[dict[str, Callable[[Trail], None]]] = {
    "manifest: signature, figures and modulus": _check_manifest,
    "transcript: every signature and link": _check_transcript,
    "state: the same as at the end of the transcript": _check_state,
    "log: every link, and the transcript in it": _check_log,
    "log: everything that is stored, and nothing else": _check_log_is_stored,
    "cohort: the frozen digest": _check_cohort,
    "shares: statements, receipts and their events": _check_statements,
    "declines: signatures": _check_declines,
    "count: challenge and answer": _check_count,
    "release: signature, cohort and chunks": _check_release,
    "data user's acts: `cancel` and `opened`": _check_acts,
    "components: signature and owners": _check_components,
    "deletion: data that are no longer needed": _check_deleted,
}

_BEFORE_STEP: Final = {
    "manifest": _check_manifest,
    "transcript": _check_transcript,
    "state": _check_state,
    "cohort": _check_cohort,
    "complete shares": _check_complete,
    "count": _check_count,
}
"""The checks that need neither files nor other studies."""


def _check_signed(trail: Trail, owner: PartyId, signed: SignedShare) -> None:
    statement = _signed_by(trail, owner, signed.statement)
    parse = ShareStatement.parse if statement.kind == "share" else Withdrawal.parse
    said = parse(statement)
    expected = (signed.subject, trail.study, signed.version, signed.digest)
    found = (statement.kind, said.study, said.version, statement.digest)
    _demand(found == expected, "a stored statement is not of the expected kind")


def _signed_by(trail: Trail, owner: PartyId, encoded: bytes) -> Statement:
    """The statement of an owner about its share: a share statement, a withdrawal or a decline."""
    party = trail.parties.get(owner)
    if party is None:
        raise _wrong("a statement comes from an owner that is not enrolled")
    said = parse_canonical(encoded).get("kind")
    kind = said if said in ("withdrawal", "decline") else "share"
    return verify_statement(kind, encoded, party.ed25519)


def _told(event: Event) -> tuple[object, ...]:
    detail = event.detail
    return event.kind, detail.get("owner"), detail.get("version"), detail.get("statement"), event.time


def _digest_of(kind: str, statement: bytes) -> Digest:
    return verify_statement(kind, statement).digest


def _demand_told(trail: Trail, kind: str, detail: dict[str, object]) -> None:
    told = [dict(event.detail) for event in trail.events_of(kind)]
    _demand(told == [detail], f"the transcript has another {kind}")


def _demand_both(one: bool, this: str, other: bool, that: str) -> None:
    """Checks that either both things exist or neither does."""
    _demand(one or not other, f"there is {that}, but not {this}")
    _demand(other or not one, f"there is {this}, but not {that}")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _wrong(otherwise)


def _wrong(problem: str) -> MessageError:
    return MessageError("audit-failed", problem)


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
