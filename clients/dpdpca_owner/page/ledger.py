"""The ledger as a picture: the budget of each data set over time, and a table with the same content."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from starlette.requests import Request
from starlette.responses import Response

from dpdpca_owner.accounts.budget import Budget
from dpdpca_owner.accounts.charge import Spend
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.accounts.spending import Change, changes_of, running_totals, shown_data_sets
from dpdpca_owner.page.office import Office
from dpdpca_owner.page.render import page
from dpdpca_protocol.wire.fields import read_time

WIDTH, HEIGHT = 720, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 28, 34
_NICE = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class SpendRow:
    """One study in the table. `total` is the ε of all that is live up to it; None once it is refunded."""

    at: datetime
    title: str
    user: str
    epsilon: float | None
    total: float | None
    state: str


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Total ε over time as a path of steps, in a box of WIDTH × HEIGHT; `limit` is the height of the
    budget."""

    line: str
    area: str
    dots: tuple[tuple[float, float, str], ...]
    limit: float
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    left: float = _LEFT
    right: float = WIDTH - _RIGHT
    base: float = HEIGHT - _BOTTOM


@dataclass(frozen=True, slots=True)
class DataSetView:
    """One data set. Amounts are ε at the budget's δ; `used` is the part of ρ that is spent, from 0 to 1."""

    name: str
    merged: tuple[str, ...]
    spent: float
    used: float
    rows: tuple[SpendRow, ...]
    picture: Picture
    unproved: int


def show_ledger(office: Office, request: Request) -> Response:
    ledger, budget = office.desk.home.ledger.read(), office.desk.home.policy().budget
    return page(
        "ledger",
        request,
        data_sets=[
            data_set_view(ledger, budget, name, office.desk.now()) for name in shown_data_sets(ledger)
        ],
        budget=float(budget.epsilon_of(budget.rho)),
        delta=float(budget.delta),
        width=WIDTH,
        height=HEIGHT,
    )


def data_set_view(ledger: Ledger, budget: Budget, name: str, now: datetime) -> DataSetView:
    spends = list(running_totals(ledger, name))
    spent = ledger.spent(name)
    return DataSetView(
        name,
        ledger.merged_into(name),
        float(budget.epsilon_of(spent.rho)),
        float(spent.rho / budget.rho),
        tuple(_row(spend, total, budget) for spend, total in spends),
        draw(changes_of([spend for spend, _ in spends], ledger.lost.rho), ledger.lost.rho, budget, now),
        spent.unproved,
    )


def draw(changes: Sequence[Change], lost: Fraction, budget: Budget, now: datetime) -> Picture:
    """The total ε after each change, from the first booking until now, below the budget. Before the first
    booking there is only what was lost."""
    totals = [(read_time(each.time, "time"), float(budget.epsilon_of(each.rho)), each) for each in changes]
    first = totals[0][0] if totals else now
    last = max([now, *(at for at, _, _ in totals)])
    span = max((last - first).total_seconds(), 1.0)
    allowed = float(budget.epsilon_of(budget.rho))
    top = 1.08 * max([allowed, *(total for _, total, _ in totals)])

    def x(at: datetime) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (at - first).total_seconds() / span

    def y(epsilon: float) -> float:
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - epsilon / top)

    line = f"M{_LEFT},{y(float(budget.epsilon_of(lost))):.1f}"
    for at, total, _ in totals:
        line += f"H{x(at):.1f}V{y(total):.1f}"
    line += f"H{WIDTH - _RIGHT}"
    return Picture(
        line,
        f"{line}V{y(0):.1f}H{_LEFT}Z",
        tuple((x(at), y(total), f"{_title(each)}: total ε = {total:.3g}") for at, total, each in totals),
        y(allowed),
        _days(first, last, x),
        tuple(Tick(y(value), f"{value:g}") for value in _rounded(top)),
    )


def _title(change: Change) -> str:
    return f"{change.title}, refunded" if change.is_refund else change.title


def _row(spend: Spend, total: Fraction, budget: Budget) -> SpendRow:
    charge = spend.charge
    state = "booked" if spend.is_live else f"{spend.state}, refunded"
    if spend.is_final:
        state = "booked for good"
    return SpendRow(
        read_time(spend.reserved_at, "time"),
        charge.title,
        charge.user,
        None if charge.epsilon is None else float(charge.epsilon),
        float(budget.epsilon_of(total)) if spend.is_live else None,
        state if spend.data_set is not None else f"{state}; counts in every data set",
    )


def _days(first: datetime, last: datetime, x: Callable[[datetime], float]) -> tuple[Tick, ...]:
    """The first and the last moment, and one between them if there is room."""
    pattern = "%Y-%m-%d" if last - first > timedelta(days=2) else "%d %b %H:%M"
    moments = [first, first + (last - first) / 2, last] if last - first > timedelta(minutes=1) else [first]
    return tuple(Tick(x(at), f"{at:{pattern}}") for at in moments)


def _rounded(top: float) -> list[float]:
    """About four round values from 0 to `top`."""
    power = 10.0 ** (len(f"{int(top / 4)}") - 1) if top >= 4 else 10.0 ** -(len(f"{int(4 / top)}"))
    step = next(nice * power for nice in _NICE if top / (nice * power) <= 5)
    return [step * count for count in range(int(top / step) + 1)]
