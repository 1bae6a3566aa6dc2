"""Paillier keys: primes of one size, generator 1 + n, and all operations on the factors.

All work with p and q stays in this module. Powers with secret exponents use GMP's constant-time power on
blinded values. Python integers are not constant time, so the holder of a secret key should use a machine of
its own.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import gmpy2
from gmpy2 import mpz

from dpdpca_protocol.errors import MessageError, UsageError
from dpdpca_protocol.paillier.primes import expected_tests, random_prime
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness

LEAST_BITS = 2048
"""The shortest modulus that the product makes or accepts."""
MOST_BITS = 8192
"""The longest modulus that the product computes with."""
_BLINDER_USES = 256
_TESTS_BETWEEN_REPORTS = 64


@dataclass(frozen=True, slots=True)
class KeyRules:
    """The lengths of moduli that a party makes or accepts. Each role chooses its rules; only tests lower the
    minimum."""

    least_bits: int = LEAST_BITS

    def __str__(self) -> str:
        return f"a multiple of 8 from {self.least_bits} to {MOST_BITS}"

    def allow(self, bits: int) -> bool:
        return bits % 8 == 0 and self.least_bits <= bits <= MOST_BITS


PRODUCT_KEYS = KeyRules()


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A Paillier modulus n. A modulus from outside must pass `check_public_key` first.

    Args:
        modulus: n.
    """

    modulus: mpz
    ciphertext_modulus: mpz = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        modulus = mpz(self.modulus)
        object.__setattr__(self, "modulus", modulus)
        object.__setattr__(self, "ciphertext_modulus", modulus * modulus)

    @property
    def bits(self) -> int:
        return int(self.modulus.bit_length())

    @property
    def modulus_bytes(self) -> int:
        """The length of n, and of a value mod n, in messages."""
        return (self.bits + 7) // 8

    @property
    def ciphertext_bytes(self) -> int:
        """The length of a ciphertext in messages."""
        return 2 * self.modulus_bytes

    def encode(self) -> bytes:
        """n in big-endian form. Hashes of n use this form."""
        return int(self.modulus).to_bytes(self.modulus_bytes, "big")


@dataclass(frozen=True, slots=True, repr=False)
class SecretKey:
    """The factors of n. Its repr shows nothing.

    Args:
        p, q: distinct odd primes with gcd(pq, (p−1)(q−1)) = 1; `generate_secret_key` makes stronger ones.
    """

    p: mpz
    q: mpz
    public: PublicKey = field(init=False, compare=False)
    _blinders: "_Blinders" = field(init=False, compare=False)
    _p_squared: mpz = field(init=False, compare=False)
    _q_squared: mpz = field(init=False, compare=False)
    _p_inverse: mpz = field(init=False, compare=False)
    _p_factor: mpz = field(init=False, compare=False)
    _q_factor: mpz = field(init=False, compare=False)

    def __post_init__(self) -> None:
        p, q = mpz(self.p), mpz(self.q)
        for name, value in {
            "p": p,
            "q": q,
            "public": PublicKey(p * q),
            "_blinders": _Blinders(p, q),
            "_p_squared": p * p,
            "_q_squared": q * q,
            "_p_inverse": gmpy2.invert(p, q),
            # (1+n)^(p−1) = 1 − n mod p², so we divide the logarithm by −q mod p
            "_p_factor": gmpy2.invert(-q, p),
            "_q_factor": gmpy2.invert(-p, q),
        }.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return "SecretKey(…)"

    def decrypt(self, ciphertext: mpz, randomness: Randomness = OS_RANDOMNESS) -> mpz:
        """The plaintext of a unit mod n², as an integer in (−n/2, n/2].

        The ciphertext is multiplied by an n-th residue and by a fresh (1+n)^r before a secret exponent is
        used. The plaintext does not depend on `randomness`.
        """
        modulus, square = self.public.modulus, self.public.ciphertext_modulus
        shift = randomness.below(int(modulus))
        blinded = ciphertext * self._blinders.draw(randomness) % square
        blinded = blinded * (1 + shift * modulus) % square
        p, q = self.p, self.q
        mod_p = (gmpy2.powmod_sec(blinded % self._p_squared, p - 1, self._p_squared) - 1) // p
        mod_q = (gmpy2.powmod_sec(blinded % self._q_squared, q - 1, self._q_squared) - 1) // q
        plain = self._combine(mod_p * self._p_factor % p, mod_q * self._q_factor % q)
        plain = (plain - shift) % modulus
        return plain - modulus if 2 * plain > modulus else plain

    def residue_root(self, value: mpz, randomness: Randomness = OS_RANDOMNESS) -> mpz:
        """ρ in Z*_n with ρⁿ ≡ value mod n, unique because gcd(n, φ(n)) = 1.

        For a ciphertext E[m], ρ is the randomizer: ρⁿ ≡ E[m]·(1+n)^(−m) mod n².

        Args:
            value: a unit mod n or mod n².
        """
        modulus, p, q = self.public.modulus, self.p, self.q
        blinder = random_unit(modulus, randomness)
        blinded = value * gmpy2.powmod(blinder, modulus, modulus) % modulus
        root = self._combine(
            gmpy2.powmod_sec(blinded % p, gmpy2.invert(q % (p - 1), p - 1), p),
            gmpy2.powmod_sec(blinded % q, gmpy2.invert(p % (q - 1), q - 1), q),
        )
        return root * gmpy2.invert(blinder, modulus) % modulus

    def _combine(self, mod_p: mpz, mod_q: mpz) -> mpz:
        return mod_p + self.p * ((mod_q - mod_p) * self._p_inverse % self.q)

    def to_bytes(self) -> bytes:
        """p and q, big-endian and of equal length. The caller must keep these bytes secret."""
        width = (max(self.p.bit_length(), self.q.bit_length()) + 7) // 8
        return int(self.p).to_bytes(width, "big") + int(self.q).to_bytes(width, "big")

    @classmethod
    def from_bytes(cls, encoded: bytes) -> Self:
        """Raises MessageError unless these are two distinct primes in the form of `to_bytes`."""
        middle = len(encoded) // 2
        p = mpz(int.from_bytes(encoded[:middle], "big"))
        q = mpz(int.from_bytes(encoded[middle:], "big"))
        if p == q or min(p, q) < 3 or not (gmpy2.is_prime(p) and gmpy2.is_prime(q)):
            raise MessageError(
                "malformed", "the stored secret key is damaged", "restore the key from a backup"
            )
        return cls(p, q)


class _Blinders:
    """Secret n-th residues mod n²: taken from the source, then squared (Kocher 1996), then renewed."""

    __slots__ = ("_left", "_lock", "_p", "_q", "_residue")

    def __init__(self, p: mpz, q: mpz) -> None:
        self._p, self._q, self._left = p, q, 0
        self._residue = mpz(1)
        self._lock = threading.Lock()

    def draw(self, randomness: Randomness) -> mpz:
        p, q = self._p, self._q
        with self._lock:
            if self._left:
                self._residue = self._residue * self._residue % (p * q) ** 2
            else:
                unit = random_unit(p * q, randomness)
                # p-th powers mod p² are the elements whose order divides p − 1, like n-th powers
                mod_p = gmpy2.powmod_sec(unit, p, p * p)
                mod_q = gmpy2.powmod_sec(unit, q, q * q)
                lift = (mod_q - mod_p) * gmpy2.invert(p * p, q * q) % (q * q)
                self._residue, self._left = mod_p + p * p * lift, _BLINDER_USES
            self._left -= 1
            return self._residue


def random_unit(modulus: mpz, randomness: Randomness) -> mpz:
    """A uniform element of Z*_n."""
    while True:
        candidate = mpz(randomness.below(int(modulus)))
        if gmpy2.gcd(candidate, modulus) == 1:
            return candidate


@dataclass(frozen=True, slots=True)
class KeySearch:
    """The state of the search for the primes of a key.

    The search has no memory: `expected` stays the same, however many candidates were tested, until a prime is
    found.

    Args:
        primes: how many of the two primes are found.
        tested: the candidates tested so far, for both primes.
        expected: the mean number of candidates that are still to be tested, for both primes.
    """

    primes: int
    tested: int
    expected: int


def generate_secret_key(
    bits: int,
    randomness: Randomness,
    progress: Callable[[KeySearch], None] | None = None,
    rules: KeyRules = PRODUCT_KEYS,
) -> SecretKey:
    """A fresh key of exactly `bits` bits with primes p ≡ q ≡ 3 mod 4 and gcd(p−1, q−1) = 2.

    (p−1)(q−1)/4 is a product of four primes of bits/4 bits. Making a key takes about a second, so do it
    in the background. Other threads of the process can run meanwhile.

    Args:
        bits: the length of n, which `rules` must allow.
        randomness: the source of the primes.
        progress: called at the start, now and then, and at the end. It depends on the number of tests only.
        rules: which lengths are allowed.

    Raises:
        UsageError: the length is not allowed.
    """
    if not rules.allow(bits):
        raise UsageError(
            "key-length",
            f"a key must not have {bits} bits",
            f"choose {rules}",
        )
    search = _Search(round(expected_tests(bits // 2)), progress or (lambda _search: None))
    with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
        p = q = random_prime(bits // 2, randomness, search.count)
        search.found(1)
        while gmpy2.gcd(p - 1, q - 1) != 2 or abs(p - q).bit_length() <= bits // 2 - 100:
            q = random_prime(bits // 2, randomness, search.count)
    search.found(2)
    return SecretKey(p, q)


class _Search:
    """Counts tests, and tells how the search goes."""

    def __init__(self, expected: int, tell: Callable[[KeySearch], None]) -> None:
        self._expected, self._tell = expected, tell
        self._primes = self._tested = 0

    def count(self) -> None:
        if self._tested % _TESTS_BETWEEN_REPORTS == 0:
            self._report()
        self._tested += 1

    def found(self, primes: int) -> None:
        self._primes = primes
        self._report()

    def _report(self) -> None:
        self._tell(KeySearch(self._primes, self._tested, (2 - self._primes) * self._expected))
