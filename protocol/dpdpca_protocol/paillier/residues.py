"""Uniform n-th residues mod n².

These residues hide everything that a ciphertext's randomness could reveal. Making one residue takes one full
exponentiation. If many are needed, each is a random product over a secret pool of residues, Π g_i^(x_i), x_i
uniform in [0, 2^8). Over the choice of the pool, C of these are within 2^(−80) of uniform and independent,
even for someone who knows the factors of n (docs/claims.md, C8).
"""

from collections.abc import Sequence
from functools import lru_cache

import gmpy2
import numpy as np
from gmpy2 import mpz

from dpdpca_protocol.paillier.bases import OBJECT_BYTES
from dpdpca_protocol.paillier.keys import PublicKey, random_unit
from dpdpca_protocol.paillier.products import SubsetTables, product_of_steps
from dpdpca_protocol.randomness import Randomness

EXPONENT_BITS = 8
_DISTANCE_BITS = 79
_LEAST_FACTOR_BITS = 20
"""After `check_public_key` a modulus has no smaller prime factor."""
_MOST_TEETH = 12


def uniform_residue(public: PublicKey, randomness: Randomness) -> mpz:
    """ρⁿ mod n² with ρ uniform in Z*_n."""
    unit = random_unit(public.modulus, randomness)
    return gmpy2.powmod(unit, public.modulus, public.ciphertext_modulus)


def pool_size(public: PublicKey, outgoing: int) -> int:
    """The number of residues that a pool needs.

    Args:
        public: the key.
        outgoing: C, the number of all ciphertexts that will be released under products of the pool.
    """
    spare = 2 * (_DISTANCE_BITS + (outgoing - 1).bit_length())
    entropy = -(-(public.bits + spare + 1) // EXPONENT_BITS)
    # no common factor of the exponents could shrink the group, however many primes n has
    coprime = public.bits // _LEAST_FACTOR_BITS + spare + 2
    return max(entropy, coprime)


def is_worth_a_pool(public: PublicKey, outgoing: int) -> bool:
    """Whether a pool with its products needs clearly less work than a fresh power for each ciphertext."""
    return outgoing >= 2 * pool_size(public, outgoing)


class ResidueProducts:
    """Random products over a pool, computed with tables.

    Args:
        public: the key.
        pool: `pool_size` uniform residues, secret, for one release.
        uses: how many products this process will make. This number determines the size of the tables.
        most_bytes: the most memory that the tables may take.
    """

    __slots__ = ("_masks", "_tables")

    def __init__(self, public: PublicKey, pool: Sequence[mpz], uses: int, most_bytes: int) -> None:
        room = most_bytes // (public.ciphertext_bytes + OBJECT_BYTES)

        def work(teeth: int) -> int:
            tables = -(-len(pool) // teeth)
            return (tables << teeth) + uses * tables * EXPONENT_BITS

        fitting = [
            teeth for teeth in range(1, _MOST_TEETH + 1) if -(-len(pool) // teeth) << teeth <= max(room, 1)
        ]
        teeth = min(fitting, key=work, default=1)
        self._tables = SubsetTables(pool, public.ciphertext_modulus, teeth)
        self._masks = (1 << np.array(self._tables.sizes, dtype=np.int64)) - 1

    def random_steps(self, randomness: Randomness) -> list[list[mpz]]:
        """The factors of a fresh random product.

        Step j has the members of the pool whose exponent has bit j.
        """
        count = len(self._masks)
        drawn = np.frombuffer(randomness.bytes(2 * EXPONENT_BITS * count), "<u2")
        return self._tables.steps((drawn.reshape(EXPONENT_BITS, count) & self._masks).tolist())


def residue_products(
    public: PublicKey,
    pool: tuple[mpz, ...],
    uses: int,
    most_bytes: int,
    count: int,
    randomness: Randomness,
) -> list[mpz]:
    """`count` random products over a pool. This function is for workers; each worker keeps its tables between
    calls.

    Args:
        public, pool, uses, most_bytes: see `ResidueProducts`.
        count: how many.
        randomness: the source of the exponents.
    """
    products = _products_here(public, pool, uses, most_bytes)
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        return [
            product_of_steps([products.random_steps(randomness)], public.ciphertext_modulus)
            for _ in range(count)
        ]


def uniform_residues(public: PublicKey, count: int, randomness: Randomness) -> list[mpz]:
    """`count` uniform residues."""
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        return [uniform_residue(public, randomness) for _ in range(count)]


def forget_products() -> None:
    """Drops the pool that `residue_products` keeps in this process."""
    _products_here.cache_clear()


@lru_cache(maxsize=1)
def _products_here(public: PublicKey, pool: tuple[mpz, ...], uses: int, most_bytes: int) -> ResidueProducts:
    return ResidueProducts(public, pool, uses, most_bytes)
