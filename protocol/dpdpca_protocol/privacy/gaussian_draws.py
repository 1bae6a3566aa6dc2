"""A sampler for very many draws of the discrete Gaussian: Canonne, Kamath, Steinke (2020) with arrays.

Floating point decides only where its error cannot change the decision. All other decisions use bounds on the
true value, which are narrowed until they decide. So the draws have exactly the distribution that rational
arithmetic would give.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness

Integers = NDArray[np.int64]

SLACK = 2.0**-32
"""The largest relative error of exp(−γ) in floats that we assume; see `_happens`."""

_WORD_BITS = 62
_MORE_BITS = 64
_CANDIDATES = 2**18


def draw_gaussians(
    scale: float, count: int, bound: int, randomness: Randomness = OS_RANDOMNESS, slack: float = SLACK
) -> Integers:
    """Independent draws with P(x) ∝ exp(−x²/(2s²)) on the integers |x| ≤ bound.

    A candidate has the absolute value Y = U + tV with t = ⌊s⌋ + 1, U uniform in [0, t) and P(V ≥ k) = e^(−k).
    Both signs are equally likely; a candidate 0 is accepted with only one of them. The candidate is accepted
    with probability exp(−γ), γ = U/t + (Y − s²/t)²/(2s²) ≥ 0. Since γ = Y²/(2s²) − V + s²/(2t²), an accepted
    value has the weight exp(−Y²/(2s²)) up to a constant.

    Args:
        scale: s > 0, below 2⁶³/13.
        count: how many.
        bound: candidates beyond it are dropped; at least s, below 2⁶³ − 1.
        randomness: the source of the bits.
        slack: only tests change it, up to 1. A larger slack leaves fewer decisions to floats.

    Returns:
        (count,) int64.

    Guarantee: the law is exact. The argument is in docs/claims.md, C12.
    Source: Canonne, Kamath, Steinke 2020, algorithms 1 to 3, with both rejections combined into one.
    Tested: tests/unit/test_gaussian_draws.py, tests/statistical/test_discrete_gaussian.py.
    """
    step = math.floor(scale) + 1
    exact_scale = Fraction(scale)
    draws, found = np.empty(count, dtype=np.int64), 0
    while found < count:
        tries = min(_CANDIDATES, 3 * (count - found) + 16)
        rest = _below(step, tries, randomness)
        steps = _geometric(tries, randomness, slack)
        negative = np.frombuffer(randomness.bytes(tries), np.uint8) & 1 == 1
        # so nothing exceeds 64 bits; values dropped here would be dropped at the end anyway
        fits = steps <= (bound - rest) // step
        rest, steps, negative = rest[fits], steps[fits], negative[fits]
        sizes = rest + step * steps
        once = ~(negative & (sizes == 0))
        rest, sizes, negative = rest[once], sizes[once], negative[once]
        with np.errstate(over="ignore"):  # for a scale near 0: exp(−∞) is 0, as it should be
            exponents = rest / step + (sizes / scale - scale / step) ** 2 / 2

        def exponent(index: int, rest: Integers = rest, sizes: Integers = sizes) -> Fraction:
            away = int(sizes[index]) - exact_scale**2 / step
            return Fraction(int(rest[index]), step) + away**2 / (2 * exact_scale**2)

        kept = _happens(exponents, exponent, randomness, slack)
        some = np.where(negative, -sizes, sizes)[kept][: count - found]
        draws[found : found + len(some)] = some
        found += len(some)
    return draws


def _below(limit: int, count: int, randomness: Randomness) -> Integers:
    """Uniform integers in [0, limit), limit < 2⁶³."""
    mask = np.uint64((1 << (limit - 1).bit_length()) - 1)
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        words = np.frombuffer(randomness.bytes(16 * (count - len(found)) + 64), "<u8") & mask
        found = np.concatenate([found, words[words < limit].astype(np.int64)])
    return found[:count]


def _geometric(count: int, randomness: Randomness, slack: float) -> Integers:
    """The number of successes in a row if each has probability 1/e."""
    times = np.zeros(count, dtype=np.int64)
    going_on = np.arange(count)
    while len(going_on):
        again = _happens(np.ones(len(going_on)), lambda index: Fraction(1), randomness, slack)
        going_on = going_on[again]
        times[going_on] += 1
    return times


def _happens(
    exponents: NDArray[np.float64], exact: Callable[[int], Fraction], randomness: Randomness, slack: float
) -> NDArray[np.bool_]:
    """For each γ, whether u < exp(−γ). u is uniform in [0, 1); its first 62 bits are known.

    Args:
        exponents: γ in floats: within 2⁻⁴⁰ if γ ≤ 64, otherwise at least above 44.
        exact: returns γ at a position.
        randomness: the source of u.
        slack: floats decide if the decision is the same for all values within this relative distance of
            exp(−γ).
    """
    words = (np.frombuffer(randomness.bytes(8 * len(exponents)), "<u8") >> np.uint64(2)).astype(np.int64)
    chances = np.exp(-exponents)
    surely = np.ldexp(chances * (1 - slack), _WORD_BITS).astype(np.int64)
    never = np.ldexp(chances * (1 + slack), _WORD_BITS).astype(np.int64) + 1
    happens: NDArray[np.bool_] = words < surely
    for index in np.flatnonzero(~happens & (words < never)).tolist():
        happens[index] = _is_below(int(words[index]), exact(index), randomness)
    return happens


def _is_below(word: int, exponent: Fraction, randomness: Randomness) -> bool:
    """Whether u < exp(−γ), with u uniform among the numbers that begin with the 62 bits of `word`."""
    bits = _WORD_BITS
    while True:
        least, most = _bounds(exponent, bits)
        if word < least:
            return True
        if word >= most:
            return False
        word = word << _MORE_BITS | int.from_bytes(randomness.bytes(_MORE_BITS // 8), "big")
        bits += _MORE_BITS


def _bounds(exponent: Fraction, bits: int) -> tuple[mpz, mpz]:
    """Integers with least ≤ 2^bits·exp(−γ) ≤ most. Usually they differ by 1.

    MPFR rounds in the chosen direction.
    """
    exact = gmpy2.mpq(exponent.numerator, exponent.denominator)
    with gmpy2.context(precision=bits + 64, round=gmpy2.RoundUp):
        above = gmpy2.mpfr(exact)
    with gmpy2.context(precision=bits + 64, round=gmpy2.RoundDown):
        below = gmpy2.mpfr(exact)
        least = gmpy2.floor(gmpy2.mul_2exp(gmpy2.exp(-above), bits))
    with gmpy2.context(precision=bits + 64, round=gmpy2.RoundUp):
        most = gmpy2.ceil(gmpy2.mul_2exp(gmpy2.exp(-below), bits))
    return mpz(least), mpz(most)
