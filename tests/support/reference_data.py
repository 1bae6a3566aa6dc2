"""Real tables for tests of usefulness, and randomness that repeats.

The loader is that of the lab. Tests that want one of the larger sets skip where it is missing.
"""

import random
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpdpca_lab import reference_data
from dpdpca_lab.reference_data import Table, digits, terrain
from dpdpca_protocol.errors import InputError

__all__ = ["Floats", "Seeded", "Table", "covtype", "digits", "in_half_ranges", "insurance", "musk", "terrain"]

Floats = NDArray[np.float64]


class Seeded:
    """Bytes that a test can repeat."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)


def in_half_ranges(table: Table) -> Floats:
    """(n, d) cut to the bounds, from their middle."""
    rows = np.clip(table.rows, table.lower, table.upper)
    return np.asarray((rows - (table.lower + table.upper) / 2) / ((table.upper - table.lower) / 2))


def _if_here(load: Callable[[Path], Table]) -> Callable[[], Table]:
    @wraps(load)
    def loaded() -> Table:
        try:
            return load(reference_data.reference_folder() or Path("nowhere"))
        except InputError as error:
            pytest.skip(f"{error.problem}: DPDPCA_REFERENCE_DATA names the folder that has it")

    return loaded


covtype = _if_here(reference_data.covtype)
insurance = _if_here(reference_data.insurance)
musk = _if_here(reference_data.musk)
