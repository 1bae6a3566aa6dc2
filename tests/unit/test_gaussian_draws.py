"""Floats decide nothing that exact arithmetic would decide otherwise. The law is for tests/statistical."""

import math
import random
from collections.abc import Callable
from fractions import Fraction

import gmpy2
import numpy as np
import pytest

from dpdpca_protocol.privacy import gaussian
from dpdpca_protocol.privacy.gaussian import discrete_gaussian
from dpdpca_protocol.privacy.gaussian_draws import (
    _below,
    _bounds,
    _geometric,
    _happens,
    _is_below,
    draw_gaussians,
)
from dpdpca_protocol.randomness import Randomness

SCALES = [2.0**-60, 0.3, 1.0, math.nextafter(2.0, 0.0), 5.0, 1234.5, 2.0**20 + 0.5, 2.0**45, 2.0**59]


class Seeded:
    """The same bits again and again."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.drawn = 0

    def bytes(self, count: int) -> bytes:
        self.drawn += count
        return self._random.randbytes(count)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)


def bound_of(scale: float) -> int:
    return min(math.ceil(13 * scale), 2**63 - 2)


@pytest.mark.parametrize("scale", SCALES)
def test_from_the_same_bits_exact_decisions_give_the_same_draws(scale: float) -> None:
    by_floats = draw_gaussians(scale, 3000, bound_of(scale), Seeded(1))
    exactly = draw_gaussians(scale, 3000, bound_of(scale), Seeded(1), slack=0.999)
    assert by_floats.tolist() == exactly.tolist()
    assert by_floats.dtype == np.int64
    assert np.abs(by_floats).max() <= bound_of(scale)


def plain(scale: float, count: int, bound: int, randomness: Seeded) -> list[int]:
    """Algorithms 1 to 3 of the paper, one draw after the other, in rational arithmetic."""

    def happens(exponent: Fraction) -> bool:
        return _is_below(int.from_bytes(randomness.bytes(8), "little") >> 2, exponent, randomness)

    def laplace(step: int) -> int:
        while True:
            rest = randomness.below(step)
            if not happens(Fraction(rest, step)):
                continue
            steps = 0
            while happens(Fraction(1)):
                steps += 1
            size, negative = rest + step * steps, randomness.below(2)
            if size or not negative:
                return -size if negative else size

    step, square = math.floor(scale) + 1, Fraction(scale) ** 2
    draws: list[int] = []
    while len(draws) < count:
        drawn = laplace(step)
        if happens((abs(drawn) - square / step) ** 2 / (2 * square)) and abs(drawn) <= bound:
            draws.append(drawn)
    return draws


def test_the_one_rejection_keeps_what_the_paper_s_two_keep() -> None:
    """Both have the law of the paper: cells of few values agree within six standard deviations."""
    ours = np.bincount(draw_gaussians(1.5, 20_000, 20, Seeded(2)) + 20, minlength=41)
    theirs = np.bincount(np.array(plain(1.5, 20_000, 20, Seeded(3))) + 20, minlength=41)
    assert np.all(np.abs(ours - theirs) <= 6 * np.sqrt(ours + theirs + 1))


@pytest.mark.parametrize("scale", SCALES)
def test_exponents_in_floats_are_within_the_slack_of_the_true_ones(scale: float) -> None:
    """As claims.md has it: γ within 2⁻⁴³ up to 64, and above 44 beyond."""
    step, square, source = math.floor(scale) + 1, Fraction(scale) ** 2, random.Random(4)
    for _ in range(2000):
        rest, steps = source.randrange(step), min(int(source.expovariate(0.3)), 12)
        size = rest + step * steps
        with np.errstate(over="ignore"):
            value = float(np.int64(rest) / step + (np.int64(size) / scale - scale / step) ** 2 / 2)
        true = Fraction(rest, step) + (size - square / step) ** 2 / (2 * square)
        if value <= 64:
            assert abs(Fraction(value) - true) < Fraction(1, 2**43)
        else:
            assert true > 44


def test_numpy_s_exponential_is_far_within_the_slack() -> None:
    exponents = np.concatenate([np.linspace(0, 44, 20_001), 10.0 ** -np.arange(20)])
    for exponent, value in zip(exponents.tolist(), np.exp(-exponents).tolist(), strict=True):
        with gmpy2.context(precision=200):
            true = gmpy2.exp(-gmpy2.mpfr(exponent))
            assert abs(gmpy2.mpfr(value) / true - 1) < 2.0**-45


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1), Fraction(1, 3), Fraction(10**40, 10**39 + 1)])
def test_bounds_hold_the_true_figure_between_neighbours(exponent: Fraction) -> None:
    with gmpy2.context(precision=2000):
        true = gmpy2.exp(-gmpy2.mpfr(gmpy2.mpq(exponent.numerator, exponent.denominator)))
        for bits in (62, 126, 700):
            least, most = _bounds(exponent, bits)
            assert least <= gmpy2.mul_2exp(true, bits) <= most
            assert most - least <= 1


def test_a_word_at_the_figure_itself_is_decided_by_later_bits() -> None:
    least, _ = _bounds(Fraction(1), 62)
    longer, _ = _bounds(Fraction(1), 62 + 64)

    class Bits(Seeded):
        def __init__(self, following: int) -> None:
            super().__init__(0)
            self.following = following

        def bytes(self, count: int) -> bytes:
            self.drawn += count
            return (self.following % 2**64).to_bytes(count, "big")

    assert _is_below(int(least) - 1, Fraction(1), Seeded(0))
    assert not _is_below(int(least) + 1, Fraction(1), Seeded(0))
    for shift, expected in ((-1, True), (1, False)):
        bits = Bits(int(longer) + shift)
        assert _is_below(int(least), Fraction(1), bits) is expected
        assert bits.drawn == 8


def test_no_exponent_means_always_and_a_large_one_never() -> None:
    exact: Callable[[int], Fraction] = [Fraction(0), Fraction(1000)].__getitem__
    for seed in range(50):
        happened = _happens(np.array([0.0, 1000.0]), exact, Seeded(seed), 2.0**-32)
        assert happened.tolist() == [True, False]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 1024, 1025, 2**40 + 1])
def test_uniform_integers_stay_below_their_limit_and_reach_it(limit: int) -> None:
    drawn = _below(limit, 5000, Seeded(5))
    assert len(drawn) == 5000
    assert drawn.min() >= 0
    assert drawn.max() < limit
    assert limit > 1025 or set(drawn.tolist()) >= {0, limit - 1}


def test_runs_have_the_law_of_repeated_events() -> None:
    runs = np.bincount(_geometric(50_000, Seeded(6), 2.0**-32), minlength=6)[:6]
    expected = 50_000 * (1 - math.exp(-1)) * np.exp(-np.arange(6))
    assert np.all(np.abs(runs - expected) < 6 * np.sqrt(expected))


def test_the_bound_holds_where_a_size_would_pass_64_bits() -> None:
    drawn = draw_gaussians(2.0**59.2, 20_000, 2**63 - 2, Seeded(7))
    assert np.abs(drawn.astype(float)).max() < 8 * 2.0**59.2
    narrow = draw_gaussians(5.0, 2000, 5, Seeded(8))
    assert set(narrow.tolist()) == set(range(-5, 6))


def test_few_draws_come_from_the_reference_and_many_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int, int]] = []

    def note(scale: float, count: int, bound: int, randomness: Randomness) -> np.ndarray:
        asked.append((scale, count, bound))
        return draw_gaussians(scale, count, bound, randomness)

    monkeypatch.setattr(gaussian, "draw_gaussians", note)
    monkeypatch.setattr(gaussian, "MANY_DRAWS", 101)
    assert len(discrete_gaussian(Fraction(25), 100, 65)) == 100
    assert not asked
    drawn = discrete_gaussian(Fraction(25), 101, 65)
    assert asked == [(5.0, 101, 65)]
    assert {type(value) for value in drawn} == {int}
    assert len(discrete_gaussian(Fraction(25), 1, 65, Seeded(1))) == 1
    assert asked[-1] == (5.0, 1, 65)
