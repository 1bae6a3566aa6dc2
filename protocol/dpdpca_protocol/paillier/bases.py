"""The base of encryption, derived from n alone, and fixed-base tables (Lim, Lee, CRYPTO '94).

Every party derives the base itself. A base from the data user could contain a trapdoor.
"""

import hashlib
from functools import lru_cache

import gmpy2
import numpy as np
from gmpy2 import mpz

from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.randomness import Randomness

_BASE_TAG = b"dpdpca/base/v1"

_MOST_TEETH = 12
_MOST_SPLITS = 32
_MOST_TABLE_BYTES = 64 * 2**20
OBJECT_BYTES = 48  # the memory of an integer beyond its digits, including its place in a list


def hash_to_residue(tag: bytes, modulus: mpz, width: int, counter: int) -> mpz:
    """SHAKE-256(tag ‖ u32 counter), read big-endian, mod n: uniform to within 2⁻¹²⁸.

    Args:
        tag: domain, n and everything else that the hash binds.
        modulus: n.
        width: bits(n)/8.
        counter: starts at 0.
    """
    stream = hashlib.shake_256(tag + counter.to_bytes(4, "big")).digest(width + 16)
    return mpz(int.from_bytes(stream, "big")) % modulus


@lru_cache(maxsize=16)
def derive_base(public: PublicKey) -> mpz:
    """h = (−y²)ⁿ mod n², where y is the first hash of n that is prime to n.

    If 2 is the only small factor of φ(n), as in keys of `generate_secret_key`, h generates all n-th residues
    whose root has Jacobi symbol 1, except with negligible probability (docs/spec.md, section 5).
    """
    modulus, counter = public.modulus, 0
    while True:
        y = hash_to_residue(_BASE_TAG + public.encode(), modulus, public.modulus_bytes, counter)
        if gmpy2.gcd(y, modulus) == 1:
            return gmpy2.powmod(-y * y % modulus, modulus, public.ciphertext_modulus)
        counter += 1


class Comb:
    """Powers of one base from precomputed products: columns + splits − 2 multiplications for each power.

    The exponent is a matrix of `teeth` rows. Column c, read as a number, is the comb digit c. `splits`
    neighbouring columns share one table of 2^teeth products, so the accumulator is squared splits − 1 times.

    Args:
        base: a unit.
        modulus: the modulus of the powers.
        exponent_bits: exponents may have at least this length.
        teeth: rows, at most 16; memory and building time grow with 2^teeth.
        splits: columns per table; fewer columns mean more tables and fewer squarings.
    """

    __slots__ = ("_columns", "_modulus", "_splits", "_tables", "_teeth")

    def __init__(self, base: mpz, modulus: mpz, exponent_bits: int, teeth: int, splits: int) -> None:
        count = max(1, -(-exponent_bits // (teeth * splits)))
        self._modulus, self._teeth, self._splits = modulus, teeth, splits
        self._columns = count * splits
        starts: list[list[mpz]] = []  # base^(2^(row·columns + table·splits)), by table, then by row
        power = base
        for step in range(teeth * count):
            if step:
                power = gmpy2.powmod(power, 1 << splits, modulus)
            starts.append(power)
        self._tables = [subset_products(starts[table::count], modulus) for table in range(count)]

    def random_power(self, randomness: Randomness) -> mpz:
        """base^α with α uniform below 2^(teeth·columns). The digit of each column is drawn directly."""
        drawn = np.frombuffer(randomness.bytes(2 * self._columns), "<u2")
        digits = (drawn & ((1 << self._teeth) - 1)).tolist()
        modulus, splits = self._modulus, self._splits
        # all look-ups come first, so that threads compete less often for the interpreter's lock
        columns = [
            [table[digit] for table, digit in zip(self._tables, digits[column::splits], strict=True)]
            for column in reversed(range(splits))
        ]
        power = mpz(1)
        for position, factors in enumerate(columns):
            if position:
                power = power * power % modulus
            for factor in factors:
                power = power * factor % modulus
        return power


def subset_products(factors: list[mpz], modulus: mpz) -> list[mpz]:
    """All subset products, indexed by the subset as a bit mask."""
    products = [mpz(1)]
    for factor in factors:
        products += [product * factor % modulus for product in products]
    return products


def best_shape(exponent_bits: int, uses: int, element_bytes: int) -> tuple[int, int]:
    """The teeth and splits that need the fewest multiplications to build a comb and use it `uses` times.

    Args:
        exponent_bits: the length of exponents.
        uses: how many powers will be taken.
        element_bytes: the length of an element. All tables together take at most 64 MiB.
    """

    def work(shape: tuple[int, int]) -> int:
        teeth, splits = shape
        tables = -(-exponent_bits // (teeth * splits))
        return exponent_bits + (tables << teeth) + uses * (tables * splits + splits - 2)

    shapes = [(teeth, splits) for teeth in range(1, _MOST_TEETH + 1) for splits in range(1, _MOST_SPLITS + 1)]
    room = _MOST_TABLE_BYTES // (element_bytes + OBJECT_BYTES)
    return min(
        (shape for shape in shapes if -(-exponent_bits // (shape[0] * shape[1])) << shape[0] <= room),
        key=work,
    )


def comb_for(public: PublicKey, count: int) -> Comb:
    """A comb over the derived base for half-length exponents, shaped for `count` encryptions."""
    exponent_bits = -(-public.bits // 2)
    teeth, splits = best_shape(exponent_bits, count, public.ciphertext_bytes)
    return Comb(derive_base(public), public.ciphertext_modulus, exponent_bits, teeth, splits)
