"""The other signed messages of a study. Each is an immutable value with exactly one encoding."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from dpdpca_protocol.errors import CryptographicError, IntegrityError, MessageError
from dpdpca_protocol.messages.share import CohortMember
from dpdpca_protocol.messages.software import Software, named_software, naming_software
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.study import ReleaseKind, StudyState
from dpdpca_protocol.wire.fields import read_time, text_problem
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.kem import KemKey
from dpdpca_protocol.wire.sealing import (
    DATA_KEY_BYTES,
    components_info,
    open_at_rest,
    open_sealed,
    seal,
    seal_at_rest,
)
from dpdpca_protocol.wire.signing import (
    FORMAT,
    LASTING_FORMAT,
    LASTING_FORMATS,
    Identity,
    IdentityKey,
    Statement,
    check_members,
    hex_bytes,
    key_members,
    named_head,
    naming_head,
    read_keys,
    sign_statement,
    stated_keys,
    verify_statement,
)

ROLES = ("owner", "user")


def _text(untrusted: Any, what: str, limit: int = 200) -> str:
    if not isinstance(untrusted, str) or (problem := text_problem(untrusted, limit)):
        problem = "is not text" if not isinstance(untrusted, str) else problem
        raise MessageError("malformed", f"{what} {problem}")
    return untrusted


def _count(untrusted: Any, what: str) -> int:
    if type(untrusted) is not int or untrusted < 0:
        raise MessageError("malformed", f"{what} must be a whole number")
    return untrusted


@dataclass(frozen=True, slots=True)
class ProxyCard:
    """How a proxy introduces itself: its name, its address and its keys, signed with the proxy's own key.

    Attributes:
        software: what the proxy says that it runs; None in a card of an earlier version.
    """

    name: str
    url: str
    identity: Identity
    software: Software | None = None

    def sign(self, key: IdentityKey) -> Statement:
        body = {
            **stated_keys("proxy", self.identity),
            "format": LASTING_FORMAT,
            "name": self.name,
            "url": self.url,
        }
        return sign_statement("proxy", naming_software(body, self.software), key)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        body = statement.body
        names = ("name", "url", *key_members("proxy", body))
        check_members(body, *names, optional=("software",), formats=LASTING_FORMATS)
        return cls(
            _text(body["name"], "name"),
            _text(body["url"], "url", 2000),
            _own_keys(statement),
            named_software(body),
        )


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A party's self-signed request to enrol at one proxy in one role."""

    role: str
    name: str
    identity: Identity
    proxy: bytes

    def sign(self, key: IdentityKey) -> Statement:
        body = {
            **stated_keys(self.role, self.identity),
            "format": LASTING_FORMAT,
            "name": self.name,
            "proxy": self.proxy.hex(),
            "role": self.role,
        }
        return sign_statement("enrolment", body, key)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        body = statement.body
        names = ("name", "proxy", "role", *key_members(body.get("role"), body))
        check_members(body, *names, formats=LASTING_FORMATS)
        if body["role"] not in ROLES:
            raise MessageError("malformed", "the role must be owner or user")
        return cls(
            body["role"],
            _text(body["name"], "name"),
            _own_keys(statement),
            hex_bytes(body["proxy"], 32, "proxy"),
        )


def _own_keys(statement: Statement) -> Identity:
    keys = read_keys(statement.body)
    if keys.ed25519 != statement.signer:
        raise MessageError("malformed", "the statement enrols a key that is not its signer's")
    return keys


@dataclass(frozen=True, slots=True)
class StudyAct:
    """The data user's signed order about a study: kind "close" (close it now) or "cancel"."""

    kind: str
    study: StudyId

    def sign(self, key: IdentityKey) -> Statement:
        return sign_statement(self.kind, {"format": FORMAT, "study": self.study.hex()}, key)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        check_members(statement.body, "study")
        return cls(statement.kind, StudyId.parse(statement.body["study"]))


@dataclass(frozen=True, slots=True)
class Opened:
    """The data user states which release of a study it opens. It signs this before it opens anything, and
    signs no second one.

    Attributes:
        cohort: the digest of the release's cohort.
        release: the digest of the proxy's release statement.
    """

    study: StudyId
    cohort: Digest
    release: Digest

    def sign(self, user: IdentityKey) -> Statement:
        body = {
            "cohort": self.cohort.hex(),
            "format": FORMAT,
            "release": self.release.hex(),
            "study": self.study.hex(),
        }
        return sign_statement("opened", body, user)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        body = statement.body
        check_members(body, "cohort", "release", "study")
        return cls(StudyId.parse(body["study"]), Digest.parse(body["cohort"]), Digest.parse(body["release"]))


@dataclass(frozen=True, slots=True)
class StudyMark:
    """The present state of a study and the present head of the proxy's log.

    The statement is signed anew for every request.

    Attributes:
        state: the state of the study.
        generation: the number of the last entry in the proxy's log; it never falls.
        head: the digest of that entry.
        time: RFC 3339 UTC, by the proxy's clock.
    """

    study: StudyId
    state: str
    generation: int
    head: Digest
    time: str

    def sign(self, proxy: IdentityKey) -> Statement:
        body = {
            "format": FORMAT,
            "generation": self.generation,
            "head": self.head.hex(),
            "state": self.state,
            "study": self.study.hex(),
            "time": self.time,
        }
        return sign_statement("mark", body, proxy)

    @classmethod
    def verify(cls, untrusted: bytes, study: StudyId, proxy: bytes) -> Self:
        """The mark in `untrusted`, if `proxy` signed it for this study.

        Raises:
            MessageError, AuthenticationError: it is malformed, forged or about another study.
        """
        mark = cls.parse(verify_statement("mark", untrusted, proxy))
        if mark.study != study:
            raise MessageError("wrong-study", "the proxy's mark is about another study")
        return mark

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        body = statement.body
        check_members(body, "generation", "head", "state", "study", "time")
        if body["state"] not in tuple(StudyState):
            raise MessageError("malformed", "the mark names an unknown study state")
        read_time(body["time"], "time")
        return cls(
            StudyId.parse(body["study"]),
            body["state"],
            _count(body["generation"], "generation"),
            Digest.parse(body["head"]),
            body["time"],
        )


@dataclass(frozen=True, slots=True)
class CountChallenge:
    """E[N] of a closed study. The proxy sends this challenge to the data user (masked release, step 1)."""

    study: StudyId
    cohort: Digest
    ciphertext: bytes

    def sign(self, proxy: IdentityKey) -> Statement:
        body = {
            "ciphertext": self.ciphertext.hex(),
            "cohort": self.cohort.hex(),
            "format": FORMAT,
            "study": self.study.hex(),
        }
        return sign_statement("count-challenge", body, proxy)

    @classmethod
    def parse(cls, statement: Statement, ciphertext_bytes: int) -> Self:
        body = statement.body
        check_members(body, "ciphertext", "cohort", "study")
        return cls(
            StudyId.parse(body["study"]),
            Digest.parse(body["cohort"]),
            hex_bytes(body["ciphertext"], ciphertext_bytes, "ciphertext"),
        )


@dataclass(frozen=True, slots=True)
class CountAnswer:
    """N with its proof.

    `randomizer` is the n-th root of E[N]·(1+n)^(−N), big-endian. `log` is the head of the user's log.
    """

    study: StudyId
    challenge: Digest
    records: int
    randomizer: bytes
    log: Digest | None = None

    def sign(self, user: IdentityKey) -> Statement:
        body = {
            "challenge": self.challenge.hex(),
            "format": FORMAT,
            "randomizer": self.randomizer.hex(),
            "records": self.records,
            "study": self.study.hex(),
        }
        return sign_statement("count-answer", naming_head(body, self.log), user)

    @classmethod
    def parse(cls, statement: Statement, modulus_bytes: int) -> Self:
        body = statement.body
        check_members(body, "challenge", "randomizer", "records", "study", optional=("log",))
        return cls(
            StudyId.parse(body["study"]),
            Digest.parse(body["challenge"]),
            _count(body["records"], "records"),
            hex_bytes(body["randomizer"], modulus_bytes, "randomizer"),
            named_head(body),
        )


@dataclass(frozen=True, slots=True)
class ReleaseStatement:
    """What the proxy releases, once: the frozen cohort and the digests of the release's chunks.

    Attributes:
        records: N in a masked release; None in other releases, where the proxy never learns N.
        software: what the proxy says that it ran when it signed this; None in one of an earlier version.
    """

    study: StudyId
    release: ReleaseKind
    cohort: tuple[CohortMember, ...]
    cohort_digest: Digest
    records: int | None
    chunk_digests: tuple[Digest, ...]
    software: Software | None = None

    def sign(self, proxy: IdentityKey) -> Statement:
        body: dict[str, Any] = {
            "chunk_digests": [digest.hex() for digest in self.chunk_digests],
            "cohort": self.cohort_digest.hex(),
            "format": FORMAT,
            "owners": [member.to_body() for member in self.cohort],
            "release": str(self.release),
            "study": self.study.hex(),
        }
        if self.records is not None:
            body["records"] = self.records
        return sign_statement("release", naming_software(body, self.software), proxy)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        body = statement.body
        if body.get("release") not in tuple(ReleaseKind):
            raise MessageError("malformed", f"the release must be one of {', '.join(ReleaseKind)}")
        counted = ReleaseKind(body["release"]).needs_count
        names = ("chunk_digests", "cohort", "owners", "release", "study", *(("records",) if counted else ()))
        check_members(body, *names, optional=("software",))
        if not isinstance(body["owners"], list) or not isinstance(body["chunk_digests"], list):
            raise MessageError("malformed", "owners and chunk_digests must be lists")
        return cls(
            StudyId.parse(body["study"]),
            ReleaseKind(body["release"]),
            tuple(CohortMember.parse(member) for member in body["owners"]),
            Digest.parse(body["cohort"]),
            _count(body["records"], "records") if counted else None,
            tuple(Digest.parse(digest) for digest in body["chunk_digests"]),
            named_software(body),
        )


@dataclass(frozen=True, slots=True)
class SealedComponents:
    """The components for the owners, sealed to the key in each owner's share statement.

    Attributes:
        study: whose components they are.
        sealed: a copy for each owner: the components or, with `body`, the key of `body`.
        log: the newest digest of the data user's log.
        body: the components under a key made for this statement, so that large components are sent once
            instead of once for each owner; or None.
    """

    study: StudyId
    sealed: Mapping[PartyId, bytes]
    log: Digest | None = None
    body: bytes | None = None

    @classmethod
    def seal_each(
        cls, study: StudyId, plain: bytes, owners: Mapping[PartyId, bytes], log: Digest | None = None
    ) -> Self:
        """A copy of the components for each owner, whose `kem` is given."""
        info = components_info(study)
        return cls(study, {owner: seal(plain, kem, info) for owner, kem in owners.items()}, log)

    @classmethod
    def seal_once(
        cls,
        study: StudyId,
        plain: bytes,
        owners: Mapping[PartyId, bytes],
        log: Digest | None = None,
    ) -> Self:
        """The components once, and their key for each owner, whose `kem` is given."""
        key = OS_RANDOMNESS.bytes(DATA_KEY_BYTES)
        body = seal_at_rest(plain, key, components_info(study), OS_RANDOMNESS)
        return replace(cls.seal_each(study, key, owners, log), body=body)

    def open(self, owner: PartyId, key: KemKey) -> bytes | None:
        """The components, opened with an owner's key; None if there is no copy for this owner.

        Raises:
            CryptographicError: they were sealed to another key or for another study, or were altered.
        """
        if (copy := self.sealed.get(owner)) is None:
            return None
        info = components_info(self.study)
        opened = open_sealed(copy, key, info)
        if self.body is None:
            return opened
        try:
            return open_at_rest(self.body, opened, info)
        except IntegrityError as error:
            raise CryptographicError(
                "sealed-body-does-not-open",
                "the published components cannot be decrypted with the key that was sealed to this owner",
                "ask the data user",
            ) from error

    def sign(self, user: IdentityKey) -> Statement:
        body = {
            "format": FORMAT,
            "sealed": {owner.hex(): copy.hex() for owner, copy in sorted(self.sealed.items())},
            "study": self.study.hex(),
        }
        if self.body is not None:
            body["body"] = b64encode(self.body).decode()
        return sign_statement("components", naming_head(body, self.log), user)

    @classmethod
    def parse(cls, statement: Statement) -> Self:
        body = statement.body
        check_members(body, "sealed", "study", optional=("body", "log"))
        if not isinstance(body["sealed"], dict):
            raise MessageError("malformed", "sealed must be an object whose keys are owner ids")
        copies = {
            PartyId.parse(owner): _bytes(copy, "a sealed copy") for owner, copy in body["sealed"].items()
        }
        once = _base64_bytes(body["body"], "body") if "body" in body else None
        return cls(StudyId.parse(body["study"]), copies, named_head(body), once)


def _bytes(untrusted: Any, what: str) -> bytes:
    """Bytes of any length."""
    if not isinstance(untrusted, str):
        raise MessageError("malformed", f"{what} must be in hex")
    return hex_bytes(untrusted, len(untrusted) // 2, what)


def _base64_bytes(untrusted: Any, what: str) -> bytes:
    """At least one byte from the only base64 (RFC 4648, section 4, with padding) that these bytes have."""
    try:
        # Only the letters of an incomplete last group can have another form.
        value = b64decode(untrusted, validate=True) if isinstance(untrusted, str) else b""
        is_whole = value and len(untrusted) == (len(value) + 2) // 3 * 4
        if is_whole and untrusted.endswith(b64encode(value[len(value) // 3 * 3 :]).decode()):
            return value
    except ValueError:
        pass
    raise MessageError("malformed", f"{what} must be in base64, and not empty")
