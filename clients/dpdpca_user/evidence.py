"""What a data user checks about a release: online when it arrives, and offline at any later time.

Nothing that a proxy sends is trusted. Each step below refuses a wrong statement with its own error. The
caller gets a release in which every statement is signed by the right party and agrees with the others. The
decrypted numbers are checked later (`dpdpca_protocol.result.components.check_scatter`).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from gmpy2 import mpz

from dpdpca_protocol.errors import AuthenticationError, CryptographicError, MessageError, PolicyError
from dpdpca_protocol.messages.log import LogEntry, check_links
from dpdpca_protocol.messages.share import CohortMember, Decline, ShareStatement, cohort_digest
from dpdpca_protocol.messages.software import told_software
from dpdpca_protocol.messages.study_messages import CountAnswer, CountChallenge, Opened, ReleaseStatement
from dpdpca_protocol.messages.transcript import Event, members_by_receipts, verify_transcript
from dpdpca_protocol.paillier.chunks import chunk_count, chunk_length, parse_chunk
from dpdpca_protocol.paillier.cipher import check_ciphertexts
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules
from dpdpca_protocol.release.suite import Cohort, CohortShare
from dpdpca_protocol.terms.feature_list import FeatureLists, no_lists
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import Statement, verify_statement


@dataclass(frozen=True, slots=True)
class VerifiedRelease:
    """A release whose signed statements have been verified.

    Attributes:
        statement: the proxy's release statement.
        release: its content.
        shares: the share statements of the cohort by owner, each signed by its owner.
        events: the transcript, oldest event first.
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
    feature_lists: FeatureLists = no_lists,
) -> SignedManifest:
    """The manifest with this id, if this data user signed it and it names the pinned proxy.

    Raises:
        MessageError, PolicyError, CryptographicError: the errors of `open_manifest`, or the manifest belongs
            to another study.
        AuthenticationError: the manifest names another data user or another proxy.
    """
    signed = open_manifest(untrusted, key_rules=key_rules, feature_lists=feature_lists)
    if signed.study_id != study:
        raise MessageError("wrong-study", "the manifest belongs to another study", "ask for this study again")
    if signed.manifest.user.ed25519 not in user:
        raise AuthenticationError("wrong-user", "the manifest names another data user")
    if signed.manifest.proxy.ed25519 not in proxy:
        raise AuthenticationError(
            "proxy-key-changed",
            "the manifest names a proxy key that is not the pinned one",
            "compare the proxy's twelve words with the proxy's operator",
        )
    return signed


def verify_challenge(untrusted: bytes, signed: SignedManifest) -> tuple[CountChallenge, Statement]:
    """The count challenge of this study, if its proxy signed it and its ciphertext is safe to decrypt.

    Whether its cohort is that of the release is checked later, when there is a release.
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
    log: Sequence[LogEntry],
    challenge: bytes | None,
    answer: bytes | None,
) -> VerifiedRelease:
    """Check the signed statements of a release, in this order:

    1. The manifest's proxy signed the release statement, for this study and this kind of release.
    2. The statement's cohort digest is that of the owners it lists. No owner is listed twice, and the
       manifest allows this number of owners.
    3. Each listed owner signed a share statement for this study, with the listed version and digest and with
       the number of chunks that the manifest requires. If the manifest names participants, the owner is one
       of them.
    4. Masked only: the count challenge is for this cohort, and N is what this data user answered.
    5. The transcript is an unbroken chain that the proxy signed. The transcript begins with this manifest,
       its receipts before closing are exactly those of the cohort, and it names this release. Masked only:
       the transcript names this challenge and this answer.
    6. The log is an unbroken chain from this study's first event to the head that the release names. It
       contains all events of the transcript, and every head that a share statement names. So whoever sent a
       share saw the same history up to that head.

    Args:
        signed: a verified manifest.
        release, shares, transcript: untrusted statements.
        log: the proxy's log from this study's first event to the entry before the release; untrusted.
        challenge, answer: the verified count challenge and this data user's own answer; masked only.

    Raises:
        MessageError, AuthenticationError, CryptographicError, PolicyError: from the step that fails.
    """
    manifest = signed.manifest
    statement = verify_statement("release", release, manifest.proxy.ed25519)
    said = ReleaseStatement.parse(statement)
    if said.study != signed.study_id or str(said.release) != str(manifest.release):
        raise MessageError("wrong-study", "the release belongs to another study, or is of another kind")
    _check_cohort(said, manifest)
    by_owner = _verify_shares(shares, said, signed)
    counted = _check_count(said, signed, challenge, answer) if said.release.needs_count else None
    events = verify_transcript(transcript, signed.study_id, manifest.proxy.ed25519)
    _check_events(events, signed, statement, said)
    if counted is not None:
        _check_count_event(events, *counted)
    _check_log(log, events, by_owner)
    if len(said.chunk_digests) != released_chunks(signed):
        raise MessageError("malformed", "the number of chunks in the release does not match the manifest")
    return VerifiedRelease(statement, said, by_owner, events)


def verified_declines(untrusted: Iterable[bytes], manifest: Manifest) -> dict[PartyId, Decline]:
    """The declines of a study, by owner.

    One that no owner of the study has signed for this study is left out: nothing may follow from it.
    """
    found = {}
    named = {participant.ed25519 for participant in manifest.participants}
    for encoded in untrusted:
        with suppress(MessageError, AuthenticationError):
            said = Decline.parse(verify_statement("decline", encoded))
            if said.study == manifest.study_id and (not named or said.owner in named):
                found[PartyId.of(said.owner)] = said
    return found


def released_chunks(signed: SignedManifest) -> int:
    """The number of chunks in a release."""
    if signed.manifest.rules.is_masked:
        return chunk_count(_masked_count(signed.manifest))
    return signed.suite.chunk_count


def released_bytes(signed: SignedManifest, index: int) -> int:
    """The length of chunk `index` of a release."""
    if signed.manifest.rules.is_masked:
        return chunk_length(_masked_count(signed.manifest), index) * signed.public_key.ciphertext_bytes
    return signed.suite.chunk_bytes(index)


def cohort_of(verified: VerifiedRelease) -> Cohort:
    """The shares that a verified release contains."""
    shares = (CohortShare(owner, share.version, share.pad) for owner, share in verified.shares.items())
    return Cohort(tuple(shares), verified.release.cohort_digest)


def _masked_count(manifest: Manifest) -> int:
    """The number of ciphertexts in a masked release: that of a share, less one for E[N]."""
    return manifest.figures.ciphertext_count - 1


def check_chunk(chunk: bytes, index: int, signed: SignedManifest, release: ReleaseStatement) -> None:
    """Refuse a chunk that is not the one that the proxy signed, or that is not safe to decrypt.

    Raises:
        MessageError: the length is not the one that the manifest gives to chunk `index`.
        CryptographicError: `chunk-differs`, or as `check_ciphertexts`.
    """
    if Digest.of(chunk) != release.chunk_digests[index]:
        raise CryptographicError(
            "chunk-differs",
            f"chunk {index} of the release is not the one that the proxy signed",
            "fetch it again",
        )
    if signed.manifest.rules.is_masked:
        parse_chunk(chunk, signed.public_key, index, _masked_count(signed.manifest))
    else:
        signed.suite.check_chunk(chunk, index)


def _check_cohort(said: ReleaseStatement, manifest: Manifest) -> None:
    if said.cohort_digest != cohort_digest(said.cohort):
        raise CryptographicError("cohort-differs", "the cohort digest is not that of the listed owners")
    if len({member.owner for member in said.cohort}) != len(said.cohort):
        raise CryptographicError("cohort-differs", "the release lists an owner twice")
    if not manifest.min_owners <= len(said.cohort) <= manifest.max_owners:
        raise PolicyError(
            "cohort-too-small",
            f"the release has {len(said.cohort)} owners, but the manifest requires"
            f" {manifest.min_owners} to {manifest.max_owners}",
        )


def _verify_shares(
    shares: Iterable[bytes], said: ReleaseStatement, signed: SignedManifest
) -> dict[PartyId, ShareStatement]:
    manifest = signed.manifest
    named = {PartyId.of(party.ed25519) for party in manifest.participants}
    suite, members = signed.suite, set[CohortMember]()
    by_owner: dict[PartyId, ShareStatement] = {}
    for untrusted in shares:
        statement = verify_statement("share", untrusted)
        share = ShareStatement.parse(statement)
        owner = PartyId.of(share.owner)
        if share.study != signed.study_id:
            raise MessageError("wrong-study", "a share statement in the release belongs to another study")
        if named and owner not in named:
            raise PolicyError(
                "cohort-differs", "the release includes an owner that the manifest does not name"
            )
        if len(share.chunk_digests) != manifest.figures.chunk_count:
            raise MessageError("malformed", "the number of chunks in a share does not match the manifest")
        suite.check_member(share.pad)
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
    """The digests of the challenge and of the answer on which the release is based."""
    if challenge is None or answer is None:
        raise MessageError(
            "malformed", "the release is masked, but this data user has answered no count for it"
        )
    asked, statement = verify_challenge(challenge, signed)
    user = signed.manifest.user.ed25519
    answered = verify_statement("count-answer", answer, user)
    told = CountAnswer.parse(answered, signed.public_key.modulus_bytes)
    if told.study != signed.study_id or told.challenge != statement.digest:
        raise CryptographicError("count-differs", "the count answer does not answer this study's challenge")
    if asked.cohort != said.cohort_digest:
        raise CryptographicError("cohort-differs", "the cohort of the count is not that of the release")
    if told.records != said.records:
        raise CryptographicError(
            "count-differs", f"{told.records} records were proved, but the release says {said.records}"
        )
    return statement.digest, answered.digest


def verify_closing(untrusted: Sequence[bytes], signed: SignedManifest) -> Digest:
    """The digest of the cohort that was fixed when the study closed, from the signed transcript.

    Raises:
        MessageError, AuthenticationError: the transcript is broken or forged, or has no such digest.
    """
    events = verify_transcript(untrusted, signed.study_id, signed.manifest.proxy.ed25519)
    return Digest.parse(_last(events, "closed").detail.get("cohort", ""))


def _last(events: Sequence[Event], kind: str) -> Event:
    for event in reversed(events):
        if event.kind == kind:
            return event
    raise _broken(f"the transcript contains no {kind} event")


def _check_events(
    events: Sequence[Event], signed: SignedManifest, statement: Statement, said: ReleaseStatement
) -> None:
    if not events or events[0].detail.get("statement") != signed.statement.digest.hex():
        raise _broken("the transcript does not begin with this manifest")
    closed = _last(events, "closed")
    if closed.detail.get("cohort") != said.cohort_digest.hex():
        raise _broken("the cohort was different when the study closed")
    if members_by_receipts(events) != frozenset(said.cohort):
        raise _broken("the transcript's receipts before closing are not those of the cohort")
    if events[-1].kind != "release":
        raise _broken("the transcript does not end with the release")
    if events[-1].detail.get("statement") != statement.digest.hex():
        raise _broken("the transcript names another release")
    if told_software(events[-1].detail) != said.software:
        raise _broken("the transcript names another software than the release")
    if not said.release.needs_count and any(event.kind == "count" for event in events):
        raise _broken("the transcript contains a count, but only masked studies have one")


def _check_count_event(events: Sequence[Event], challenge: Digest, answer: Digest) -> None:
    detail = _last(events, "count").detail
    if (detail.get("challenge"), detail.get("answer")) != (challenge.hex(), answer.hex()):
        raise _broken("the transcript does not name the count that this data user answered")


def _check_log(
    log: Sequence[LogEntry], events: Sequence[Event], shares: Mapping[PartyId, ShareStatement]
) -> None:
    heads = check_links(log)
    if not log or heads[-1].hex() != events[-1].detail.get("log"):
        raise _broken("the proxy's log does not end at the head that the release names")
    # Each event contains the digest of the event before it.
    due = [(event.kind, after.previous) for event, after in pairwise(events)]
    told = {(entry.kind, entry.subject) for entry in log}
    if (log[0].kind, log[0].subject) != due[0] or not told.issuperset(due):
        raise _broken("the proxy's log lacks an event of this study")
    if any(share.proxy_log not in heads for share in shares.values()):
        raise CryptographicError(
            "transcript-broken",
            "an owner has seen a head of the proxy's log that this log does not contain: the proxy has shown"
            " different histories",
            "keep the release as evidence, and tell the owners",
        )


def check_opened(untrusted: bytes, signed: SignedManifest, verified: VerifiedRelease) -> None:
    """Check that this data user has opened this release, and not another one of the study.

    Raises:
        MessageError, AuthenticationError: the statement is malformed, or somebody else signed it.
        CryptographicError: `opened-differs`.
    """
    opened = Opened.parse(verify_statement("opened", untrusted, signed.manifest.user.ed25519))
    if opened != Opened(signed.study_id, verified.release.cohort_digest, verified.statement.digest):
        raise CryptographicError(
            "opened-differs",
            "this data user has already opened another release of the study",
            "keep both releases as evidence, and start a new study",
        )


def _broken(what: str) -> CryptographicError:
    return CryptographicError(
        "transcript-broken", f"the transcript contradicts the release: {what}", "keep both as evidence"
    )
