"""Acts after closing: the count with its proof, the finished release, the components on their way back."""

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
from dpdpca_protocol.messages.study_messages import CountAnswer, CountChallenge, SealedComponents
from dpdpca_protocol.release.release import check_count, check_count_range
from dpdpca_protocol.study import RELEASED_STATES, StudyEvent, StudyState
from dpdpca_protocol.wire.canonical import named_list, parse_canonical
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.sealing import SEALING_OVERHEAD_BYTES
from dpdpca_protocol.wire.signing import naming_head, verify_statement
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.files import release_name
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
)
from dpdpca_proxy.studies import check_user, fail

_REST_BYTES = 2048
"""More than the names of members, and the members of one size, of components or of a statement."""


@dataclass(frozen=True, slots=True)
class _Asked:
    row: StudyRow
    challenge: bytes
    answer: bytes | None


def challenge_of(proxy: Proxy, caller: PartyRow, study: StudyId) -> bytes:
    """E[N] as a signed statement: the same bytes for ever.

    Raises:
        NotAllowedError: not the study's data user.
        ConflictError: `no-count` in a joint study, `not-ready` before the aggregation is done.
    """
    return _asked(proxy, caller, study).challenge


def answer_count(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> None:
    """Takes N with its proof, once. The same answer again changes nothing.

    Raises:
        CryptographicError: `count-proof-false`; nothing changed.
        ConflictError: `count-already-answered`, or the study is not waiting for it.
        CryptographicError: `count-out-of-range`; the study has failed by it, and no noise was drawn.
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
        raise MessageError("malformed", "the answer is to another challenge", "fetch the challenge again")
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
        # Everybody enrolled reads why it failed, and N itself is for the data user alone.
        fail(proxy, asked.row, error.slug, "all owners together hold fewer or more records than agreed")
        raise
    now = proxy.now()
    with proxy.database.transaction("take count") as connection:
        row = load_study(connection, study)
        if row.records is not None:
            if load_blob(connection, study, "answer") == statement.encoded:
                return  # at the same moment
            raise _already_answered()
        move_study(connection, row, StudyEvent.COUNT, records=answer.records, answer=statement.encoded)
        # Digests only: every enrolled party reads the transcript. N cannot be guessed from them, for the
        # answer holds the root and the challenge fresh randomness.
        digests = {"answer": statement.digest.hex(), "challenge": challenge.digest.hex()}
        detail = naming_head(digests, answer.log)
        append_event(connection, proxy.key_of(study), study, "count", detail, now)
    proxy.wake()


def release_bundle(proxy: Proxy, caller: PartyRow, study: StudyId) -> bytes:
    """The signed release with the share statements of its cohort and the transcript up to it.

    Raises:
        NotAllowedError: not the study's data user.
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
    # Canonical from canonical parts: nothing is parsed, for a cohort may say megabytes.
    return (
        b'{"release":'
        + release
        + b","
        + named_list("shares", statements)
        + b","
        + named_list("transcript", events)
        + b"}"
    )


def release_chunk(proxy: Proxy, caller: PartyRow, study: StudyId, position: int) -> bytes:
    """One chunk of the finished release: the same bytes for ever.

    Raises:
        IntegrityError: the file is not what was signed. A data user that was handed it would end the study.
    """
    with proxy.database.reading("read release chunk") as connection:
        row = load_study(connection, study)
        check_user(row, caller)
        _check_released(proxy, row)
        digests = release_chunk_digests(connection, study)
    if position not in digests:
        raise NotFoundError(
            "not-found", f"the release has chunks 0 to {len(digests) - 1}", "ask for one of these"
        )
    assert row.release_folder is not None
    name = release_name(study, row.release_folder, position)
    chunk = proxy.files.read(name)
    if Digest.of(chunk) != digests[position]:
        raise proxy.files.altered(name)
    return chunk


def publication_limit(proxy: Proxy, caller: PartyRow, study: StudyId) -> int:
    """How many bytes a statement with the components of this study can have, if there may be one now.

    Raises:
        NotAllowedError: not the study's data user.
        ConflictError: `not-ready`, or the study ended without a release.
    """
    with proxy.database.reading("may components come") as connection:
        row = load_study(connection, study)
        check_user(row, caller)
        _check_released(proxy, row)
        owners = len(frozen_cohort(connection, study))
    manifest = proxy.terms(study).manifest
    d, names = manifest.figures.encoded_features, manifest.encoded_names
    # A number is 16 hex digits. At most d vectors of d; beside them 5 numbers each, and 3 for each feature.
    plain = 16 * d * (d + 8) + sum(2 * len(name.encode()) + 3 for name in names) + _REST_BYTES
    copy = 2 * (plain + SEALING_OVERHEAD_BYTES) + _REST_BYTES
    return min(COMPONENTS_LIMIT_BYTES, owners * copy + _REST_BYTES)


def publish(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> None:
    """Takes the components that the data user sealed to each owner of the cohort, once.

    Raises:
        MessageError: not for this study, or not exactly one copy for each owner of the cohort.
        ConflictError: `not-ready`, or `components-differ` from those published before.
    """
    statement = verify_statement("components", untrusted, caller.ed25519)
    components = SealedComponents.parse(statement)
    if components.study != study:
        raise MessageError("malformed", "the statement speaks of another study than the path")
    now = proxy.now()
    with proxy.database.transaction("publish components") as connection:
        row = load_study(connection, study)
        check_user(row, caller)
        _check_released(proxy, row)
        present = find_components(connection, study)
        if present is not None:
            if present[0] == statement.digest:
                return
            raise ConflictError("components-differ", "other components were published before", "keep those")
        if set(components.sealed) != {member.owner for member in frozen_cohort(connection, study)}:
            raise MessageError(
                "malformed",
                "the components are not sealed to exactly the owners of the cohort",
                "seal one copy each",
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
    """The published statement, to an owner of the cohort or to the data user.

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
            raise ConflictError("no-count", f"a {kind} study has no count step", "wait for the release")
        challenge = load_blob(connection, study, "challenge")
        answer = load_blob(connection, study, "answer")
    if challenge is None:
        _refuse_ended(row)
        raise _not_ready("the count is not aggregated yet")
    if answer is None:
        _refuse_ended(row)
    return _Asked(row, challenge, answer)


def _check_released(proxy: Proxy, row: StudyRow) -> None:
    """That the release is there, and that no older copy of the database could make another one unseen."""
    if row.state not in (StudyState.CANCELLED, StudyState.FAILED):
        proxy.database.settle_witness()
    if row.state in RELEASED_STATES:
        return
    _refuse_ended(row)
    raise _not_ready("there is no release yet")


def _refuse_ended(row: StudyRow) -> None:
    if row.state in (StudyState.CANCELLED, StudyState.FAILED):
        raise ConflictError(
            "wrong-state", f"the study is {row.state} and will have no release", "start a new study"
        )


def _not_ready(problem: str) -> ConflictError:
    return ConflictError(
        "not-ready", problem, "follow the study's events and ask again", retry_after_seconds=1
    )


def _already_answered() -> ConflictError:
    return ConflictError("count-already-answered", "the count was answered before", "wait for the release")


def _up_to_release(events: list[bytes]) -> list[bytes]:
    """The chain that the release closes: what comes later must not change the bundle."""
    kinds = [parse_canonical(event)["body"]["kind"] for event in events]
    return events[: kinds.index("release") + 1]
