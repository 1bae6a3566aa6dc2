"""Encryption, computing on ciphertexts, and checking ciphertexts from outside.

A ciphertext is an integer mod n². E[x] encrypts x mod n, which is decrypted into (−n/2, n/2]. Functions that
compute need ciphertexts that passed `check_ciphertexts`.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import lru_cache, partial
from threading import Lock
from typing import Any

import gmpy2
from gmpy2 import mpz

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.paillier.bases import Comb, comb_for
from dpdpca_protocol.paillier.keys import PublicKey, SecretKey, random_unit
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness

_SLICE = 16
"""How many values a worker takes at a time: about 20 ms of work."""


def encode_signed(public: PublicKey, value: int) -> mpz:
    """The residue of a signed integer mod n. Raises CryptographicError if the integer is outside (−n/2,
    n/2]."""
    if not -public.modulus < 2 * value <= public.modulus:
        raise CryptographicError("plaintext-out-of-range", "a plaintext does not fit into the modulus")
    return value % public.modulus


def raw_encrypt(public: PublicKey, plain: int, randomizer: int) -> mpz:
    """(1 + m n)·rⁿ mod n²: textbook encryption with a given unit r."""
    square = public.ciphertext_modulus
    residue = gmpy2.powmod(randomizer, public.modulus, square)
    return (1 + encode_signed(public, plain) * public.modulus) * residue % square


def add(public: PublicKey, left: mpz, right: mpz) -> mpz:
    """E[x + y] from E[x] and E[y]."""
    return left * right % public.ciphertext_modulus


def add_plain(public: PublicKey, ciphertext: mpz, plain: int) -> mpz:
    """E[x + m] from E[x] and m, with the same randomness."""
    return ciphertext * (1 + plain % public.modulus * public.modulus) % public.ciphertext_modulus


def scale(public: PublicKey, ciphertext: mpz, factor: int) -> mpz:
    """E[k·x] from E[x] and k. For a negative k the inverse is used, which keeps the exponent short."""
    return gmpy2.powmod(ciphertext, factor, public.ciphertext_modulus)


def rerandomize(public: PublicKey, ciphertext: mpz, randomness: Randomness) -> mpz:
    """The same plaintext under uniform randomness: a factor ρⁿ with ρ uniform in Z*_n.

    Powers of the base h are not enough: anyone who knows φ(n) can distinguish them from other residues.
    """
    unit = random_unit(public.modulus, randomness)
    residue = gmpy2.powmod(unit, public.modulus, public.ciphertext_modulus)
    return ciphertext * residue % public.ciphertext_modulus


def pack_ciphertexts(public: PublicKey, ciphertexts: Sequence[mpz], slot_bits: int) -> mpz:
    """E[Σ x_k·2^(w k)] from E[x_0], E[x_1], …, by Horner's rule, starting with the last one.

    Args:
        public: the key.
        ciphertexts: at least one, at most as many as a plaintext has slots.
        slot_bits: w.
    """
    square, shift = public.ciphertext_modulus, mpz(1) << slot_bits
    packed = ciphertexts[-1]
    for ciphertext in reversed(ciphertexts[:-1]):
        packed = gmpy2.powmod(packed, shift, square) * ciphertext % square
    return packed


def check_ciphertexts(public: PublicKey, ciphertexts: Sequence[mpz]) -> None:
    """Refuses a chunk unless its ciphertexts are distinct units mod n² other than 1.

    Args:
        public: the key.
        ciphertexts: untrusted integers.

    Raises:
        CryptographicError: `ciphertext-out-of-range` unless 1 < c < n² for all; `ciphertext-repeated`;
            `ciphertext-not-a-unit` if a ciphertext shares a factor with n (one gcd over the product of all).
    """
    modulus, square = public.modulus, public.ciphertext_modulus
    advice = "encrypt the share again with fresh randomness"
    for position, ciphertext in enumerate(ciphertexts):
        if not 1 < ciphertext < square:
            raise CryptographicError(
                "ciphertext-out-of-range", f"ciphertext {position} is not between 1 and n²", advice
            )
    if len(set(ciphertexts)) != len(ciphertexts):
        raise CryptographicError("ciphertext-repeated", "two ciphertexts of a chunk are equal", advice)
    product = mpz(1)
    for ciphertext in ciphertexts:
        product = product * (ciphertext % modulus) % modulus
    if gmpy2.gcd(product, modulus) != 1:
        raise CryptographicError(
            "ciphertext-not-a-unit", "a ciphertext shares a factor with the modulus", advice
        )


class Encryptor:
    """Encrypts under one key: E[m] = (1 + m n)·h^α mod n².

    A comb, built when first needed, gives h^α. Several threads may use an encryptor at a time, and so may
    workers in other processes, each with its own comb.

    Args:
        public: a checked key.
        expected_count: about how many ciphertexts each process will make. This number only determines the
            size of the comb.
        randomness: the source of α, which is fresh for every ciphertext.
    """

    __slots__ = ("_comb", "_expected_count", "_lock", "_randomness", "public")

    def __init__(
        self, public: PublicKey, expected_count: int, randomness: Randomness = OS_RANDOMNESS
    ) -> None:
        self.public = public
        self._expected_count = expected_count
        self._randomness = randomness
        self._comb: Comb | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[Callable[..., "Encryptor"], tuple[Any, ...]]:
        return _encryptor_here, (self.public, self._expected_count, self._randomness)

    @property
    def comb(self) -> Comb:
        """The powers of the base."""
        if self._comb is None:
            with self._lock:
                if self._comb is None:
                    self._comb = comb_for(self.public, self._expected_count)
        return self._comb

    def encrypt(self, plain: int) -> mpz:
        """E[m]. Raises CryptographicError if m is outside (−n/2, n/2]."""
        modulus, square = self.public.modulus, self.public.ciphertext_modulus
        blinding = self.comb.random_power(self._randomness)
        return (1 + encode_signed(self.public, plain) * modulus) * blinding % square

    def encrypt_many(self, plains: Sequence[int], executor: Executor | None = None) -> list[mpz]:
        """E[m] for each m, in order.

        Args:
            plains: m.
            executor: processes. Threads do not help, because each product takes too little time.
        """
        return [ciphertext for part in self.encrypt_slices(plains, executor) for ciphertext in part]

    def encrypt_slices(self, plains: Sequence[int], executor: Executor | None = None) -> Iterator[list[mpz]]:
        """Like `encrypt_many`, in parts, while they are computed.

        An executor starts before the first part is requested.
        """
        return _in_slices(self.encrypt, plains, executor)


@lru_cache(maxsize=1)
def _encryptor_here(public: PublicKey, expected_count: int, randomness: Randomness) -> Encryptor:
    """The encryptor that a worker keeps from slice to slice."""
    return Encryptor(public, expected_count, randomness)


def decrypt_many(
    secret: SecretKey, ciphertexts: Sequence[mpz], executor: Executor | None = None
) -> list[mpz]:
    """The plaintext of each ciphertext, in order.

    Args:
        secret: does not leave this process.
        ciphertexts: encrypted under its key.
        executor: threads. The powers are long, and other threads can run meanwhile.
    """
    return [plain for part in _in_slices(secret.decrypt, ciphertexts, executor) for plain in part]


def _in_slices(
    convert: Callable[[mpz], mpz], values: Sequence[mpz], executor: Executor | None
) -> Iterator[list[mpz]]:
    slices = [values[start : start + _SLICE] for start in range(0, len(values), _SLICE)]
    return (map if executor is None else executor.map)(partial(_convert_slice, convert), slices)


def _convert_slice(convert: Callable[[mpz], mpz], values: Sequence[mpz]) -> list[mpz]:
    # without this, every operation would hold the interpreter lock until its end
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        return [convert(value) for value in values]
