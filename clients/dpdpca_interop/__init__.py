"""Converts keys and ciphertexts to and from `phe`, and lets an owner encrypt with `phe` alone.

This is the only package that imports `phe` (GPLv3). This package is an extra, and the core never needs it.
`phe` and the core both use the generator 1 + n and the same encoding of signed plaintexts, so a conversion
changes only types and leaves all numbers as they are.
"""

from collections.abc import Sequence
from concurrent.futures import Executor

from gmpy2 import mpz
from phe import EncryptedNumber, PaillierPrivateKey, PaillierPublicKey

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.paillier.keys import PublicKey, SecretKey

__all__ = [
    "PheEncryptor",
    "from_phe_ciphertext",
    "from_phe_private",
    "from_phe_public",
    "to_phe_ciphertext",
    "to_phe_private",
    "to_phe_public",
]


def to_phe_public(public: PublicKey) -> PaillierPublicKey:
    """Our public key as a phe key."""
    return PaillierPublicKey(int(public.modulus))


def from_phe_public(public: PaillierPublicKey) -> PublicKey:
    """A phe public key as ours. Whether its modulus is suitable is not checked."""
    return PublicKey(mpz(public.n))


def to_phe_private(secret: SecretKey) -> PaillierPrivateKey:
    """Our secret key as a phe key."""
    return PaillierPrivateKey(to_phe_public(secret.public), int(secret.p), int(secret.q))


def from_phe_private(secret: PaillierPrivateKey) -> SecretKey:
    """A phe secret key as ours. The key can decrypt, but phe's primes are not suitable for the key of a
    study."""
    return SecretKey(mpz(secret.p), mpz(secret.q))


def to_phe_ciphertext(public: PublicKey, ciphertext: mpz) -> EncryptedNumber:
    """Our ciphertext as phe's encryption of an integer."""
    return EncryptedNumber(to_phe_public(public), int(ciphertext), exponent=0)


def from_phe_ciphertext(number: EncryptedNumber) -> mpz:
    """The ciphertext of phe's encrypted integer, re-randomised if phe has not done so.

    Raises:
        UsageError: the number is an encrypted float, which has a scale; our integers have none.
    """
    if number.exponent != 0:
        raise UsageError(
            "not-an-integer",
            f"the encrypted number has the exponent {number.exponent} instead of 0",
            "encrypt integers",
        )
    return mpz(number.ciphertext(be_secure=True))


class PheEncryptor:
    """Replaces `Encryptor`; uses only phe's arithmetic and randomness."""

    __slots__ = ("_key", "public")

    def __init__(self, public: PublicKey) -> None:
        self.public = public
        self._key = to_phe_public(public)

    def encrypt(self, plain: int) -> mpz:
        """E[m] as phe computes it: (1 + m n)·rⁿ mod n²."""
        return mpz(self._key.raw_encrypt(int(plain) % self._key.n))

    def encrypt_many(self, plains: Sequence[int], executor: Executor | None = None) -> list[mpz]:
        """E[m] for each m, in order."""
        return list((map if executor is None else executor.map)(self.encrypt, plains))
