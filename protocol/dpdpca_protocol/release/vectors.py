"""Vectors of bounded integers under Paillier: packed and decrypted."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from gmpy2 import mpz

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.packing import FlatLayout, slots_for
from dpdpca_protocol.paillier.cipher import decrypt_many
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
