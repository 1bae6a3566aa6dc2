"""Noise that owners draw in shares: calibration, law, order, and the shares of which it is the sum."""

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import plain_calibration as plain
import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.accounting import delta_of_tails, rho_of_shares, zcdp_rho
from dpdpca_protocol.privacy.mechanisms import (
    BlockGaussian,
    Gaussian,
    Laplace,
    Quantity,
    Setting,
    SharedGaussian,
)
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers

K = 2**20
WEIGHT = Fraction(43, 100) * K
DELTA = Fraction(1, 10**6)
BLOCKS = {"norms": "0.1", "pair-norms": "0.2", "sum": "0.3", "octaves": "0.3", "far-pairs": "0.1"}
FLAT = (Quantity.JOINT, Quantity.PAIRS, Quantity.PRE_STUDY)


def setting(
    shares: int,
    quantity: Quantity = Quantity.JOINT,
    d: int = 3,
    bound: int = K,
    epsilon: str = "1",
    **changes: Any,
) -> Setting:
    weight = Fraction(43, 100) * bound if quantity is Quantity.JOINT else Fraction(0)
    if quantity is Quantity.PRE_STUDY:
        changes = {
            "blocks": tuple((BlockName(name), Fraction(part)) for name, part in BLOCKS.items())
        } | changes
    return Setting(quantity, d, bound, Fraction(epsilon), DELTA, weight, shares=shares, **changes)


def only(name: BlockName) -> dict[str, Any]:
    return {"blocks": ((name, Fraction(1)),)}


def number(value: Fraction) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


@pytest.mark.parametrize("shares", [1, 2, 7, 40])
def test_the_assured_shares_are_worth_the_whole_claim(shares: int) -> None:
    fitted = SharedGaussian.calibrated(setting(shares))
    allowed = zcdp_rho(Fraction(1), DELTA)
    squared = (2 * K + WEIGHT) ** 2 / 2
    excess = rho_of_shares(shares, fitted.scale**2 / WEIGHT / shares, 3)
    excess += rho_of_shares(shares, fitted.scale**2 / 2 / shares, 6)
    assert fitted.rho == squared / (2 * fitted.scale**2) + excess
    assert allowed * (1 - Fraction(1, 2**50)) < fitted.rho <= allowed
    assert fitted.event.rho == fitted.rho
    assert (fitted.guarantee.epsilon, fitted.guarantee.delta) == (
        Fraction(1),
        DELTA + delta_of_tails(Fraction(1)),
    )
    assert "Kairouz, Liu, Steinke" in fitted.guarantee.basis
    assert f"at least {shares} owners draw" in fitted.guarantee.assumptions[-1]


@pytest.mark.parametrize("quantity", [*FLAT, Quantity.LIFT])
@pytest.mark.parametrize(
    ("shares", "epsilon", "bound"),
    [(1, "1", 6), (2, "3", 12), (2, "10", 3), (5, "10", 5), (12, "20", 12), (40, "10", 12), (40, "10", 14)],
)
def test_the_scale_is_that_of_an_independent_calibration(
    quantity: Quantity, shares: int, epsilon: str, bound: int
) -> None:
    """The last five have so coarse a grid that the distance of the sum from one Gaussian has a say."""
    with mpmath.workdps(60):
        moved, parts = {
            Quantity.JOINT: lambda: plain.joint_parts(3, bound, "0.43"),
            Quantity.PAIRS: lambda: plain.pairs_parts(3, bound),
            Quantity.PRE_STUDY: lambda: plain.block_parts(3, bound, BLOCKS),
            Quantity.LIFT: lambda: plain.lift_parts(3, 2, bound, bound // 2),
        }[quantity]()
        wanted = plain.scale_of(moved, plain.rho_of(epsilon, "1e-6"), shares, parts)
    lifted = {"columns": 2, "score_bound": bound // 2} if quantity is Quantity.LIFT else {}
    terms = setting(shares, quantity, bound=bound, epsilon=epsilon, **lifted)
    if wanted is None:
        with pytest.raises(UsageError, match="too small for the proof"):
            SharedGaussian.calibrated(terms)
        return
    fitted = SharedGaussian.calibrated(terms)
    with mpmath.workdps(60):
        assert 0 <= number(fitted.scale) / wanted - 1 < mpmath.mpf(2) ** -55
        # What the whole spends is within what it may.
        spent = moved / (2 * number(fitted.scale) ** 2) + plain.excess(shares, parts, number(fitted.scale))
        assert abs(number(fitted.rho) / spent - 1) < mpmath.mpf(2) ** -70


@pytest.mark.parametrize(("epsilon", "most"), [("10", 18), ("3", 100)])
def test_a_norm_study_of_a_chain_has_room_for_many_owners(epsilon: str, most: int) -> None:
    """The figures of the design: a fortieth of ρ on one histogram, 1 % more noise at most."""
    terms = setting(
        most, Quantity.PRE_STUDY, epsilon=epsilon, rho_share=Fraction(1, 40), **only(BlockName.NORMS)
    )
    fitted, alone = SharedGaussian.calibrated(terms), BlockGaussian.calibrated(replace(terms, shares=1))
    assert 1 < fitted.scale / alone.scale < Fraction(101, 100)
    with pytest.raises(UsageError):
        SharedGaussian.calibrated(replace(terms, shares=2 * most))


def test_one_share_is_the_mechanism_itself() -> None:
    one, ours = SharedGaussian.calibrated(setting(1)), Gaussian.calibrated(setting(1))
    assert (one.scale, one.rho, one.law(1)) == (ours.scale, ours.rho, ours.law(1))
    terms = setting(1, Quantity.PRE_STUDY)
    shared, alone = SharedGaussian.calibrated(terms), BlockGaussian.calibrated(terms)
    assert (shared.scale, shared.rho, shared.law(1)) == (alone.scale, alone.rho, alone.law(1))
    for name in BlockName:
        assert shared.variance(name, 1) == alone.variance(name)


@pytest.mark.parametrize("quantity", FLAT)
def test_each_owner_adds_as_much_as_any_other(quantity: Quantity) -> None:
    fitted = SharedGaussian.calibrated(setting(4, quantity))
    assured = fitted.law(1)
    assert assured.diagonal == 2 * assured.off_diagonal
    assert assured.diagonal == (0 if quantity is Quantity.PRE_STUDY else fitted.scale**2)
    assert (
        assured.sum_
        == {
            Quantity.JOINT: fitted.scale**2 / WEIGHT,
            Quantity.PAIRS: 0,
            Quantity.PRE_STUDY: 4 * K * fitted.scale**2 / Fraction(3, 10),
        }[quantity]
    )
    for owners in (1, 4, 9):
        law = fitted.law_of(owners)
        assert law.diagonal == assured.diagonal * owners / 4
        assert law.sum_ == assured.sum_ * owners / 4
        for bound, variance in ((law.triangle_bound, law.diagonal), (law.sum_bound, law.sum_)):
            assert bound**2 >= 169 * variance
            assert (bound - 1) ** 2 < 169 * variance or bound == 0


def asked_of(fitted: SharedGaussian) -> tuple[list[tuple[Fraction, int]], list[int]]:
    """What a share asks the sampler for, and what it makes of draws that number the calls."""
    asked = []

    def sample(variance: Fraction, count: int, bound: int) -> list[int]:
        asked.append((variance, count))
        assert bound**2 >= 169 * variance
        return [len(asked)] * count

    return asked, list(fitted.share(Samplers(gaussian=sample)))


def test_a_share_asks_the_sampler_for_its_part_of_every_coordinate() -> None:
    joint = SharedGaussian.calibrated(setting(5))
    t2 = joint.scale**2 / 5
    assert asked_of(joint) == (
        [(t2 / WEIGHT, 3), (t2, 3), (t2 / 2, 3)],
        [0, 1, 1, 1, 2, 3, 3, 2, 3, 2],
    )
    pairs = SharedGaussian.calibrated(setting(5, Quantity.PAIRS))
    t2 = pairs.scale**2 / 5
    assert asked_of(pairs) == ([(t2, 3), (t2 / 2, 3)], [0, 1, 2, 2, 1, 2, 1])
    blocks = SharedGaussian.calibrated(setting(5, Quantity.PRE_STUDY))
    unit = blocks.scale**2 / 5
    moved: Sequence[tuple[int, str, int]] = [
        (2, "0.1", 49),
        (2, "0.2", 49),
        (4 * K, "0.3", 3),
        (6, "0.3", 36),
        (1, "0.1", 1),
    ]
    assert asked_of(blocks) == (
        [(squared * unit / Fraction(part), length) for squared, part, length in moved],
        [0, *[1] * 49, *[2] * 49, *[3] * 3, *[4] * 36, 5],
    )
    for fitted, length in ((joint, 9), (pairs, 6), (blocks, 138)):
        ones = Samplers(gaussian=lambda variance, count, bound: [1] * count)
        assert fitted.draw(1, ones) == [0, *[5] * length]


def test_a_large_share_is_drawn_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdpca_protocol.privacy.mechanisms.shared._BATCH", 4)
    fitted = SharedGaussian.calibrated(setting(2, Quantity.PAIRS, d=5))
    asked, values = asked_of(fitted)
    assert [count for _, count in asked] == [4, 4, 4, 2, 1]
    assert len(values) == 16


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


REFUSED = [
    (setting(50, bound=4, epsilon="20"), "raise fraction_bits or "),
    (setting(50, Quantity.PAIRS, bound=4, epsilon="20"), "raise fraction_bits or "),
    (setting(30, Quantity.PRE_STUDY, epsilon="10"), ""),
    (setting(2, Quantity.PRE_STUDY, epsilon="30", **only(BlockName.NORMS)), ""),
    (setting(40, Quantity.PRE_STUDY, epsilon="20", rho_share=Fraction(1, 10)), "lower rho_share to {} or "),
    (
        setting(
            9, Quantity.PRE_STUDY, bound=1, epsilon="30", rho_share=Fraction(1, 2), **only(BlockName.SUM)
        ),
        "raise fraction_bits or lower rho_share to {} or ",
    ),
]


@pytest.mark.parametrize(("terms", "also"), REFUSED)
def test_shares_too_coarse_for_the_proof_are_refused_with_what_would_do(terms: Setting, also: str) -> None:
    with pytest.raises(UsageError, match="too small for the proof") as refused:
        SharedGaussian.calibrated(terms)
    shape = re.escape(also).replace(r"\{\}", "([0-9.]+)") + "lower epsilon to ([0-9.]+)"
    said = re.fullmatch(shape, refused.value.next_step)
    assert said
    *share, epsilon = map(Fraction, said.groups())
    ways = [replace(terms, epsilon=epsilon), *(replace(terms, rho_share=each) for each in share)]
    for way in ways:
        SharedGaussian.calibrated(way)
        # What is named is the most, within its three digits.
        more = (
            replace(way, epsilon=way.epsilon * Fraction(102, 100))
            if way.epsilon == epsilon
            else replace(way, rho_share=way.rho_share * Fraction(102, 100))
        )
        with pytest.raises(UsageError):
            SharedGaussian.calibrated(more)


@pytest.mark.parametrize(("epsilon", "bound"), [("10", 8), ("20", 12), ("3", 3)])
def test_one_share_more_than_the_independent_calibration_allows_is_refused(epsilon: str, bound: int) -> None:
    with mpmath.workdps(60):
        rho = plain.rho_of(epsilon, "1e-6")
        moved, parts = plain.pairs_parts(3, bound)
        allowed = [m for m in range(1, 100) if plain.scale_of(moved, rho, m, parts) is not None]
    assert allowed == list(range(1, allowed[-1] + 1))
    assert 1 < allowed[-1] < 99
    SharedGaussian.calibrated(setting(allowed[-1], Quantity.PAIRS, bound=bound, epsilon=epsilon))
    with pytest.raises(UsageError):
        SharedGaussian.calibrated(setting(allowed[-1] + 1, Quantity.PAIRS, bound=bound, epsilon=epsilon))


def test_no_share_has_a_parameter_below_a_quarter() -> None:
    """Of one share the sum is no sum, so nothing else limits it."""
    terms = setting(1, Quantity.PAIRS, bound=1, epsilon="8")
    while True:
        fitted = Gaussian.calibrated(terms)
        if fitted.law(1).off_diagonal < Fraction(1, 4):
            break
        SharedGaussian.calibrated(terms)
        terms = replace(terms, epsilon=terms.epsilon + 1)
    with pytest.raises(UsageError, match="too small"):
        SharedGaussian.calibrated(terms)


def test_only_this_mechanism_and_flat_releases_know_shares() -> None:
    with pytest.raises(UsageError, match="cannot be drawn in shares"):
        Laplace.calibrated(setting(2))
    with pytest.raises(UsageError, match="cannot be drawn in shares"):
        Gaussian.calibrated(setting(2))
    with pytest.raises(UsageError, match="not the masked release"):
        SharedGaussian.calibrated(replace(setting(2), quantity=Quantity.SCATTER, alpha_squared=Fraction(0)))
    with pytest.raises(UsageError, match="at least one share"):
        setting(0)
