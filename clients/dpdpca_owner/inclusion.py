"""Checks whether the cohort of a study includes an owner's share.

Only statements that the proxy has signed count, not its unsigned answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dpdpca_protocol.errors import AuthenticationError, MessageError
from dpdpca_protocol.messages.share import CohortMember, Receipt, cohort_digest
from dpdpca_protocol.messages.study_messages import Opened
from dpdpca_protocol.messages.transcript import Event, members_by_receipts, verify_transcript
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.http.answers import History, StudyFacts

_KEEP_RECEIPTS = (
    "keep the receipts on this machine, because they are the proof; ask the proxy's operator and tell the"
    " data user"
)


class CohortHoldsTooMuchError(AuthenticationError):
    """The proxy signed a cohort that includes a share which this owner withdrew or never sent."""


_SIGNED_AS: dict[str, str] = {
    StudyState.CLOSED: "closed",
    StudyState.COUNTED: "count",
    StudyState.RELEASED: "release",
    StudyState.PUBLISHED: "components",
    StudyState.CANCELLED: "cancelled",
    StudyState.FAILED: "failed",
}
"""For each state, the kind of event that brings a study into it. Studies begin in the state `open`."""


@dataclass(frozen=True, slots=True)
class Inclusion:
    """Whether a study includes an owner's share.

    Attributes:
        state: the state of the study, as the proxy reports it.
        receipt: this owner's newest receipt, or None.
        included: whether the closed study's cohort includes the share of that receipt; None before closing.
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
    """Compare the proxy's signed transcript with this owner's receipt.

    Args:
        study, owner: the study, and the owner whose share is checked.
        proxy: raw Ed25519 key of the pinned proxy.
        facts: the unsigned answer about the study. Its cohort is believed only if the signed transcript
            contains its digest, and its state only if the transcript shows it.
        transcript: events as received. The transcript is not older than `facts`, unless `facts` say that the
            study is open.
        receipt: this owner's newest receipt, verified; None if the owner has no receipt.

    Raises:
        AuthenticationError: the proxy contradicts itself. The proxy's transcript lacks a receipt that the
            proxy signed, or does not show the reported state; or its cohort lacks a share that it
            acknowledged, or includes one that was withdrawn or never sent.
        MessageError: the transcript is broken.
    """
    events = verify_transcript(transcript, study, proxy)
    if receipt is not None and not any(_records(event, receipt) for event in events):
        raise _alarm("the proxy's transcript does not contain the receipt that it gave this owner")
    closed = next((event for event in events if event.kind == "closed"), None)
    _check_state(facts.state, events)
    if closed is None:
        return Inclusion(facts.state, receipt, None, events)
    if cohort_digest(facts.cohort_members).hex() != closed.detail.get("cohort"):
        raise MessageError(
            "transcript-broken",
            "the cohort that the proxy lists is not the one that it signed",
            "ask the proxy's operator",
        )
    listed = next((member for member in facts.cohort_members if member.owner == owner), None)
    due = _due(receipt)
    if listed != due:
        if due is None:
            raise CohortHoldsTooMuchError(
                "receipt-contradicts",
                "the proxy's cohort includes a share that this owner withdrew or never sent",
                _KEEP_RECEIPTS,
            )
        raise _alarm("the proxy's cohort lacks the share of this owner that the proxy acknowledged")
    if members_by_receipts(events) != frozenset(facts.cohort_members):
        raise _alarm("the proxy's cohort does not agree with the receipts that the proxy signed")
    return Inclusion(facts.state, receipt, listed is not None, events)


def check_ending(history: History, events: tuple[Event, ...], user: bytes) -> None:
    """Check that the data user signed what the events `cancelled` and `opened` say.

    Args:
        history: as received.
        events: its transcript, verified.
        user: the data user's raw Ed25519 key in the study's manifest.

    Raises:
        AuthenticationError: the proxy shows no such statement of the data user, or one about other things
            than its transcript.
        MessageError: a statement is malformed.
    """
    by_kind = {event.kind: event.detail for event in events}
    for kind, untrusted, named_by in (
        ("cancel", history.cancel, "cancelled"),
        ("opened", history.opened, "opened"),
    ):
        if named_by not in by_kind:
            continue
        if untrusted is None:
            raise _alarm(
                f"the proxy says that the study is {named_by}, but shows no `{kind}` of the data user"
            )
        statement = verify_statement(kind, untrusted, user)
        if by_kind[named_by].get("statement") != statement.digest.hex():
            raise _alarm(f"the proxy's transcript names another `{kind}` than the proxy shows")
    if "opened" in by_kind and history.opened is not None:
        opened = Opened.parse(verify_statement("opened", history.opened, user))
        shown = by_kind["closed"].get("cohort"), by_kind["release"].get("statement")
        if (opened.cohort.hex(), opened.release.hex()) != shown:
            raise _alarm("the data user has opened another release than the one in the proxy's transcript")


def check_extends(before: Sequence[bytes], transcript: Sequence[bytes]) -> None:
    """Check that a transcript begins with the events of the one that was kept before.

    Raises:
        AuthenticationError: an event that the proxy had signed is missing or was replaced.
    """
    if tuple(transcript[: len(before)]) != tuple(before):
        raise _alarm("the proxy's transcript no longer contains the events that it had signed before")


def _check_state(state: str, events: tuple[Event, ...]) -> None:
    """Check that the transcript shows `state`; else the proxy could show each owner a different cohort."""
    kinds = {event.kind for event in events}
    if state == StudyState.OPEN:
        if kinds & {"closed", "cancelled", "failed"}:
            raise _alarm("the proxy says that the study is open, but it has signed that it is not")
        return
    if _SIGNED_AS.get(state) not in kinds:
        raise _alarm(f"the proxy says that the study is {state}, but its transcript does not show this")


def _due(receipt: Receipt | None) -> CohortMember | None:
    """The entry that the cohort must have for this owner, or None."""
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
