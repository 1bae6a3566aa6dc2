"""The proxy's signed chain of a study's events. The chain proves offline what happened and in which order."""

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
FOLLOWERS: dict[str | None, frozenset[str]] = {
    None: frozenset({"manifest"}),
    "manifest": _OPEN,
    "receipt": _OPEN,
    "withdrawal": _OPEN,
    "closed": frozenset({"count", "release", "cancelled", "failed"}),
    "count": frozenset({"release", "cancelled", "failed"}),
    "release": frozenset({"opened"}),
    "opened": frozenset({"components"}),
    "components": frozenset(),
    "cancelled": frozenset(),
    "failed": frozenset(),
}
"""Which kinds of events may follow each kind.

A study closes once, nobody joins or leaves after that, and exactly one event ends it.
"""
KINDS = tuple(kind for kind in FOLLOWERS if kind is not None)
FIRST = Digest(bytes(32))
"""32 zero bytes, which the first event names in place of a predecessor's digest."""


@dataclass(frozen=True, slots=True)
class Event:
    """One link: `previous` is the digest of the event before it. `detail` holds digests and counts, and in a
    release the software that made it."""

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
            raise MessageError("malformed", "an event has an unknown kind or a wrong shape")
        if any(type(value) not in (str, int) for value in detail.values()):
            raise MessageError("malformed", "the detail of an event may only contain texts and whole numbers")
        read_time(body["time"], "time")
        if type(body["index"]) is not int or body["index"] < 0:
            raise MessageError("malformed", "the index of an event must be a whole number of 0 or more")
        return cls(
            StudyId.parse(body["study"]),
            body["index"],
            Digest.parse(body["previous"]),
            body["time"],
            body["kind"],
            body["detail"],
        )


def verify_transcript(untrusted: Sequence[bytes], study: StudyId, proxy: bytes) -> tuple[Event, ...]:
    """The events of `study`, if `proxy` signed each one, each names its predecessor and none is missing.

    Raises:
        MessageError, AuthenticationError: a link is malformed, forged, at a wrong position or from another
            study.
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
                "transcript-broken", f"event {index} of the transcript is older than event {index - 1}"
            )
        if event.kind not in FOLLOWERS[events[-1].kind if events else None]:
            raise MessageError(
                "transcript-broken",
                f"event {index} of the transcript, {event.kind}, is not allowed at this position",
            )
        events.append(event)
        previous = statement.digest
    return tuple(events)


def members_by_receipts(events: Sequence[Event]) -> frozenset[CohortMember]:
    """The owners whose shares count and the version of each share, according to the receipts in a verified
    transcript.

    Raises:
        MessageError: a receipt or withdrawal names no share.
    """
    members: dict[PartyId, CohortMember] = {}
    for event in events:
        if event.kind in ("receipt", "withdrawal"):
            member = CohortMember.parse(dict(event.detail))
            members.pop(member.owner, None)
            if event.kind == "receipt":
                members[member.owner] = member
    return frozenset(members.values())
