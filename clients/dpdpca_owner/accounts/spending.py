"""How much of an owner's budget a study would use.

The consent sheet shows this amount. A join checks that the amount is left in the budget.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpdpca_owner.accounts.bookkeeping import place
from dpdpca_owner.accounts.budget import NO_COST, Budget, Cost, rational_text
from dpdpca_owner.accounts.charge import DATA_SET_NAME, Charge, Spend
from dpdpca_owner.accounts.ledger import Ledger, check_fits
from dpdpca_protocol.errors import DpdpcaError, IntegrityError, UsageError
from dpdpca_protocol.wire.fields import decimal_text, read_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId


@dataclass(frozen=True, slots=True)
class Placed:
    """The data set in which a study counts, and what is spent on it without this study.

    Attributes:
        is_new: whether nothing was booked on it before.
        is_paid: whether this study is booked already and costs nothing more.
        merges: the data sets that are merged into it.
        others: the data sets that stay separate.
        before: the costs booked on it and not refunded, without this study.
    """

    data_set: str
    is_new: bool
    is_paid: bool
    merges: tuple[str, ...]
    others: tuple[str, ...]
    before: Cost


@dataclass(frozen=True, slots=True)
class Spending:
    """One study compared with this owner's budget.

    Attributes:
        placed: the data set in which it counts, or None if this cannot be known.
        data_sets: the number of data sets.
        later: what later rounds of the study's chain may still spend under the same approval.
    """

    charge: Charge
    budget: Budget
    placed: Placed | None
    data_sets: int
    later: Cost = NO_COST

    def check(self) -> None:
        """Raises PolicyError `budget-exceeded`."""
        if self.placed is not None and not self.placed.is_paid:
            check_fits(self.placed.before + self.charge.cost + self.later, self.placed.data_set, self.budget)

    @property
    def fits(self) -> bool | None:
        """Whether the study fits into the budget; None if this cannot be known."""
        if self.placed is None:
            return None
        after = self.placed.before + self.charge.cost + self.later
        return self.placed.is_paid or not self.budget.is_exceeded_by(after)

    def lines(self) -> list[str]:
        """Sentences for the consent sheet."""
        placed = self.placed
        if placed is None:
            return [
                f"this owner's ledger has {self.data_sets} data sets: give --data or --dataset to see in"
                " which one the study would count"
            ]
        lines = []
        if placed.is_new:
            lines.append(
                f"nothing has been spent on these records yet: they become the data set '{placed.data_set}'"
            )
            if placed.others:
                lines.append(
                    f"if they are about the same people as {_listed(placed.others)}, name that data set with"
                    " --dataset, because the ledger takes changed records for new ones"
                )
        else:
            lines.append(f"these records belong to the data set '{placed.data_set}'")
        if placed.merges:
            lines.append(
                f"{_listed(placed.merges)} will be merged into this data set, and what was spent there"
                " counts here too"
            )
        before, after = placed.before.rho, placed.before.rho + self.charge.cost.rho
        lines.append(
            f"spent before: {self._amount(before)}; with this study: {self._amount(after)};"
            f" your budget: {self._amount(self.budget.rho)}, at δ = {float(self.budget.delta):.3g}"
        )
        if self.later.rho:
            whole = self._amount(after + self.later.rho)
            lines.append(f"with all later rounds, which you approve by joining: {whole}")
        if unproved := (placed.before + self.charge.cost).unproved:
            lines.append(
                f"no privacy is proved for {unproved} of the earlier studies: these figures do not cover them"
            )
        if placed.is_paid:
            lines.append("this study is booked already: sending its share again costs nothing more")
        elif not self.fits:
            lines.append("this is ABOVE your budget: this owner cannot join.")
        return lines

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "data_set": None,
            "fits": self.fits,
            "budget": self._json(self.budget.rho),
            "cost": {
                "rho": rational_text(self.charge.cost.rho),
                "is_proved": not self.charge.cost.unproved,
            },
        }
        if self.placed is not None:
            before = self.placed.before.rho
            facts |= {
                "data_set": self.placed.data_set,
                "is_new": self.placed.is_new,
                "is_booked": self.placed.is_paid,
                "merges": list(self.placed.merges),
                "before": self._json(before),
                "after": self._json(before + self.charge.cost.rho),
                "after_all_rounds": self._json(before + self.charge.cost.rho + self.later.rho),
            }
        return facts

    def _amount(self, rho: Fraction) -> str:
        return f"ε = {float(self.budget.epsilon_of(rho)):.4g} (ρ = {float(rho):.4g})"

    def _json(self, rho: Fraction) -> dict[str, Any]:
        return amount_json(self.budget, rho)


def foresee(
    ledger: Ledger, charge: Charge, budget: Budget, fingerprint: Digest | None, named: str | None
) -> Spending:
    """How much of the budget `charge` would use now.

    Args:
        ledger: the ledger so far.
        charge: the charge of the study.
        budget: the budget of the policy in force.
        fingerprint: of the records; None if no records are given.
        named: the data set that the owner names for the records, or None.

    Raises:
        UsageError: the name is not plain text.
        ConflictError: the study and the records count in different data sets.
    """
    if named is not None:
        check_data_set(named)
    paid = ledger.spend(charge.study)
    is_paid = paid is not None and paid.is_live
    if fingerprint is None and named is None and not (is_paid and paid is not None and paid.data_set):
        if len(ledger.data_sets) != 1:
            return Spending(charge, budget, None, len(ledger.data_sets))
        named = ledger.data_sets[0]
    placement = place(ledger, charge.study, fingerprint, named)
    before = ledger.spent(placement.data_set, *placement.merges)
    if is_paid and paid is not None:
        before -= paid.charge.cost
    apart = {placement.data_set, *placement.merges}
    others = tuple(name for name in ledger.data_sets if name not in apart)
    placed = Placed(placement.data_set, placement.is_new, is_paid, placement.merges, others, before)
    return Spending(charge, budget, placed, len(ledger.data_sets))


def running_totals(ledger: Ledger, data_set: str) -> Iterator[tuple[Spend, Fraction]]:
    """The spends that count in a data set, in order, each with the live ρ up to and including it."""
    total = ledger.lost.rho
    for spend in ledger.spends:
        if spend.data_set is None or ledger.root(spend.data_set) == data_set:
            total += spend.charge.cost.rho if spend.is_live else 0
            yield spend, total


def shown_data_sets(ledger: Ledger) -> tuple[str, ...]:
    """The data sets of a ledger. Spends whose data set is not known are shown even if there is no other."""
    return ledger.data_sets or (("(not known)",) if ledger.live_rho else ())


@dataclass(frozen=True, slots=True)
class Change:
    """A booking or a refund.

    Attributes:
        time: RFC 3339 UTC.
        title: of the study.
        rho: what is live in the data set after it.
    """

    time: str
    title: str
    is_refund: bool
    rho: Fraction


def changes_of(spends: Iterable[Spend], lost: Fraction) -> list[Change]:
    """The bookings and refunds of `spends` in order of time, on top of the ρ that was lost."""
    steps = []
    for spend in spends:
        steps.append((spend.reserved_at, False, spend.charge))
        if not spend.is_live and spend.settled_at is not None:
            steps.append((spend.settled_at, True, spend.charge))
    changes, rho = list[Change](), lost
    for time, is_refund, charge in sorted(steps, key=lambda step: step[0]):
        rho += -charge.cost.rho if is_refund else charge.cost.rho
        changes.append(Change(time, charge.title, is_refund, rho))
    return changes


def check_own(ledger: Ledger, own: Collection[PartyId]) -> None:
    """Raises IntegrityError `ledger-of-another` if a party with an id that is not in `own` has booked."""
    if not {spend.charge.owner for spend in ledger.spends} <= set(own):
        raise IntegrityError(
            "ledger-of-another",
            "the ledger contains studies that another owner has joined, but each owner has its own ledger",
            "restore this owner's ledger and keys from one backup of its whole folder",
        )


def check_data_set(name: str) -> None:
    """Raises UsageError if `name` cannot be the name of a data set."""
    try:
        read_text(name, "the name of the data set", DATA_SET_NAME)
    except DpdpcaError as error:
        raise UsageError("bad-name", error.problem, "give a short name in plain text") from error


def amount_json(budget: Budget, rho: Fraction) -> dict[str, Any]:
    """An amount of ρ for JSON: exact, as a number, and as ε at the budget's δ."""
    return {
        "rho": rational_text(rho),
        "rho_number": float(rho),
        "epsilon": float(budget.epsilon_of(rho)),
        "delta": decimal_text(budget.delta),
    }


def _listed(names: tuple[str, ...]) -> str:
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
