"""The ciphers of the reference run: Paillier, or no encryption at all.

`dpdpca_protocol.reference` gives the same integers with both ciphers, because decryption is exact. The roles
use faster code: combs and workers for encryption, `release.masked` for the masked release.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from gmpy2 import mpz

from dpdpca_protocol.paillier.cipher import add, add_plain, raw_encrypt, rerandomize, scale
from dpdpca_protocol.paillier.keys import SecretKey, random_unit
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.release.release import answer_count, check_count

Ciphertext = TypeVar("Ciphertext")


class Cipher(Protocol[Ciphertext]):
    """An additively homomorphic cipher with one key.

    The key's holder can prove the content of a ciphertext.
    """

    def encrypt(self, plain: int) -> Ciphertext:
        """E[m], with fresh randomness."""

    def add(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """E[x + y]."""

    def add_plain(self, ciphertext: Ciphertext, plain: int) -> Ciphertext:
        """E[x + m], with the randomness of E[x]."""

    def scale(self, ciphertext: Ciphertext, factor: int) -> Ciphertext:
        """E[k·x]."""

    def rerandomize(self, ciphertext: Ciphertext) -> Ciphertext:
        """The same plaintext under fresh uniform randomness."""

    def prove(self, ciphertext: Ciphertext) -> int:
        """The plaintext, as the key's holder states and proves it. The proof is checked."""

    def decrypt(self, ciphertext: Ciphertext) -> int:
        """The plaintext."""


@dataclass(frozen=True, slots=True)
class Paillier:
    """The textbook formulas, with one power each.

    Args:
        secret: a study's key.
        randomness: for encryption and re-randomisation.
    """

    secret: SecretKey
    randomness: Randomness

    def encrypt(self, plain: int) -> mpz:
        return raw_encrypt(
            self.secret.public, plain, random_unit(self.secret.public.modulus, self.randomness)
        )

    def add(self, left: mpz, right: mpz) -> mpz:
        return add(self.secret.public, left, right)

    def add_plain(self, ciphertext: mpz, plain: int) -> mpz:
        return add_plain(self.secret.public, ciphertext, plain)

    def scale(self, ciphertext: mpz, factor: int) -> mpz:
        return scale(self.secret.public, ciphertext, factor)

    def rerandomize(self, ciphertext: mpz) -> mpz:
        return rerandomize(self.secret.public, ciphertext, self.randomness)

    def prove(self, ciphertext: mpz) -> int:
        plain, root = answer_count(self.secret, ciphertext)
        check_count(self.secret.public, ciphertext, plain, root)
        return plain

    def decrypt(self, ciphertext: mpz) -> int:
        return int(self.secret.decrypt(ciphertext))


class _Unencrypted:
    """No encryption: ciphertexts are the integers themselves."""

    __slots__ = ()

    def encrypt(self, plain: int) -> int:
        return plain

    def add(self, left: int, right: int) -> int:
        return left + right

    def add_plain(self, ciphertext: int, plain: int) -> int:
        return ciphertext + plain

    def scale(self, ciphertext: int, factor: int) -> int:
        return ciphertext * factor

    def rerandomize(self, ciphertext: int) -> int:
        return ciphertext

    def prove(self, ciphertext: int) -> int:
        return ciphertext

    def decrypt(self, ciphertext: int) -> int:
        return ciphertext


UNENCRYPTED: Cipher[int] = _Unencrypted()
"""For studies in one process, where no party needs protection from another."""
