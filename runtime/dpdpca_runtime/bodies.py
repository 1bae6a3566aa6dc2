"""The unsigned JSON bodies of a proxy's routes; signed statements stand in them as they were signed.

They inform: what a signed statement can decide is not decided on them. A newer proxy may say more.
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
"""In a schema: here stands that of a signed statement of this kind; see `dpdpca_runtime.asgi.contract`."""


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
    """It cannot."""

    reason: str = Field(description="In words that hold no secret.")


class EnrolmentRequest(Body):
    """An introduction and the permission for it."""

    enrolment: Annotated[Signed, statement("enrolment")]
    invitation: str = Field(description="The token of a single-use invitation.", examples=["0a" * 32])


class Enrolled(Body):
    """The party's id, and the proxy's card."""

    party: Id
    proxy: Annotated[Signed, statement("proxy")]


class Successor(Body):
    """The id of the party's new key."""

    party: Id


class Rotations(Body):
    """Key rotations, oldest first."""

    rotations: list[Annotated[Signed, statement("rotation")]]


class PartyIdentity(Body):
    """Who a party is: what others check and encrypt with."""

    ed25519: Id
    name: str
    role: str = Field(description="owner or user")
    x25519: Id


class PartyBody(PartyIdentity):
    """An enrolled party, as the proxy's operator named it."""

    enrolled_at: Time
    party: Id
    successor: Id | None = Field(description="The id of the key that this one gave way to.")


class Parties(Body):
    parties: list[PartyBody]


class OpenedStudy(Body):
    """The id of the study: the digest of its manifest."""

    study: Id


class Progress(Body):
    """How far long work has come: `done` of `total` steps of `phase`."""

    done: int = Field(ge=0)
    phase: str
    total: int = Field(ge=0)


class StudyProgress(Progress):
    """How far long work on a study has come."""

    study: Id


class StudyOutline(Body):
    """What everybody reads of a study."""

    closes_at: Time
    min_owners: int
    owners_complete: int
    release: ReleaseName
    state: StudyStateName
    study: Id
    title: str


class StudySummary(StudyOutline):
    """A study, in short."""

    closed_at: Time | None
    closing: str
    created_at: Time
    delta: str
    epsilon: str
    failure: str | None = Field(description="Why it failed, as a slug.")
    max_owners: int
    released_at: Time | None
    share_bytes: int = Field(description="What an owner sends.")
    user: Id


class Studies(Body):
    studies: list[StudySummary]


class OwnerInStudy(Body):
    """Where one owner stands in a study."""

    name: str
    owner: Id
    state: ShareStateName
    version: int | None


class CohortMemberBody(Body):
    """An owner in a closed study, its share's version, and the digest of its statement."""

    owner: Id
    statement: Id
    version: int


class StudyDetail(StudySummary):
    """A study, as an enrolled party may know it."""

    cohort: Id | None = Field(description="Digest of the frozen cohort.")
    cohort_members: list[CohortMemberBody]
    failure_detail: str | None
    mark: Annotated[Signed, statement("mark")]
    owners: list[OwnerInStudy]
    progress: Progress | None
    records: int | None = Field(description="N of a masked study, for its data user alone.")


class Transcript(Body):
    """The signed chain of a study's events."""

    events: list[Annotated[Signed, statement("event")]]


class ShareStatus(Body):
    """What the proxy holds of the caller's share."""

    chunks: list[int] = Field(description="Positions of the chunks that arrived.")
    receipt: Annotated[Signed, statement("receipt")] | None
    state: ShareStateName
    version: int | None = Field(description="The version that is arriving or arrived.")


class Release(Body):
    """A finished release without its chunks."""

    release: Annotated[Signed, statement("release")]
    shares: list[Annotated[Signed, statement("share")]]
    transcript: list[Annotated[Signed, statement("event")]]


class Published(Body):
    components: Annotated[Signed, statement("components")]
