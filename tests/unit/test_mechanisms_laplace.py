"""ℓ₁ sensitivities against brute force, and the door to the discrete Laplace sampler."""

import math
import random
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import MAX_NOISE_DRAWS, delta_of_tails
from dpdpca_protocol.privacy.mechanisms import Laplace, Quantity, Setting
from dpdpca_protocol.privacy.mechanisms.discrete_laplace import discrete_laplace
from dpdpca_protocol.privacy.mechanisms.laplace import l1_sensitivity
from dpdpca_protocol.terms.features import MAX_ENCODED_FEATURES

K = 10**8


def bound(quantity: Quantity, d: int, weight: str = "0") -> float:
    terms = Setting(quantity, d, K, Fraction(1), Fraction(1, 10**6), Fraction(weight) * K)
    return float(l1_sensitivity(terms)) / K


def spread(signs: NDArray[np.int64] | tuple[int, ...], d: int) -> float:
    """max zᵀWz − xᵀWx over the unit ball, W with the given signs, 1 on its diagonal and ½ elsewhere."""
    weights = np.zeros((d, d))
    weights[np.triu_indices(d)] = signs
    weights = (weights + weights.T) / 2
    values = np.linalg.eigvalsh(weights)
    return float(max(values[-1], 0) - min(values[0], 0))


@pytest.mark.parametrize(("d", "known"), [(2, 2.236), (3, 2.872), (4, 3.606)])
def test_replaced_record_moves_the_triangle_by_what_all_sign_patterns_allow(d: int, known: float) -> None:
    """Σ_{i≤j}|z_i z_j − x_i x_j| is the largest signed sum, and each of those is the spread of a matrix."""
    worst = max(spread(signs, d) for signs in product((1, -1), repeat=d * (d + 1) // 2))
    assert worst == pytest.approx(known, abs=1e-3)
    assert worst <= bound(Quantity.SECOND_MOMENT, d) * (1 + 1e-12) < 1.05 * worst


@pytest.mark.parametrize(("d", "known"), [(8, 6.403), (16, 12.042), (64, 45.97)])
def test_larger_neighbours_that_come_close(d: int, known: float) -> None:
    """Signs in two blocks reach √((d² + 2d + 2)/2) for even d."""
    block = np.where(np.arange(d) < d // 2, 1, -1)
    signs = np.where(block[:, None] == block[None, :], block[:, None], 1)[np.triu_indices(d)]
    reached = spread(signs, d)
    assert reached == pytest.approx(math.sqrt((d * d + 2 * d + 2) / 2))
    assert reached == pytest.approx(known, abs=0.02)
    assert reached <= bound(Quantity.SECOND_MOMENT, d) < 1.05 * reached
    assert bound(Quantity.SECOND_MOMENT, d) < d + 1 < 2 * d


def triangle(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    return matrix[np.triu_indices(len(matrix))]


def furthest(distance: Callable[..., Any], count: int, d: int) -> float:
    """The largest distance found over `count` unit-ball records of which the first is replaced."""
    source = random.Random(7 * d)

    def loss(flat: NDArray[np.float64]) -> float:
        rows = flat.reshape(count + 1, d)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
        return -float(distance(rows[1:], np.vstack([rows[:1], rows[2:]])))

    starts = [[source.gauss(0, 0.7) for _ in range((count + 1) * d)] for _ in range(5)]
    found = (minimize(loss, start, method="L-BFGS-B", options={"maxiter": 200}) for start in starts)
    return max(-float(result.fun) for result in found)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_centred_scatter_is_covered_and_the_published_constant_is_not(d: int) -> None:
    count = 8

    def scatter(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        total = rows.sum(axis=0)
        return rows.T @ rows - np.outer(total, total) / count

    found = furthest(lambda a, b: np.abs(triangle(scatter(a) - scatter(b))).sum(), count, d)
    # Everything along (1, …, 1): a a^T with |a| = 2, which has 2(d+1) in its triangle.
    along = np.full((1, d), d**-0.5)
    rows = -np.repeat(along, count, axis=0)
    other = np.vstack([along, rows[1:]])
    found = max(found, np.abs(triangle(scatter(rows) - scatter(other))).sum())
    allowed = bound(Quantity.SCATTER, d) * (count - 1) / count
    assert 0.94 * allowed <= found <= allowed * (1 + 1e-9)
    assert found > 2 * d


@pytest.mark.parametrize("weight", ["0.05", "0.43", "2"])
@pytest.mark.parametrize("d", [2, 3, 12])
def test_joint_release_is_covered(d: int, weight: str) -> None:
    a = float(Fraction(weight))

    def distance(rows: NDArray[np.float64], others: NDArray[np.float64]) -> float:
        moved = np.abs(triangle(rows.T @ rows - others.T @ others)).sum()
        return float(moved + math.sqrt(a) * np.abs(rows.sum(axis=0) - others.sum(axis=0)).sum())

    found = furthest(distance, 1, d)
    allowed = bound(Quantity.JOINT, d, weight)
    assert 0.75 * allowed <= found <= allowed * (1 + 1e-9)


def test_laplace_noise_is_far_above_gaussian_noise() -> None:
    """Standard deviation at d = 64, ε = 1: with our constant 65.5, with d + 1 it would be 91.9."""
    fitted = Laplace.calibrated(Setting(Quantity.SECOND_MOMENT, 64, K, Fraction(1), Fraction(1, 10**6)))
    assert math.sqrt(fitted.law(1).diagonal) / K == pytest.approx(65.5, rel=1e-3)


def test_draws_are_python_integers() -> None:
    draws = discrete_laplace(Fraction(3), 1000)
    assert len(draws) == 1000
    assert {type(draw) for draw in draws} == {int}
    assert discrete_laplace(Fraction(3), 0) == []


@pytest.mark.parametrize(
    ("scale", "count"),
    [
        (Fraction(0), 1),
        (Fraction(-1), 1),
        (Fraction(1), -1),
        (Fraction(2**63, 84), 1),
        (Fraction(2**2000), 1),
    ],
)
def test_what_the_sampler_cannot_do_is_refused(scale: Fraction, count: int) -> None:
    with pytest.raises(UsageError):
        discrete_laplace(scale, count)


def least_to_saturate(scale: Decimal) -> Decimal:
    """The chance of a draw at or beyond 84 scales, which is where the sampler's range may end."""
    with localcontext(prec=60):
        ratio = (-1 / scale).exp()
        return 2 * (-Decimal(84)).exp() / (1 + ratio)


@pytest.mark.parametrize("epsilon", ["0.01", "1", "10", "30"])
@pytest.mark.parametrize("scale", ["0.01", "1", "1000", "109802048057794950"])  # the last is 2⁶³/84
def test_the_stated_delta_covers_the_draws_that_end_at_64_bits(scale: str, epsilon: str) -> None:
    """By decimals of 60 digits: (1 + e^ε)·η, with 2·2⁻⁸⁰ for re-randomisation where there are fewer draws."""
    with localcontext(prec=60):
        tail, grown = least_to_saturate(Decimal(scale)), Decimal(epsilon).exp()
        assert tail <= 2 * (-Decimal(84)).exp() < Decimal(2) ** -120
        stated = (2 + grown) * Decimal(2) ** -80
        assert (1 + grown) * MAX_NOISE_DRAWS * tail < stated
        masked = MAX_ENCODED_FEATURES * (MAX_ENCODED_FEATURES + 1) // 2
        assert (1 + grown) * masked * tail + 2 * Decimal(2) ** -80 < stated
        told = delta_of_tails(Fraction(epsilon))
        assert stated <= Decimal(told.numerator) / told.denominator <= stated * (1 + Decimal(2) ** -100)


@pytest.mark.parametrize("limit", [3, 8, 20])
def test_noise_that_saturates_before_it_is_added_is_not_pure_but_nearly(limit: int) -> None:
    """Exact laws of sum + noise for the sums 0 and 1 at b = 1, with a limit that is small enough to show."""
    p = Fraction(math.exp(-1)).limit_denominator(10**12)
    mass = (1 - p) / (1 + p)
    law = {x: mass * p ** abs(x) for x in range(-limit + 1, limit)}
    law |= dict.fromkeys((-limit, limit), p**limit / (1 + p))
    assert sum(law.values()) == 1
    above = [law.get(x - 1, Fraction(0)) - law.get(x, Fraction(0)) / p for x in range(-limit, limit + 2)]
    needed = sum(excess for excess in above if excess > 0)
    tail = 2 * p**limit / (1 + p)
    assert 0 < needed <= (1 + 1 / p) * tail


def test_a_manifest_states_the_delta_of_laplace_noise_also_in_flat_studies() -> None:
    fitted = Laplace.calibrated(Setting(Quantity.JOINT, 3, K, Fraction(1), Fraction(1, 10**6), Fraction(K)))
    assert fitted.guarantee.delta == fitted.event.extra_delta == delta_of_tails(Fraction(1))
    assert not fitted.guarantee.is_pure
