"""A ledger under any order of acts adds up like a plain model, stays in the budget, and reads back."""

from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ledger_world import NOW, cancelled, charge, content, lines, new_ledger, receipt, study, withdrawn

from dpdpca_owner.accounts.bookkeeping import refund, reserve, settle
from dpdpca_owner.accounts.budget import Budget
from dpdpca_owner.accounts.entries import Entry
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_protocol.errors import ConflictError, PolicyError

STUDIES = 5
RECORDS = 3
BUDGET = Budget.of_rho(Fraction(1), Fraction(1, 10**6))

studies = st.integers(0, STUDIES - 1)
prices = st.fractions(Fraction(1, 50), 1, max_denominator=50)
contents = st.integers(0, RECORDS - 1)


class LedgerMachine(RuleBasedStateMachine):
    """The model: which study is live at which price, in which class of records."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = new_ledger()
        self.live: dict[int, Fraction] = {}
        self.version = dict.fromkeys(range(STUDIES), 0)
        self.cancelled: set[int] = set()
        self.old: list[bytes] = []
        self.chain: list[Entry] = []

    def record(self, entries: list[Entry]) -> None:
        self.ledger.add_all(entries)

    def join(self, number: int, price: Fraction, records: int, named: str | None) -> None:
        before, refused = self.ledger.live_rho, ""
        try:
            self.record(reserve(self.ledger, charge(number, price), content(records), named, BUDGET, NOW))
        except (PolicyError, ConflictError) as error:
            refused = error.slug
        if refused:
            assert self.ledger.live_rho == before
            assert refused in ("budget-exceeded", "two-data-sets", "study-closed")
        assert (refused == "study-closed") == (number in self.cancelled) or refused == "two-data-sets"
        if not refused:
            self.live.setdefault(number, price)

    @rule(number=studies)
    def acknowledge(self, number: int) -> None:
        if number in self.live:
            self.version[number] += 1
            self.settle(receipt(number, self.version[number]))

    @rule(number=studies)
    def withdraw(self, number: int) -> None:
        if number in self.live:
            self.version[number] += 1
            self.settle(receipt(number, self.version[number], "withdrawal"))
            assert number in self.live

    @rule(number=studies)
    def go_on_without(self, number: int) -> None:
        """The data user opens a cohort without the owner."""
        if number in self.live:
            self.version[number] += 1
            self.record(refund(self.ledger, withdrawn(number, self.version[number]), NOW))
            del self.live[number]
        assert refund(self.ledger, withdrawn(number, self.version[number]), NOW) == []

    @rule(number=studies)
    def cancel(self, number: int) -> None:
        if number in self.live:
            self.record(refund(self.ledger, cancelled(number), NOW))
            del self.live[number]
            self.cancelled.add(number)
        assert refund(self.ledger, cancelled(number), NOW) == []

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """A receipt that was booked before changes nothing, whatever happened since."""
        assert settle(self.ledger, data.draw(st.sampled_from(self.old)), NOW) == []

    def settle(self, evidence: bytes) -> None:
        self.record(settle(self.ledger, evidence, NOW))
        self.old.append(evidence)

    @invariant()
    def the_sum_is_that_of_the_model(self) -> None:
        assert self.ledger.live_rho == sum(self.live.values())

    @invariant()
    def data_sets_part_the_whole(self) -> None:
        parts = [self.ledger.spent(name).rho for name in self.ledger.data_sets]
        assert sum(parts) == self.ledger.live_rho

    @invariant()
    def the_chain_only_grows_and_reads_back(self) -> None:
        assert self.ledger.entries[: len(self.chain)] == self.chain
        self.chain = list(self.ledger.entries)
        again = Ledger.parse(lines(self.ledger))
        assert (again.spends, again.live_rho, again.data_sets) == (
            self.ledger.spends,
            self.ledger.live_rho,
            self.ledger.data_sets,
        )


class ByContent(LedgerMachine):
    """Records are known by their content alone: then no data set ever passes the budget."""

    @rule(number=studies, price=prices, records=contents)
    def joins(self, number: int, price: Fraction, records: int) -> None:
        self.join(number, price, records, None)

    @invariant()
    def nothing_passes_the_budget(self) -> None:
        assert all(self.ledger.spent(name).rho <= BUDGET.rho for name in self.ledger.data_sets)


class ByName(LedgerMachine):
    """Names merge data sets that may each be near the budget already; nothing new fits after that."""

    @rule(number=studies, price=prices, records=contents, named=st.sampled_from([None, "a", "b"]))
    def joins(self, number: int, price: Fraction, records: int, named: str | None) -> None:
        new = number not in self.live
        self.join(number, price, records, named)
        if new and number in self.live:
            spend = self.ledger.spend(study(number))
            assert spend is not None
            assert spend.data_set is not None
            assert self.ledger.spent(spend.data_set).rho <= BUDGET.rho


SETTINGS = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestByContent = ByContent.TestCase
TestByContent.settings = SETTINGS
TestByName = ByName.TestCase
TestByName.settings = SETTINGS
