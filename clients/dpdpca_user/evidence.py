"""What a data user checks about a release, online when it arrives and offline ever after.

Nothing that a proxy sends is believed: each step below refuses with its own error, and the caller gets a
release whose every statement is signed by whom it should be and fits the others. What the numbers mean is
checked after decryption (`dpdpca_protocol.result.components.check_scatter`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gmpy2 import mpz

from dpdpca_protocol.errors import AuthenticationError, CryptographicError, MessageError, PolicyError
from dpdpca_protocol.messages.share import (
    CohortMember,
    ShareStatement,
    chunk_count,
    cohort_digest,
    parse_chunk,
)
from dpdpca_protocol.messages.study_messages import CountAnswer, CountChallenge, ReleaseStatement
from dpdpca_protocol.messages.transcript import Event, members_by_receipts, verify_transcript
from dpdpca_protocol.paillier.cipher import check_ciphertexts
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import Statement, verify_statement


@dataclass(frozen=True, slots=True)
class VerifiedRelease:
    """A release whose paper trail holds.

    Attributes:
        statement: the proxy's release statement.
        release: what it says.
        shares: the cohort's share statements by owner, each signed by its owner.
        events: the transcript, oldest first.
    """

    statement: Statement
    release: ReleaseStatement
    shares: dict[PartyId, ShareStatement]
    events: tuple[Event, ...]


def verify_manifest(
    untrusted: bytes,
    study: StudyId,
    proxy: Sequence[bytes],
    user: Sequence[bytes],
    *,
    key_rules: KeyRules = PRODUCT_KEYS,
) -> SignedManifest:
    """The manifest under this id, if this data user signed it and it names the pinned proxy.

    Raises:
        MessageError, PolicyError, CryptographicError: as `open_manifest`; or another study's manifest.
        AuthenticationError: it names another data user or proxy.
    """
    signed = open_manifest(untrusted, key_rules=key_rules)
    if signed.study_id != study:
        raise MessageError("wrong-study", "the manifest belongs to another study", "ask for this study again")
    if signed.manifest.user.ed25519 not in user:
        raise AuthenticationError("wrong-user", "the manifest names another data user")
    if signed.manifest.proxy.ed25519 not in proxy:
        raise AuthenticationError(
            "proxy-key-changed",
            "the manifest names another proxy key than the pinned one",
            "compare the proxy's twelve words with its operator",
        )
    return signed


def verify_challenge(untrusted: bytes, signed: SignedManifest) -> tuple[CountChallenge, Statement]:
    """The count challenge of this study, signed by its proxy, over a ciphertext that may be decrypted.

    Whether the cohort in it is the one of the release is checked when there is a release.
    """
    statement = verify_statement("count-challenge", untrusted, signed.manifest.proxy.ed25519)
    challenge = CountChallenge.parse(statement, signed.public_key.ciphertext_bytes)
    if challenge.study != signed.study_id:
        raise MessageError("wrong-study", "the count challenge belongs to another study")
    check_ciphertexts(signed.public_key, [mpz.from_bytes(challenge.ciphertext, "big")])
    return challenge, statement


def verify_release(
    signed: SignedManifest,
    release: bytes,
    shares: Sequence[bytes],
    transcript: Sequence[bytes],
    challenge: bytes | None,
    answer: bytes | None,
) -> VerifiedRelease:
    """Check the paper trail of a release, in this order:

    1. the release statement is signed by the manifest's proxy, for this study and kind of release;
    2. its cohort digest is that of the owners it lists, none twice, as many as the manifest allows;
    3. each listed owner has a share statement of that version and digest, signed by it, of this study, with
       as many chunks as the manifest makes, and is one of the named participants if there are any; no two
       of them have a chunk in common;
    4. masked: the count challenge is of this cohort, and N is what this data user answered to it;
    5. the transcript is an unbroken chain signed by the proxy: it begins with this manifest, its receipts
       before closing are exactly those of the cohort, and it names this release; masked: it names that
       challenge and that answer.

    Args:
        signed: a verified manifest.
        release, shares, transcript: untrusted statements.
        challenge, answer: the count challenge as verified before, and this user's own answer; masked only.

    Raises:
        MessageError, AuthenticationError, CryptographicError, PolicyError: the step that does not hold.
    """
    manifest = signed.manifest
    statement = verify_statement("release", release, manifest.proxy.ed25519)
    said = ReleaseStatement.parse(statement)
    if said.study != signed.study_id or str(said.release) != str(manifest.release):
        raise MessageError("wrong-study", "the release is of another study, or of another kind")
    _check_cohort(said, manifest)
    by_owner = _verify_shares(shares, said, signed)
    counted = _check_count(said, signed, challenge, answer) if said.release.needs_count else None
    events = verify_transcript(transcript, signed.study_id, manifest.proxy.ed25519)
    _check_events(events, signed, statement, said)
    if counted is not None:
        _check_count_event(events, *counted)
    if len(said.chunk_digests) != chunk_count(released_count(manifest)):
        raise MessageError("malformed", "the release has another number of chunks than the manifest makes")
    return VerifiedRelease(statement, said, by_owner, events)


def released_count(manifest: Manifest) -> int:
    """Ciphertexts of a release: those of a share, without E[N] in a masked one."""
    return manifest.figures.ciphertext_count - manifest.rules.is_masked


def check_chunk(chunk: bytes, index: int, signed: SignedManifest, release: ReleaseStatement) -> None:
    """Refuses a chunk that is not the one that the proxy signed, or that none may decrypt.

    Raises:
        MessageError: of another length than the manifest gives chunk `index`.
        CryptographicError: `chunk-differs`, or as `check_ciphertexts`.
    """
    if Digest.of(chunk) != release.chunk_digests[index]:
        raise CryptographicError(
            "chunk-differs",
            f"chunk {index} of the release is not the one that the proxy signed",
            "fetch it again",
        )
    parse_chunk(chunk, signed.public_key, index, released_count(signed.manifest))


def _check_cohort(said: ReleaseStatement, manifest: Manifest) -> None:
    if said.cohort_digest != cohort_digest(said.cohort):
        raise CryptographicError("cohort-differs", "the cohort digest is not that of the owners listed")
    if len({member.owner for member in said.cohort}) != len(said.cohort):
        raise CryptographicError("cohort-differs", "the release lists an owner twice")
    if not manifest.min_owners <= len(said.cohort) <= manifest.max_owners:
        raise PolicyError(
            "cohort-too-small",
            f"the release is of {len(said.cohort)} owners, the manifest asks for"
            f" {manifest.min_owners} to {manifest.max_owners}",
        )


def _verify_shares(
    shares: Iterable[bytes], said: ReleaseStatement, signed: SignedManifest
) -> dict[PartyId, ShareStatement]:
    manifest = signed.manifest
    named = {PartyId.of(party.ed25519) for party in manifest.participants}
    members: set[CohortMember] = set()
    by_owner: dict[PartyId, ShareStatement] = {}
    holders: dict[Digest, PartyId] = {}
    for untrusted in shares:
        statement = verify_statement("share", untrusted)
        share = ShareStatement.parse(statement)
        owner = PartyId.of(share.owner)
        if share.study != signed.study_id:
            raise MessageError("wrong-study", "a share statement in the release belongs to another study")
        if named and owner not in named:
            raise PolicyError("cohort-differs", "the release holds an owner that the manifest does not name")
        if len(share.chunk_digests) != manifest.figures.chunk_count:
            raise MessageError("malformed", "a share has another number of chunks than the manifest makes")
        if any(holders.setdefault(digest, owner) != owner for digest in share.chunk_digests):
            # Fresh encryptions are never equal: one of the two is a copy, and counts a share twice.
            raise CryptographicError(
                "chunk-of-another-owner",
                "two owners of the release have a chunk in common: one of them copied the other",
                "keep this release as evidence; ask the proxy's operator",
            )
        members.add(CohortMember(owner, share.version, statement.digest))
        by_owner[owner] = share
    if members != set(said.cohort) or len(by_owner) != len(said.cohort):
        raise CryptographicError(
            "cohort-differs",
            "the share statements are not those of the cohort",
            "keep this release as evidence",
        )
    return by_owner


def _check_count(
    said: ReleaseStatement, signed: SignedManifest, challenge: bytes | None, answer: bytes | None
) -> tuple[Digest, Digest]:
    """The digests of the challenge and of the answer that the release rests on."""
    if challenge is None or answer is None:
        raise MessageError("malformed", "a masked release without a count that this data user answered")
    asked, statement = verify_challenge(challenge, signed)
    user = signed.manifest.user.ed25519
    answered = verify_statement("count-answer", answer, user)
    told = CountAnswer.parse(answered, signed.public_key.modulus_bytes)
    if told.study != signed.study_id or told.challenge != statement.digest:
        raise CryptographicError("count-differs", "the count answer is not to this study's challenge")
    if asked.cohort != said.cohort_digest:
        raise CryptographicError(
            "cohort-differs", "the count was asked about another cohort than was released"
        )
    if told.records != said.records:
        raise CryptographicError(
            "count-differs", f"{told.records} records were proved, and the release says {said.records}"
        )
    return statement.digest, answered.digest


def verify_closing(untrusted: Sequence[bytes], signed: SignedManifest) -> Digest:
    """The digest of the cohort that a signed transcript says was frozen when the study closed.

    Raises:
        MessageError, AuthenticationError: the transcript is broken or forged, or does not say it.
    """
    events = verify_transcript(untrusted, signed.study_id, signed.manifest.proxy.ed25519)
    return Digest.parse(_last(events, "closed").detail.get("cohort", ""))


def _last(events: Sequence[Event], kind: str) -> Event:
    for event in reversed(events):
        if event.kind == kind:
            return event
    raise _broken(f"it holds no {kind} event")


def _check_events(
    events: Sequence[Event], signed: SignedManifest, statement: Statement, said: ReleaseStatement
) -> None:
    if not events or events[0].detail.get("statement") != signed.statement.digest.hex():
        raise _broken("it does not begin with this manifest")
    closed = _last(events, "closed")
    if closed.detail.get("cohort") != said.cohort_digest.hex():
        raise _broken("another cohort was frozen when the study closed")
    if members_by_receipts(events) != frozenset(said.cohort):
        raise _broken("the receipts before closing are not those of the cohort")
    if events[-1].kind != "release":
        raise _broken("it does not end with the release")
    if events[-1].detail.get("statement") != statement.digest.hex():
        raise _broken("it names another release")
    if not said.release.needs_count and any(event.kind == "count" for event in events):
        raise _broken("it has a count, and only masked studies have one")


def _check_count_event(events: Sequence[Event], challenge: Digest, answer: Digest) -> None:
    detail = _last(events, "count").detail
    if (detail.get("challenge"), detail.get("answer")) != (challenge.hex(), answer.hex()):
        raise _broken("it names another count than this data user answered")


def _broken(what: str) -> CryptographicError:
    return CryptographicError(
        "transcript-broken", f"the transcript contradicts the release: {what}", "keep both as evidence"
    )
