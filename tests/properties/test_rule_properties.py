"""Whatever rules and studies there are, a month never holds more than its rule says."""

from collections import defaultdict
from fractions import Fraction
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from ledger_world import charge, content, lines, new_ledger, study

from dpdpca_owner.accounts.bookkeeping import approve_by_rule, reserve
from dpdpca_owner.accounts.budget import Budget
from dpdpca_owner.accounts.charge import RuleApproval
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_protocol.errors import PolicyError

ENOUGH = Budget.of_rho(Fraction(10**6), Fraction(1, 10**6))
RULES = ("one", "two", "three")

parts = st.integers(1, 30).map(lambda tenths: Fraction(tenths, 10))
small = st.integers(1, 30).map(lambda part: Fraction(part, 10**7))


class Wish(NamedTuple):
    """A study that matches a rule at a moment; `rounds` later rounds of its chain are joined at once."""

    rule: str
    epsilon: Fraction
    delta: Fraction
    days: int
    rounds: int


wishes = st.lists(
    st.builds(Wish, st.sampled_from(RULES), parts, small, st.integers(-3, 20), st.integers(0, 2)),
    max_size=25,
)
limits = st.fixed_dictionaries({name: st.tuples(parts, small) for name in RULES})


def moment(day: int) -> str:
    """Days from the beginning of 2026, in months of 28 days."""
    return f"{2026 + day // 336}-{1 + day // 28 % 12:02}-{1 + day % 28:02}T00:00:00Z"


@given(asked=wishes, limit=limits)
def test_no_month_holds_more_than_its_rule_says(
    asked: list[Wish], limit: dict[str, tuple[Fraction, Fraction]]
) -> None:
    ledger, day = new_ledger(), 40
    model: dict[tuple[str, str], list[Fraction]] = defaultdict(lambda: [Fraction(0), Fraction(0)])
    latest = ledger.entries[-1].time
    for number, wish in enumerate(asked):
        day = max(0, day + wish.days)  # the clock may be set back
        first = study(10 * number)
        made = RuleApproval(
            first, first, wish.rule, "[[rule]]", wish.epsilon, wish.delta, "patients", "people"
        )
        now = max(latest, moment(day))
        held, most = model[wish.rule, now[:7]], limit[wish.rule]
        fits = held[0] + wish.epsilon <= most[0] and held[1] + wish.delta <= most[1]
        try:
            ledger.add_all(approve_by_rule(ledger, made, *most, moment(day)))
        except PolicyError:
            assert not fits
            continue
        assert fits
        latest = now  # what was refused has moved no clock
        held[0] += wish.epsilon
        held[1] += wish.delta
        for later in range(wish.rounds + 1):
            paid = reserve(
                ledger,
                charge(10 * number + later),
                content(1),
                "people",
                ENOUGH,
                latest,
                [first] if later else [],
            )
            ledger.add_all(paid)
            assert ledger.by_rule[study(10 * number + later)].chain == first
        assert approve_by_rule(ledger, made, *most, latest) == []
    again = Ledger.parse(lines(ledger))
    assert again.by_rule == ledger.by_rule
    for (rule, month), (epsilon, delta) in model.items():
        assert again.approved_by_rule(rule, month) == (epsilon, delta)
        assert epsilon <= limit[rule][0]
        assert delta <= limit[rule][1]
