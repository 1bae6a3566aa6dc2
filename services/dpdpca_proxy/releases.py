"""Operations after closing: the count with its proof, the finished release, and the published components."""

from dataclasses import dataclass

import gmpy2
from gmpy2 import mpz

from dpdpca_protocol.errors import (
    ConflictError,
    CryptographicError,
    MessageError,
    NotAllowedError,
    NotFoundError,
)
from dpdpca_protocol.messages.study_messages import CountAnswer, CountChallenge, Opened, SealedComponents
from dpdpca_protocol.release.release import check_count, check_count_range
from dpdpca_protocol.result.wide_publication import most_bytes
from dpdpca_protocol.study import RELEASED_STATES, StudyEvent, StudyState
from dpdpca_protocol.wire.canonical import canonical_json, named_list, parse_canonical
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.sealing import DATA_KEY_BYTES, SEALING_OVERHEAD_BYTES
from dpdpca_protocol.wire.signing import naming_head, verify_statement
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.files import release_name
from dpdpca_proxy.store.log import entries_between
from dpdpca_proxy.store.parties import PartyRow
from dpdpca_proxy.store.releases import find_components, insert_components, release_chunk_digests
from dpdpca_proxy.store.shares import find_signed
from dpdpca_proxy.store.studies import (
    StudyRow,
    append_event,
    frozen_cohort,
    list_events,
    load_blob,
    load_study,
    move_study,
    set_study,
)
from dpdpca_proxy.studies import check_user, fail

_REST_BYTES = 2048
"""An upper bound for the names of members and for the members of fixed size in components or a statement."""


@dataclass(frozen=True, slots=True)
class _Asked:
    row: StudyRow
    challenge: bytes
    answer: bytes | None


def challenge_of(proxy: Proxy, caller: PartyRow, study: StudyId) -> bytes:
    """E[N] as a signed statement; always the same bytes.

    Raises:
        NotAllowedError: the caller is not the study's data user.
        ConflictError: `no-count` in a study without a count, `not-ready` before the aggregation is done.
    """
    return _asked(proxy, caller, study).challenge


def answer_count(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> None:
    """Accepts N with its proof, once. Repeating the same answer changes nothing.

    Raises:
        CryptographicError: `count-proof-false`; nothing changed.
        ConflictError: `count-already-answered`, or the study is not waiting for a count.
        CryptographicError: `count-out-of-range`; the study fails, and no noise is drawn.
    """
    asked = _asked(proxy, caller, study)
    statement = verify_statement("count-answer", untrusted, caller.ed25519)
    if asked.answer is not None:
        if asked.answer == statement.encoded:
            return
        raise _already_answered()
    terms = proxy.terms(study)
    public = terms.public_key
    answer = CountAnswer.parse(statement, public.modulus_bytes)
    challenge = verify_statement("count-challenge", asked.challenge, proxy.key_of(study).public.ed25519)
    if answer.study != study or answer.challenge != challenge.digest:
        raise MessageError("malformed", "the answer is for another challenge", "fetch the challenge again")
    ciphertext = CountChallenge.parse(challenge, public.ciphertext_bytes).ciphertext
    gmpy2.get_context().allow_release_gil = True
    check_count(
        public,
        mpz(int.from_bytes(ciphertext, "big")),
        answer.records,
        mpz(int.from_bytes(answer.randomizer, "big")),
    )
    try:
        check_count_range(answer.records, terms.manifest.min_records, terms.manifest.max_records)
    except CryptographicError as error:
        # All enrolled parties can read the reason, but N itself is only for the data user.
        fail(
            proxy,
            asked.row,
            error.slug,
            "all owners together have fewer or more records than the manifest allows",
        )
        raise
    with proxy.database.transaction("take count", study) as connection:
        now = proxy.now()
        row = load_study(connection, study)
        if row.records is not None:
            if load_blob(connection, study, "answer") == statement.encoded:
                return  # at the same time
            raise _already_answered()
        move_study(connection, row, StudyEvent.COUNT, records=answer.records, answer=statement.encoded)
        # Only digests, because every enrolled party can read the transcript. N cannot be guessed from them:
        # the answer contains the root, and the challenge contains fresh randomness.
        digests = {"answer": statement.digest.hex(), "challenge": challenge.digest.hex()}
        detail = naming_head(digests, answer.log)
        append_event(connection, proxy.key_of(study), study, "count", detail, now)
    proxy.wake()


def release_bundle(proxy: Proxy, caller: PartyRow, study: StudyId) -> bytes:
    """The signed release with the share statements of its cohort, and transcript and log up to the release.

    Raises:
        NotAllowedError: the caller is not the study's data user.
        ConflictError: `not-ready`; `generation-mismatch`, the database is older than this proxy.
    """
    with proxy.database.reading("read release") as connection:
        row = load_study(connection, study)
        check_user(row, caller)
        _check_released(proxy, row)
        release = load_blob(connection, study, "release")
        assert release is not None
        statements = [
            signed.statement
            for member in frozen_cohort(connection, study)
            if (signed := find_signed(connection, study, member.owner, member.version)) is not None
        ]
        events = _up_to_release(list_events(connection, study))
        ends = [verify_statement("event", event).digest for event in (events[0], events[-1])]
        log = entries_between(connection, *ends)
    # Canonical JSON is built from canonical parts without parsing, because a cohort can have megabytes.
    return (
        b"{"
        + named_list("log", [canonical_json(entry.to_body()) for entry in log])
        + b',"release":'
        + release
        + b","
        + named_list("shares", statements)
        + b","
        + named_list("transcript", events)
        + b"}"
    )


def release_chunk(proxy: Proxy, caller: PartyRow, study: StudyId, position: int) -> bytes:
    """One chunk of the finished release; always the same bytes.

    Raises:
        IntegrityError: the file differs from the signed content. The data user would end the study if it
            received this file.
    """
    with proxy.database.reading("read release chunk") as connection:
        row = load_study(connection, study)
        check_user(row, caller)
        _check_released(proxy, row)
        digests = release_chunk_digests(connection, study)
    if position not in digests:
        raise NotFoundError(
            "not-found", f"the release has chunks 0 to {len(digests) - 1}", "request one of these chunks"
        )
    assert row.release_folder is not None
    name = release_name(study, row.release_folder, position)
    chunk = proxy.files.read(name)
    if Digest.of(chunk) != digests[position]:
        raise proxy.files.altered(name)
    return chunk


def take_opened(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> None:
    """Stores the data user's statement that it opens the release. Repeating it changes nothing.

    Raises:
        MessageError: the statement is about another study.
        NotAllowedError: the caller is not the study's data user.
        ConflictError: `not-ready`, or `opened-differs`, the statement names another cohort or release.
    """
    statement = verify_statement("opened", untrusted, caller.ed25519)
    opened = Opened.parse(statement)
    if opened.study != study:
        raise MessageError("malformed", "the statement and the path name different studies")
    with proxy.database.transaction("take opened", study) as connection:
        now = proxy.now()
        row = load_study(connection, study)
        check_user(row, caller)
        _check_released(proxy, row)
        release = load_blob(connection, study, "release")
        assert release is not None
        if (opened.cohort, opened.release) != (
            row.cohort_digest,
            verify_statement("release", release).digest,
        ):
            raise ConflictError(
                "opened-differs",
                "the statement names another cohort or another release than the study's",
                "keep both statements as evidence",
            )
        if load_blob(connection, study, "opened") is not None:
            return
        set_study(connection, row, opened=statement.encoded)
        told = {"statement": statement.digest.hex()}
        append_event(connection, proxy.key_of(study), study, "opened", told, now)
    proxy.wake()


def publication_limit(proxy: Proxy, caller: PartyRow, study: StudyId) -> int:
    """The largest size of a components statement of this study, if the caller may send one now.

    Raises:
        NotAllowedError: the caller is not the study's data user.
        ConflictError: `not-ready`, or the study ended without a release.
    """
    with proxy.database.reading("may components come") as connection:
        row = load_study(connection, study)
        check_user(row, caller)
        _check_released(proxy, row)
        owners = len(frozen_cohort(connection, study))
    manifest = proxy.terms(study).manifest
    d, names = manifest.figures.encoded_features, manifest.encoded_names
    if manifest.rules.is_wide:
        body, key = most_bytes(d, manifest.columns) + DATA_KEY_BYTES, DATA_KEY_BYTES + SEALING_OVERHEAD_BYTES
        return min(COMPONENTS_LIMIT_BYTES, body * 4 // 3 + owners * (2 * key + 100) + _REST_BYTES)
    # A number has 16 hex digits. There are at most d vectors of length d, 5 more numbers for each, and 3 for
    # each feature.
    plain = 16 * d * (d + 8) + sum(2 * len(name.encode()) + 3 for name in names) + _REST_BYTES
    copy = 2 * (plain + SEALING_OVERHEAD_BYTES) + _REST_BYTES
    return min(COMPONENTS_LIMIT_BYTES, owners * copy + _REST_BYTES)


def publish(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> None:
    """Stores the components that the data user sealed to each owner of the cohort.

    Only the first statement with components counts.

    Raises:
        MessageError: the components belong to another study, or there is not exactly one copy for each owner
            of the cohort.
        ConflictError: `not-ready`, or `components-differ`, other components were published before.
    """
    statement = verify_statement("components", untrusted, caller.ed25519)
    components = SealedComponents.parse(statement)
    if components.study != study:
        raise MessageError("malformed", "the statement and the path name different studies")
    with proxy.database.transaction("publish components", study) as connection:
        now = proxy.now()
        row = load_study(connection, study)
        check_user(row, caller)
        _check_released(proxy, row)
        present = find_components(connection, study)
        if present is not None:
            if present[0] == statement.digest:
                return
            raise ConflictError(
                "components-differ", "other components were published before", "use the published components"
            )
        if load_blob(connection, study, "opened") is None:
            raise _not_ready("the data user has not stated yet which release it opens")
        if set(components.sealed) != {member.owner for member in frozen_cohort(connection, study)}:
            raise MessageError(
                "malformed",
                "the components must be sealed to exactly the owners of the cohort",
                "seal one copy for each owner",
            )
        move_study(connection, row, StudyEvent.PUBLISH)
        insert_components(connection, study, statement.digest, statement.encoded)
        append_event(
            connection,
            proxy.key_of(study),
            study,
            "components",
            naming_head({"statement": statement.digest.hex()}, components.log),
            now,
        )
    proxy.wake()


def components_of(proxy: Proxy, caller: PartyRow, study: StudyId) -> bytes:
    """The published statement, for an owner of the cohort or for the data user.

    Raises:
        NotAllowedError: the caller has no share in this study.
        ConflictError: `not-ready`.
    """
    with proxy.database.reading("read components") as connection:
        row = load_study(connection, study)
        owners = {member.owner for member in frozen_cohort(connection, study)}
        if caller.party not in owners | {row.user}:
            raise NotAllowedError("not-in-the-cohort", "this owner has no share in the study", "")
        present = find_components(connection, study)
    if present is None:
        raise _not_ready("no components are published yet")
    return present[1]


def _asked(proxy: Proxy, caller: PartyRow, study: StudyId) -> _Asked:
    with proxy.database.reading("read count challenge") as connection:
        row = load_study(connection, study)
        check_user(row, caller)
        if not row.release_kind.needs_count:
            kind = row.release_kind
            raise ConflictError("no-count", f"a {kind} study has no count challenge", "wait for the release")
        challenge = load_blob(connection, study, "challenge")
        answer = load_blob(connection, study, "answer")
    if challenge is None:
        _refuse_ended(row)
        raise _not_ready("the count is not ready yet, because the aggregation is still running")
    if answer is None:
        _refuse_ended(row)
    return _Asked(row, challenge, answer)


def _check_released(proxy: Proxy, row: StudyRow) -> None:
    """Checks that the study has a release, and that the generation file has recorded this release.

    This ensures that an older copy of the database cannot make another release unnoticed.
    """
    if row.state not in (StudyState.CANCELLED, StudyState.FAILED):
        proxy.database.settle_witness()
    if row.state in RELEASED_STATES:
        return
    _refuse_ended(row)
    raise _not_ready("there is no release yet")


def _refuse_ended(row: StudyRow) -> None:
    if row.state in (StudyState.CANCELLED, StudyState.FAILED):
        raise ConflictError(
            "wrong-state", f"the study is {row.state}, so there will be no release", "start a new study"
        )


def _not_ready(problem: str) -> ConflictError:
    return ConflictError(
        "not-ready", problem, "follow the study's events and ask again", retry_after_seconds=1
    )


def _already_answered() -> ConflictError:
    return ConflictError("count-already-answered", "the count was already answered", "wait for the release")


def _up_to_release(events: list[bytes]) -> list[bytes]:
    """The chain up to the release event. Later events are left out, so that the bundle never changes."""
    kinds = [parse_canonical(event)["body"]["kind"] for event in events]
    return events[: kinds.index("release") + 1]
