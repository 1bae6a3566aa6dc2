"""The unsigned JSON bodies of a proxy's routes.

The bodies contain signed statements unchanged. The bodies are only informative: a decision that a signed
statement can support must not rest on them. A newer proxy may add members.
"""

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from dpdpca_protocol.study import ReleaseKind, ShareState, StudyState
from dpdpca_protocol.wire.schemas import TIME_PATTERN

Id = Annotated[str, Field(pattern="^[0-9a-f]{64}$", examples=["9f" * 32])]
Time = Annotated[str, Field(pattern=TIME_PATTERN, examples=["2026-11-28T12:00:00Z"])]
Signed = dict[str, Any]


def _word_of(kind: type[StrEnum]) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "enum": [str(word) for word in kind]})


# Read as any text, since a newer proxy may know more of them.
ReleaseName = Annotated[str, _word_of(ReleaseKind)]
StudyStateName = Annotated[str, _word_of(StudyState)]
ShareStateName = Annotated[str, _word_of(ShareState)]

STATEMENT_MARK: Final = "x-statement"
"""Marks the place of a signed statement's schema in a schema; see `dpdpca_runtime.asgi.contract`."""


def statement(kind: str) -> WithJsonSchema:
    """Marks a member as a signed statement of `kind`."""
    return WithJsonSchema({STATEMENT_MARK: kind})


class Body(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(frozen=True)


class Health(Body):
    """Whether the process answers."""

    status: str = Field(examples=["ok"])


class Readiness(Body):
    """Whether the service can do its work."""

    status: str = Field(examples=["ready"])


class NotReady(Readiness):
    """The service cannot do its work."""

    reason: str = Field(description="The reason, without secrets.")


class EnrolmentRequest(Body):
    """An enrolment statement and the invitation for it."""

    enrolment: Annotated[Signed, statement("enrolment")]
    invitation: str = Field(description="Token of a single-use invitation.", examples=["0a" * 32])


class Enrolled(Body):
    """The id of the enrolled party, and the proxy's card."""

    party: Id
    proxy: Annotated[Signed, statement("proxy")]


class Successor(Body):
    """The id of the party's new key."""

    party: Id


class Rotations(Body):
    """Key rotation statements, oldest first."""

    rotations: list[Annotated[Signed, statement("rotation")]]


class PartyIdentity(Body):
    """Who a party is: its name, and the key with which others check its signatures."""

    ed25519: Id
    name: str
    role: str = Field(description="owner or user")


class PartyBody(PartyIdentity):
    """An enrolled party, with the name that the proxy's operator gave it."""

    enrolled_at: Time
    party: Id
    successor: Id | None = Field(description="Id of the key that replaced this one.")
    statement: Annotated[
        Signed | None,
        WithJsonSchema({"type": ["object", "null"]}),
        Field(
            description="The enrolment or rotation in which the party signed its keys, if it was asked for."
        ),
    ] = None


class Parties(Body):
    parties: list[PartyBody]


class OpenedStudy(Body):
    """The id of the study: the digest of its manifest."""

    study: Id


class Progress(Body):
    """Progress of long work: `done` of `total` steps of `phase`."""

    done: int = Field(ge=0)
    phase: str
    total: int = Field(ge=0)


class StudyProgress(Progress):
    """How far long work on a study has come."""

    study: Id


class StudyOutline(Body):
    """The part of a study that every reader may see."""

    closes_at: Time
    min_owners: int
    owners_complete: int
    release: ReleaseName
    state: StudyStateName
    study: Id
    title: str


class StudySummary(StudyOutline):
    """A study in short form."""

    closed_at: Time | None
    closing: str
    created_at: Time
    delta: str
    epsilon: str
    failure: str | None = Field(description="Reason of the failure, as a slug.")
    max_owners: int
    released_at: Time | None
    share_bytes: int = Field(description="Size of an owner's share, in bytes.")
    user: Id


class Studies(Body):
    studies: list[StudySummary]


class OwnerInStudy(Body):
    """State of one owner in a study."""

    name: str
    owner: Id
    state: ShareStateName
    version: int | None


class CohortMemberBody(Body):
    """An owner in a closed study, with the version of its share and the digest of its statement."""

    owner: Id
    statement: Id
    version: int


class StudyDetail(StudySummary):
    """Everything that the proxy tells an enrolled party about a study."""

    cohort: Id | None = Field(description="Digest of the frozen cohort.")
    cohort_members: list[CohortMemberBody]
    declines: list[Annotated[Signed, statement("decline")]] = Field(
        description="Statements of owners that do not take part; only for the study's data user."
    )
    failure_detail: str | None
    mark: Annotated[Signed, statement("mark")]
    owners: list[OwnerInStudy]
    progress: Progress | None
    records: int | None = Field(description="N of a masked study; only for its data user.")


class Transcript(Body):
    """The signed chain of a study's events, with the data user's statements that two of these events name."""

    cancel: Annotated[Signed, statement("cancel")] | None
    events: list[Annotated[Signed, statement("event")]]
    opened: Annotated[Signed, statement("opened")] | None


class ShareStatus(Body):
    """What the proxy holds of the caller's share."""

    chunks: list[int] = Field(description="Positions of the chunks that have arrived.")
    receipt: Annotated[Signed, statement("receipt")] | None
    state: ShareStateName
    version: int | None = Field(description="Version that is being uploaded or was uploaded.")


class LogEntryBody(Body):
    """An entry of a party's log."""

    kind: str
    position: int
    previous: Id
    subject: Id = Field(description="Digest of the statement that has the details.")
    time: Time


class Release(Body):
    """A finished release without its chunks."""

    log: list[LogEntryBody] = Field(
        description="The proxy's log from the study's first event to the entry before the release."
    )
    release: Annotated[Signed, statement("release")]
    shares: list[Annotated[Signed, statement("share")]]
    transcript: list[Annotated[Signed, statement("event")]]


class Published(Body):
    components: Annotated[Signed, statement("components")]
