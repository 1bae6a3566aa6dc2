"""Vectors of bounded integers under Paillier: packed, encrypted, with known values added, and decrypted."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from gmpy2 import mpz

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.packing import FlatLayout, slots_for
from dpdpca_protocol.paillier.cipher import add_plain, decrypt_many
from dpdpca_protocol.paillier.keys import PublicKey, SecretKey


@dataclass(frozen=True, slots=True)
class PaillierVectors:
    """Vectors of bounded integers under one Paillier key, with several integers in a ciphertext.

    Args:
        public: a checked key.
        slot_bits: w. Sums over a whole cohort, with their noise, are in [−2^(w−1), 2^(w−1)).
    """

    public: PublicKey
    slot_bits: int

    def layout(self, value_count: int) -> FlatLayout:
        return FlatLayout(value_count, self.slot_bits, slots_for(self.public.bits, self.slot_bits))

    def plaintexts(self, values: Iterable[int], value_count: int) -> Iterator[int]:
        """The plaintexts of a vector, one at a time, for an owner that encrypts while it sends.

        Raises:
            CryptographicError: `slot-overflow` if a value does not fit.
            UsageError: at the end, if the number of values was not `value_count`.
        """
        return self.layout(value_count).pack_stream(values)

    def add_plain_stream(
        self, ciphertexts: Iterable[mpz], values: Iterable[int], value_count: int
    ) -> Iterator[mpz]:
        """Adds known values to an encrypted vector, one ciphertext at a time, and keeps the randomness.

        So the randomness of a flat release is the sum of the owners' α and reveals nothing about the data.

        Args:
            ciphertexts: read when needed.
            values: read when needed.
            value_count: the number of values.

        Raises:
            CryptographicError: `slot-overflow` if a value does not fit a slot.
            UsageError, ValueError: at the end, if the number of values or ciphertexts is wrong.
        """
        for ciphertext, plain in zip(ciphertexts, self.plaintexts(values, value_count), strict=True):
            yield add_plain(self.public, ciphertext, plain)

    def decrypt_vector(
        self, secret: SecretKey, ciphertexts: Sequence[mpz], count: int, executor: Executor | None = None
    ) -> list[int]:
        """The `count` values of an encrypted vector.

        Raises:
            UsageError: the ciphertexts belong to another key or to another number of values.
            CryptographicError: `slot-overflow` if something is left above a last slot.
        """
        if secret.public != self.public:
            raise UsageError("wrong-key", "the secret key does not belong to this study")
        return self.layout(count).unpack_all(decrypt_many(secret, ciphertexts, executor))
