"""`dpdpca user verify`: checks again, step by step, the evidence that the service has stored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dpdpca_protocol.errors import ConflictError, IntegrityError, MessageError
from dpdpca_protocol.messages.log import LogEntry, check_chain
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules
from dpdpca_protocol.terms.feature_list import FeatureLists, lists_of, no_lists
from dpdpca_protocol.terms.signed_manifest import SignedManifest
from dpdpca_protocol.wire.canonical import canonical_json, canonical_texts
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import named_head, verify_statement
from dpdpca_user.evidence import VerifiedRelease, check_chunk, check_opened, verify_manifest, verify_release


def verify_evidence(
    study: StudyId,
    evidence: Mapping[str, Any],
    chunk: Callable[[int], bytes],
    proxy: Sequence[bytes],
    user: Sequence[bytes],
    *,
    key_rules: KeyRules = PRODUCT_KEYS,
) -> Iterator[str]:
    """Check the evidence and yield a sentence for each check that succeeds.

    Args:
        study: the study to which the evidence should belong.
        evidence: statements as the service sends them; untrusted.
        chunk: returns chunk k of the release; untrusted.
        proxy: the pinned raw Ed25519 keys of the proxy. A study keeps the key that it began with.
        user: this data user's own raw Ed25519 keys, likewise.
        key_rules: which moduli are accepted.

    Raises:
        ConflictError: there is no release yet.
        DpdpcaError: the first check that fails.
    """
    signed = verify_manifest(
        canonical_json(evidence["manifest"]),
        study,
        proxy,
        user,
        key_rules=key_rules,
        feature_lists=lists_in(evidence),
    )
    yield "this data user signed the manifest, its figures are correct, and its key is suitable"
    yield "the manifest names the pinned proxy"
    bundle = evidence.get("release")
    if bundle is None:
        raise ConflictError("not-ready", "the study has no release yet", "try again after the release")
    if not isinstance(bundle, dict) or not {"log", "release", "shares", "transcript"} <= bundle.keys():
        raise MessageError("malformed", "the evidence lacks a release, its shares, its transcript or its log")
    verified = verify_release(
        signed,
        canonical_json(bundle["release"]),
        [canonical_json(share) for share in bundle["shares"]],
        [canonical_json(event) for event in bundle["transcript"]],
        [LogEntry.parse(entry) for entry in bundle["log"]],
        _optional(evidence.get("challenge")),
        _optional(evidence.get("answer")),
    )
    owners = len(verified.shares)
    yield f"the proxy signed the release, and its cohort digest is that of its {owners} owners"
    if verified.release.software is not None:
        software = verified.release.software
        yield f"release and transcript name the same software: {software}; the proxy states it, unproved"
    yield f"the {owners} share statements are signed by these owners and match the manifest"
    if verified.release.records is not None:
        yield f"this data user proved to the proxy that this cohort has {verified.release.records} records"
    events = len(verified.events)
    yield f"the transcript of {events} events is an unbroken signed chain with the cohort's receipts"
    yield "the proxy's log contains these events, and every head that an owner of the cohort has seen"
    for index in range(len(verified.release.chunk_digests)):
        content = chunk(index)
        check_chunk(content, index, signed, verified.release)
    yield f"{len(verified.release.chunk_digests)} chunks have the signed digests and are well formed"
    if (opened := _optional(evidence.get("opened"))) is not None:
        check_opened(opened, signed, verified)
        yield "this data user signed that it opens this release, and no other one of the study"
    yield _check_log(evidence, signed, verified)


def _check_log(evidence: Mapping[str, Any], signed: SignedManifest, verified: VerifiedRelease) -> str:
    """Check that this data user's own log is complete, contains the study, and was not replaced by another.

    The statements of the study may name heads of the log, signed by this data user; the log must contain
    them.
    """
    untrusted = evidence.get("log")
    if not isinstance(untrusted, list):
        raise MessageError("malformed", "the evidence lacks the log", "restart the service with this version")
    log = [LogEntry.parse(entry) for entry in untrusted]
    heads = check_chain(log)[1:]
    study, user = signed.study_id, signed.manifest.user.ed25519
    due = {("signed", study), ("released", verified.statement.digest)}
    named: list[Digest | None] = []
    subjects: set[Digest] = {study, verified.statement.digest}
    if (encoded := _optional(evidence.get("answer"))) is not None:
        answer = verify_statement("count-answer", encoded, user)
        due.add(("counted", answer.digest))
        subjects.add(answer.digest)
        named.append(named_head(answer.body))
    if (encoded := _optional(evidence.get("components"))) is not None:
        statement = verify_statement("components", encoded, user)
        components = SealedComponents.parse(statement)
        if components.study != study:
            raise MessageError("wrong-study", "the components belong to another study")
        named.append(components.log)
        subjects.add(statement.digest)
        if evidence.get("state") == "published":
            due.add(("published", statement.digest))
    elif evidence.get("state") == "published":
        raise MessageError("malformed", "the study is published, but the evidence has no components")
    told = {(entry.kind, entry.subject) for entry in log}
    if ("known", study) not in told and not due <= told:
        raise _broken_log("the log lacks entries about what this data user did in this study")
    has_opened = (encoded := _optional(evidence.get("opened"))) is not None
    if encoded is not None:
        subjects.add(verify_statement("opened", encoded, user).digest)
    course = _course(str(evidence.get("state")), signed.manifest.release.needs_count, has_opened)
    signed_heads = [head for head in named if head is not None]
    if not set(signed_heads) <= set(heads):
        raise _broken_log("the log was replaced: it lacks a head that was signed in this study")
    found = [entry.kind for entry in log if entry.subject in subjects]
    if found[:1] == ["known"]:  # the study began before there was a log
        found = found[1:]
        course = course[len(course) - len(found) :]
    if found != course:
        raise _broken_log(f"the log's entries are not those of a study that is {evidence.get('state')}")
    how = (
        f"signed statements of the study name {len(signed_heads)} of the log's heads"
        if signed_heads
        else "no signed statement of the study names the log"
    )
    return f"the service's log is an unbroken chain of {len(log)} entries and contains this study; {how}"


def _course(state: str, is_masked: bool, has_opened: bool) -> list[str]:
    """The kinds of entries, in order, that the log must have for a released study that is now in `state`."""
    course = ["signed", "open", *(["counted"] if is_masked else []), "released"]
    after = {"released": [], "fitted": ["fitted"], "published": ["fitted", "published"], "failed": ["failed"]}
    if state not in after:
        raise _broken_log(f"a study that is {state} has no release, but there is one")
    if not has_opened and state in ("fitted", "published"):
        raise _broken_log(f"the study is {state}, but nothing says which release was opened")
    return [*course, *(["opened"] if has_opened else []), *after[state]]


def _broken_log(what: str) -> IntegrityError:
    return IntegrityError(
        "log-broken", f"the log of the service is invalid: {what}", "restore the newest copy of the database"
    )


def lists_in(evidence: Mapping[str, Any]) -> FeatureLists:
    """The list of features in the evidence. Whether the manifest names it is checked with the manifest."""
    listed = evidence.get("feature_list")
    if not isinstance(listed, list):
        return no_lists
    try:
        return lists_of(canonical_texts(listed).encode())
    except (TypeError, ValueError) as error:
        raise MessageError("malformed", "the evidence has no list of features") from error


def _optional(statement: Any) -> bytes | None:
    return None if statement is None else canonical_json(statement)
