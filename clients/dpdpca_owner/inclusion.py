"""Where an owner's share stands, judged by what the proxy has signed and not by what it says."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpdpca_protocol.errors import AuthenticationError, MessageError
from dpdpca_protocol.messages.share import CohortMember, Receipt, cohort_digest
from dpdpca_protocol.messages.transcript import Event, members_by_receipts, verify_transcript
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_runtime.http.answers import StudyFacts

_KEEP_RECEIPTS = (
    "keep this machine's receipts: they are the proof; ask the proxy's operator and tell the data user"
)


class CohortHoldsTooMuchError(AuthenticationError):
    """The proxy has signed a cohort with a share of this owner that it withdrew or never gave."""


_SIGNED_AS: dict[str, str] = {
    StudyState.CLOSED: "closed",
    StudyState.COUNTED: "count",
    StudyState.RELEASED: "release",
    StudyState.PUBLISHED: "components",
    StudyState.CANCELLED: "cancelled",
    StudyState.FAILED: "failed",
}
"""The event that brings a study into a state; of an open one there is none."""


@dataclass(frozen=True, slots=True)
class Inclusion:
    """An owner's share in a study.

    Attributes:
        state: of the study, as the proxy tells it.
        receipt: the newest of this owner, or None.
        included: whether the closed study's cohort holds the share of that receipt; None before closing.
        events: the study's signed events.
    """

    state: str
    receipt: Receipt | None
    included: bool | None
    events: tuple[Event, ...]


def check_inclusion(
    study: StudyId,
    owner: PartyId,
    proxy: bytes,
    facts: StudyFacts,
    transcript: tuple[bytes, ...],
    receipt: Receipt | None,
) -> Inclusion:
    """Hold the proxy's signed transcript against this owner's receipt.

    Args:
        study, owner: whose inclusion.
        proxy: raw Ed25519 key of the pinned proxy.
        facts: the unsigned answer about the study; its cohort is believed only as far as the transcript
            signs its digest, its state only as far as the transcript has come.
        transcript: events as received; not older than `facts` unless these say that the study is open.
        receipt: the newest that this owner holds, verified.

    Raises:
        AuthenticationError: the proxy contradicts itself: a receipt that its transcript does not know, a
            cohort that leaves out a share that it acknowledged, or holds one withdrawn or never given, or a
            state that its transcript does not bear out.
        MessageError: the transcript is broken.
    """
    events = verify_transcript(transcript, study, proxy)
    if receipt is not None and not any(_records(event, receipt) for event in events):
        raise _alarm("the proxy's transcript does not know the receipt that it gave this owner")
    closed = next((event for event in events if event.kind == "closed"), None)
    _check_state(facts.state, events)
    if closed is None:
        return Inclusion(facts.state, receipt, None, events)
    if cohort_digest(facts.cohort_members).hex() != closed.detail.get("cohort"):
        raise MessageError(
            "transcript-broken",
            "the cohort that the proxy lists is not the one that it signed",
            "ask its operator",
        )
    listed = next((member for member in facts.cohort_members if member.owner == owner), None)
    due = _due(receipt)
    if listed != due:
        if due is None:
            raise CohortHoldsTooMuchError(
                "receipt-contradicts",
                "the proxy's cohort holds a share of this owner that it withdrew or never gave",
                _KEEP_RECEIPTS,
            )
        raise _alarm("the proxy's cohort does not hold the share of this owner that it acknowledged")
    if members_by_receipts(events) != frozenset(facts.cohort_members):
        raise _alarm("the proxy's cohort is not that of the receipts that it has signed")
    return Inclusion(facts.state, receipt, listed is not None, events)


def check_extends(before: Sequence[bytes], transcript: Sequence[bytes]) -> None:
    """That a transcript goes on where the one that was kept before had come to.

    Raises:
        AuthenticationError: an event that the proxy has signed is gone, or another stands in its place.
    """
    if tuple(transcript[: len(before)]) != tuple(before):
        raise _alarm("the proxy's transcript no longer holds what it had signed before")


def _check_state(state: str, events: tuple[Event, ...]) -> None:
    """A proxy that says what it has not signed could show each owner a cohort of its own."""
    kinds = {event.kind for event in events}
    if state == StudyState.OPEN:
        if kinds & {"closed", "cancelled", "failed"}:
            raise _alarm("the proxy says that the study is open, and has signed that it is not")
        return
    if _SIGNED_AS.get(state) not in kinds:
        raise _alarm(f"the proxy says that the study is {state}, and its transcript does not")


def _due(receipt: Receipt | None) -> CohortMember | None:
    """What the cohort must hold of this owner."""
    if receipt is None or receipt.subject != "share":
        return None
    return CohortMember(receipt.owner, receipt.version, receipt.statement)


def _records(event: Event, receipt: Receipt) -> bool:
    kind = "receipt" if receipt.subject == "share" else "withdrawal"
    detail = event.detail
    return event.kind == kind and (detail.get("owner"), detail.get("version"), detail.get("statement")) == (
        receipt.owner.hex(),
        receipt.version,
        receipt.statement.hex(),
    )


def _alarm(what: str) -> AuthenticationError:
    return AuthenticationError("receipt-contradicts", what, _KEEP_RECEIPTS)
