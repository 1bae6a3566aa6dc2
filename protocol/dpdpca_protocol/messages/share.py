"""Statements about an owner's share: that it is complete, that it is withdrawn, that there will be none, and
the proxy's receipts.

An owner sends its share in chunks. The digest of a chunk is the SHA-256 of its bytes before sealing, which
include its salt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.pads.keys import SEALED_KEY_BYTES
from dpdpca_protocol.wire.fields import read_time, text_problem
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.salts import SALT_BYTES
from dpdpca_protocol.wire.sealing import SEALING_OVERHEAD_BYTES
from dpdpca_protocol.wire.signing import (
    FORMAT,
    IdentityKey,
    Statement,
    check_members,
    hex_bytes,
    named_head,
    naming_head,
    sealing_key_bytes,
    sign_statement,
)

CHUNK_OVERHEAD_BYTES = SALT_BYTES + SEALING_OVERHEAD_BYTES
"""What a sealed chunk of a share has besides its content."""
MAX_VERSION = (1 << 32) - 1
MAX_WHY = 500
"""The most characters of an owner's reason to decline."""


def _version(untrusted: Any) -> int:
    if type(untrusted) is not int or not 1 <= untrusted <= MAX_VERSION:
        raise MessageError("malformed", "a share version must be a whole number of 1 or more")
    return untrusted


@dataclass(frozen=True, slots=True)
class ShareStatement:
    """An owner's signed statement that a version of its share is complete and consists of these chunks.

    Attributes:
        owner: the owner's raw Ed25519 key.
        kem: the owner's public key to which the components will be sealed.
        proxy_log: the newest head of the proxy's log that the owner has seen.
        log: the head of the owner's ledger, in which the study is booked.
        pad: the sealed key of the share's pads, or None. The study's suite says which it must be.
    """

    study: StudyId
    owner: bytes
    version: int
    chunk_digests: tuple[Digest, ...]
    kem: bytes
    proxy_log: Digest
    log: Digest | None = None
    pad: bytes | None = None

    def sign(self, key: IdentityKey) -> Statement:
        body = {
            "chunk_count": len(self.chunk_digests),
            "chunk_digests": [digest.hex() for digest in self.chunk_digests],
            "format": FORMAT,
            "kem": self.kem.hex(),
            "owner": self.owner.hex(),
            "proxy_log": self.proxy_log.hex(),
            "study": self.study.hex(),
            "version": self.version,
        }
        if self.pad is not None:
            body["pad"] = self.pad.hex()
        return sign_statement("share", naming_head(body, self.log), key)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        """Raises MessageError unless the statement is well formed and names its own signer as owner."""
        body = statement.body
        names = ("chunk_count", "chunk_digests", "kem", "owner", "proxy_log", "study", "version")
        check_members(body, *names, optional=("log", "pad"))
        digests = body["chunk_digests"]
        if (
            not isinstance(digests, list)
            or type(body["chunk_count"]) is not int
            or body["chunk_count"] != len(digests)
        ):
            raise MessageError("malformed", "chunk_count is not the number of chunk digests")
        _own(body["owner"], statement)
        return cls(
            StudyId.parse(body["study"]),
            statement.signer,
            _version(body["version"]),
            tuple(Digest.parse(digest) for digest in digests),
            sealing_key_bytes(body["kem"], "kem"),
            Digest.parse(body["proxy_log"]),
            named_head(body),
            hex_bytes(body["pad"], SEALED_KEY_BYTES, "pad") if "pad" in body else None,
        )


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """An owner's signed request to remove its share from the study.

    The version of the request is above the share's version.
    """

    study: StudyId
    owner: bytes
    version: int
    log: Digest | None = None

    def sign(self, key: IdentityKey) -> Statement:
        body = {
            "format": FORMAT,
            "owner": self.owner.hex(),
            "study": self.study.hex(),
            "version": self.version,
        }
        return sign_statement("withdrawal", naming_head(body, self.log), key)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        body = statement.body
        check_members(body, "owner", "study", "version", optional=("log",))
        _own(body["owner"], statement)
        return cls(
            StudyId.parse(body["study"]), statement.signer, _version(body["version"]), named_head(body)
        )


@dataclass(frozen=True, slots=True)
class Decline:
    """An owner tells the data user that it does not take part. It promises nothing: an owner that completes a
    share later has changed its mind.

    Attributes:
        owner: the owner's raw Ed25519 key.
        time: RFC 3339 UTC, by the owner's clock.
        why: one line of text for the data user, or None.
    """

    study: StudyId
    owner: bytes
    time: str
    why: str | None = None

    def sign(self, key: IdentityKey) -> Statement:
        body = {
            "format": FORMAT,
            "owner": self.owner.hex(),
            "study": self.study.hex(),
            "time": self.time,
        }
        return sign_statement("decline", body if self.why is None else body | {"why": self.why}, key)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        """Raises MessageError, also for a text that must not be shown to people."""
        body = statement.body
        check_members(body, "owner", "study", "time", optional=("why",))
        _own(body["owner"], statement)
        read_time(body["time"], "time")
        why = None
        if "why" in body:
            why = body["why"]
            problem = text_problem(why, MAX_WHY) if isinstance(why, str) else "is not text"
            if problem:
                raise MessageError("malformed", f"why {problem}")
        return cls(StudyId.parse(body["study"]), statement.signer, body["time"], why)


def _own(untrusted_owner: Any, statement: Statement) -> None:
    if hex_bytes(untrusted_owner, 32, "owner") != statement.signer:
        raise MessageError("malformed", "the statement names an owner that is not its signer")


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proxy's signed confirmation that a share (or a withdrawal) counts.

    Attributes:
        subject: "share" or "withdrawal".
        statement: digest of the owner's statement.
        time: RFC 3339 UTC, by the proxy's clock.
    """

    study: StudyId
    owner: PartyId
    version: int
    subject: str
    statement: Digest
    time: str

    def sign(self, proxy: IdentityKey) -> Statement:
        body = {
            "format": FORMAT,
            "owner": self.owner.hex(),
            "statement": self.statement.hex(),
            "study": self.study.hex(),
            "subject": self.subject,
            "time": self.time,
            "version": self.version,
        }
        return sign_statement("receipt", body, proxy)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        body = statement.body
        check_members(body, "owner", "statement", "study", "subject", "time", "version")
        if body["subject"] not in ("share", "withdrawal"):
            raise MessageError("malformed", "the subject of a receipt must be share or withdrawal")
        read_time(body["time"], "time")
        return cls(
            StudyId.parse(body["study"]),
            PartyId.parse(body["owner"]),
            _version(body["version"]),
            body["subject"],
            Digest.parse(body["statement"]),
            body["time"],
        )


@dataclass(frozen=True, slots=True, order=True)
class CohortMember:
    """One owner in a closed study: the version of its complete share and the digest of its statement."""

    owner: PartyId
    version: int
    statement: Digest

    def to_body(self) -> dict[str, Any]:
        return {"owner": self.owner.hex(), "statement": self.statement.hex(), "version": self.version}

    @classmethod
    def parse(cls, untrusted: Any) -> Self:
        if not isinstance(untrusted, dict) or set(untrusted) != {"owner", "statement", "version"}:
            raise MessageError(
                "malformed", "a cohort member must have exactly the members owner, statement and version"
            )
        return cls(
            PartyId.parse(untrusted["owner"]),
            _version(untrusted["version"]),
            Digest.parse(untrusted["statement"]),
        )


def cohort_digest(members: Sequence[CohortMember]) -> Digest:
    """The digest of the sorted list of (owner, version, statement digest). This digest identifies a frozen
    cohort."""
    rows = [member.owner + member.version.to_bytes(4, "big") + member.statement for member in sorted(members)]
    return Digest.of(f"dpdpca/cohort/v{FORMAT}\x00".encode() + b"".join(rows))
