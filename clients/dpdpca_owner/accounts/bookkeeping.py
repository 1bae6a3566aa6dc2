"""What may come next in an owner's ledger, and on which evidence.

Each function returns the entries that would do it, none where there is nothing to do, and changes nothing:
whoever asks writes them down first and then has the ledger `add` them. Evidence is verified here, against the
keys that were booked with the charge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpdpca_owner.accounts.budget import Budget, rational_text
from dpdpca_owner.accounts.charge import Charge, Content, SpendState, charge_body
from dpdpca_owner.accounts.entries import Batch, Entry
from dpdpca_owner.accounts.ledger import Ledger, check_fits
from dpdpca_protocol.errors import AuthenticationError, ConflictError, PolicyError, UsageError
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.messages.transcript import verify_transcript
from dpdpca_protocol.wire.fields import decimal_text, read_time
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import verify_statement

_SHOWN_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """Which data set some records count in.

    Attributes:
        data_set: its name.
        is_new: nothing was booked on it yet.
        merges: other data sets that become one with it.
    """

    data_set: str
    is_new: bool
    merges: tuple[str, ...] = ()


def place(ledger: Ledger, study: StudyId, fingerprint: Digest | None, named: str | None) -> Placement:
    """The data set in which `study` on these records counts.

    Known records count where they counted before, and so does a study that is paid for already, whatever its
    share is replaced with. A name overrules both, and merges them into it: that can only raise what is spent.

    Args:
        ledger: so far.
        study: that asks.
        fingerprint: of the records as read; None where there are none at hand.
        named: the data set that the owner says they are, or None to go by the records.

    Raises:
        ConflictError: `two-data-sets`, the study and the records count in different ones.
        UsageError: neither records nor a name are given, and nothing is booked.
    """
    found = []
    paid = ledger.spend(study)
    if paid is not None and paid.is_live and paid.data_set is not None:
        found.append(ledger.root(paid.data_set))
    if fingerprint is not None and fingerprint in ledger.contents:
        found.append(ledger.root(ledger.contents[fingerprint][0]))
    if named is not None:
        target = ledger.root(named)
        merges = tuple(sorted({name for name in found if name != target}))
        return Placement(target, not ledger.knows(target), merges)
    if len(set(found)) > 1:
        raise ConflictError(
            "two-data-sets",
            f"this study is booked on the data set '{found[0]}', and these records on '{found[1]}'",
            f"give the study's own records, or make them one data set: --dataset '{found[0]}'",
        )
    if found:
        return Placement(found[0], False)
    if fingerprint is None:
        raise UsageError("no-data-set", "neither records nor a data set are named", "add --dataset NAME")
    return Placement(_new_name(ledger, fingerprint), True)


def reserve(
    ledger: Ledger, charge: Charge, content: Content, named: str | None, budget: Budget, time: str
) -> list[Entry]:
    """What must be on disk before anything of a share leaves.

    Args:
        ledger: so far.
        charge: of the study.
        content: of the records.
        named: the data set that they belong to, or None to go by the records.
        budget: in force now.
        time: now, RFC 3339 UTC.

    Raises:
        PolicyError: `budget-exceeded`.
        ConflictError: the study was cancelled, or belongs to another data set.
    """
    placement = place(ledger, charge.study, content.fingerprint, named)
    batch, paid = _batch(ledger, time), ledger.spend(charge.study)
    if paid is not None and paid.state is SpendState.CANCELLED:
        raise ConflictError("study-closed", "the study was cancelled", "ask the data user for a new study")
    is_paid = paid is not None and paid.is_live
    if not is_paid:
        total = ledger.spent(placement.data_set, *placement.merges) + charge.cost
        check_fits(total, placement.data_set, budget)
        if budget != ledger.budget:
            batch.add("budget", _budget_body(budget))
    if content.fingerprint not in ledger.contents:
        records = {"fingerprint": content.fingerprint.hex(), "records": content.records}
        batch.add("content", {"data_set": placement.data_set, **records})
    for merged in placement.merges:
        batch.add("merge", {"data_set": placement.data_set, "merged": merged})
    if not is_paid:
        batch.add("reserve", charge_body(charge, placement.data_set))
    return batch.entries


def settle(ledger: Ledger, receipt: bytes, time: str) -> list[Entry]:
    """What a receipt of a study's proxy changes: a commitment, or the refund of a share that was withdrawn.

    Nothing, where the study is not booked here or the receipt is no newer than what is known of it.

    Raises:
        AuthenticationError, MessageError: not a receipt that the study's proxy signed for this owner.
        PolicyError: `late-withdrawal`, signed after the study was to close.
    """
    statement = verify_statement("receipt", receipt)
    said = Receipt.parse(statement)
    spend = ledger.spend(said.study)
    if spend is None:
        return []
    if statement.signer != spend.charge.proxy or said.owner != spend.charge.owner:
        raise AuthenticationError(
            "bad-evidence",
            "the receipt is not from this study's proxy for this owner: nothing was booked",
            "keep it, and ask the proxy's operator",
        )
    batch = _batch(ledger, time)
    if said.version <= spend.version:
        return []
    detail = {"evidence": statement.digest.hex(), "study": said.study.hex(), "version": said.version}
    if said.subject == "share":
        if not spend.is_live:
            # A share that counted as taken back is in.
            batch.add("found", charge_body(spend.charge, spend.data_set))
        batch.add("commit", detail)
    elif spend.is_live:
        if read_time(said.time, "time") > spend.charge.closes_at:
            raise PolicyError(
                "late-withdrawal",
                "the receipt of the withdrawal is from after the study's closing time: nothing is refunded",
                "look at the study with: dpdpca owner status",
            )
        batch.add("refund", {**detail, "why": SpendState.WITHDRAWN.value})
    return batch.entries


def refund_cancelled(ledger: Ledger, study: StudyId, transcript: Sequence[bytes], time: str) -> list[Entry]:
    """The refund of a study that its proxy's signed transcript shows as cancelled and never released.

    A study that failed is not refunded: only these two proofs give anything back.

    Raises:
        AuthenticationError, MessageError: the transcript is not the study's, or not its proxy's.
    """
    spend = ledger.spend(study)
    if spend is None or not spend.is_live:
        return []
    events = verify_transcript(transcript, study, spend.charge.proxy)
    # By the order of events nothing is cancelled after a release, and nothing released after a cancellation.
    if not events or events[-1].kind != "cancelled":
        return []
    evidence = verify_statement("event", transcript[-1], spend.charge.proxy).digest
    detail = {"evidence": evidence.hex(), "study": study.hex(), "version": spend.version}
    batch = _batch(ledger, time)
    batch.add("refund", {**detail, "why": SpendState.CANCELLED.value})
    return batch.entries


def charge_again(ledger: Ledger, study: StudyId, time: str) -> list[Entry]:
    """The charge of a study whose cohort holds a share that its proxy had acknowledged as withdrawn."""
    spend, batch = ledger.spend(study), _batch(ledger, time)
    if spend is not None and not spend.is_live:
        batch.add("found", charge_body(spend.charge, spend.data_set))
    return batch.entries


def find(ledger: Ledger, charge: Charge, time: str) -> list[Entry]:
    """The charge of a study that was paid for without this ledger.

    It counts in the data set of an earlier spend, in each of them if there is none, and no budget stops it.
    """
    spend, batch = ledger.spend(charge.study), _batch(ledger, time)
    if spend is None or not spend.is_live:
        batch.add("found", charge_body(charge, None if spend is None else spend.data_set))
    return batch.entries


def recover(
    ledger: Ledger, reason: str, lost_entries: int, lost_rho: Fraction, key_check: Digest, time: str
) -> list[Entry]:
    """The entry after a loss. Under another key no records are known any more, so all spends count in each.

    Args:
        ledger: as far as it could be read.
        reason: why it could not be read to its end.
        lost_entries: how many it is known to lack.
        lost_rho: ρ that these held; counted in every data set.
        key_check: of the key for fingerprints from here on.
        time: now, RFC 3339 UTC.
    """
    batch = _batch(ledger, time)
    detail = {
        "keeps_data_sets": key_check == ledger.key_check,
        "key": key_check.hex(),
        "lost_entries": lost_entries,
        "lost_rho": rational_text(lost_rho),
        "reason": reason,
    }
    batch.add("recovered", detail)
    return batch.entries


def _batch(ledger: Ledger, time: str) -> Batch:
    # A clock that was set back does not stop the books; their times only never fall.
    entries = ledger.entries
    return Batch(len(entries), ledger.last, max(time, entries[-1].time) if entries else time)


def _new_name(ledger: Ledger, fingerprint: Digest) -> str:
    for digits in range(_SHOWN_DIGITS, 65):
        name = f"data-{fingerprint.hex()[:digits]}"
        if not ledger.knows(name):
            return name
    raise UsageError("no-data-set", "every name for these records is taken", "add --dataset NAME")


def _budget_body(budget: Budget) -> dict[str, Any]:
    return {
        "delta": decimal_text(budget.delta),
        "epsilon": None if budget.epsilon is None else decimal_text(budget.epsilon),
        "rho": rational_text(budget.rho),
    }
