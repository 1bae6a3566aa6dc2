"""Products of many powers at once: look-ups in tables of subset products with shared squarings (Straus 1964).

A product is written as Π_j F_j^(2^j), where F_j is the product of the factors of step j. For a fixed base
with many exponents, the units are its powers at distances of `steps` bits, and each table holds all subset
products of a few units.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from dpdpca_protocol.paillier.bases import OBJECT_BYTES, subset_products

Steps = Sequence[Sequence[mpz]]
"""The factors of each step, lowest step first."""
Digits = Sequence[Sequence[int]]
"""For each step, lowest step first: the subset to look up in each table."""

_MOST_TEETH = 12


def product_of_steps(parts: Iterable[Steps], modulus: mpz) -> mpz:
    """Π over all parts of Π_j (Π parts[j])^(2^j) mod `modulus`."""
    steps = list(zip_longest(*parts, fillvalue=()))
    product = mpz(1)
    for position in reversed(range(len(steps))):
        if product != 1:
            product = product * product % modulus
        for factors in steps[position]:
            for factor in factors:
                product = product * factor % modulus
    return product


class SubsetTables:
    """All subset products of units, `teeth` units to a table.

    Args:
        units: elements, in the order of `digits_of`.
        modulus: the modulus of the products.
        teeth: the units in a table; the last table may have fewer.
    """

    __slots__ = ("_tables", "sizes")

    def __init__(self, units: Sequence[mpz], modulus: mpz, teeth: int) -> None:
        groups = [list(units[start : start + teeth]) for start in range(0, len(units), teeth)]
        self._tables = [subset_products(group, modulus) for group in groups]
        self.sizes = tuple(len(group) for group in groups)

    def steps(self, digits: Digits) -> list[list[mpz]]:
        """The factors that the digits name, without empty subsets."""
        tables = self._tables
        return [
            [table[subset] for table, subset in zip(tables, step, strict=True) if subset] for step in digits
        ]


def digits_of(bits: NDArray[np.uint8], teeth: int) -> list[list[int]]:
    """The digits of an exponent.

    Args:
        bits: (units, steps) of 0 and 1. Unit u is raised to Σ_j bits[u, j]·2^j.
        teeth: the units in a table.
    """
    units, steps = bits.shape
    padded = np.zeros((-(-units // teeth) * teeth, steps), dtype=np.int64)
    padded[:units] = bits
    weights = 1 << np.arange(teeth, dtype=np.int64)
    digits: list[list[int]] = np.einsum("gtj,t->jg", padded.reshape(-1, teeth, steps), weights).tolist()
    return digits


def bits_of(values: Sequence[int], width: int) -> NDArray[np.uint8]:
    """(len(values), width) bits of non-negative integers below 2^width, the lowest bit first."""
    width_bytes = (width + 7) // 8
    encoded = b"".join(value.to_bytes(width_bytes, "little") for value in values)
    rows = np.frombuffer(encoded, np.uint8).reshape(len(values), width_bytes)
    return np.unpackbits(rows, axis=1, count=width, bitorder="little")


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """How exponents Σ_k u_k·2^(spacing·k) with 0 ≤ u_k < 2^bits are split.

    Only the bits of the u_k take computing time; the spaces between them take none.

    Attributes:
        segments: the number of u_k.
        bits: the bits of each u_k.
        spacing: at least `bits`.
        teeth: the units in a table.
        steps: the bits of a unit.
    """

    segments: int
    bits: int
    spacing: int
    teeth: int
    steps: int

    @property
    def units_of_segment(self) -> int:
        return -(-self.bits // self.steps)

    @property
    def table_count(self) -> int:
        return -(-self.segments * self.units_of_segment // self.teeth)

    def building(self) -> int:
        """The multiplications to build the tables."""
        return self.spacing * (self.segments - 1) + self.bits + (self.table_count << self.teeth)

    def power(self) -> int:
        """The multiplications for one power, including squarings."""
        return self.table_count * self.steps + self.steps - 1

    @classmethod
    def best(
        cls, segments: int, bits: int, spacing: int, uses: int, element_bytes: int, most_bytes: int
    ) -> "SegmentShape":
        """The shape with the fewest multiplications for `uses` powers whose tables stay within the limit."""
        room = max(2, most_bytes // (element_bytes + OBJECT_BYTES))
        shapes = (
            cls(segments, bits, spacing, teeth, steps)
            for teeth in range(1, _MOST_TEETH + 1)
            for steps in {-(-bits // parts) for parts in range(1, bits + 1)}
        )
        fitting = [shape for shape in shapes if shape.table_count << shape.teeth <= room]
        smallest = cls(segments, bits, spacing, 1, bits)
        return min(fitting, key=lambda shape: shape.building() + uses * shape.power(), default=smallest)

    def digits(self, values: Sequence[int]) -> list[list[int]]:
        """The digits of the exponent with these u_k."""
        bits = np.zeros((self.segments, self.units_of_segment * self.steps), dtype=np.uint8)
        bits[: len(values), : self.bits] = bits_of(values, self.bits)
        return digits_of(bits.reshape(-1, self.steps), self.teeth)

    def tables(self, base: mpz, modulus: mpz) -> SubsetTables:
        """The tables of a base, for any exponent of this shape."""
        units: list[mpz] = []
        power = base
        for segment in range(self.segments):
            if segment:
                power = _squared(units[-1], self.spacing - self.steps * (self.units_of_segment - 1), modulus)
            for unit in range(self.units_of_segment):
                if unit:
                    power = _squared(power, self.steps, modulus)
                units.append(power)
        return SubsetTables(units, modulus, self.teeth)

    def without_offset(self, tables: SubsetTables, count: int, modulus: mpz) -> mpz:
        """The base to the power −Σ_{k < count} 2^(bits−1 + spacing·k).

        This factor cancels the 2^(bits−1) that was added to each signed u_k to make it unsigned.

        Args:
            tables: the tables of the base.
            count: the number of u_k.
            modulus: the modulus of the tables.
        """
        ones = product_of_steps([tables.steps(self.digits([1] * count))], modulus)
        return _squared(gmpy2.invert(ones, modulus), self.bits - 1, modulus)


def _squared(base: mpz, times: int, modulus: mpz) -> mpz:
    return gmpy2.powmod(base, mpz(1) << times, modulus)
