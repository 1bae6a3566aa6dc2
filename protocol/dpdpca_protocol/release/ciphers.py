"""The ciphers of the reference run: Paillier, pads, or no encryption at all.

`dpdpca_protocol.reference` gives the same integers with every cipher, because decryption is exact. The roles
use faster code: combs and workers for encryption, `release.masked` for the masked release.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gmpy2 import mpz

from dpdpca_protocol.pads.chunks import (
    Integers,
    add_known,
    add_pads,
    add_up,
    chunk_count,
    chunk_range,
    integers,
    open_chunk,
)
from dpdpca_protocol.pads.streams import KEY_BYTES, Words
from dpdpca_protocol.paillier.cipher import add, add_plain, raw_encrypt, rerandomize, scale
from dpdpca_protocol.paillier.keys import SecretKey, random_unit
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.release.release import answer_count, check_count

Ciphertext = TypeVar("Ciphertext")
Hidden = TypeVar("Hidden")


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


class VectorCipher(Protocol[Hidden]):
    """Hides lists of integers, so that one party can open their sums."""

    def encrypt(self, values: Sequence[int]) -> Hidden:
        """The hidden values of one owner."""

    def add(self, left: Hidden, right: Hidden) -> Hidden:
        """The hidden sums, position by position."""

    def add_plain(self, hidden: Hidden, values: Sequence[int]) -> Hidden:
        """The hidden sums with known values."""

    def decrypt(self, hidden: Hidden) -> list[int]:
        """The sums."""


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


class Unencrypted:
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


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Padded:
    """Values with their pads, in chunks, and the keys of all these pads. Its repr shows nothing."""

    chunks: tuple[Words, ...]
    keys: tuple[bytes, ...]

    def __repr__(self) -> str:
        return "Padded(…)"


@dataclass(frozen=True, slots=True)
class Pads:
    """Adds a pad to each value, modulo 2⁶⁴. This works for flat releases only.

    Args:
        randomness: for the key of each owner.
    """

    randomness: Randomness

    def encrypt(self, values: Sequence[int]) -> Padded:
        key = self.randomness.bytes(KEY_BYTES)
        return Padded(tuple(add_pads(key, index, part) for index, part in enumerate(_cut(values))), (key,))

    def add(self, left: Padded, right: Padded) -> Padded:
        pairs = zip(left.chunks, right.chunks, strict=True)
        return Padded(tuple(map(add_up, pairs)), left.keys + right.keys)

    def add_plain(self, hidden: Padded, values: Sequence[int]) -> Padded:
        pairs = zip(hidden.chunks, _cut(values), strict=True)
        return Padded(tuple(add_known(words, part) for words, part in pairs), hidden.keys)

    def decrypt(self, hidden: Padded) -> list[int]:
        parts = (open_chunk(words, hidden.keys, index) for index, words in enumerate(hidden.chunks))
        return [value for part in parts for value in part.tolist()]


def _cut(values: Sequence[int]) -> list[Integers]:
    """Values in chunks."""
    whole = integers(values)
    ranges = (chunk_range(len(whole), index) for index in range(chunk_count(len(whole))))
    return [whole[at.start : at.stop] for at in ranges]


UNENCRYPTED: Cipher[int] = Unencrypted()
"""For studies in one process, where no party needs protection from another."""
