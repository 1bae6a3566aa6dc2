"""`dpdpca user verify`: the evidence that the service holds, checked again by whoever asks, step by step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dpdpca_protocol.canonical import canonical_json
from dpdpca_protocol.errors import ConflictError, MessageError
from dpdpca_protocol.identifiers import StudyId
from dpdpca_protocol.manifest import LEAST_MODULUS_BITS
from dpdpca_user.evidence import check_chunk, verify_manifest, verify_release


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


def _optional(statement: Any) -> bytes | None:
    return None if statement is None else canonical_json(statement)
