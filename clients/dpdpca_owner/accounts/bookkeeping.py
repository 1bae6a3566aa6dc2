"""The entries that may be added to an owner's ledger, and the evidence that each needs.

Each function returns the entries to add; the list is empty if there is nothing to do. It changes nothing
itself. The caller first writes the entries to the disk and then adds them to the ledger. Evidence is verified
here: the proxy's against the key that was booked with the charge, the data user's against the key in the
study's manifest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpdpca_owner.accounts.budget import Budget, rational_text
from dpdpca_owner.accounts.charge import Charge, Content, RuleApproval, Spend, SpendState, charge_body
from dpdpca_owner.accounts.entries import Batch, Entry
from dpdpca_owner.accounts.ledger import Ledger, check_fits
from dpdpca_protocol.errors import AuthenticationError, ConflictError, PolicyError, UsageError
from dpdpca_protocol.messages.share import CohortMember, Receipt, cohort_digest
from dpdpca_protocol.messages.study_messages import Opened, StudyAct
from dpdpca_protocol.messages.transcript import verify_transcript
from dpdpca_protocol.wire.fields import decimal_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import Statement, verify_statement

_SHOWN_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """The data set in which some records count.

    Attributes:
        data_set: its name.
        is_new: whether nothing has been booked on it yet.
        merges: other data sets that are merged into it.
    """

    data_set: str
    is_new: bool
    merges: tuple[str, ...] = ()


def place(ledger: Ledger, study: StudyId, fingerprint: Digest | None, named: str | None) -> Placement:
    """The data set in which `study` on these records counts.

    Records that the ledger recognises count in the same data set as before. A study that is already paid for
    stays in its data set, even if its share is replaced. A name overrides both rules and merges their data
    sets into the named one; this can only increase what is spent.

    Args:
        ledger: the ledger so far.
        study: the study to book.
        fingerprint: of the records as read; None if no records are given.
        named: the data set that the owner names for the records, or None to recognise them.

    Raises:
        ConflictError: `two-data-sets`, the study and the records count in different data sets.
        UsageError: neither records nor a name are given, and nothing is booked for the study.
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
            f"this study is booked on the data set '{found[0]}', but these records are booked on"
            f" '{found[1]}'",
            "give the records that the study was booked with, or merge both data sets: --dataset"
            f" '{found[0]}'",
        )
    if found:
        return Placement(found[0], False)
    if fingerprint is None:
        raise UsageError("no-data-set", "neither records nor a data set is given", "add --dataset NAME")
    return Placement(_new_name(ledger, fingerprint), True)


def reserve(
    ledger: Ledger,
    charge: Charge,
    content: Content,
    named: str | None,
    budget: Budget,
    time: str,
    approved_rounds: Sequence[StudyId] = (),
) -> list[Entry]:
    """The entries that must be on disk before any part of a share is sent.

    Args:
        ledger: the ledger so far.
        charge: what the study costs.
        content: fingerprint and number of the records.
        named: the data set that the owner names for the records, or None to recognise them.
        budget: the budget in force now.
        time: now, RFC 3339 UTC.
        approved_rounds: the earlier rounds whose approval covers the study. If a rule approved them, the
            entries say that it approved this round too.

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
    by_rule = [ledger.by_rule.get(each) for each in approved_rounds]
    if by_rule and by_rule[0] and all(by_rule) and charge.study not in ledger.by_rule:
        batch.add("rule", replace(by_rule[0], study=charge.study).to_body())
    return batch.entries


def approve_by_rule(
    ledger: Ledger, approval: RuleApproval, month_epsilon: Fraction, month_delta: Fraction, time: str
) -> list[Entry]:
    """The entry that must be on disk before anything follows from an approval by rule.

    Args:
        ledger: the ledger so far.
        approval: of a study that is no later round of a chain.
        month_epsilon, month_delta: the most that the rule approves in a calendar month.
        time: now, RFC 3339 UTC. The month is that of the entry.

    Raises:
        PolicyError: `rule-exceeded`.
    """
    batch = _batch(ledger, time)
    if approval.study in ledger.by_rule:
        return batch.entries
    batch.add("rule", approval.to_body())
    month = batch.entries[0].time[: len("2026-11")]
    epsilon, delta = ledger.approved_by_rule(approval.name, month)
    if epsilon + approval.epsilon > month_epsilon or delta + approval.delta > month_delta:
        raise PolicyError(
            "rule-exceeded",
            f"with this study, the rule '{approval.name}' would have approved ε ="
            f" {float(epsilon + approval.epsilon):.6g} and δ = {float(delta + approval.delta):.3g} in {month}"
            f" (limits: {float(month_epsilon):.6g} and {float(month_delta):.3g})",
            "decide yourself, or wait for the next month",
        )
    if ledger.recovered_at is not None and ledger.recovered_at.startswith(month):
        raise PolicyError(
            "rule-exceeded",
            f"the ledger was recovered in {month}, so nobody knows what rules had approved in this month",
            "decide yourself, or wait for the next month",
        )
    return batch.entries


def settle(ledger: Ledger, receipt: bytes, time: str) -> list[Entry]:
    """The commitment that a receipt of the study's proxy justifies. A withdrawal changes nothing (`refund`).

    There are no entries if the study is not booked here or the ledger already knows this receipt or a newer
    one.

    Raises:
        AuthenticationError, MessageError: the study's proxy did not sign this receipt for this owner.
    """
    statement = verify_statement("receipt", receipt)
    spend, batch = ledger.spend(Receipt.parse(statement).study), _batch(ledger, time)
    if spend is None:
        return []
    said = _read_receipt(receipt, spend)
    if said.subject == "share" and said.version > spend.version:
        if not spend.is_live:
            # The ledger shows the share as withdrawn, but the proxy has it.
            batch.add("found", charge_body(spend.charge, spend.data_set))
        batch.add("commit", _settled(statement, said.study, said.version))
    return batch.entries


@dataclass(frozen=True, slots=True)
class Ending:
    """What was signed about the end of a study, as received; nothing is verified yet.

    Attributes:
        user: the data user's raw Ed25519 key in the study's manifest, whose digest is the study's id.
        transcript: the study's events, signed by the proxy.
        cancel, opened: the data user's statements, or None.
        cohort: the owners that the proxy lists; believed only if `opened` has the digest of this list.
        receipt: this owner's newest receipt, or None.
    """

    study: StudyId
    user: bytes
    transcript: Sequence[bytes]
    cancel: bytes | None = None
    opened: bytes | None = None
    cohort: Sequence[CohortMember] = ()
    receipt: bytes | None = None


def refund(ledger: Ledger, told: Ending, time: str) -> list[Entry]:
    """The refund of a study that was cancelled, or whose data user has opened a cohort without this owner's
    withdrawn share.

    A refund needs the data user's signature. The proxy alone could tell an owner that the study is cancelled,
    or that its share is withdrawn, and still release the share. A data user deletes the study's secret before
    it signs `cancel`, and opens only the release that it names in `opened`. A study that failed is not
    refunded, and neither is a blinded study once its sending has begun (`begin_sending`).

    Raises:
        AuthenticationError, MessageError: the evidence is not signed by this study's proxy and data user, or
            is about something else.
    """
    spend = ledger.spend(told.study)
    if spend is None or not spend.is_live or spend.is_final:
        return []
    found = _cancelled(told, spend) or _withdrawn(told, spend)
    batch = _batch(ledger, time)
    if found is not None:
        why, evidence, version = found
        batch.add("refund", {**_settled(evidence, told.study, version), "why": why.value})
    return batch.entries


_Found = tuple[SpendState, Statement, int]
"""Why there is a refund, the data user's statement, and the version of the share for which it holds."""


def _cancelled(told: Ending, spend: Spend) -> _Found | None:
    events = verify_transcript(told.transcript, told.study, spend.charge.proxy)
    # `verify_transcript` allows no cancellation after a release and no release after a cancellation.
    if not events or events[-1].kind != "cancelled" or told.cancel is None:
        return None
    statement = verify_statement("cancel", told.cancel, told.user)
    named = events[-1].detail.get("statement")
    if StudyAct.parse(statement).study != told.study or named != statement.digest.hex():
        raise _bad_evidence("the `cancel` is not the one that the transcript of this study names")
    return SpendState.CANCELLED, statement, spend.version


def _withdrawn(told: Ending, spend: Spend) -> _Found | None:
    if told.receipt is None or told.opened is None:
        return None
    receipt = _read_receipt(told.receipt, spend)
    statement = verify_statement("opened", told.opened, told.user)
    opened = Opened.parse(statement)
    if {opened.study, receipt.study} != {told.study} or opened.cohort != cohort_digest(told.cohort):
        raise _bad_evidence("the data user has opened another study or another cohort than the proxy shows")
    is_in = any(member.owner == receipt.owner for member in told.cohort)
    if receipt.subject != "withdrawal" or receipt.version <= spend.version or is_in:
        return None
    return SpendState.WITHDRAWN, statement, receipt.version


def begin_sending(ledger: Ledger, study: StudyId, values: Digest, time: str) -> list[Entry]:
    """The entry that must be on disk before the first byte of a blinded share leaves.

    From then on the study is not refunded: the proxy and the data user may have opened the sum of all shares
    before they sign that the study is cancelled.
    """
    batch = _batch(ledger, time)
    if study not in ledger.sent:
        batch.add("sending", {"study": study.hex(), "values": values.hex()})
    return batch.entries


def charge_again(ledger: Ledger, study: StudyId, time: str) -> list[Entry]:
    """The new charge for a study whose cohort includes a share that the proxy acknowledged as withdrawn."""
    spend, batch = ledger.spend(study), _batch(ledger, time)
    if spend is not None and not spend.is_live:
        batch.add("found", charge_body(spend.charge, spend.data_set))
    return batch.entries


def find(ledger: Ledger, charge: Charge, time: str) -> list[Entry]:
    """The charge for a study that was joined but is missing from this ledger.

    The charge counts in the data set of an earlier spend of the study, or in every data set if there is none.
    The charge is booked even if it exceeds the budget.
    """
    spend, batch = ledger.spend(charge.study), _batch(ledger, time)
    if spend is None or not spend.is_live:
        batch.add("found", charge_body(charge, None if spend is None else spend.data_set))
    return batch.entries


def recover(
    ledger: Ledger,
    reason: str,
    lost_entries: int,
    lost_rho: Fraction,
    key_check: Digest,
    time: str,
    owners: Iterable[PartyId] = (),
) -> list[Entry]:
    """The entry that records a loss.

    If the key of the fingerprints has changed, the ledger can no longer recognise any records. In that case
    all booked costs count in every data set.

    Args:
        ledger: the part that could be read.
        reason: why the rest could not be read.
        lost_entries: the number of entries that are known to be missing.
        lost_rho: the ρ of these entries; it counts in every data set.
        key_check: digest of the key that fingerprints use from now on.
        time: now, RFC 3339 UTC.
        owners: the ids of the owner's keys up to now. Blinded studies need newer ones.
    """
    batch = _batch(ledger, time)
    detail = {
        "keeps_data_sets": key_check == ledger.key_check,
        "key": key_check.hex(),
        "lost_entries": lost_entries,
        "lost_rho": rational_text(lost_rho),
        "owners": sorted(owner.hex() for owner in owners),
        "reason": reason,
    }
    batch.add("recovered", detail)
    return batch.entries


def _read_receipt(untrusted: bytes, spend: Spend) -> Receipt:
    statement = verify_statement("receipt", untrusted)
    said = Receipt.parse(statement)
    if statement.signer != spend.charge.proxy or said.owner != spend.charge.owner:
        raise _bad_evidence("the receipt was not signed by this study's proxy for this owner")
    return said


def _bad_evidence(problem: str) -> AuthenticationError:
    return AuthenticationError(
        "bad-evidence",
        f"{problem}; nothing was booked",
        "keep what the proxy sent, and ask the proxy's operator and the data user",
    )


def _settled(evidence: Statement, study: StudyId, version: int) -> dict[str, Any]:
    return {"evidence": evidence.digest.hex(), "study": study.hex(), "version": version}


def _batch(ledger: Ledger, time: str) -> Batch:
    # If the clock was set back, the time of the last entry is used again: times in the ledger never decrease.
    entries = ledger.entries
    return Batch(len(entries), ledger.last, max(time, entries[-1].time) if entries else time)


def _new_name(ledger: Ledger, fingerprint: Digest) -> str:
    for digits in range(_SHOWN_DIGITS, 65):
        name = f"data-{fingerprint.hex()[:digits]}"
        if not ledger.knows(name):
            return name
    raise UsageError("no-data-set", "all default names for these records are taken", "add --dataset NAME")


def _budget_body(budget: Budget) -> dict[str, Any]:
    return {
        "delta": decimal_text(budget.delta),
        "epsilon": None if budget.epsilon is None else decimal_text(budget.epsilon),
        "rho": rational_text(budget.rho),
    }
