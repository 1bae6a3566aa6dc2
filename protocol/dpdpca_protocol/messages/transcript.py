"""The proxy's signed chain of a study's events: what happened, in which order, provable offline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.messages.share import CohortMember
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import (
    FORMAT,
    IdentityKey,
    Statement,
    check_members,
    sign_statement,
    verify_statement,
)

_OPEN = frozenset({"receipt", "withdrawal", "closed", "cancelled", "failed"})
_FOLLOWERS: dict[str | None, frozenset[str]] = {
    None: frozenset({"manifest"}),
    "manifest": _OPEN,
    "receipt": _OPEN,
    "withdrawal": _OPEN,
    "closed": frozenset({"count", "release", "cancelled", "failed"}),
    "count": frozenset({"release", "cancelled", "failed"}),
    "release": frozenset({"components"}),
    "components": frozenset(),
    "cancelled": frozenset(),
    "failed": frozenset(),
}
"""Which kinds may follow which: a study closes once, nobody joins or leaves after that, one thing ends it."""
KINDS = tuple(kind for kind in _FOLLOWERS if kind is not None)
FIRST = Digest(bytes(32))
"""What the first event names as its predecessor."""


@dataclass(frozen=True, slots=True)
class Event:
    """One link: `previous` is the digest of the event before, `detail` holds digests and counts only."""

    study: StudyId
    index: int
    previous: Digest
    time: str
    kind: str
    detail: Mapping[str, Any]

    def sign(self, proxy: IdentityKey) -> Statement:
        body = {
            "detail": dict(self.detail),
            "format": FORMAT,
            "index": self.index,
            "kind": self.kind,
            "previous": self.previous.hex(),
            "study": self.study.hex(),
            "time": self.time,
        }
        return sign_statement("event", body, proxy)

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "Event":
        check_members(body, "detail", "index", "kind", "previous", "study", "time")
        detail = body["detail"]
        if body["kind"] not in KINDS or not isinstance(detail, dict):
            raise MessageError("malformed", "an event is of an unknown kind or shape")
        if any(type(value) not in (str, int) for value in detail.values()):
            raise MessageError("malformed", "an event's detail holds texts and whole numbers alone")
        read_time(body["time"], "time")
        if type(body["index"]) is not int or body["index"] < 0:
            raise MessageError("malformed", "an event's index is a whole number from 0")
        return cls(
            StudyId.parse(body["study"]),
            body["index"],
            Digest.parse(body["previous"]),
            body["time"],
            body["kind"],
            body["detail"],
        )


def verify_transcript(untrusted: Sequence[bytes], study: StudyId, proxy: bytes) -> tuple[Event, ...]:
    """The events of `study`, if each is signed by `proxy`, names its predecessor and none is missing.

    Raises:
        MessageError, AuthenticationError: a link is malformed, forged, out of place or of another study.
    """
    events: list[Event] = []
    previous = FIRST
    for index, encoded in enumerate(untrusted):
        statement = verify_statement("event", encoded, proxy)
        event = Event.parse(statement.body)
        if event.study != study or event.index != index or event.previous != previous:
            raise MessageError(
                "transcript-broken",
                f"event {index} of the transcript does not follow event {index - 1}",
                "keep both copies of the transcript: together they show who altered it",
            )
        if events and event.time < events[-1].time:
            raise MessageError(
                "transcript-broken", f"event {index} of the transcript is older than the one before"
            )
        if event.kind not in _FOLLOWERS[events[-1].kind if events else None]:
            raise MessageError(
                "transcript-broken",
                f"event {index} of the transcript, {event.kind}, cannot stand at its place",
            )
        events.append(event)
        previous = statement.digest
    return tuple(events)


def members_by_receipts(events: Sequence[Event]) -> frozenset[CohortMember]:
    """Whose shares are in, and which, by the receipts and withdrawals of a verified transcript.

    Raises:
        MessageError: one of them names no share.
    """
    members: dict[PartyId, CohortMember] = {}
    for event in events:
        if event.kind in ("receipt", "withdrawal"):
            member = CohortMember.parse(dict(event.detail))
            members.pop(member.owner, None)
            if event.kind == "receipt":
                members[member.owner] = member
    return frozenset(members.values())
