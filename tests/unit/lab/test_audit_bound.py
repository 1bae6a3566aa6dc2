"""The lower bound on ε: against binomial intervals, honest on equal samples, sharp on telling ones."""

import math
import secrets

import numpy as np
import pytest
from scipy import stats

from dpdpca_lab.audit.bound import epsilon_bound, largest_bound


def test_a_bound_is_the_ratio_of_two_exact_binomial_limits() -> None:
    """40 % and 10 % of 1,000 runs on the half that counts; the event is forced by two-valued samples."""
    first = np.array([0.0] * 900 + [1.0] * 100 + [0.0] * 900 + [1.0] * 100)
    second = np.array([0.0] * 600 + [1.0] * 400 + [0.0] * 600 + [1.0] * 400)
    bound = epsilon_bound({"s": first}, {"s": second}, 0.01, 1e-3)
    low = stats.binomtest(400, 1000).proportion_ci(1 - 1e-3, "exact").low  # two sides of α/2 each
    high = stats.binomtest(100, 1000).proportion_ci(1 - 1e-3, "exact").high
    assert bound.epsilon == pytest.approx(math.log((low - 0.01) / high), rel=1e-9)
    assert (bound.runs, bound.likelier, bound.rarer) == (1000, 400, 100)
    assert bound.event == "s ≥ 1"


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_either_side_and_either_direction_can_tell(swapped: bool, sign: float) -> None:
    tell, quiet = np.full(4000, sign), np.zeros(4000)
    first, second = (quiet, tell) if swapped else (tell, quiet)
    assert epsilon_bound({"s": first}, {"s": second}, 0.0, 1e-6).epsilon == pytest.approx(
        largest_bound(4000, 0.0, 1e-6)
    )


def test_the_event_is_chosen_on_one_half_and_counted_on_the_other() -> None:
    """A difference that only the first half has shows nothing."""
    first, second = np.zeros(2000), np.concatenate([np.ones(1000), np.zeros(1000)])
    assert epsilon_bound({"s": first}, {"s": second}, 0.0, 1e-6).epsilon == 0


def test_the_telling_statistic_is_found_among_others() -> None:
    noise = np.array([secrets.randbelow(10**6) for _ in range(12_000)], dtype=float).reshape(6, -1)
    first = {"a": noise[0], "b": noise[1], "c": noise[2]}
    second = {"a": noise[3], "b": noise[4] + 5e5, "c": noise[5]}
    bound = epsilon_bound(first, second, 0.0, 1e-6)
    assert bound.event.startswith("b ")
    assert bound.epsilon > 2


def test_a_bound_is_rarely_wrong() -> None:
    """Equal samples at α = 0.2: true ε is 0, so a bound above it is a false alarm; 200 tries, few of them."""
    alarms = 0
    for _ in range(200):
        draws = np.frombuffer(secrets.token_bytes(8 * 400), dtype=np.uint64).astype(float).reshape(2, -1)
        alarms += epsilon_bound({"s": draws[0]}, {"s": draws[1]}, 0.0, 0.2).epsilon > 0
    assert alarms <= stats.binom.isf(1e-9, 200, 0.2)


def test_delta_is_spent_before_anything_is_shown() -> None:
    quiet = np.zeros(20_000)
    rare = quiet.copy()
    rare[::100] = 1.0
    assert epsilon_bound({"s": quiet}, {"s": rare}, 0.0, 1e-6).epsilon > 1
    assert epsilon_bound({"s": quiet}, {"s": rare}, 0.02, 1e-6).epsilon == 0


def test_more_runs_can_show_more() -> None:
    shown = [largest_bound(runs, 1e-6, 1e-6) for runs in (200, 2000, 20_000)]
    assert shown == sorted(shown)
    assert shown[2] == pytest.approx(math.log(10_000 / math.log(2e6)), abs=0.01)
    assert largest_bound(200, 0.999, 1e-6) == 0
