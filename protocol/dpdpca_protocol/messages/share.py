"""An owner's share as it is sent: chunks, the signed statement that the share is complete, and receipts.

The ciphertexts are sent in the order that docs/spec.md, section 6, defines. Each has bits(n)/4 bytes,
big-endian. A chunk has 1,024 ciphertexts; the last chunk may be shorter. A chunk of a share begins with a
salt of 32 random bytes. A chunk of a release has no salt. A chunk's digest is the SHA-256 of its bytes before
sealing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from gmpy2 import mpz

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.paillier.cipher import check_ciphertexts
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
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

CHUNK_CIPHERTEXTS = 1024
SALT_BYTES = 32
CHUNK_OVERHEAD_BYTES = SALT_BYTES + SEALING_OVERHEAD_BYTES
"""What a sealed chunk of a share has besides its ciphertexts."""
MAX_VERSION = (1 << 32) - 1


def chunk_count(ciphertext_count: int) -> int:
    return -(-ciphertext_count // CHUNK_CIPHERTEXTS)


def chunk_length(ciphertext_count: int, index: int) -> int:
    """The number of ciphertexts in chunk `index` of a share or release with `ciphertext_count` ciphertexts.

    Raises:
        MessageError: no chunk has this index.
    """
    if not 0 <= index < chunk_count(ciphertext_count):
        raise MessageError(
            "malformed",
            f"there is no chunk {index}: chunks are numbered from 0 to {chunk_count(ciphertext_count) - 1}",
        )
    return min(CHUNK_CIPHERTEXTS, ciphertext_count - index * CHUNK_CIPHERTEXTS)


def encode_chunk(ciphertexts: Iterable[mpz], public: PublicKey) -> bytes:
    width = public.ciphertext_bytes
    return b"".join(ciphertext.to_bytes(width, "big") for ciphertext in ciphertexts)


def encode_chunks(ciphertexts: Iterable[mpz], public: PublicKey) -> Iterator[bytes]:
    """The chunks of a share or release, in order, while the ciphertexts are produced."""
    stream = iter(ciphertexts)
    while group := list(islice(stream, CHUNK_CIPHERTEXTS)):
        yield encode_chunk(group, public)


def salted_chunk(encoded: bytes, randomness: Randomness) -> bytes:
    """A chunk of a share: a salt of its own, then its ciphertexts.

    Only the owner and the proxy ever know the salt. Without it, the public digest would tell whoever has the
    release and the other shares whether a guess of the noise is right.
    """
    return draw_salt(randomness) + encoded


def draw_salt(randomness: Randomness) -> bytes:
    return randomness.bytes(SALT_BYTES)


def unsalted(chunk: bytes) -> bytes:
    """The encoded ciphertexts of a share's chunk."""
    return chunk[SALT_BYTES:]


def decode_chunk(chunk: bytes, public: PublicKey) -> list[mpz]:
    """The ciphertexts in `content`, which must have been checked before."""
    width = public.ciphertext_bytes
    return [mpz.from_bytes(chunk[at : at + width], "big") for at in range(0, len(chunk), width)]


def parse_share_chunk(untrusted: bytes, public: PublicKey, index: int, ciphertext_count: int) -> list[mpz]:
    """The ciphertexts of a share's chunk `index`, without its salt; raises like `parse_chunk`."""
    _check_length(untrusted, SALT_BYTES, public, index, ciphertext_count)
    return parse_chunk(unsalted(untrusted), public, index, ciphertext_count)


def parse_chunk(untrusted: bytes, public: PublicKey, index: int, ciphertext_count: int) -> list[mpz]:
    """The ciphertexts of chunk `index` without a salt.

    Each is in range, is a unit and differs from the others in the chunk.

    Raises:
        MessageError: the length is not the one that the manifest gives this chunk.
        CryptographicError: a ciphertext is out of range, shares a factor with n, or appears twice.
    """
    _check_length(untrusted, 0, public, index, ciphertext_count)
    ciphertexts = decode_chunk(untrusted, public)
    check_ciphertexts(public, ciphertexts)
    return ciphertexts


def _check_length(
    untrusted: bytes, salt_bytes: int, public: PublicKey, index: int, ciphertext_count: int
) -> None:
    expected = salt_bytes + chunk_length(ciphertext_count, index) * public.ciphertext_bytes
    if len(untrusted) != expected:
        raise MessageError("malformed", f"chunk {index} has {len(untrusted)} bytes instead of {expected}")


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
        log: the head of the owner's ledger, in which the study is booked.
    """

    study: StudyId
    owner: bytes
    version: int
    chunk_digests: tuple[Digest, ...]
    kem: bytes
    log: Digest | None = None

    def sign(self, key: IdentityKey) -> Statement:
        body = {
            "chunk_count": len(self.chunk_digests),
            "chunk_digests": [digest.hex() for digest in self.chunk_digests],
            "format": FORMAT,
            "kem": self.kem.hex(),
            "owner": self.owner.hex(),
            "study": self.study.hex(),
            "version": self.version,
        }
        return sign_statement("share", naming_head(body, self.log), key)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        """Raises MessageError unless the statement is well formed and names its own signer as owner."""
        body = statement.body
        check_members(
            body, "chunk_count", "chunk_digests", "kem", "owner", "study", "version", optional="log"
        )
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
            named_head(body),
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
        check_members(body, "owner", "study", "version", optional="log")
        _own(body["owner"], statement)
        return cls(
            StudyId.parse(body["study"]), statement.signer, _version(body["version"]), named_head(body)
        )


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
