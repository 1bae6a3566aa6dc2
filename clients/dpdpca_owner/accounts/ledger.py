"""An owner's ledger: what its records have been spent on, as a chain of entries and the rules it obeys.

Invariants. A study is paid for once. What is live on one data set never passes the budget that was in force
when it was reserved. Nothing is given back but for a withdrawal or a cancellation. An entry that may not
stand where it stands is refused and nothing moves. `bookkeeping.py` makes entries, and judges the evidence
for them.
"""

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, Self

from dpdpca_owner.accounts.budget import NO_COST, Budget, Cost, read_rational
from dpdpca_owner.accounts.charge import DATA_SET_NAME, Charge, Spend, SpendState, read_charge
from dpdpca_owner.accounts.entries import FIRST, Batch, Entry
from dpdpca_protocol.errors import ConflictError, MessageError, PolicyError, UsageError
from dpdpca_protocol.messages.share import MAX_VERSION
from dpdpca_protocol.wire.fields import read_decimal, read_integer, read_text
from dpdpca_protocol.wire.identifiers import Digest, StudyId

_REASON = 500


class Ledger:
    """The state that a chain of entries has led to.

    Attributes:
        entries: the chain.
        spends: every charge in the order of booking; a study that came back has several.
        budget: in force at the last reservation.
        lost: what a recovery could not attribute, counted in every data set.
        contents: fingerprint to (data set, records, time first seen).
        key_check: digest of the key of the fingerprints; None before the first entry.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.spends: list[Spend] = []
        self.budget: Budget | None = None
        self.lost = NO_COST
        self.contents: dict[Digest, tuple[str, int, str]] = {}
        self.key_check: Digest | None = None
        self.last = FIRST
        self._id: Digest | None = None
        self._merged: dict[str, str | None] = {}
        self._latest: dict[StudyId, int] = {}
        self._totals: dict[str | None, Cost] = {}

    @classmethod
    def begin(cls, ledger: Digest, key_check: Digest, time: str) -> Entry:
        """The first entry of a ledger with this random id, for fingerprints under the key of this digest."""
        batch = Batch(0, FIRST, time)
        batch.add("ledger", {"id": ledger.hex(), "key": key_check.hex()})
        return batch.entries[0]

    @classmethod
    def parse(cls, untrusted: bytes) -> Self:
        """The ledger in complete lines.

        Raises:
            MessageError: `ledger-corrupt`, with the number of the first line that cannot stand there.
        """
        ledger = cls()
        ledger.extend(untrusted)
        return ledger

    def extend(self, untrusted: bytes) -> None:
        """Add complete lines as far as they hold. Raises like `parse`; what was added before stays."""
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

    # What it says

    @property
    def id(self) -> Digest:
        if self._id is None:
            raise UsageError("bad-argument", "the ledger has no first entry yet")
        return self._id

    @property
    def data_sets(self) -> tuple[str, ...]:
        """Names under which something counts, those merged into others left out, in order of appearance."""
        return tuple(name for name, into in self._merged.items() if into is None)

    def knows(self, data_set: str) -> bool:
        return data_set in self._merged

    def root(self, data_set: str) -> str:
        """The data set that `data_set` is part of by now; itself if it is none or unknown."""
        while (into := self._merged.get(data_set)) is not None:
            data_set = into
        return data_set

    def merged_into(self, data_set: str) -> tuple[str, ...]:
        """Other names of `data_set`."""
        return tuple(name for name in self._merged if name != data_set and self.root(name) == data_set)

    def spend(self, study: StudyId) -> Spend | None:
        """The newest spend of `study`."""
        place = self._latest.get(study)
        return None if place is None else self.spends[place]

    def spent(self, *data_sets: str) -> Cost:
        """What is live on these data sets together, with all that cannot be told apart any more."""
        roots = {self.root(name) for name in data_sets}
        return sum((self._totals.get(key, NO_COST) for key in (None, *roots)), self.lost)

    @property
    def live_rho(self) -> Fraction:
        """ρ of everything that is live, over all data sets."""
        return sum(self._totals.values(), self.lost).rho

    # The rules of the chain

    def add(self, entry: Entry) -> None:
        """Take an entry into account.

        Raises:
            MessageError, PolicyError, ConflictError: it cannot follow here; nothing moved.
        """
        if entry.index != len(self.entries) or entry.previous != self.last:
            raise MessageError("ledger-corrupt", "it does not follow the line before")
        if self.entries and entry.time < self.entries[-1].time:
            raise MessageError("ledger-corrupt", "it is older than the line before")
        if (entry.kind == "ledger") != (not self.entries):
            raise MessageError("ledger-corrupt", "a ledger has one first line, and it is the first")
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
            raise ConflictError("ledger-corrupt", "it books known records on another data set")
        self.contents[fingerprint] = (name, records, time)
        self._merged.setdefault(name, None)

    def _add_merge(self, detail: Any, _time: str) -> None:
        into, merged = detail["data_set"], detail["merged"]
        for name in (into, merged):
            read_text(name, "data_set", DATA_SET_NAME)
        if into == merged or self.root(into) != into or self._merged.get(merged, merged) is not None:
            raise ConflictError("ledger-corrupt", "it merges data sets that it cannot merge")
        self._merged.setdefault(into, None)
        self._merged[merged] = into
        self._totals[into] = self._totals.get(into, NO_COST) + self._totals.pop(merged, NO_COST)

    def _add_reserve(self, detail: Any, time: str) -> None:
        charge, data_set = read_charge(detail)
        if data_set is None or self.root(data_set) != data_set or self.budget is None:
            raise MessageError("ledger-corrupt", "it reserves without a data set or a budget")
        check_fits(self.spent(data_set) + charge.cost, data_set, self.budget)
        self._open(charge, data_set, time)

    def _add_found(self, detail: Any, time: str) -> None:
        charge, data_set = read_charge(detail)
        self._open(charge, data_set, time)

    def _open(self, charge: Charge, data_set: str | None, time: str) -> None:
        before = self.spend(charge.study)
        if before is not None and before.is_live:
            raise ConflictError("ledger-corrupt", "it pays twice for one study")
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
            raise ConflictError("ledger-corrupt", "it commits a share version that is not newer")
        self._replace(replace(spend, state=SpendState.COMMITTED, version=version, settled_at=time))

    def _add_refund(self, detail: Any, time: str) -> None:
        spend, version = self._settled(detail)
        why = detail["why"]
        if why not in (SpendState.WITHDRAWN, SpendState.CANCELLED):
            raise MessageError("ledger-corrupt", "it refunds for no reason that refunds")
        if why == SpendState.WITHDRAWN and version <= spend.version:
            raise ConflictError("ledger-corrupt", "it refunds a share version that is not newer")
        self._replace(replace(spend, state=SpendState(why), version=version, settled_at=time))
        where = None if spend.data_set is None else self.root(spend.data_set)
        self._totals[where] -= spend.charge.cost

    def _settled(self, detail: Any) -> tuple[Spend, int]:
        Digest.parse(detail["evidence"])
        spend = self.spend(StudyId.parse(detail["study"]))
        if spend is None or not spend.is_live:
            raise ConflictError("ledger-corrupt", "it settles a study that nothing is booked for")
        return spend, read_integer(detail["version"], "version", 0, MAX_VERSION)

    def _add_recovered(self, detail: Any, _time: str) -> None:
        key, lost = Digest.parse(detail["key"]), read_rational(detail["lost_rho"], "lost_rho")
        read_text(detail["reason"], "reason", _REASON)
        read_integer(detail["lost_entries"], "lost_entries", 0)
        if detail["keeps_data_sets"] is not (key == self.key_check):
            raise MessageError("ledger-corrupt", "it keeps data sets that nothing can recognise")
        self.lost += Cost(lost, Fraction(0), 0)
        if key != self.key_check:
            # Whose records these spends were on cannot be told any more: they count everywhere.
            self.key_check = key
            self.contents, self._merged = {}, {}
            self.spends = [replace(spend, data_set=None) for spend in self.spends]
            self._totals = {None: sum(self._totals.values(), NO_COST)}

    def _replace(self, spend: Spend) -> None:
        self.spends[self._latest[spend.charge.study]] = spend


def check_fits(total: Cost, data_set: str, budget: Budget) -> None:
    """Raises PolicyError `budget-exceeded` where `total` on `data_set` passes the budget."""
    if not budget.is_exceeded_by(total):
        return
    reached, allowed = budget.epsilon_of(total.rho), budget.epsilon_of(budget.rho)
    raise PolicyError(
        "budget-exceeded",
        f"with this study '{data_set}' would have spent ε = {float(reached):.4g} at δ ="
        f" {float(budget.delta):.3g}, above this owner's budget of ε = {float(allowed):.4g}",
        "ask the data user for a study with less ε, or have the budget in the policy file changed",
    )
