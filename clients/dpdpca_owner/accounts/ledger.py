"""An owner's ledger: a chain of entries that records what each study has cost, and the rules of that chain.

Invariants:
- A study is paid for once.
- The live cost of one data set never exceeds the budget that was in force at its last reservation.
- Only a withdrawal or a cancellation is refunded, and only on the data user's signature.
- A blinded study is not refunded once its sending has begun.
- A study is approved by rule at most once, and a later round of a chain only by the rule of its first round.
- An entry that may not follow the others is refused and changes nothing.

`bookkeeping.py` makes the entries and checks the evidence for them.
"""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, Self

from dpdpca_owner.accounts.budget import NO_COST, Budget, Cost, read_rational
from dpdpca_owner.accounts.charge import (
    DATA_SET_NAME,
    Charge,
    RuleApproval,
    Spend,
    SpendState,
    read_charge,
)
from dpdpca_owner.accounts.entries import FIRST, Batch, Entry
from dpdpca_protocol.errors import ConflictError, MessageError, PolicyError, UsageError
from dpdpca_protocol.messages.share import MAX_VERSION
from dpdpca_protocol.wire.fields import read_decimal, read_integer, read_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId

_REASON = 500


class Ledger:
    """The state that results from a chain of entries.

    Attributes:
        entries: the chain.
        spends: every charge in the order of booking. A study that was refunded and joined again has several
            charges.
        budget: the budget in force at the last reservation.
        lost: cost that a recovery could not attribute to any study; it counts in every data set.
        contents: for each fingerprint: (data set, number of records, time first seen).
        key_check: digest of the key of the fingerprints; None before the first entry.
        last: digest of the last entry.
        sent: for each blinded study in which something may have been sent, the digest of the values.
        stale_keys: the owner's keys that were in use when the ledger was recovered, or earlier.
        by_rule: the studies that a rule of the policy has approved.
        recovered_at: the time of the last recovery, or None.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.spends: list[Spend] = []
        self.budget: Budget | None = None
        self.lost = NO_COST
        self.contents: dict[Digest, tuple[str, int, str]] = {}
        self.key_check: Digest | None = None
        self.last = FIRST
        self.sent: dict[StudyId, Digest] = {}
        self.stale_keys: frozenset[PartyId] = frozenset()
        self.by_rule: dict[StudyId, RuleApproval] = {}
        self.recovered_at: str | None = None
        self._id: Digest | None = None
        self._merged: dict[str, str | None] = {}
        self._latest: dict[StudyId, int] = {}
        self._totals: dict[str | None, Cost] = {}

    @classmethod
    def begin(cls, ledger: Digest, key_check: Digest, time: str) -> Entry:
        """The first entry of a ledger: its random id, and the digest of its key for fingerprints."""
        batch = Batch(0, FIRST, time)
        batch.add("ledger", {"id": ledger.hex(), "key": key_check.hex()})
        return batch.entries[0]

    @classmethod
    def parse(cls, untrusted: bytes) -> Self:
        """Read a ledger from complete lines.

        Raises:
            MessageError: `ledger-corrupt`, with the number of the first invalid line.
        """
        ledger = cls()
        ledger.extend(untrusted)
        return ledger

    def extend(self, untrusted: bytes) -> None:
        """Add complete lines up to the first invalid one.

        Raises the same errors as `parse`; the lines before the invalid one stay added.
        """
        lines = untrusted.split(b"\n")
        rest = lines.pop()
        for line in lines:
            try:
                self.add(Entry.parse(line))
            except (MessageError, PolicyError, ConflictError) as error:
                raise MessageError(
                    "ledger-corrupt", f"line {len(self.entries) + 1} of the ledger: {error.problem}"
                ) from error
        if rest:
            raise MessageError("ledger-corrupt", "the last line of the ledger is not complete")

    # Queries

    @property
    def id(self) -> Digest:
        if self._id is None:
            raise UsageError("bad-argument", "the ledger has no first entry yet")
        return self._id

    @property
    def data_sets(self) -> tuple[str, ...]:
        """The names of the data sets in order of appearance, without those that were merged into others."""
        return tuple(name for name, into in self._merged.items() if into is None)

    def knows(self, data_set: str) -> bool:
        return data_set in self._merged

    def root(self, data_set: str) -> str:
        """The data set into which `data_set` was merged; itself if it was not merged or is unknown."""
        while (into := self._merged.get(data_set)) is not None:
            data_set = into
        return data_set

    def merged_into(self, data_set: str) -> tuple[str, ...]:
        """The names of the data sets that were merged into `data_set`."""
        return tuple(name for name in self._merged if name != data_set and self.root(name) == data_set)

    def spend(self, study: StudyId) -> Spend | None:
        """The newest spend of `study`, or None."""
        place = self._latest.get(study)
        return None if place is None else self.spends[place]

    def spent(self, *data_sets: str) -> Cost:
        """The live cost of these data sets together, including cost that can no longer be attributed to a
        data set."""
        roots = {self.root(name) for name in data_sets}
        return sum((self._totals.get(key, NO_COST) for key in (None, *roots)), self.lost)

    @property
    def live_rho(self) -> Fraction:
        """ρ of everything that is live, over all data sets."""
        return sum(self._totals.values(), self.lost).rho

    def approved_by_rule(self, name: str, month: str) -> tuple[Fraction, Fraction]:
        """The ε and δ that the rule `name` has approved in `month` (as 2026-11).

        They are added, and each chain counts once, with its total. Nothing is taken off again, not even if a
        study was refunded or nothing was sent.
        """
        counted = [
            each
            for study, each in self.by_rule.items()
            if each.name == name and each.time.startswith(month) and each.chain == study
        ]
        zero = Fraction(0)
        return sum((each.epsilon for each in counted), zero), sum((each.delta for each in counted), zero)

    # The rules of the chain

    def add(self, entry: Entry) -> None:
        """Add an entry and update the state.

        Raises:
            MessageError, PolicyError, ConflictError: the entry is not allowed after the others; nothing
                changed.
        """
        if entry.index != len(self.entries) or entry.previous != self.last:
            raise MessageError("ledger-corrupt", "the entry does not follow the line before")
        if self.entries and entry.time < self.entries[-1].time:
            raise MessageError("ledger-corrupt", "the entry is older than the line before")
        if (entry.kind == "ledger") != (not self.entries):
            raise MessageError(
                "ledger-corrupt", "the first line, and only the first, must be of the kind 'ledger'"
            )
        getattr(self, f"_add_{entry.kind}")(entry.detail, entry.time)
        self.entries.append(entry)
        self.last = entry.digest

    def add_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.add(entry)

    def _add_ledger(self, detail: Any, _time: str) -> None:
        ledger, key = Digest.parse(detail["id"]), Digest.parse(detail["key"])
        self._id, self.key_check = ledger, key

    def _add_budget(self, detail: Any, _time: str) -> None:
        rho, delta = read_rational(detail["rho"], "rho"), read_decimal(detail["delta"], "delta")
        epsilon = None if detail["epsilon"] is None else read_decimal(detail["epsilon"], "epsilon")
        self.budget = Budget(rho, delta, epsilon)

    def _add_content(self, detail: Any, time: str) -> None:
        name = read_text(detail["data_set"], "data_set", DATA_SET_NAME)
        fingerprint = Digest.parse(detail["fingerprint"])
        records = read_integer(detail["records"], "records", 0)
        if fingerprint in self.contents or self._merged.get(name) is not None:
            raise ConflictError("ledger-corrupt", "the entry assigns known records to a different data set")
        self.contents[fingerprint] = (name, records, time)
        self._merged.setdefault(name, None)

    def _add_merge(self, detail: Any, _time: str) -> None:
        into, merged = detail["data_set"], detail["merged"]
        for name in (into, merged):
            read_text(name, "data_set", DATA_SET_NAME)
        if into == merged or self.root(into) != into or self._merged.get(merged, merged) is not None:
            raise ConflictError("ledger-corrupt", "the entry merges data sets that cannot be merged")
        self._merged.setdefault(into, None)
        self._merged[merged] = into
        self._totals[into] = self._totals.get(into, NO_COST) + self._totals.pop(merged, NO_COST)

    def _add_reserve(self, detail: Any, time: str) -> None:
        charge, data_set = read_charge(detail)
        if data_set is None or self.root(data_set) != data_set or self.budget is None:
            raise MessageError("ledger-corrupt", "the entry reserves a cost without a data set or a budget")
        check_fits(self.spent(data_set) + charge.cost, data_set, self.budget)
        self._open(charge, data_set, time)

    def _add_found(self, detail: Any, time: str) -> None:
        charge, data_set = read_charge(detail)
        self._open(charge, data_set, time)

    def _open(self, charge: Charge, data_set: str | None, time: str) -> None:
        before = self.spend(charge.study)
        if before is not None and before.is_live:
            raise ConflictError("ledger-corrupt", "the entry books a study that is already booked")
        if data_set is not None:
            self._merged.setdefault(data_set, None)
        version = before.version if before is not None else 0
        self._latest[charge.study] = len(self.spends)
        self.spends.append(Spend(charge, data_set, SpendState.RESERVED, version, time))
        where = None if data_set is None else self.root(data_set)
        self._totals[where] = self._totals.get(where, NO_COST) + charge.cost

    def _add_commit(self, detail: Any, time: str) -> None:
        spend, version = self._settled(detail)
        if version <= spend.version:
            raise ConflictError(
                "ledger-corrupt", "the entry commits a share version that is not newer than the last one"
            )
        self._replace(replace(spend, state=SpendState.COMMITTED, version=version, settled_at=time))

    def _add_sending(self, detail: Any, _time: str) -> None:
        study, values = StudyId.parse(detail["study"]), Digest.parse(detail["values"])
        spend = self.spend(study)
        if spend is None or not spend.is_live or spend.is_final:
            raise ConflictError("ledger-corrupt", "the entry sends a share that is not booked, or twice")
        self.sent[study] = values
        self._replace(replace(spend, is_final=True))

    def _add_rule(self, detail: Any, time: str) -> None:
        approval = RuleApproval.parse(detail, time)
        first = self.by_rule.get(approval.chain)
        if approval.study in self.by_rule:
            raise ConflictError("ledger-corrupt", "the entry approves a study by rule for the second time")
        if approval.chain != approval.study and (
            first is None or replace(first, study=approval.study, time=time) != approval
        ):
            raise ConflictError("ledger-corrupt", "the entry approves a round of a chain by another rule")
        self.by_rule[approval.study] = approval

    def _add_refund(self, detail: Any, time: str) -> None:
        spend, version = self._settled(detail)
        if spend.is_final:
            raise ConflictError("ledger-corrupt", "the entry refunds a blinded study that was sent")
        why = detail["why"]
        if why not in (SpendState.WITHDRAWN, SpendState.CANCELLED):
            raise MessageError("ledger-corrupt", "the entry refunds a study for an invalid reason")
        if why == SpendState.WITHDRAWN and version <= spend.version:
            raise ConflictError(
                "ledger-corrupt", "the entry refunds a share version that is not newer than the last one"
            )
        self._replace(replace(spend, state=SpendState(why), version=version, settled_at=time))
        where = None if spend.data_set is None else self.root(spend.data_set)
        self._totals[where] -= spend.charge.cost

    def _settled(self, detail: Any) -> tuple[Spend, int]:
        Digest.parse(detail["evidence"])
        spend = self.spend(StudyId.parse(detail["study"]))
        if spend is None or not spend.is_live:
            raise ConflictError("ledger-corrupt", "the entry settles a study for which nothing is booked")
        return spend, read_integer(detail["version"], "version", 0, MAX_VERSION)

    def _add_recovered(self, detail: Any, time: str) -> None:
        key, lost = Digest.parse(detail["key"]), read_rational(detail["lost_rho"], "lost_rho")
        read_text(detail["reason"], "reason", _REASON)
        read_integer(detail["lost_entries"], "lost_entries", 0)
        if detail["keeps_data_sets"] is not (key == self.key_check):
            raise MessageError(
                "ledger-corrupt", "what the entry says about data sets does not agree with its key"
            )
        self.recovered_at = time
        self.lost += Cost(lost, Fraction(0), 0)
        self.stale_keys |= {PartyId.parse(owner) for owner in detail.get("owners", ())}
        if key != self.key_check:
            # The records of these spends can no longer be recognised, so the spends count in every data set.
            self.key_check = key
            self.contents, self._merged = {}, {}
            self.spends = [replace(spend, data_set=None) for spend in self.spends]
            self._totals = {None: sum(self._totals.values(), NO_COST)}

    def _replace(self, spend: Spend) -> None:
        self.spends[self._latest[spend.charge.study]] = spend


def check_fits(total: Cost, data_set: str, budget: Budget) -> None:
    """Raises PolicyError `budget-exceeded` if `total` on `data_set` exceeds the budget."""
    if not budget.is_exceeded_by(total):
        return
    reached, allowed = budget.epsilon_of(total.rho), budget.epsilon_of(budget.rho)
    raise PolicyError(
        "budget-exceeded",
        f"with this study, '{data_set}' would have spent ε = {float(reached):.4g} at δ ="
        f" {float(budget.delta):.3g}, above this owner's budget of ε = {float(allowed):.4g}",
        "ask the data user for a study with a smaller ε, or have the budget in the policy file changed",
    )
