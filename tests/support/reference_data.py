"""Real tables for tests of usefulness: what they hold, over public bounds.

The larger sets are not part of this repository: they are Parquet files in the folder that the variable
DPDPCA_REFERENCE_DATA names, else in `shared/data` beside the checkout. Tests that want one skip without it.
The small ones come with scikit-learn and with the demo.
"""

import os
import random
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
_TERRAIN = ((1800, 4000), (0, 360), (0, 90), (0, 1500), (-500, 1000), (0, 8000), *((0, 255),) * 3, (0, 8000))


@dataclass(frozen=True)
class Table:
    """Rows in original units with public bounds, one pair a column."""

    name: str
    rows: Floats
    lower: Floats
    upper: Floats

    @property
    def d(self) -> int:
        return int(self.rows.shape[1])

    def scaled(self) -> Floats:
        """(n, d) in half-ranges from the middle of the bounds, within them."""
        rows = np.clip(self.rows, self.lower, self.upper)
        return (rows - (self.lower + self.upper) / 2) / ((self.upper - self.lower) / 2)

    def widened(self, times: float) -> "Table":
        """The same rows with upper bounds too high: what a careful stranger to the data might guess."""
        return Table(self.name, self.rows, self.lower, self.lower + times * (self.upper - self.lower))


class Seeded:
    """Bytes that a test can repeat."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)


def terrain() -> Table:
    """The demo's 20,000 records of ten columns."""
    import pyarrow.parquet as pq

    table = pq.read_table(files("dpdpca_cli.demo") / "data" / "forest.parquet")
    names = [name for name in table.column_names if name != "cover_type"][:10]
    rows = np.column_stack([table[name].to_numpy() for name in names]).astype(float)
    return _table("terrain", rows, np.array(_TERRAIN, dtype=float))


def digits() -> Table:
    from sklearn.datasets import load_digits

    rows = load_digits().data
    return _table("digits", rows, np.tile([0.0, 16.0], (rows.shape[1], 1)))


def covtype() -> Table:
    rows = _columns("covtype_sample20k.parquet", drop=("Cover_Type",))
    # The last 44 are the levels of two categorical features: centre 0, unit 1.
    return _table("covtype", rows, np.array([*_TERRAIN, *((-1, 1),) * 44], dtype=float))


def insurance() -> Table:
    """Codes and classes, with the ends that the set's description gives them."""
    rows = _columns("insurance_coil2000.parquet", drop=("CARAVAN", "split"))
    upper = np.array([41, 10, 6, 6, 10, *(9,) * 38, *(9,) * 21, *(12,) * 21], dtype=float)
    return _table("insurance", rows, np.column_stack([np.zeros(len(upper)), upper]))


def musk() -> Table:
    rows = _columns("musk2.parquet", drop=("molecule_name", "conformation_name", "class"))
    return _table("musk", rows, np.tile([-400.0, 400.0], (rows.shape[1], 1)))


def _table(name: str, rows: Floats, bounds: Floats) -> Table:
    return Table(name, rows, bounds[:, 0], bounds[:, 1])


def _columns(file: str, drop: tuple[str, ...]) -> Floats:
    import pyarrow.parquet as pq

    folder = Path(os.environ.get("DPDPCA_REFERENCE_DATA") or _BESIDE)
    if not (folder / file).is_file():
        pytest.skip(f"{file} is not here: DPDPCA_REFERENCE_DATA names the folder that has it")
    table = pq.read_table(folder / file)
    return np.column_stack(
        [table[name].to_numpy() for name in table.column_names if name not in drop]
    ).astype(float)
