"""`dpdpca user verify`: the evidence that the service holds, checked again by whoever asks, step by step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dpdpca_protocol.canonical import canonical_json
from dpdpca_protocol.errors import ConflictError, IntegrityError, MessageError
from dpdpca_protocol.identifiers import StudyId
from dpdpca_protocol.log import LogEntry, check_chain
from dpdpca_protocol.manifest import LEAST_MODULUS_BITS, SignedManifest
from dpdpca_protocol.signing import named_head, verify_statement
from dpdpca_user.evidence import VerifiedRelease, check_chunk, verify_manifest, verify_release


def verify_evidence(
    study: StudyId,
    evidence: Mapping[str, Any],
    chunk: Callable[[int], bytes],
    proxy: Sequence[bytes],
    user: Sequence[bytes],
    *,
    least_modulus_bits: int = LEAST_MODULUS_BITS,
) -> Iterator[str]:
    """Yields a sentence for each thing that holds.

    Args:
        study: whose evidence it should be.
        evidence: statements as the service gives them; untrusted.
        chunk: gives chunk k of the release; untrusted.
        proxy: the pinned raw Ed25519 keys of the proxy: a study keeps the one that it began with.
        user: this data user's own, likewise.
        least_modulus_bits: lower only in tests.

    Raises:
        ConflictError: there is no release yet.
        DpdpcaError: the first thing that does not hold.
    """
    signed = verify_manifest(
        canonical_json(evidence["manifest"]), study, proxy, user, least_modulus_bits=least_modulus_bits
    )
    yield "the manifest is signed by this data user, its figures are right and its key is fit"
    yield "it names the pinned proxy"
    bundle = evidence.get("release")
    if bundle is None:
        raise ConflictError("not-ready", "the study has no release yet", "try again when it is released")
    if not isinstance(bundle, dict) or not {"release", "shares", "transcript"} <= bundle.keys():
        raise MessageError("malformed", "the evidence lacks a release, its shares or its transcript")
    verified = verify_release(
        signed,
        canonical_json(bundle["release"]),
        [canonical_json(share) for share in bundle["shares"]],
        [canonical_json(event) for event in bundle["transcript"]],
        _optional(evidence.get("challenge")),
        _optional(evidence.get("answer")),
    )
    owners = len(verified.shares)
    yield f"the release is signed by the proxy, and its cohort digest is that of its {owners} owners"
    yield f"{owners} share statements are signed by these owners, and fit the manifest"
    if verified.release.records is not None:
        yield f"this data user proved {verified.release.records} records to the proxy, for this cohort"
    events = len(verified.events)
    yield f"the transcript of {events} events is an unbroken signed chain with the cohort's receipts"
    for index in range(len(verified.release.chunk_digests)):
        content = chunk(index)
        check_chunk(content, index, signed, verified.release)
    yield f"{len(verified.release.chunk_digests)} chunks have the signed digests and hold fit ciphertexts"
    yield _check_log(evidence, signed, verified)


def _check_log(evidence: Mapping[str, Any], signed: SignedManifest, verified: VerifiedRelease) -> str:
    """That this data user's own log is whole, holds the study, and is the one that was signed at the time."""
    log = [LogEntry.parse(entry) for entry in evidence["log"]]
    heads = check_chain(log)
    user = signed.manifest.user.ed25519
    said = [
        verify_statement(kind, encoded, user)
        for kind, member in (("count-answer", "answer"), ("components", "components"))
        if (encoded := _optional(evidence.get(member))) is not None
    ]
    named = [head for statement in said if (head := named_head(statement.body)) is not None]
    if not set(named) <= set(heads):
        raise IntegrityError(
            "log-broken",
            "the log is not the one whose head was signed in this study: it was written anew",
            "put the newest copy of the service's database back",
        )
    told = {(entry.kind, entry.subject) for entry in log}
    made = ("signed", signed.study_id) in told
    if (not made and ("known", signed.study_id) not in told) or (
        made and ("released", verified.statement.digest) not in told
    ):
        raise IntegrityError(
            "log-broken",
            "the log lacks the manifest or the release of this study",
            "put the newest copy of the service's database back",
        )
    return (
        f"the service's log is an unbroken chain of {len(log)} entries that holds this study,"
        f" and {len(named)} of its heads are signed in it"
    )


def _optional(statement: Any) -> bytes | None:
    return None if statement is None else canonical_json(statement)
