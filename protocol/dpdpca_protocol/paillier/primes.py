"""Random safe primes: a sieve over windows with fresh random starts, then a Fermat test, then full tests.

The candidates of a window are tried in random order, so that a prime after a large gap is not preferred.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from dpdpca_protocol.randomness import Randomness

_LEAST_PRIME_BITS = 32
_ROUNDS = 40
_TWIN_CONSTANT = 0.6601618158


def random_safe_prime(bits: int, randomness: Randomness, progress: Callable[[float], None]) -> mpz:
    """p = 2p′ + 1 with p and p′ prime and √2·2^(bits−1) ≤ p < 2^bits: the product of two such primes has
    2·bits bits.

    Args:
        bits: the length of p, at least 32.
        randomness: the source of starts and orders.
        progress: called with a rising estimate in [0, 1) that only depends on the number of tests.
    """
    if bits < _LEAST_PRIME_BITS:
        raise ValueError("the prime is too short for the sieve")
    limit = 1 << min(22, max(10, bits // 64 + 4))
    per_prime = (bits * math.log(2)) ** 2 / (12 * _TWIN_CONSTANT)
    window = max(1 << 10, int(per_prime))
    expected_tests = per_prime * 2.5 / math.log(limit) ** 2
    lowest, end = gmpy2.isqrt(mpz(1) << (2 * bits - 1)) + 1, mpz(1) << bits
    tests = 0
    while True:
        start = lowest // 2 + randomness.below(int((end - lowest) // 2))
        start += 5 - start % 6
        survivors = _survivors(start, window, limit)
        while survivors:
            pick = randomness.below(len(survivors))
            survivors[pick], survivors[-1] = survivors[-1], survivors[pick]
            half = start + 6 * survivors.pop()
            prime = 2 * half + 1
            tests += 1
            if tests % 16 == 0:
                progress(-math.expm1(-tests / expected_tests))
            if lowest <= prime < end and _is_safe(half, prime):
                return prime


def _is_safe(half: mpz, prime: mpz) -> bool:
    return bool(
        gmpy2.powmod(2, half - 1, half) == 1
        and gmpy2.powmod(2, prime - 1, prime) == 1
        and gmpy2.is_prime(half, _ROUNDS)
        and gmpy2.is_prime(prime, _ROUNDS)
    )


def _survivors(start: mpz, window: int, limit: int) -> list[int]:
    """All k < window for which h = start + 6k and 2h + 1 have no prime factor below `limit`."""
    primes, inverses_of_six = _small_primes(limit)
    remainders = np.fromiter((start % prime for prime in primes.tolist()), np.int64, len(primes))
    alive = np.ones(window, dtype=np.bool_)
    for target in (np.zeros_like(primes), primes // 2):
        first = (target - remainders) % primes * inverses_of_six % primes
        short = int(np.searchsorted(primes, window))
        for offset, prime in zip(first[:short].tolist(), primes[:short].tolist(), strict=True):
            alive[offset::prime] = False
        single = first[short:]
        alive[single[single < window]] = False
    return np.flatnonzero(alive).tolist()


@lru_cache(maxsize=4)
def _small_primes(limit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The primes from 5 to `limit`, and the inverse of 6 modulo each."""
    composite = np.zeros(limit, dtype=np.bool_)
    for divisor in range(2, math.isqrt(limit) + 1):
        if not composite[divisor]:
            composite[divisor * divisor :: divisor] = True
    primes = np.flatnonzero(~composite)[2 + 2 :].astype(np.int64)
    return primes, np.where(primes % 6 == 5, primes + 1, 5 * primes + 1) // 6
