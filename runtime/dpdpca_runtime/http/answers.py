"""The answers of a proxy's routes as typed values.

These JSON bodies are unsigned and only informative: a decision that a signed statement can support must not
rest on them. Unknown members are ignored, so that a newer proxy can add members.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from dpdpca_protocol.errors import MessageError, printable
from dpdpca_protocol.messages.share import CohortMember
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import Identity, hex_bytes

_T = TypeVar("_T", str, int, list[Any], dict[str, Any])


def member(answer: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
    """`answer[name]`, if it has exactly this type (a boolean is not an integer)."""
    value = answer.get(name)
    if type(value) is not kind:
        raise MessageError("malformed", f"the proxy's answer has no valid member {name}")
    return value


def optional(answer: Mapping[str, Any], name: str, kind: type[_T]) -> _T | None:
    return None if answer.get(name) is None else member(answer, name, kind)


def statement_bytes(untrusted: Any) -> bytes:
    """A statement in a JSON body, as canonical bytes. It is not verified yet."""
    if not isinstance(untrusted, dict):
        raise MessageError("malformed", "the proxy's answer does not contain a statement where it should")
    return canonical_json(untrusted)


@dataclass(frozen=True, slots=True)
class PartyFacts:
    """An enrolled party, with the name that the proxy gives it."""

    name: str
    role: str
    identity: Identity
    successor: PartyId | None = None
    """The same party under the key that replaced this one."""

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        keys = Identity(
            hex_bytes(answer.get("ed25519"), 32, "ed25519"), hex_bytes(answer.get("x25519"), 32, "x25519")
        )
        successor = optional(answer, "successor", str)
        return cls(
            printable(member(answer, "name", str)),
            printable(member(answer, "role", str)),
            keys,
            PartyId.parse(successor) if successor else None,
        )


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """The state of one owner in a study."""

    owner: PartyId
    name: str
    version: int | None
    state: str

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        return cls(
            PartyId.parse(member(answer, "owner", str)),
            printable(optional(answer, "name", str) or ""),
            optional(answer, "version", int),
            printable(member(answer, "state", str)),
        )


@dataclass(frozen=True, slots=True)
class ProgressFacts:
    """The progress of the proxy's long work: `done` of `total` steps of `phase`."""

    phase: str
    done: int
    total: int

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        phase = printable(member(answer, "phase", str))
        return cls(phase, member(answer, "done", int), member(answer, "total", int))


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """A study as the proxy describes it. The members from `owners` on are only in answers about one study.

    Attributes:
        cohort: the digest of the frozen cohort, which is also in the signed transcript.
        cohort_members: the members behind this digest.
        failure, failure_detail: the reason of a failure, as a slug and in words.
        mark: the statement about the proxy's generation, not verified yet; None in lists and from older
            proxies.
    """

    study: StudyId
    title: str
    state: str
    release: str
    owners_complete: int
    min_owners: int
    closes_at: str
    owners: tuple[OwnerFacts, ...]
    progress: ProgressFacts | None
    cohort: Digest | None
    cohort_members: tuple[CohortMember, ...]
    failure: str | None
    failure_detail: str | None
    mark: bytes | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        progress = optional(answer, "progress", dict)
        cohort = optional(answer, "cohort", str)
        failure, detail = optional(answer, "failure", str), optional(answer, "failure_detail", str)
        return cls(
            StudyId.parse(member(answer, "study", str)),
            printable(member(answer, "title", str)),
            printable(member(answer, "state", str)),
            printable(member(answer, "release", str)),
            member(answer, "owners_complete", int),
            member(answer, "min_owners", int),
            printable(member(answer, "closes_at", str)),
            tuple(OwnerFacts.parse(objects) for objects in _objects(answer, "owners")),
            ProgressFacts.parse(progress) if progress else None,
            Digest.parse(cohort) if cohort else None,
            tuple(CohortMember.parse(objects) for objects in _objects(answer, "cohort_members")),
            printable(failure) if failure else None,
            printable(detail) if detail else None,
            statement_bytes(answer["mark"]) if answer.get("mark") is not None else None,
        )

    def to_body(self) -> dict[str, Any]:
        """A body from which `parse` gives the same value, except the states of owners and the progress."""
        return {
            "closes_at": self.closes_at,
            "cohort": self.cohort.hex() if self.cohort else None,
            "cohort_members": [member.to_body() for member in self.cohort_members],
            "failure": self.failure,
            "failure_detail": self.failure_detail,
            "min_owners": self.min_owners,
            "owners_complete": self.owners_complete,
            "release": self.release,
            "state": self.state,
            "study": self.study.hex(),
            "title": self.title,
        }

    @classmethod
    def parse_list(cls, answer: Mapping[str, Any]) -> tuple[Self, ...]:
        return tuple(cls.parse(study) for study in _objects(answer, "studies"))


@dataclass(frozen=True, slots=True)
class ShareFacts:
    """What the proxy has of the caller's share.

    Attributes:
        version: the version that is being uploaded or was uploaded; None before the first chunk.
        chunks: the indices of its chunks that have arrived.
        state: absent, partial, complete or withdrawn.
        receipt: the bytes of the receipt statement, not verified yet; None if there is none.
    """

    version: int | None
    chunks: frozenset[int]
    state: str
    receipt: bytes | None

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        chunks = member(answer, "chunks", list)
        if any(type(index) is not int for index in chunks):
            raise MessageError("malformed", "the proxy's answer has no valid member chunks")
        receipt = answer.get("receipt")
        return cls(
            optional(answer, "version", int),
            frozenset(chunks),
            printable(member(answer, "state", str)),
            None if receipt is None else statement_bytes(receipt),
        )


@dataclass(frozen=True, slots=True)
class ReleaseBundle:
    """A finished release without its chunks. The statements are bytes and not verified yet.

    Attributes:
        release: the release statement, signed by the proxy.
        shares: the share statements of the cohort, each signed by its owner.
        transcript: the events of the study, signed by the proxy.
    """

    release: bytes
    shares: tuple[bytes, ...]
    transcript: tuple[bytes, ...]

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        return cls(
            statement_bytes(answer.get("release")),
            tuple(statement_bytes(share) for share in member(answer, "shares", list)),
            tuple(statement_bytes(event) for event in member(answer, "transcript", list)),
        )


@dataclass(frozen=True, slots=True)
class StudyUpdate:
    """One server-sent event of a study: kind "state" or "progress"."""

    kind: str
    detail: Mapping[str, Any]


def _objects(answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    values = optional(answer, name, list) or []
    if any(type(value) is not dict for value in values):
        raise MessageError("malformed", f"the proxy's answer has no valid member {name}")
    return values
