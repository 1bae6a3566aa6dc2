"""Many signed integers in one plaintext: P = Σ x_k·2^(w k).

Sums of packed plaintexts are packed sums as long as every slot stays below 2^(w−1) in size, which the slot
width of the manifest guarantees. All lists here are in the order in which ciphertexts travel.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import gmpy2
from gmpy2 import mpz

from dpdpca_protocol.errors import CryptographicError, UsageError


def slots_for(modulus_bits: int, slot_bits: int) -> int:
    """s = ⌊(bits(n) − 2)/w⌋: so many slots stay below n/2 in size."""
    return (modulus_bits - 2) // slot_bits


def pack(values: Iterable[int], slot_bits: int) -> int:
    """Σ x_k·2^(w k).

    Args:
        values: signed integers, each in [−2^(w−1), 2^(w−1)), the lowest slot first.
        slot_bits: w.

    Raises:
        CryptographicError: `slot-overflow` if one does not fit.
    """
    half = 1 << (slot_bits - 1)
    raised = [int(value) + half for value in values]
    if raised and (min(raised) < 0 or max(raised) >> slot_bits):
        raise CryptographicError("slot-overflow", f"a value does not fit a slot of {slot_bits} bits")
    return int(gmpy2.pack(raised, slot_bits)) - _offset(slot_bits, len(raised))


def unpack(plain: int, slot_bits: int, count: int) -> list[int]:
    """The inverse of `pack`.

    Args:
        plain: a packed plaintext.
        slot_bits: w.
        count: how many slots it has.

    Raises:
        CryptographicError: `slot-overflow` if a rest is left above the last slot.
    """
    half, raised = 1 << (slot_bits - 1), mpz(plain) + _offset(slot_bits, count)
    if not 0 <= raised < 1 << (slot_bits * count):
        raise CryptographicError(
            "slot-overflow",
            "a plaintext holds more than its slots",
            "the study cannot be used: run a new one",
        )
    values = [int(digit) - half for digit in gmpy2.unpack(raised, slot_bits)[:count]]
    return values + [-half] * (count - len(values))


@lru_cache(maxsize=256)
def _offset(slot_bits: int, count: int) -> int:
    """2^(w−1) in each slot. With it added no slot is below 0, and signed slots are read without borrows."""
    return sum(1 << (slot_bits * k + slot_bits - 1) for k in range(count))


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """A list of values, cut into plaintexts of `slots` slots; the last one is shorter.

    Args:
        value_count: length of the list.
        slot_bits: w.
        slots: s.
    """

    value_count: int
    slot_bits: int
    slots: int

    @property
    def plaintext_count(self) -> int:
        return -(-self.value_count // self.slots)

    def pack_stream(self, values: Iterable[int]) -> Iterator[int]:
        """The plaintexts of `value_count` values, one at a time, as the values are made.

        Raises:
            CryptographicError: like `pack`.
            UsageError: at the end, if they were not `value_count`.
        """
        remaining, count = iter(values), 0
        while part := list(islice(remaining, self.slots)):
            count += len(part)
            yield pack(part, self.slot_bits)
        if count != self.value_count:
            raise UsageError("wrong-length", f"{count} values instead of {self.value_count}")

    def unpack_all(self, plains: Sequence[int]) -> list[int]:
        """The values of `plaintext_count` plaintexts. Raises CryptographicError like `unpack`."""
        if len(plains) != self.plaintext_count:
            raise UsageError("wrong-length", f"{len(plains)} plaintexts instead of {self.plaintext_count}")
        values: list[int] = []
        for plain in plains:
            values += unpack(plain, self.slot_bits, min(self.slots, self.value_count - len(values)))
        return values


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A count, a sum vector v one by one, and a symmetric matrix R by rows in column blocks.

    Row i has the blocks J = ⌊i/s⌋ … ⌈d/s⌉−1. Its first block also holds entries left of the diagonal, as
    true copies. The last block has d mod s columns if that is not 0; its absent slots stay 0.

    Args:
        d: length of v, order of R.
        slot_bits: w.
        slots: s.
    """

    d: int
    slot_bits: int
    slots: int

    @property
    def block_count(self) -> int:
        """Ciphertexts of the matrix."""
        return sum(self.column_blocks - i // self.slots for i in range(self.d))

    @property
    def ciphertext_count(self) -> int:
        """Ciphertexts of a share: the count, then v, then R."""
        return 1 + self.release_count

    @property
    def release_count(self) -> int:
        """Ciphertexts of a release: v′, then T."""
        return self.d + self.block_count

    @property
    def column_blocks(self) -> int:
        return -(-self.d // self.slots)

    def columns(self, block: int) -> range:
        """The columns of block J."""
        return range(block * self.slots, min((block + 1) * self.slots, self.d))

    def blocks(self, row: int) -> list[tuple[int, range]]:
        """The blocks of a row in order, each as (J, its columns)."""
        return [(block, self.columns(block)) for block in range(row // self.slots, self.column_blocks)]

    def pack_rows(self, matrix: Sequence[Sequence[int]]) -> Iterator[int]:
        """The plaintexts of a symmetric d×d matrix, in order. Raises CryptographicError like `pack`."""
        for row in range(self.d):
            for _, columns in self.blocks(row):
                yield pack(matrix[row][columns.start : columns.stop], self.slot_bits)

    def pack_share(
        self, count: int, sums: Sequence[int], second_moment: Sequence[Sequence[int]]
    ) -> Iterator[int]:
        """The plaintexts of a share, one at a time.

        Args:
            count: N_l.
            sums: v, shape (d,).
            second_moment: R, shape (d, d), symmetric.
        """
        yield int(count)
        yield from (int(value) for value in sums)
        yield from self.pack_rows(second_moment)

    def unpack_release(self, plains: Sequence[int]) -> tuple[list[int], list[list[int]]]:
        """v′ (d values) and T (d×d, symmetric) of a release.

        Args:
            plains: `release_count` decrypted plaintexts.

        Raises:
            CryptographicError: `slot-overflow` for a rest above a last slot, `release-not-symmetric` where
                T_ij ≠ T_ji; either means that an owner or the proxy did not follow the protocol.
        """
        if len(plains) != self.release_count:
            raise UsageError("wrong-length", f"{len(plains)} plaintexts instead of {self.release_count}")
        remaining = iter(plains)
        sums = [int(value) for value in islice(remaining, self.d)]
        matrix = [[0] * self.d for _ in range(self.d)]
        for row in range(self.d):
            for _, columns in self.blocks(row):
                values = unpack(next(remaining), self.slot_bits, len(columns))
                for column, value in zip(columns, values, strict=True):
                    if column >= row:
                        matrix[row][column] = matrix[column][row] = value
                    elif matrix[row][column] != value:
                        raise CryptographicError(
                            "release-not-symmetric",
                            f"the entries ({row}, {column}) and ({column}, {row}) of the release differ",
                            "the study cannot be used: run a new one",
                        )
        return sums, matrix


def symmetric_rows(d: int, upper: Iterable[int]) -> list[list[int]]:
    """The symmetric d×d matrix with this upper triangle, given by rows.

    Mirrored entries are one object, which halves the memory of a large matrix.
    """
    matrix = [[0] * d for _ in range(d)]
    entries = iter(upper)
    for row in range(d):
        for column in range(row, d):
            matrix[row][column] = matrix[column][row] = int(next(entries))
    return matrix
