"""Budgets are exact: ten tenths fit, and nothing beside them."""

from fractions import Fraction

import pytest

from dpdpca_owner.accounts.budget import (
    NO_COST,
    OUTSIDE_SHARE,
    Budget,
    Cost,
    rational_text,
    read_rational,
)
from dpdpca_protocol.errors import MessageError, UsageError
from dpdpca_protocol.privacy.accounting import delta_of_tails, epsilon_of_rho, zcdp_rho

DELTA = Fraction(1, 10**6)


def cost(rho: Fraction) -> Cost:
    return Cost(rho, Fraction(0), 1)


@pytest.mark.parametrize("epsilon", ["0.1", "0.3", "1", "3", "10"])
def test_ten_spends_of_a_tenth_fit_and_the_eleventh_does_not(epsilon: str) -> None:
    budget = Budget.of_epsilon(Fraction(epsilon), DELTA)
    total = sum((cost(budget.rho / 10) for _ in range(10)), NO_COST)
    assert not budget.is_exceeded_by(total)
    assert total.rho == budget.rho
    assert budget.is_exceeded_by(total + cost(budget.rho / 10))
    assert budget.is_exceeded_by(total + cost(Fraction(1, 10**40)))


def test_a_budget_in_epsilon_is_one_rho_that_leaves_room_for_what_rho_does_not_cover() -> None:
    budget = Budget.of_epsilon(Fraction(1), DELTA)
    assert budget.rho == zcdp_rho(Fraction(1), DELTA * (1 - OUTSIDE_SHARE))
    assert 0.999 < budget.rho / zcdp_rho(Fraction(1), DELTA) < 1
    assert 0.999999 < budget.epsilon_of(budget.rho) <= 1 + Fraction(1, 10**20)
    assert budget.epsilon_of(Fraction(0)) == 0


def test_the_whole_claim_holds_at_the_end_of_the_budget() -> None:
    """Σρ at δ without the outside, plus the outside at its largest, is within (ε, δ)."""
    budget = Budget.of_epsilon(Fraction(2), DELTA)
    assert epsilon_of_rho(budget.rho, DELTA * (1 - OUTSIDE_SHARE)) <= 2 + Fraction(1, 10**20)
    most = (DELTA * OUTSIDE_SHARE) // delta_of_tails(Fraction(2))
    assert not budget.is_exceeded_by(Cost(budget.rho, Fraction(0), int(most)))
    assert budget.is_exceeded_by(Cost(budget.rho, Fraction(0), int(most) + 1))


def test_masks_are_paid_from_the_part_of_delta_that_is_kept_for_them() -> None:
    budget = Budget.of_epsilon(Fraction(1), DELTA)
    assert not budget.is_exceeded_by(Cost(budget.rho / 2, DELTA * OUTSIDE_SHARE / 2, 1))
    assert budget.is_exceeded_by(Cost(budget.rho / 2, DELTA * OUTSIDE_SHARE, 1))


def test_a_budget_in_rho_asks_for_rho_alone() -> None:
    budget = Budget.of_rho(Fraction(1000), DELTA)
    assert not budget.is_exceeded_by(Cost(Fraction(1000), DELTA, 10**9))
    assert budget.is_exceeded_by(Cost(Fraction(1001), Fraction(0), 1))


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0, DELTA), (-1, DELTA), (1, 0), (1, 1), (1, -DELTA), (1, 2), (40, DELTA), (10**20, DELTA)],
)
def test_a_budget_out_of_range_is_refused(epsilon: int, delta: Fraction) -> None:
    with pytest.raises(UsageError) as refusal:
        Budget.of_epsilon(Fraction(epsilon), Fraction(delta))
    assert refusal.value.slug == "bad-budget"


@pytest.mark.parametrize(("rho", "delta"), [(0, DELTA), (-1, DELTA), (1, 0), (1, 1)])
def test_a_budget_of_rho_out_of_range_is_refused(rho: int, delta: Fraction) -> None:
    with pytest.raises(UsageError):
        Budget.of_rho(Fraction(rho), Fraction(delta))


@pytest.mark.parametrize("value", [Fraction(0), Fraction(1, 3), Fraction(7), zcdp_rho(Fraction(1), DELTA)])
def test_rationals_have_one_text(value: Fraction) -> None:
    assert read_rational(rational_text(value), "rho") == value


@pytest.mark.parametrize(
    "text", ["", "1", "2/4", "0/2", "1/0", "-1/2", "+1/2", "01/2", "1/02", " 1/2", "1/2\n", "0.5", 1, None]
)
def test_no_other_text_is_a_rational(text: object) -> None:
    with pytest.raises(MessageError):
        read_rational(text, "rho")
