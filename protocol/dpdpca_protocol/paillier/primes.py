"""Random primes p = 2·s₁·s₂ + 1 with primes s₁ and s₂ of half the length (docs/spec.md, section 5).

s₁ is drawn first. Then a sieve over windows of s₂ with fresh random starts removes each s₂ for which s₂ or p
has a small factor. Each s₂ that is left gets a Fermat test, then p does. At the end, s₂ gets full tests, and
p is proved prime from s₁ and s₂. The candidates of a window are tried in random order, so that a prime after
a large gap is not preferred.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Self

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from dpdpca_protocol.randomness import Randomness

_LEAST_BITS = 32
_ROUNDS = 40
_TWIN_CONSTANT = 0.6601618158
_LEAST_WINDOW = 1 << 10
_PRIMES_PER_WINDOW = 3


def random_prime(bits: int, randomness: Randomness, tested: Callable[[], None]) -> mpz:
    """p = 2·s₁·s₂ + 1 with √2·2^(bits−1) ≤ p < 2^bits: the product of two such p has 2·bits bits.

    s₁ is uniform among the primes between 2^(bits/2 − 1) and √2 times this. s₂ is almost uniform among the
    primes that then give a prime p of this size; they, too, are at least 2^(bits/2 − 1).

    Args:
        bits: the length of p, even and at least 32.
        randomness: the source of s₁, of the starts and of the orders.
        tested: called before each Fermat test of an s₂.
    """
    if bits < _LEAST_BITS or bits % 2:
        raise ValueError("a prime must have an even number of bits, and at least 32 for the sieve")
    half, small = bits // 2, _SmallPrimes.below(_sieve_limit(bits))
    lowest, end = gmpy2.isqrt(mpz(1) << (2 * bits - 1)) + 1, mpz(1) << bits
    s1 = _uniform_prime(mpz(1) << (half - 1), gmpy2.isqrt(mpz(1) << (2 * half - 1)), randomness)
    # r divides p if s₂ ≡ −1/(2·s₁) mod r
    roots = small.residues(partial(gmpy2.invert, -2 * s1))
    first, last = (lowest - 2) // (2 * s1) + 1, (end - 2) // (2 * s1)
    window = max(_LEAST_WINDOW, int(_PRIMES_PER_WINDOW * _steps_per_prime(bits)))
    while True:
        start = first + randomness.below(int(last - first + 1))
        start += (-s1 - start) % 6  # in every other class 2 or 3 divides s₂ or p
        survivors = _survivors(start, roots, window, small)
        while survivors:
            pick = randomness.below(len(survivors))
            survivors[pick], survivors[-1] = survivors[-1], survivors[pick]
            s2 = start + 6 * survivors.pop()
            if s2 > last:
                continue
            tested()
            p = 2 * s1 * s2 + 1
            if _are_prime(s1, s2, p):
                return p


def expected_tests(bits: int) -> float:
    """The mean number of calls of `tested` until `random_prime` finds a prime.

    The number that is still to come has this mean at any time, however many came before: each candidate is a
    prime with the same small probability.
    """
    # Π (1 − 2/r) over the primes 5 ≤ r < limit is about 12·C₂·e^(−2γ)/ln² limit
    left = 12 * _TWIN_CONSTANT * math.exp(-2 * np.euler_gamma) / math.log(_sieve_limit(bits)) ** 2
    return _steps_per_prime(bits) * left


def _sieve_limit(bits: int) -> int:
    return 1 << min(20, max(10, bits // 128 + 8))


def _steps_per_prime(bits: int) -> float:
    """How many s₂, in steps of 6, hold one for which s₂ and p are prime (Hardy, Littlewood, 1923)."""
    return bits / 2 * bits * math.log(2) ** 2 / (12 * _TWIN_CONSTANT)


def _uniform_prime(low: mpz, high: mpz, randomness: Randomness) -> mpz:
    """A uniform prime of the odd numbers above the even number `low`, at most `high`."""
    count = int((high - low + 1) // 2)
    while True:
        candidate = low + 2 * randomness.below(count) + 1
        if gmpy2.is_prime(candidate, _ROUNDS):
            return candidate


def _are_prime(s1: mpz, s2: mpz, p: mpz) -> bool:
    """Whether s₂ and p = 2·s₁·s₂ + 1 are prime, for a prime s₁.

    Pocklington: with these powers, s₁ and s₂ divide r − 1 for every prime factor r of p, so r > √p.
    """
    return bool(
        gmpy2.powmod(2, s2 - 1, s2) == 1
        and gmpy2.powmod(2, p - 1, p) == 1
        and gmpy2.is_prime(s2, _ROUNDS)
        and all(gmpy2.gcd(gmpy2.powmod(2, 2 * factor, p) - 1, p) == 1 for factor in (s1, s2))
    )


def _survivors(start: mpz, roots: NDArray[np.int64], window: int, small: "_SmallPrimes") -> list[int]:
    """All k < window for which no small prime r divides s₂ = start + 6k or has s₂ ≡ root mod r."""
    primes, remainders = small.primes, small.residues(lambda product: start % product)
    alive = np.ones(window, dtype=np.bool_)
    for target in (np.zeros_like(primes), roots):
        first = (target - remainders) % primes * small.inverses_of_six % primes
        short = int(np.searchsorted(primes, window))
        for offset, prime in zip(first[:short].tolist(), primes[:short].tolist(), strict=True):
            alive[offset::prime] = False
        single = first[short:]
        alive[single[single < window]] = False
    return np.flatnonzero(alive).tolist()


@dataclass(frozen=True, slots=True, eq=False)
class _SmallPrimes:
    """The primes from 5 to a limit of at most 2²¹, the inverse of 6 modulo each, and the products of three
    neighbours: an operation modulo a product costs as much as modulo one prime."""

    primes: NDArray[np.int64]
    inverses_of_six: NDArray[np.int64]
    products: tuple[int, ...]

    @classmethod
    @lru_cache(maxsize=4)
    def below(cls, limit: int) -> Self:
        composite = np.zeros(limit, dtype=np.bool_)
        for divisor in range(2, math.isqrt(limit) + 1):
            if not composite[divisor]:
                composite[divisor * divisor :: divisor] = True
        primes = np.flatnonzero(~composite)[4:].astype(np.int64)  # without 0, 1, 2 and 3
        inverses = np.where(primes % 6 == 5, primes + 1, 5 * primes + 1) // 6
        listed = primes.tolist()
        return cls(primes, inverses, tuple(math.prod(listed[i : i + 3]) for i in range(0, len(listed), 3)))

    def residues(self, modulo: Callable[[int], mpz]) -> NDArray[np.int64]:
        """The number that `modulo` gives modulo each product, modulo each prime."""
        found = np.fromiter(map(modulo, self.products), np.int64, len(self.products))
        return np.repeat(found, 3)[: len(self.primes)] % self.primes
