"""The steps that take a study from a draft to published components, one stage at a time.

A step checks the stage, does one thing, stores the outcome, and only then sends messages. A message that was
stored before it was sent is sent again unchanged. `RefusedError` ends a study. Every other DpdpcaError is
temporary, and the step is repeated.

A study is either opened or cancelled. `opened` is stored and sent before anything is opened, and only one is
ever signed. `cancel` is signed only after the study's secret was deleted.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime

from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    CryptographicError,
    DpdpcaError,
    IntegrityError,
    LimitError,
    NotFoundError,
    PolicyError,
    UnavailableError,
)
from dpdpca_protocol.messages.study_messages import (
    CountAnswer,
    Opened,
    ReleaseStatement,
    SealedComponents,
    StudyAct,
)
from dpdpca_protocol.release.suite import Cohort
from dpdpca_protocol.result.components import Components
from dpdpca_protocol.result.publication import encode_components, read_components
from dpdpca_protocol.study import RELEASED_STATES, ShareState, StudyState
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import (
    SignedManifest,
    named_list,
    open_manifest,
    sign_manifest,
)
from dpdpca_protocol.terms.terms import SuiteName
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.http import COMPONENTS_LIMIT_BYTES, RELEASE_LIMIT_BYTES
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.sealing import DATA_KEY_BYTES, SEALING_OVERHEAD_BYTES
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.http.answers import ReleaseBundle, StudyFacts
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_user.evidence import (
    VerifiedRelease,
    check_chunk,
    check_opened,
    cohort_of,
    released_bytes,
    verified_declines,
    verify_challenge,
    verify_closing,
    verify_release,
)
from dpdpca_user.planning.draft import complete_draft, is_blinded_draft, suite_of_draft
from dpdpca_user.planning.lint import as_enrolled, closing_time, lint, parse_draft
from dpdpca_user.results.model import Model
from dpdpca_user_service.earlier_rounds import counts_before, rounds_before
from dpdpca_user_service.participants import enrolled_owners, names_replaced_key, with_current_keys
from dpdpca_user_service.provenance import provenance_of
from dpdpca_user_service.service import UserService
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow
from dpdpca_user_service.work import (
    FittedModel,
    make_pads_key,
    open_count,
    open_pre_study,
    open_release,
    open_wide,
)

MOST_OWNERS_TOLD = 2000
"""Up to this many owners, a study's row stores what the proxy says about each owner.

Rows must stay small, because they are read often, and many at a time.
"""

_MOST_DECLINES_TOLD = 200
"""Up to this many declines, a study's row stores what their owners say."""

_OWNER_BYTES, _DIGEST_BYTES = 7168, 80
"""The bytes in a release for each owner, and for each chunk of its share."""

_TOO_LATE = frozenset({"noise-already-drawn", "study-closed", "wrong-state"})
"""With these answers the proxy refuses a `cancel` for good."""


class RefusedError(Exception):
    """A peer's message is invalid, or a rule forbids it. Trying again does not help."""

    def __init__(self, reason: DpdpcaError) -> None:
        super().__init__(reason.slug)
        self.reason = reason


@contextmanager
def _final() -> Iterator[None]:
    """A refusal inside this block ends the study. Damaged data of this service and temporary failures do not
    end the study."""
    try:
        yield
    except (IntegrityError, UnavailableError):
        raise
    except DpdpcaError as error:
        raise RefusedError(error) from error


@contextmanager
def _ours(service: UserService) -> Iterator[None]:
    """Data that were valid on arrival and are invalid now were damaged here. No peer is to blame."""
    try:
        yield
    except (IntegrityError, UnavailableError):
        raise
    except (DpdpcaError, AttributeError, TypeError, ValueError) as error:
        raise IntegrityError(
            "state-corrupt",
            "the stored release was valid on arrival, but is damaged now",
            "restore the whole home folder from a backup",
            place=service.store.database.place,
        ) from error


def step(service: UserService, row: StudyRow) -> bool:
    """Does the next step of a study.

    Returns:
        Whether something changed. False means: try again later.

    Raises:
        RefusedError: the study cannot go on.
        DpdpcaError: a temporary condition; try again.
    """
    with service.client(row) as proxy:
        if row.cancel_due:
            return _send_cancel(service, row, proxy)
        return _STEPS[row.stage](service, row, proxy)


def _make_key(service: UserService, row: StudyRow, proxy: ProxyClient) -> bool:
    pinned = service.home.proxy(row.proxy_url)
    if (card := proxy.card(of_any_key=True)[0]).identity != pinned.identity:
        pinned = service.home.follow_proxy(pinned, card, proxy.proxy_rotations())
    with _final():
        draft = parse_draft(service.store.need(row.id, "draft"), row.media_type)
    listed = proxy.parties(with_statements=is_blinded_draft(draft))
    user = as_enrolled(service.party, [party for party in listed if party.successor is None])
    participants = enrolled_owners(listed)
    settings, created = service.settings, _time(row.created_at)
    closes_at = closing_time(created, settings.closes_after_days)
    if names_replaced_key(draft, listed):
        rotations = proxy.rotations()
        with _final():
            draft = with_current_keys(draft, rotations)
    with _final():
        # Everything except the key is checked before seconds are spent on making one.
        lint(draft, user, pinned.party, closes_at, settings.key_bits, participants, service.feature_lists)
    with _timed(service, row, "key"):
        is_pads = suite_of_draft(draft) is SuiteName.PADS
        made = make_pads_key() if is_pads else service.study_keys.take(row.id)
    with _final():
        manifest = complete_draft(
            draft,
            user,
            pinned.party,
            participants,
            made.public,
            closes_at=closes_at,
            feature_lists=service.feature_lists,
        )
    statement = sign_manifest(manifest, service.key)
    study = manifest.study_id
    service.store.move(
        row,
        Stage.SIGNED,
        service.now(),
        study,
        study=study.hex(),
        manifest=statement.encoded,
        secret=service.keyring.close(made.secret, study),
        title=manifest.title,
    )
    return True


def _post_manifest(service: UserService, row: StudyRow, proxy: ProxyClient) -> bool:
    manifest = service.store.need(row.id, "manifest")
    service.secret(row)  # before any owner encrypts with a key that this service does not have
    try:
        _send_list(service, manifest, proxy)
        study = proxy.create_study(manifest)
    except (AuthenticationError, IntegrityError, UnavailableError):
        raise
    except DpdpcaError as error:
        if error.slug == "too-many-feature-lists":  # earlier lists go after a day
            raise
        raise RefusedError(error) from error
    if study != row.study:
        raise RefusedError(
            CryptographicError("wrong-study", "the proxy answered with the id of another study")
        )
    service.store.move(row, Stage.OPEN, service.now())
    return True


def _send_list(service: UserService, manifest: bytes, proxy: ProxyClient) -> None:
    """Sends the list of features that a manifest names. The proxy must have it before the manifest."""
    reference = named_list(verify_statement("manifest", manifest).body)
    if reference is None:
        return
    if (content := service.feature_lists(reference.sha256)) is None:
        raise IntegrityError(
            "state-corrupt",
            "the list of features that a study names is missing",
            "send the list to this service again",
            place=str(service.feature_lists.path(reference.sha256)),
        )
    proxy.put_feature_list(content)


def _follow(service: UserService, row: StudyRow, proxy: ProxyClient) -> bool:
    facts = _read_facts(service, row, proxy)
    signed = signed_manifest(service, row)
    if facts.state == StudyState.CLOSED and signed.manifest.release.needs_count:
        return _answer(service, row, proxy, signed)
    if facts.state in RELEASED_STATES:
        return _fetch(service, row, proxy, signed)
    return False


def _follow_answered(service: UserService, row: StudyRow, proxy: ProxyClient) -> bool:
    facts = _read_facts(service, row, proxy)
    if facts.state == StudyState.CLOSED:
        _send_answer(service, row, proxy)
        return False
    if facts.state in RELEASED_STATES:
        return _fetch(service, row, proxy, signed_manifest(service, row))
    return False


def _answer(service: UserService, row: StudyRow, proxy: ProxyClient, signed: SignedManifest) -> bool:
    """Proves N, once. The answer is stored before it is sent, and no second answer is ever made."""
    study, manifest = row.known_study, signed.manifest
    try:
        challenge = proxy.count_challenge(study)
    except ConflictError as error:
        if error.slug == "not-ready":
            return False
        raise
    transcript = proxy.transcript(study)
    with _final():
        asked, statement = verify_challenge(challenge.encoded, signed)
        if asked.cohort != verify_closing(transcript, signed):
            raise CryptographicError(
                "cohort-differs", "the count challenge is about another cohort than the closed study's"
            )
    secret = service.secret(row)
    with _timed(service, row, "count"), _final():
        records, randomizer = service.workers.call(open_count, secret, asked.ciphertext)
    if not manifest.min_records <= records <= manifest.max_records:
        # There is no answer: it would tell the proxy the content of whatever ciphertext it sent.
        reason = PolicyError(
            "count-out-of-range",
            f"the number of records in the study is not between {manifest.min_records} and "
            f"{manifest.max_records}",
            "start a new study with other limits or with more owners",
        )
        service.store.move(
            row,
            Stage.FAILED,
            service.now(),
            cancel_due=True,
            problem_slug=reason.slug,
            problem=reason.public_text,
        )
        return True
    head = service.store.log_head()
    answer = CountAnswer(study, statement.digest, records, randomizer, head).sign(service.key_of(row))
    service.store.move(
        row,
        Stage.ANSWERED,
        service.now(),
        answer.digest,
        challenge=challenge.encoded,
        answer=answer.encoded,
    )
    _send_answer(service, row, proxy)
    return True


def _send_answer(service: UserService, row: StudyRow, proxy: ProxyClient) -> None:
    answer = verify_statement(
        "count-answer", service.store.need(row.id, "answer"), service.key_of(row).public.ed25519
    )
    proxy.answer_count(row.known_study, answer)


def check_not_released(service: UserService, row: StudyRow) -> None:
    """Asks the proxy whether a study can still be cancelled, before its secret is deleted.

    Raises:
        ConflictError: `wrong-state`, there is a release, which this data user may have opened.
    """
    with service.client(row) as proxy:
        try:
            events = proxy.transcript(row.known_study)
        except NotFoundError:
            return  # the manifest was signed, but not sent
    if any(parse_canonical(event)["body"]["kind"] == "release" for event in events):
        raise ConflictError("wrong-state", "the study has a release and can no longer be cancelled")


def _send_cancel(service: UserService, row: StudyRow, proxy: ProxyClient) -> bool:
    """Signs and sends the `cancel` of a study whose secret was deleted. The study stays cancelled here, also
    if the proxy refuses."""
    database = service.store.database
    if database.has_to_forget and not database.forget_deleted():
        return False
    act = StudyAct("cancel", row.known_study).sign(service.key_of(row))
    refused: dict[str, str] = {}
    try:
        proxy.cancel_study(row.known_study, act)
    except NotFoundError:
        pass  # the manifest was signed, but not sent: the proxy never learns of it
    except ConflictError as error:
        if error.slug not in _TOO_LATE:
            raise
        if row.problem is None:
            refused = {"problem_slug": error.slug[:60], "problem": error.public_text[:1000]}
    service.store.note(row, cancel_due=False, **refused)
    return True


def _fetch(service: UserService, row: StudyRow, proxy: ProxyClient, signed: SignedManifest) -> bool:
    """Fetches the release and the statements that prove it.

    Chunks that already arrived are not requested again.
    """
    study = row.known_study
    with _timed(service, row, "fetch"):
        bundle = proxy.release(study, release_limit(signed.manifest))
        with _final():
            verified = _verify(service, row, signed, bundle)
        for index in range(len(verified.release.chunk_digests)):
            _chunk(service, row, proxy, signed, verified.release, index)
    told = verified.statement.digest
    service.store.move(row, Stage.FETCHED, service.now(), told, bundle=encode_bundle(bundle))
    return True


def release_limit(manifest: Manifest) -> int:
    """The size of a release without its chunks, in bytes, for the largest possible cohort."""
    of_an_owner = _OWNER_BYTES + _DIGEST_BYTES * manifest.figures.chunk_count
    return RELEASE_LIMIT_BYTES + manifest.max_owners * of_an_owner


def _chunk(
    service: UserService,
    row: StudyRow,
    proxy: ProxyClient,
    signed: SignedManifest,
    release: ReleaseStatement,
    index: int,
) -> bytes:
    """A chunk of the release. The chunk is fetched and stored, unless the signed chunk is already stored."""
    stored = service.store.chunk(row, index)
    if stored is not None and Digest.of(stored) == release.chunk_digests[index]:
        return stored
    chunk = proxy.release_chunk(row.known_study, index, released_bytes(signed, index))
    with _final():
        check_chunk(chunk, index, signed, release)
    service.store.add_chunk(row, index, chunk)
    return chunk


def _fit(service: UserService, row: StudyRow, proxy: ProxyClient) -> bool:
    """Decrypts the release and computes the components. Deletes the secret key when the result is stored."""
    signed = signed_manifest(service, row)
    with _ours(service):
        verified = _verify(service, row, signed, decode_bundle(service.store.need(row.id, "bundle")))
    count = len(verified.release.chunk_digests)
    chunks = [_chunk(service, row, proxy, signed, verified.release, index) for index in range(count)]
    _state_opened(service, row, proxy, signed, verified)
    secret = service.secret(row)
    if not signed.manifest.release.has_components:
        return _read_pre_study(service, row, signed, secret, chunks, cohort_of(verified))
    in_clear = row.in_clear or signed.manifest.needs_second_noise
    body, cohort = signed.manifest.to_body(), cohort_of(verified)
    before = rounds_before(service, signed.manifest) if signed.manifest.rules.is_wide else None
    with service.traces.step("open"), _final():
        opened: FittedModel
        if before is not None:
            opened = service.workers.call(
                open_wide, secret, body, chunks, cohort, in_clear, before, service.feature_lists
            )
        else:
            opened = service.workers.call(
                open_release,
                secret,
                body,
                chunks,
                verified.release.records,
                cohort,
                in_clear,
                service.feature_lists,
            )
    service.store.take_seconds(row, "decrypt", opened.decrypt_seconds)
    service.store.take_seconds(row, "fit", opened.fit_seconds)
    seconds = service.store.find(row.id).seconds
    components = read_components(opened.components, signed.manifest)
    rounds = list(counts_before(service, signed.manifest)) if before is not None else []
    provenance = provenance_of(signed, verified, row, seconds, rounds)
    model = Model(row.known_study, signed.manifest, components, provenance, in_clear, opened.reliability)
    service.store.move(row, Stage.FITTED, service.now(), model=model.to_bytes())
    return True


def _state_opened(
    service: UserService, row: StudyRow, proxy: ProxyClient, signed: SignedManifest, verified: VerifiedRelease
) -> None:
    """Stores and sends the statement that this release is opened. Only after that may anything be opened.

    A store without this statement may be an older copy, so the proxy is asked first whether this data user
    has opened or cancelled the study before.

    Raises:
        RefusedError: this data user has opened another release of the study, or has cancelled it.
    """
    study, key = row.known_study, service.key_of(row)
    stored = service.store.blob(row.id, "opened")
    if stored is None:
        before = proxy.history(study)
        with _final():
            if before.cancel is not None:
                StudyAct.parse(verify_statement("cancel", before.cancel, key.public.ed25519))
                raise PolicyError("cancelled-before", "this data user has cancelled the study before")
            if before.opened is not None:
                check_opened(before.opened, signed, verified)
        opened = Opened(study, verified.release.cohort_digest, verified.statement.digest).sign(key)
        service.store.keep_opened(row, opened, service.now())
    else:
        with _ours(service):
            check_opened(stored, signed, verified)
            opened = verify_statement("opened", stored)
    try:
        proxy.send_opened(study, opened)
    except ConflictError as error:
        if error.slug == "opened-differs":
            raise RefusedError(error) from error
        raise


def _read_pre_study(
    service: UserService,
    row: StudyRow,
    signed: SignedManifest,
    secret: bytes,
    chunks: list[bytes],
    cohort: Cohort,
) -> bool:
    """Decrypts the numbers of a pre-study or a sketch. They are its result."""
    body = signed.manifest.to_body()
    with _final(), service.traces.step("open"):
        result, seconds = service.workers.call(
            open_pre_study, secret, body, chunks, cohort, service.feature_lists
        )
    service.store.take_seconds(row, "decrypt", seconds)
    service.store.move(
        row, Stage.FITTED, service.now(), model=json.dumps(result.to_json(), allow_nan=False).encode()
    )
    return True


def _publish(service: UserService, row: StudyRow, proxy: ProxyClient) -> bool:
    """Publishes the components to every owner of the cohort, sealed to the key in its share statement."""
    encoded = service.store.blob(row.id, "published")
    if encoded is None:
        signed = signed_manifest(service, row)
        try:
            check_publication(service, row)
        except ConflictError as error:
            # Only a model of an earlier version; the driver must not try again.
            service.store.note(row, publish=False, problem_slug=error.slug, problem=error.public_text)
            return False
        bundle = decode_bundle(service.store.need(row.id, "bundle"))
        verified = _verify(service, row, signed, bundle)
        model = service.model_of(row.id)
        keys = {owner: share.kem for owner, share in verified.shares.items()}
        is_wide = signed.manifest.rules.is_wide
        plain = publishable(model.study, model.components, len(keys), once=is_wide)
        log = service.store.log_head()
        if is_wide:
            said = SealedComponents.seal_once(model.study, plain, keys, log)
        else:
            said = SealedComponents.seal_each(model.study, plain, keys, log)
        encoded = said.sign(service.key_of(row)).encoded
        service.store.note(row, published=encoded)
    statement = verify_statement("components", encoded, service.key_of(row).public.ed25519)
    proxy.publish_components(row.known_study, statement)
    service.store.move(row, Stage.PUBLISHED, service.now(), statement.digest)
    return True


def check_publication(service: UserService, row: StudyRow) -> None:
    """Checks that the stored model may be sent to owners.

    Raises:
        ConflictError: the model needs a second draw of noise for that, but lacks it.
    """
    model = service.model_of(row.id)
    if model.manifest.needs_second_noise and not model.has_second_noise:
        raise ConflictError(
            "wrong-state",
            "the study names nobody and the proxy drew the noise, so its components may be published only"
            " with a second noise, which this model lacks",
            "run a new study that names its participants",
        )


def publishable(study: StudyId, components: Components, owners: int, *, once: bool = False) -> bytes:
    """The encoded components for the owners. If all components together are too large, only the leading ones
    are encoded.

    Args:
        study: whose components they are.
        components: all of them.
        owners: how many owners get them.
        once: whether the owners get a key each, and the components together.

    Raises:
        LimitError: not even one component fits.
    """
    # Each copy is sealed, in hex, and has its owner's id as key. The statement has further members.
    sealing = SEALING_OVERHEAD_BYTES + 100
    if once:  # in base64
        room = (COMPONENTS_LIMIT_BYTES - 4096 - 2 * owners * (DATA_KEY_BYTES + sealing)) * 3 // 4 - 100
    else:
        room = (COMPONENTS_LIMIT_BYTES - 4096) // owners // 2 - sealing
    plain = encode_components(study, components)
    while len(plain) > room:
        count = components.component_count
        if count == 1:
            raise LimitError(
                "too-large", "not even one component fits: there are too many features or too many owners"
            )
        components = components.leading(max(1, min(count - 1, count * room // len(plain))))
        plain = encode_components(study, components)
    return plain


_STEPS: Mapping[Stage, Callable[[UserService, StudyRow, ProxyClient], bool]] = {
    Stage.DRAFTED: _make_key,
    Stage.SIGNED: _post_manifest,
    Stage.OPEN: _follow,
    Stage.ANSWERED: _follow_answered,
    Stage.FETCHED: _fit,
    Stage.FITTED: _publish,
}


def encode_bundle(bundle: ReleaseBundle) -> bytes:
    return canonical_json(
        {
            "release": parse_canonical(bundle.release),
            "shares": [parse_canonical(share) for share in bundle.shares],
            "transcript": [parse_canonical(event) for event in bundle.transcript],
            "log": [entry.to_body() for entry in bundle.log],
        }
    )


def decode_bundle(stored: bytes) -> ReleaseBundle:
    return ReleaseBundle.parse(json.loads(stored))


def _read_facts(service: UserService, row: StudyRow, proxy: ProxyClient) -> StudyFacts:
    facts = proxy.study(row.known_study)
    declined = _declines(service, row, facts)
    told = {
        "state": facts.state,
        "owners_complete": facts.owners_complete,
        "owners": [
            {**asdict(owner), "owner": owner.owner.hex(), "declined": declined.get(owner.owner)}
            for owner in facts.owners[:MOST_OWNERS_TOLD]
        ],
        "progress": asdict(facts.progress) if facts.progress else None,
        "closes_at": facts.closes_at,
    }
    if told != row.facts:
        service.store.note(row, facts=json.dumps(told))
    if facts.state in (StudyState.CANCELLED, StudyState.FAILED):
        reason = facts.failure or "no reason given"
        raise RefusedError(
            PolicyError(f"study-{facts.state}", f"the study is {facts.state} at the proxy: {reason}")
        )
    return facts


def _declines(service: UserService, row: StudyRow, facts: StudyFacts) -> dict[PartyId, dict[str, str | None]]:
    """What each owner that does not take part has said, as JSON. A complete share replaces it."""
    if not facts.declines:
        return {}
    complete = {owner.owner for owner in facts.owners if owner.state == ShareState.COMPLETE}
    told = facts.declines[:_MOST_DECLINES_TOLD]
    said = verified_declines(told, signed_manifest(service, row).manifest)
    return {
        owner: {"time": each.time, "why": each.why} for owner, each in said.items() if owner not in complete
    }


def signed_manifest(service: UserService, row: StudyRow) -> SignedManifest:
    return open_manifest(
        service.store.need(row.id, "manifest"),
        key_rules=service.key_rules,
        feature_lists=service.feature_lists,
    )


def _verify(
    service: UserService, row: StudyRow, signed: SignedManifest, bundle: ReleaseBundle
) -> VerifiedRelease:
    return verify_release(
        signed,
        bundle.release,
        bundle.shares,
        bundle.transcript,
        bundle.log,
        service.store.blob(row.id, "challenge"),
        service.store.blob(row.id, "answer"),
    )


@contextmanager
def _timed(service: UserService, row: StudyRow, name: str) -> Iterator[None]:
    begin = time.monotonic()
    with service.traces.step(name):
        yield
    service.store.take_seconds(row, name, time.monotonic() - begin)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
