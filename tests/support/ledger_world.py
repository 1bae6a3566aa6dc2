"""What a ledger is tested with: charges, and receipts and transcripts of one proxy."""

from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction

from dpdpca_owner.accounts.bookkeeping import Ending, reserve
from dpdpca_owner.accounts.budget import Budget, Cost
from dpdpca_owner.accounts.charge import Charge, Content
from dpdpca_owner.accounts.entries import Entry
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_protocol.messages.share import CohortMember, Receipt, cohort_digest
from dpdpca_protocol.messages.study_messages import Opened, StudyAct
from dpdpca_protocol.messages.transcript import FIRST, Event
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement

NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-02T00:00:00Z"
CLOSES_AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY_CHECK = Digest.of(b"key")
PROXY = IdentityKey.generate()
USER = IdentityKey.generate()
OWNER = PartyId.of(b"owner")
OTHER = CohortMember(PartyId.of(b"other"), 1, Digest.of(b"share"))
BUDGET = Budget.of_rho(Fraction(1), Fraction(1, 10**6))


def new_ledger() -> Ledger:
    ledger = Ledger()
    ledger.add(Ledger.begin(Digest.of(b"ledger"), KEY_CHECK, NOW))
    return ledger


def study(number: int) -> StudyId:
    return StudyId.of(f"study {number}".encode())


def charge(number: int, rho: Fraction | int = Fraction(1, 10)) -> Charge:
    return Charge(
        study(number),
        f"Study {number}",
        "Institute",
        PROXY.public.ed25519,
        OWNER,
        Fraction(1),
        Fraction(1, 10**6),
        CLOSES_AT,
        Cost(Fraction(rho), Fraction(0), 1),
    )


def content(number: int) -> Content:
    return Content(Digest.of(f"records {number}".encode()), 40)


def pay(
    ledger: Ledger,
    number: int,
    rho: Fraction | int = Fraction(1, 10),
    records: int = 0,
    named: str | None = None,
    budget: Budget = BUDGET,
) -> list[Entry]:
    """Reserve a study and record it; what was recorded."""
    entries = reserve(ledger, charge(number, rho), content(records), named, budget, NOW)
    ledger.add_all(entries)
    return entries


def receipt(
    number: int,
    version: int,
    subject: str = "share",
    *,
    key: IdentityKey = PROXY,
    owner: PartyId = OWNER,
    time: str = NOW,
) -> bytes:
    said = Receipt(study(number), owner, version, subject, Digest.of(b"statement"), time)
    return said.sign(key).encoded


def cancel(number: int, key: IdentityKey = USER) -> Statement:
    return StudyAct("cancel", study(number)).sign(key)


def opened(number: int, cohort: Sequence[CohortMember], key: IdentityKey = USER) -> bytes:
    return Opened(study(number), cohort_digest(cohort), Digest.of(b"release")).sign(key).encoded


def transcript(number: int, kinds: Sequence[str], key: IdentityKey = PROXY) -> list[bytes]:
    events: list[Statement] = []
    for index, kind in enumerate(kinds):
        previous = events[-1].digest if events else FIRST
        detail = {"statement": cancel(number).digest.hex()} if kind == "cancelled" else {}
        events.append(Event(study(number), index, previous, NOW, kind, detail).sign(key))
    return [event.encoded for event in events]


def cancelled(number: int) -> Ending:
    """What is signed about a study that its data user has cancelled."""
    events = transcript(number, ["manifest", "receipt", "cancelled"])
    return Ending(study(number), USER.public.ed25519, events, cancel(number).encoded)


def withdrawn(number: int, version: int) -> Ending:
    """What is signed about a study that went on without the owner, which had withdrawn its share."""
    events = transcript(number, ["manifest", "receipt", "withdrawal", "closed", "release", "opened"])
    cohort, own = (OTHER,), receipt(number, version, "withdrawal")
    return Ending(study(number), USER.public.ed25519, events, None, opened(number, cohort), cohort, own)


def lines(ledger: Ledger) -> bytes:
    return b"".join(entry.line for entry in ledger.entries)
