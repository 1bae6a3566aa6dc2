"""The answers of a proxy's routes as typed values.

These JSON bodies are unsigned and only informative: a decision that a signed statement can support must not
rest on them. Unknown members are ignored, so that a newer proxy can add members.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError

from dpdpca_protocol.errors import MessageError, printable
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.messages.share import CohortMember
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_runtime.bodies import (
    Body,
    CohortMemberBody,
    Id,
    OwnerInStudy,
    PartyIdentity,
    Progress,
    Release,
    ShareStatus,
    Signed,
    StudyOutline,
    Transcript,
)

_B = TypeVar("_B", bound=Body)


class _Party(PartyIdentity):
    """A party as a proxy lists it. `successor` and `statement` may be missing."""

    successor: Id | None = None
    statement: Signed | None = None


class _Parties(Body):
    parties: list[_Party]


class _Study(StudyOutline):
    """A study as a proxy describes it. Lists do not contain the members below."""

    failure: str | None = None
    failure_detail: str | None = None
    cohort: Id | None = None
    cohort_members: list[CohortMemberBody] = Field(default_factory=list)
    declines: list[Signed] = Field(default_factory=list)
    mark: Signed | None = None
    owners: list[OwnerInStudy] = Field(default_factory=list)
    progress: Progress | None = None


class _Studies(Body):
    studies: list[_Study]


def read_body(kind: type[_B], untrusted: Mapping[str, Any]) -> _B:
    """An answer in the form that its route declares. Members that a newer proxy adds are dropped.

    Raises:
        MessageError: `malformed`, with the first member that is missing or of another form.
    """
    try:
        return kind.model_validate(untrusted, strict=True)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise MessageError(
            "malformed", f"the proxy's answer has no valid member {printable(place, 60)}"
        ) from None


def statement_bytes(signed: Signed) -> bytes:
    """A statement in a JSON body, as canonical bytes. The statement is not verified yet."""
    return canonical_json(signed)


@dataclass(frozen=True, slots=True)
class PartyFacts:
    """An enrolled party, with the name that the proxy gives it."""

    name: str
    role: str
    ed25519: bytes
    successor: PartyId | None = None
    """The same party under the key that replaced this one."""
    statement: bytes | None = None
    """The statement in which it has signed its keys, not verified yet; None if it was not asked for."""

    @classmethod
    def parse_list(cls, answer: Mapping[str, Any]) -> tuple[Self, ...]:
        return tuple(
            cls(
                printable(party.name),
                printable(party.role),
                bytes.fromhex(party.ed25519),
                PartyId.parse(party.successor) if party.successor else None,
                statement_bytes(party.statement) if party.statement is not None else None,
            )
            for party in read_body(_Parties, answer).parties
        )


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """The state of one owner in a study."""

    owner: PartyId
    name: str
    version: int | None
    state: str

    @classmethod
    def of(cls, told: OwnerInStudy) -> Self:
        return cls(PartyId.parse(told.owner), printable(told.name), told.version, printable(told.state))


@dataclass(frozen=True, slots=True)
class ProgressFacts:
    """The progress of the proxy's long work: `done` of `total` steps of `phase`."""

    phase: str
    done: int
    total: int

    @classmethod
    def of(cls, told: Progress) -> Self:
        return cls(printable(told.phase), told.done, told.total)


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """A study as the proxy describes it. The members from `owners` on are only in answers about one study.

    Attributes:
        cohort: the digest of the frozen cohort, which is also in the signed transcript.
        cohort_members: the members behind this digest.
        failure, failure_detail: the reason for a failure, as a slug and in words.
        mark: the statement about the proxy's generation, not verified yet. It is None in lists of
            studies and in answers of older proxies.
        declines: the statements of owners that do not take part, not verified yet. Only the data user of the
            study gets them.
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
    declines: tuple[bytes, ...] = ()

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        return cls._of(read_body(_Study, answer))

    @classmethod
    def parse_list(cls, answer: Mapping[str, Any]) -> tuple[Self, ...]:
        return tuple(cls._of(study) for study in read_body(_Studies, answer).studies)

    @classmethod
    def _of(cls, told: _Study) -> Self:
        return cls(
            StudyId.parse(told.study),
            printable(told.title),
            printable(told.state),
            printable(told.release),
            told.owners_complete,
            told.min_owners,
            told.closes_at,
            tuple(OwnerFacts.of(owner) for owner in told.owners),
            ProgressFacts.of(told.progress) if told.progress else None,
            Digest.parse(told.cohort) if told.cohort else None,
            tuple(CohortMember.parse(member.model_dump()) for member in told.cohort_members),
            printable(told.failure) if told.failure else None,
            printable(told.failure_detail) if told.failure_detail else None,
            statement_bytes(told.mark) if told.mark is not None else None,
            tuple(statement_bytes(each) for each in told.declines),
        )

    def to_body(self) -> dict[str, Any]:
        """A body from which `parse` gives the same value, except the states of owners, their
        declines and the progress."""
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


@dataclass(frozen=True, slots=True)
class ShareFacts:
    """What the proxy has of the caller's share.

    Attributes:
        version: the version that is being uploaded or was uploaded; None before the first chunk.
        chunks: the indices of its chunks that have arrived.
        state: absent, partial, complete or withdrawn.
        receipt: the bytes of the receipt statement, not verified yet; None if the proxy gave no receipt.
    """

    version: int | None
    chunks: frozenset[int]
    state: str
    receipt: bytes | None

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        told = read_body(ShareStatus, answer)
        return cls(
            told.version,
            frozenset(told.chunks),
            printable(told.state),
            None if told.receipt is None else statement_bytes(told.receipt),
        )


@dataclass(frozen=True, slots=True)
class History:
    """What was signed about the course of a study. The statements are bytes and not verified yet.

    Attributes:
        events: the transcript, signed by the proxy.
        cancel, opened: the data user's statements that the events `cancelled` and `opened` name, if any.
    """

    events: tuple[bytes, ...]
    cancel: bytes | None
    opened: bytes | None

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        told = read_body(Transcript, answer)
        return cls(
            tuple(statement_bytes(event) for event in told.events),
            None if told.cancel is None else statement_bytes(told.cancel),
            None if told.opened is None else statement_bytes(told.opened),
        )


@dataclass(frozen=True, slots=True)
class ReleaseBundle:
    """A finished release without its chunks. The statements are bytes and not verified yet.

    Attributes:
        release: the release statement, signed by the proxy.
        shares: the share statements of the cohort, each signed by its owner.
        transcript: the events of the study, signed by the proxy.
        log: entries of the proxy's log, from the first event to the entry before the release.
    """

    release: bytes
    shares: tuple[bytes, ...]
    transcript: tuple[bytes, ...]
    log: tuple[LogEntry, ...]

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Self:
        told = read_body(Release, answer)
        return cls(
            statement_bytes(told.release),
            tuple(statement_bytes(share) for share in told.shares),
            tuple(statement_bytes(event) for event in told.transcript),
            tuple(LogEntry.parse(entry.model_dump()) for entry in told.log),
        )


@dataclass(frozen=True, slots=True)
class StudyUpdate:
    """One server-sent event of a study: kind "state" or "progress"."""

    kind: str
    detail: Mapping[str, Any]
