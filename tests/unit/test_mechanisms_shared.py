"""Noise that owners draw in shares: calibration, law, order, and the shares of which it is the sum."""

from dataclasses import replace
from fractions import Fraction

import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import delta_of_tails, rho_of_shares, zcdp_rho
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Quantity, Setting, SharedGaussian
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers

K = 2**20
WEIGHT = Fraction(43, 100) * K
DELTA = Fraction(1, 10**6)


def setting(shares: int, d: int = 3, bound: int = K, epsilon: str = "1") -> Setting:
    return Setting(
        Quantity.JOINT, d, bound, Fraction(epsilon), DELTA, Fraction(43, 100) * bound, shares=shares
    )


@pytest.mark.parametrize("shares", [1, 2, 7, 40])
def test_the_assured_shares_are_worth_the_whole_claim(shares: int) -> None:
    fitted = SharedGaussian.calibrated(setting(shares))
    allowed = zcdp_rho(Fraction(1), DELTA)
    squared = (2 * K + WEIGHT) ** 2 / 2
    excess = rho_of_shares(shares, min(fitted.scale**2 / 2, fitted.scale**2 / WEIGHT) / shares, 9)
    assert fitted.rho == squared / (2 * fitted.scale**2) + excess
    assert allowed * (1 - Fraction(1, 2**50)) < fitted.rho <= allowed
    assert fitted.event.rho == fitted.rho
    assert (fitted.guarantee.epsilon, fitted.guarantee.delta) == (
        Fraction(1),
        DELTA + delta_of_tails(Fraction(1)),
    )
    assert "Kairouz, Liu, Steinke" in fitted.guarantee.basis
    assert f"at least {shares} owners draw" in fitted.guarantee.assumptions[-1]


def test_one_share_is_the_mechanism_itself() -> None:
    one, ours = SharedGaussian.calibrated(setting(1)), Gaussian.calibrated(setting(1))
    assert (one.scale, one.rho, one.law(1)) == (ours.scale, ours.rho, ours.law(1))


def test_each_owner_adds_as_much_as_any_other() -> None:
    fitted = SharedGaussian.calibrated(setting(4))
    assured = fitted.law(1)
    assert assured.diagonal == 2 * assured.off_diagonal == fitted.scale**2
    assert assured.sum_ == fitted.scale**2 / WEIGHT
    for owners in (1, 4, 9):
        law = fitted.law_of(owners)
        assert law.diagonal == assured.diagonal * owners / 4
        assert law.sum_ == assured.sum_ * owners / 4
        assert law.triangle_bound**2 >= 169 * law.diagonal > (law.triangle_bound - 1) ** 2
        assert law.sum_bound**2 >= 169 * law.sum_ > (law.sum_bound - 1) ** 2


def test_a_share_asks_the_sampler_for_its_part_of_every_coordinate() -> None:
    asked = []

    def sample(variance: Fraction, count: int, bound: int) -> list[int]:
        asked.append((variance, count))
        assert bound**2 >= 169 * variance
        return [len(asked)] * count

    fitted = SharedGaussian.calibrated(setting(5))
    values = list(fitted.share(Samplers(gaussian=sample)))
    t2 = fitted.scale**2 / 5
    assert asked == [
        (t2 / WEIGHT, 3), (t2, 1), (t2 / 2, 2), (t2, 1), (t2 / 2, 1), (t2, 1), (t2 / 2, 0),
    ]  # fmt: skip
    assert values == [0, 1, 1, 1, 2, 3, 3, 4, 5, 6]
    asked.clear()
    assert fitted.draw(1, Samplers(gaussian=lambda variance, count, bound: [1] * count)) == [0, *[5] * 9]


def test_shares_are_drawn_anew_and_keep_to_their_bounds() -> None:
    fitted = SharedGaussian.calibrated(setting(3))
    first, second, law = list(fitted.share()), list(fitted.share()), fitted.law_of(1)
    assert first != second
    for values in (first, second):
        assert values[0] == 0
        assert all(0 < abs(value) <= law.sum_bound for value in values[1:4])
        assert all(abs(value) <= law.triangle_bound for value in values[4:])
    assert len(fitted.draw(1)) == 10
    assert len(fitted.draw_sum()) == 3
    assert len(fitted.draw_triangle(1)) == 6


def test_shares_too_coarse_for_the_proof_are_refused() -> None:
    coarse = setting(50, bound=4, epsilon="20")
    with pytest.raises(UsageError, match="below 4 grid units"):
        SharedGaussian.calibrated(coarse)


def test_only_this_mechanism_and_a_joint_release_know_shares() -> None:
    with pytest.raises(UsageError, match="cannot be drawn in shares"):
        Laplace.calibrated(setting(2))
    with pytest.raises(UsageError, match="cannot be drawn in shares"):
        Gaussian.calibrated(setting(2))
    with pytest.raises(UsageError, match="not the masked release"):
        SharedGaussian.calibrated(replace(setting(2), quantity=Quantity.SCATTER, alpha_squared=Fraction(0)))
    with pytest.raises(UsageError, match="at least one share"):
        setting(0)
