"""The operations of the service: the rules behind its routes."""

import json
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

from dpdpca_protocol.errors import ConflictError, DpdpcaError, MessageError
from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.terms.feature_list import read_feature_list
from dpdpca_protocol.terms.signed_manifest import named_list
from dpdpca_protocol.terms.statements import privacy_statements
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_user.evidence import released_chunks
from dpdpca_user.offline import verify_evidence
from dpdpca_user.planning.lint import JSON_MEDIA_TYPE, closing_time, lint, parse_draft, plain_json
from dpdpca_user.results.model import Model, claim_of_numbers
from dpdpca_user.results.report import Verification, render_report
from dpdpca_user_service.earlier_rounds import check_earlier_rounds
from dpdpca_user_service.participants import participants_facts, with_chosen_participants
from dpdpca_user_service.service import UserService
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.steps import check_not_released, check_publication, signed_manifest, step
from dpdpca_user_service.store.studies import StudyRow

_ANY_TIME = frozenset({Stage.OPEN, Stage.ANSWERED})


def create_study(
    service: UserService,
    row_id: str,
    draft: bytes,
    media_type: str,
    proxy_url: str | None,
    publish: bool,
    *,
    in_clear: bool = False,
) -> dict[str, Any]:
    """Stores a draft, so that the driver runs its study.

    With `in_clear`, its components may be published in clear. So may those of every study that names nobody
    and whose noise the proxy draws.

    Returns:
        The study's facts, and the owners that it will name.

    Raises:
        MessageError, PolicyError: the draft cannot become a manifest, or does not fit the earlier rounds that
            it names.
        NotFoundError: `feature-list-missing`.
        NotFoundError, PolicyError: no proxy is known, or several are known and none is named.
        UnavailableError, AuthenticationError: the draft names owners, and the proxy cannot be asked for their
            keys.
    """
    proxy = service.home.proxy(proxy_url)
    settings, now = service.settings, service.now()
    closes_at = closing_time(now, settings.closes_after_days)
    written = parse_draft(draft, media_type)
    checked = partial(
        lint,
        user=service.party,
        proxy=proxy.provisional_party,
        closes_at=closes_at,
        key_bits=settings.key_bits,
        feature_lists=service.feature_lists,
    )
    checked(written)
    chosen = with_chosen_participants(service, proxy, written)
    manifest = checked(chosen)
    check_earlier_rounds(service, manifest)
    if chosen != written:
        draft, media_type = json.dumps(plain_json(chosen)).encode(), JSON_MEDIA_TYPE
    service.store.add(
        row_id,
        manifest.title,
        str(manifest.release),
        draft,
        media_type,
        proxy.url,
        publish,
        now,
        in_clear=in_clear or manifest.needs_second_noise,
    )
    service.wake()
    return study_facts(service, service.store.find(row_id)) | {"participants": participants_facts(chosen)}


def study_facts(service: UserService, row: StudyRow) -> dict[str, Any]:
    """A study as JSON. `state` is the stage in this service, or the proxy's state if that is more precise."""
    told = row.facts
    state = str(row.stage)
    if row.stage in _ANY_TIME and told.get("state"):
        state = str(told["state"])
    progress = told.get("progress")
    if (search := service.study_keys.search_for(row.id)) is not None:
        progress = {"phase": "key", "done": search.primes, "total": 2}
    return {
        "id": row.id,
        "draft": row.id,
        "study": row.study.hex() if row.study else None,
        "title": row.title,
        "release": row.release,
        "state": state,
        "has_model": row.has_model,
        "has_result": row.has_result,
        "publish": row.publish,
        "in_clear": row.in_clear,
        "progress": progress,
        "key_search": None if search is None else asdict(search),
        "owners": [{"declined": None, **owner} for owner in told.get("owners", [])],
        "owners_complete": told.get("owners_complete", 0),
        "closes_at": told.get("closes_at"),
        "proxy": row.proxy_url,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "seconds": dict(row.seconds),
        "failure": row.problem if row.stage in (Stage.FAILED, Stage.CANCELLED) else None,
        "problem": {"type": row.problem_slug, "detail": row.problem} if row.problem else None,
    }


def close_study(service: UserService, name: str) -> dict[str, Any]:
    """Closes a study early.

    Raises:
        ConflictError: the study is not open, or the proxy refuses.
    """
    row = service.store.find(name)
    if row.stage is not Stage.OPEN:
        raise ConflictError(
            "wrong-state", f"the study is {row.stage}, so it cannot be closed", "read its state"
        )
    with service.client(row) as proxy:
        proxy.close_study(row.known_study, StudyAct("close", row.known_study).sign(service.key_of(row)))
    service.wake()
    return study_facts(service, service.store.find(row.id))


def cancel_study(service: UserService, name: str) -> dict[str, Any]:
    """Cancels a study: deletes its secret, and then signs `cancel`. Cancelling it again changes nothing.

    If the proxy has drawn the noise already, it refuses the `cancel`. The study stays cancelled here all the
    same: without its secret, nobody can open the release.

    Raises:
        ConflictError: the study has a release.
        UnavailableError: the proxy cannot be asked; nothing was changed.
    """
    row = service.store.find(name)
    if row.stage is Stage.CANCELLED:
        return study_facts(service, row)
    if row.stage not in _ANY_TIME | {Stage.DRAFTED, Stage.SIGNED}:
        raise ConflictError("wrong-state", f"the study is {row.stage} and can no longer be cancelled")
    if row.study is not None:
        check_not_released(service, row)
    service.store.move(row, Stage.CANCELLED, service.now(), cancel_due=row.study is not None)
    row = service.store.find(row.id)
    if row.cancel_due:
        with suppress(DpdpcaError):  # the driver tries again
            step(service, row)
    service.wake()
    return study_facts(service, service.store.find(row.id))


def publish_study(service: UserService, name: str) -> dict[str, Any]:
    """Sends the components to the owners, now or as soon as they exist."""
    row = service.store.find(name)
    if row.is_pre_study:
        raise ConflictError(
            "no-components", f"a {row.release} gives no components", "there is nothing to publish"
        )
    if row.stage in (Stage.CANCELLED, Stage.FAILED):
        raise ConflictError("wrong-state", f"the study is {row.stage}, so it has no components")
    if row.has_model:
        check_publication(service, row)
    if not row.publish:
        service.store.note(row, publish=True)
        service.wake()
    return study_facts(service, service.store.find(row.id))


def evidence_of(service: UserService, name: str) -> bytes:
    """All signed statements of a study that this service has, as one JSON object.

    The stored statements are already JSON and are not parsed here, because those of a large cohort can be
    megabytes.
    """
    row = service.store.find(name)
    if row.study is None:
        raise ConflictError(
            "not-ready", "the study has no manifest yet", "wait until the study's key was made"
        )
    bundle = service.store.blob(row.id, "bundle")
    ours = {
        "manifest": "manifest",
        "challenge": "challenge",
        "answer": "answer",
        "opened": "opened",
        "components": "published",
    }
    stored = {kind: service.store.blob(row.id, column) for kind, column in ours.items()} | {"release": bundle}
    stored["feature_list"] = _named_list(service, row)
    chunks = 0 if bundle is None else released_chunks(signed_manifest(service, row))
    log = service.store.log_entries()
    if service.store.find(row.id).stage is not row.stage:
        return evidence_of(service, name)  # the study changed meanwhile; that happens only a few times
    facts = {
        "study": row.study.hex(),
        "state": str(row.stage),
        "chunk_count": chunks,
        "log": [entry.to_body() for entry in log],
    }
    members = (f', "{kind}": '.encode() + (value or b"null") for kind, value in stored.items())
    return b"".join([json.dumps(facts)[:-1].encode(), *members, b"}"])


def _named_list(service: UserService, row: StudyRow) -> bytes | None:
    """The list of features that a study's manifest names, if it names one."""
    reference = named_list(verify_statement("manifest", service.store.need(row.id, "manifest")).body)
    return None if reference is None else service.feature_lists(reference.sha256)


def keep_list(service: UserService, name: str, untrusted: bytes) -> dict[str, Any]:
    """Stores a list of features for drafts that name it. Repeating it changes nothing.

    Returns:
        The reference, as a draft has it.

    Raises:
        MessageError: `feature-list-differs`, the list has another digest than `name`; or it is no list.
        PolicyError: a feature breaks a rule.
    """
    if Digest.of(untrusted).hex() != name:
        raise MessageError(
            "feature-list-differs",
            "the digest in the address is not that of the list",
            "send the list to the address with its SHA-256",
        )
    reference, _ = read_feature_list(untrusted)
    service.feature_lists.keep(untrusted)
    return reference.to_body()


def model_file(service: UserService, name: str) -> bytes:
    """The model file. Raises ConflictError `not-ready` until there is a model."""
    return service.store.need(_modelled(service, name).id, "model")


def model_of(service: UserService, name: str) -> Model:
    """The model. Raises like `model_file`."""
    return service.model_of(_modelled(service, name).id)


def model_facts(service: UserService, name: str) -> dict[str, Any]:
    return model_of(service, name).facts()


def result_of(service: UserService, name: str) -> dict[str, Any]:
    """The released numbers of a pre-study or a sketch, as JSON.

    Raises:
        ConflictError: `not-ready` until the numbers have arrived, `has-components` for any other study.
    """
    row = service.store.find(name)
    if not row.is_pre_study:
        raise ConflictError(
            "has-components",
            f"a {row.release} study gives components instead of numbers",
            "read the study's model at /v1/models/STUDY",
        )
    if not row.has_result:
        raise ConflictError("not-ready", f"the study is {row.stage}, so it has no result", "read its state")
    numbers: dict[str, Any] = json.loads(service.store.need(row.id, "model"))
    manifest = signed_manifest(service, row).manifest
    return numbers | {
        "title": row.title,
        "claim": claim_of_numbers(manifest),
        "statements": list(privacy_statements(manifest.figures)),
    }


def report_of(service: UserService, name: str) -> str:
    """The report, with the verification of what is stored."""
    model = model_of(service, name)
    verified = {model.study: _verification_of(service, service.store.find(name))}
    return render_report([model], _said(service.now()), verified=verified)


def _verification_of(service: UserService, row: StudyRow) -> Verification:
    keys, held = service.keys, list[str]()
    try:
        for line in verify_evidence(
            row.known_study,
            json.loads(evidence_of(service, row.id)),
            partial(_stored_chunk, service, row),
            service.home.proxy(row.proxy_url).keys,
            tuple(key.public.ed25519 for key in (keys.current, *keys.former)),
            key_rules=service.key_rules,
        ):
            held.append(line)
    except DpdpcaError as error:
        return Verification(held, error.problem)
    return Verification(held)


def _stored_chunk(service: UserService, row: StudyRow, position: int) -> bytes:
    chunk = service.store.chunk(row, position)
    if chunk is None:
        raise MessageError("no-such-chunk", f"chunk {position} of the release is missing")
    return chunk


def _modelled(service: UserService, name: str) -> StudyRow:
    row = service.store.find(name)
    if row.is_pre_study:
        raise ConflictError(
            "no-components",
            f"a {row.release} gives no components",
            "read the study's numbers with: dpdpca user result STUDY",
        )
    if not row.has_model:
        raise ConflictError("not-ready", f"the study is {row.stage}, so it has no model", "read its state")
    return row


def _said(now: datetime) -> str:
    return now.strftime("%Y-%m-%d %H:%M UTC")
