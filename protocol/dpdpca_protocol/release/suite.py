"""The narrow door to the cipher on the joint path: bounded integers in, ciphertexts added, integers out.

Nothing outside this module (and the manifest's own fields) needs to know there what a modulus or a slot is,
so that another additively homomorphic suite can stand beside this one.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import ClassVar, Protocol

from gmpy2 import mpz

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.packing import FlatLayout, slots_for
from dpdpca_protocol.paillier.cipher import Encryptor, add_plain, decrypt_many
from dpdpca_protocol.paillier.keys import PublicKey, SecretKey
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.release.aggregate import multiply_shares


class EncryptsIntegers(Protocol):
    """What the suite asks of an encryptor; an owner may bring its own."""

    def encrypt_many(self, plains: Sequence[int], executor: Executor | None = None) -> list[mpz]:
        """One ciphertext for each plaintext, in order, under fresh randomness."""


@dataclass(frozen=True, slots=True)
class PaillierSuite:
    """Vectors of bounded integers under one Paillier key, several to a ciphertext.

    Args:
        public: a checked key.
        slot_bits: w; sums of a whole cohort, with their noise, stay in [−2^(w−1), 2^(w−1)).
    """

    name: ClassVar[str] = "paillier"

    public: PublicKey
    slot_bits: int

    def layout(self, value_count: int) -> FlatLayout:
        return FlatLayout(value_count, self.slot_bits, slots_for(self.public.bits, self.slot_bits))

    def ciphertext_count(self, value_count: int) -> int:
        """Ciphertexts that a vector of `value_count` values takes."""
        return self.layout(value_count).plaintext_count

    def encryptor(self, value_count: int, randomness: Randomness = OS_RANDOMNESS) -> Encryptor:
        """An encryptor prepared for one vector of `value_count` values."""
        return Encryptor(self.public, self.ciphertext_count(value_count), randomness)

    def encrypt_vector(
        self, values: Sequence[int], encryptor: EncryptsIntegers, executor: Executor | None = None
    ) -> list[mpz]:
        """The ciphertexts of a vector. Raises CryptographicError `slot-overflow` if a value does not fit."""
        return encryptor.encrypt_many(self.layout(len(values)).pack_all(values), executor)

    def plaintexts(self, values: Iterable[int], value_count: int) -> Iterator[int]:
        """What `encrypt_vector` encrypts, one at a time, for an owner that encrypts as it sends.

        Raises:
            CryptographicError: `slot-overflow` if a value does not fit.
            UsageError: at the end, if the values were not `value_count`.
        """
        return self.layout(value_count).pack_stream(values)

    def add_vectors(self, vectors: Iterable[Sequence[mpz]]) -> list[mpz]:
        """The encrypted sum of encrypted vectors of one length; they are read one at a time.

        Raises:
            UsageError: no vector, or different lengths.
        """
        return multiply_shares(vectors, self.public)

    def add_plain_vector(self, ciphertexts: Sequence[mpz], values: Sequence[int]) -> list[mpz]:
        """Adds known values to an encrypted vector, without changing its randomness.

        Raises:
            UsageError: the vector has another length.
            CryptographicError: `slot-overflow` if a value does not fit a slot.
        """
        plains = self.layout(len(values)).pack_all(values)
        if len(plains) != len(ciphertexts):
            raise UsageError("wrong-shape", f"{len(values)} values do not fit {len(ciphertexts)} ciphertexts")
        return [
            add_plain(self.public, ciphertext, plain)
            for ciphertext, plain in zip(ciphertexts, plains, strict=True)
        ]

    def add_plain_stream(
        self, ciphertexts: Iterable[mpz], values: Iterable[int], value_count: int
    ) -> Iterator[mpz]:
        """The same one at a time, from what is made as it is asked for.

        Raises:
            ValueError: at the end, if there were not as many ciphertexts as the values take.
        """
        for ciphertext, plain in zip(ciphertexts, self.plaintexts(values, value_count), strict=True):
            yield add_plain(self.public, ciphertext, plain)

    def decrypt_vector(
        self, secret: SecretKey, ciphertexts: Sequence[mpz], count: int, executor: Executor | None = None
    ) -> list[int]:
        """The `count` values of an encrypted vector.

        Raises:
            UsageError: the ciphertexts are of another key, or of another number of values.
            CryptographicError: `slot-overflow` if a rest is left above a last slot.
        """
        if secret.public != self.public:
            raise UsageError("wrong-key", "the secret key does not belong to this study")
        return self.layout(count).unpack_all(decrypt_many(secret, ciphertexts, executor))
