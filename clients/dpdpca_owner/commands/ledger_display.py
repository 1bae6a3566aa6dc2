"""Shows an owner's ledger: as tables for a person, and as complete JSON for whoever has to audit it."""

from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpdpca_owner.accounts.budget import Budget
from dpdpca_owner.accounts.charge import Charge, Spend
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.accounts.spending import amount_json, running_totals, shown_data_sets
from dpdpca_protocol.errors import NotFoundError
from dpdpca_protocol.wire.fields import decimal_text
from dpdpca_runtime.text import for_terminal

_STUDY_DIGITS = 16


def show_ledger(ledger: Ledger, budget: Budget, data_set: str | None, console: Console) -> None:
    """Print a table for each data set.

    Args:
        ledger: a valid ledger.
        budget: the budget of the policy in force; amounts are shown as ε at its δ.
        data_set: the only data set to show, or None for all.
        console: where to print.
    """
    allowed, delta = budget.epsilon_of(budget.rho), f"{float(budget.delta):.3g}"
    names = _chosen(ledger, data_set)
    for name in names:
        table = Table(
            "when", "study", "ρ", "ε (δ)", f"total ε at δ = {delta}", "state",
            title=Text(_title(ledger, name)), title_justify="left",
        )  # fmt: skip
        for spend, total in running_totals(ledger, name):
            charge, study = spend.charge, spend.charge.study.hex()[:_STUDY_DIGITS]
            table.add_row(
                spend.reserved_at.replace("T", "\n"),
                Text(f"{for_terminal(charge.title)}\nfor {for_terminal(charge.user)}\n{study}…"),
                "" if charge.cost.unproved else f"{float(charge.cost.rho):.4g}",
                _privacy(charge),
                f"{float(budget.epsilon_of(total)):.4g}" if spend.is_live else "",
                Text(_state(spend) + _rule_text(ledger, spend)),
            )
        console.print(table)
        spent = ledger.spent(name)
        if spent.unproved:
            console.print(
                f"no amount is known for {spent.unproved} of these studies: neither the total nor the"
                " budget covers them"
            )
        if ledger.lost.rho:
            console.print(
                f"ρ = {float(ledger.lost.rho):.4g} of the total comes from lost entries; it counts in every"
                " data set"
            )
        console.print(
            f"spent ε = {float(budget.epsilon_of(spent.rho)):.4g} (ρ = {float(spent.rho):.4g}) of"
            f" ε = {float(allowed):.4g} (ρ = {float(budget.rho):.4g}) at δ = {delta}:"
            f" {float(spent.rho / budget.rho):.1%} of ρ\n"
        )
    if not names:
        console.print("nothing has been spent yet; the budget for each data set is", end=" ")
        console.print(f"ε = {float(allowed):.4g} (ρ = {float(budget.rho):.4g}) at δ = {delta}")


def ledger_facts(ledger: Ledger, budget: Budget, data_set: str | None) -> dict[str, Any]:
    """Everything in the ledger, with all its entries; each contains the digest of the entry before it."""
    return {
        "ledger": ledger.id.hex(),
        "length": len(ledger.entries),
        "head": ledger.last.hex(),
        "budget": {
            "set_as_epsilon": None if budget.epsilon is None else decimal_text(budget.epsilon),
            **amount_json(budget, budget.rho),
        },
        "lost": amount_json(budget, ledger.lost.rho),
        "data_sets": [_data_set_facts(ledger, budget, name) for name in _chosen(ledger, data_set)],
        "entries": [
            {
                "digest": entry.digest.hex(),
                "index": entry.index,
                "previous": entry.previous.hex(),
                "time": entry.time,
                "kind": entry.kind,
                "detail": dict(entry.detail),
                "random": None if entry.random is None else entry.random.hex(),
            }
            for entry in ledger.entries
        ],
    }


def _data_set_facts(ledger: Ledger, budget: Budget, name: str) -> dict[str, Any]:
    spent = ledger.spent(name).rho
    return {
        "name": name,
        "merged": list(ledger.merged_into(name)),
        "records": [
            {"fingerprint": fingerprint.hex(), "records": records, "since": since}
            for fingerprint, (within, records, since) in ledger.contents.items()
            if ledger.root(within) == name
        ],
        "spent": amount_json(budget, spent),
        "studies_without_proved_privacy": ledger.spent(name).unproved,
        "left": {"rho_number": float(max(budget.rho - spent, Fraction(0)))},
        "studies": [
            {
                "study": spend.charge.study.hex(),
                "title": spend.charge.title,
                "user": spend.charge.user,
                "state": str(spend.state),
                "reserved_at": spend.reserved_at,
                "settled_at": spend.settled_at,
                "share_version": spend.version,
                "epsilon": None if spend.charge.epsilon is None else decimal_text(spend.charge.epsilon),
                "delta": None if spend.charge.delta is None else decimal_text(spend.charge.delta),
                "is_proved": not spend.charge.cost.unproved,
                "cost": amount_json(budget, spend.charge.cost.rho),
                "total": amount_json(budget, total),
                "data_set_known": spend.data_set is not None,
                "rule": _rule_facts(ledger, spend),
            }
            for spend, total in running_totals(ledger, name)
        ],
    }


def _chosen(ledger: Ledger, data_set: str | None) -> tuple[str, ...]:
    if data_set is None:
        return shown_data_sets(ledger)
    if not ledger.knows(data_set):
        raise NotFoundError(
            "no-such-data-set",
            f"the ledger has no data set '{data_set}'",
            "list the data sets with: dpdpca owner ledger",
        )
    return (ledger.root(data_set),)


def _title(ledger: Ledger, name: str) -> str:
    merged = ledger.merged_into(name)
    return f"Data set '{name}'" + (f" (with {', '.join(merged)})" if merged else "")


def _privacy(charge: Charge) -> str:
    if charge.epsilon is None or charge.delta is None:
        return "none proved"
    return f"{decimal_text(charge.epsilon)} (δ {float(charge.delta):.2g})"


def _state(spend: Spend) -> str:
    state = str(spend.state) if spend.is_live else f"{spend.state}, refunded"
    return state if spend.data_set is not None else f"{state}; counts in every data set"


def _rule_text(ledger: Ledger, spend: Spend) -> str:
    approval = ledger.by_rule.get(spend.charge.study)
    return "" if approval is None else f"\nby rule {for_terminal(approval.name)}"


def _rule_facts(ledger: Ledger, spend: Spend) -> dict[str, Any] | None:
    """The rule that approved a study, as it stood; None if a person approved it."""
    approval = ledger.by_rule.get(spend.charge.study)
    if approval is None:
        return None
    return {"name": approval.name, "text": approval.text, "approved_at": approval.time}
