"""Packs many signed integers into one plaintext: P = Σ x_k·2^(w k).

The sum of packed plaintexts is the packed sum as long as the absolute value in every slot stays below
2^(w−1). The slot width in the manifest guarantees this. All lists in this module are in the order in which
ciphertexts are sent.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import gmpy2
from gmpy2 import mpz

from dpdpca_protocol.errors import CryptographicError, UsageError


def slots_for(modulus_bits: int, slot_bits: int) -> int:
    """s = ⌊(bits(n) − 2)/w⌋, the number of slots whose packed value stays below n/2 in absolute value."""
    return (modulus_bits - 2) // slot_bits


def pack(values: Iterable[int], slot_bits: int) -> int:
    """Σ x_k·2^(w k).

    Args:
        values: signed integers, each in [−2^(w−1), 2^(w−1)), the lowest slot first.
        slot_bits: w.

    Raises:
        CryptographicError: `slot-overflow` if a value does not fit.
    """
    half = 1 << (slot_bits - 1)
    raised = [int(value) + half for value in values]
    if raised and (min(raised) < 0 or max(raised) >> slot_bits):
        raise CryptographicError("slot-overflow", f"a value does not fit into a slot of {slot_bits} bits")
    return int(gmpy2.pack(raised, slot_bits)) - _offset(slot_bits, len(raised))


def unpack(plain: int, slot_bits: int, count: int) -> list[int]:
    """The inverse of `pack`.

    Args:
        plain: a packed plaintext.
        slot_bits: w.
        count: the number of its slots.

    Raises:
        CryptographicError: `slot-overflow` if something is left above the last slot.
    """
    half, raised = 1 << (slot_bits - 1), mpz(plain) + _offset(slot_bits, count)
    if not 0 <= raised < 1 << (slot_bits * count):
        raise CryptographicError(
            "slot-overflow",
            "a plaintext holds more than its slots can hold",
            "this study cannot be used; run a new one",
        )
    values = [int(digit) - half for digit in gmpy2.unpack(raised, slot_bits)[:count]]
    return values + [-half] * (count - len(values))


@lru_cache(maxsize=256)
def _offset(slot_bits: int, count: int) -> int:
    """2^(w−1) in each slot. Adding this offset makes all slots nonnegative, so that they can be read without
    borrows."""
    return sum(1 << (slot_bits * k + slot_bits - 1) for k in range(count))


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """A list of values that is cut into plaintexts of `slots` slots; the last plaintext may be shorter.

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
        """The plaintexts of `value_count` values, one at a time, while the values are produced.

        Raises:
            CryptographicError: like `pack`.
            UsageError: at the end, if the number of values was not `value_count`.
        """
        remaining, count = iter(values), 0
        while part := list(islice(remaining, self.slots)):
            count += len(part)
            yield pack(part, self.slot_bits)
        if count != self.value_count:
            raise UsageError("wrong-length", f"got {count} values instead of {self.value_count}")

    def unpack_all(self, plains: Sequence[int]) -> list[int]:
        """The values of `plaintext_count` plaintexts. Raises CryptographicError like `unpack`."""
        if len(plains) != self.plaintext_count:
            raise UsageError(
                "wrong-length", f"got {len(plains)} plaintexts instead of {self.plaintext_count}"
            )
        values: list[int] = []
        for plain in plains:
            values += unpack(plain, self.slot_bits, min(self.slots, self.value_count - len(values)))
        return values


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The layout of a count, a sum vector v with one value per plaintext, and a symmetric matrix R.

    R is stored by rows, each cut into blocks of columns. Row i has the blocks J = ⌊i/s⌋ … ⌈d/s⌉−1. The first
    block of a row also holds exact copies of entries left of the diagonal. If d mod s is not 0, the last
    block has d mod s columns, and its unused slots stay 0.

    Args:
        d: the length of v and the order of R.
        slot_bits: w.
        slots: s.
    """

    d: int
    slot_bits: int
    slots: int

    @property
    def block_count(self) -> int:
        """The number of ciphertexts of the matrix."""
        return sum(self.column_blocks - i // self.slots for i in range(self.d))

    @property
    def ciphertext_count(self) -> int:
        """The number of ciphertexts of a share: the count, then v, then R."""
        return 1 + self.release_count

    @property
    def release_count(self) -> int:
        """The number of ciphertexts of a release: v′, then T."""
        return self.d + self.block_count

    @property
    def column_blocks(self) -> int:
        return -(-self.d // self.slots)

    def columns(self, block: int) -> range:
        """The columns of block J."""
        return range(block * self.slots, min((block + 1) * self.slots, self.d))

    def blocks(self, row: int) -> list[tuple[int, range]]:
        """The blocks of a row, in order. Each block is given as (J, its columns)."""
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
            CryptographicError: `slot-overflow` if something is left above a last slot;
                `release-not-symmetric` if T_ij ≠ T_ji. Either error means that an owner or the proxy did not
                follow the protocol.
        """
        if len(plains) != self.release_count:
            raise UsageError("wrong-length", f"got {len(plains)} plaintexts instead of {self.release_count}")
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
                            f"entry ({row}, {column}) of the release differs from entry ({column}, {row})",
                            "this study cannot be used; run a new one",
                        )
        return sums, matrix


def symmetric_rows(d: int, upper: Iterable[int]) -> list[list[int]]:
    """The symmetric d×d matrix with this upper triangle, which is given by rows.

    Mirrored entries share one object, which halves the memory that a large matrix needs.
    """
    matrix = [[0] * d for _ in range(d)]
    entries = iter(upper)
    for row in range(d):
        for column in range(row, d):
            matrix[row][column] = matrix[column][row] = int(next(entries))
    return matrix
