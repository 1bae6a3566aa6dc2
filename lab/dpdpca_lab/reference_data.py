"""Real tables with public bounds: that of the demo, one of scikit-learn, and larger sets in Parquet files."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from dpdpca_lab.central.entropy import Floats
from dpdpca_protocol.errors import InputError

COVTYPE = "covtype_sample20k.parquet"
INSURANCE = "insurance_coil2000.parquet"
_TERRAIN = ((1800, 4000), (0, 360), (0, 90), (0, 1500), (-500, 1000), (0, 8000), *((0, 255),) * 3, (0, 8000))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in original units with public bounds.

    Attributes:
        rows: (n, d).
        lower, upper: (d,) one pair for each column.
    """

    name: str
    rows: Floats
    lower: Floats
    upper: Floats

    @property
    def d(self) -> int:
        return int(self.rows.shape[1])

    def widened(self, times: float) -> "Table":
        """The same rows with upper bounds that are too high, as a careful guess without the data might be."""
        return Table(self.name, self.rows, self.lower, self.lower + times * (self.upper - self.lower))


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


def covtype(folder: Path) -> Table:
    """Raises InputError if the file is not in `folder`; the functions below do the same."""
    rows = _rows(folder / COVTYPE, drop=("Cover_Type",))
    # The last 44 columns are the levels of two categorical features, with centre 0 and unit 1.
    return _table("covtype", rows, np.array([*_TERRAIN, *((-1, 1),) * 44], dtype=float))


def insurance(folder: Path) -> Table:
    """Columns of codes and classes. The published description of the data set gives their bounds."""
    rows = _rows(folder / INSURANCE, drop=("CARAVAN", "split"))
    upper = np.array([41, 10, 6, 6, 10, *(9,) * 38, *(9,) * 21, *(12,) * 21], dtype=float)
    return _table("insurance", rows, np.column_stack([np.zeros(len(upper)), upper]))


def musk(folder: Path) -> Table:
    rows = _rows(folder / "musk2.parquet", drop=("molecule_name", "conformation_name", "class"))
    return _table("musk", rows, np.tile([-400.0, 400.0], (rows.shape[1], 1)))


def read_columns(path: Path, drop: tuple[str, ...]) -> dict[str, Any]:
    """Columns by name, in the types of the file.

    Raises:
        InputError: the file is missing.
    """
    import pyarrow.parquet as pq

    if not path.is_file():
        raise InputError(
            "no-such-file", f"{path.name} is not in this folder", "give the folder that contains this file"
        )
    table = pq.read_table(path)
    return {name: table.column(name) for name in table.column_names if name not in drop}


def _rows(path: Path, drop: tuple[str, ...]) -> Floats:
    return np.column_stack([column.to_numpy() for column in read_columns(path, drop).values()]).astype(float)


def _table(name: str, rows: Floats, bounds: Floats) -> Table:
    return Table(name, rows, bounds[:, 0], bounds[:, 1])
