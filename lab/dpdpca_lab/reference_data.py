"""The one loader of data sets, for the lab, its benchmarks and the tests.

Tables with public bounds are those of the demo and of scikit-learn, and larger sets. The larger sets are
files that are not part of this repository. `reference_folder` says where they are. Where a file is missing,
`stand_in` makes a table of the same shape, and its origin says so.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_protocol.errors import InputError, UsageError

COVTYPE = "covtype_sample20k.parquet"
INSURANCE = "insurance_coil2000.parquet"
KDDCUP = "kddcup99_10pct.parquet"
MUSK = "musk2.parquet"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
"""Where the files are beside a checkout of this project."""

_CODED = ("MOSTYPE", "MGEMLEEF", "MOSHOOFD", "MGODRK", "PWAPART")
"""The features of the insurance set whose numbers are codes. With one column for each code, the set has 150
columns, as in the paper."""
_TERRAIN = ((1800, 4000), (0, 360), (0, 90), (0, 1500), (-500, 1000), (0, 8000), *((0, 255),) * 3, (0, 8000))

COVTYPE_BOUNDS = np.array([*_TERRAIN, *((-1, 1),) * 44], dtype=float)
"""Public (lower, upper) of the 54 columns of Covertype. The last 44 columns are the levels of two categorical
features, with centre 0 and unit 1."""


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
    return _table("covtype", rows, COVTYPE_BOUNDS)


def insurance(folder: Path) -> Table:
    """Columns of codes and classes. The published description of the data set gives their bounds."""
    rows = _rows(folder / INSURANCE, drop=("CARAVAN", "split"))
    upper = np.array([41, 10, 6, 6, 10, *(9,) * 38, *(9,) * 21, *(12,) * 21], dtype=float)
    return _table("insurance", rows, np.column_stack([np.zeros(len(upper)), upper]))


def musk(folder: Path) -> Table:
    rows = _rows(folder / MUSK, drop=("molecule_name", "conformation_name", "class"))
    return _table("musk", rows, np.tile([-400.0, 400.0], (rows.shape[1], 1)))


def numbers_of(name: str, path: Path, most: int = 20_000) -> Table:
    """The columns of numbers of a Parquet file, bounded by their least and largest value.

    Args:
        name: of the table.
        path: the file.
        most: take at most this number of rows, in an order that is always the same.
    """
    columns = [_numbers(each) for each in read_columns(path, drop=()).values() if not _is_text(each)]
    order = np.random.default_rng(3).permutation(len(columns[0]))[:most]  # noqa: TID251 - which rows, no noise
    rows = np.column_stack(columns)[order]
    return _spanned(name, rows[:, np.isfinite(rows).all(axis=0)])


def _spanned(name: str, rows: Floats) -> Table:
    """Bounded by what the rows reach, without columns that are constant."""
    rows = rows[:, rows.min(axis=0) < rows.max(axis=0)]
    return Table(name, rows, rows.min(axis=0), rows.max(axis=0))


def real_tables(folder: Path) -> list[Table]:
    """Ten real tables of 5,000 records or more, and digits, which has 1,797.

    Raises:
        InputError: a file is not in `folder`.
    """
    spoken = load("isolet", folder).rows.astype(float)[:, ::6][:, :100]
    parquet = {
        "kddcup": KDDCUP,
        "facebook": "facebook_variant1.parquet",
        "facebook, later": "facebook_testset10044.parquet",
        "sensorless": "sensorless_head5748.parquet",
        "localization": "localization_head16486.parquet",
    }
    return [
        terrain(),
        *(read(folder) for read in (covtype, insurance, musk)),
        _spanned("isolet, 100 columns", spoken),
        *(numbers_of(name, folder / file) for name, file in parquet.items()),
        digits(),
    ]


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


_CLASSES = 10
"""Of a stand-in: so it has every class that an experiment names."""
_VARYING = 1000
"""Columns of a stand-in that are not 0: those behind would be next to it."""


@dataclass(frozen=True, slots=True)
class Records:
    """A data set as numbers.

    Attributes:
        rows: (n, d); text and codes have one column of 0 and 1 for each value.
        labels: (n,) the class of each row as a number; all 0 if the set has no classes.
        origin: where the rows come from, for people.
    """

    name: str
    rows: NDArray[np.floating]
    labels: NDArray[np.int64]
    origin: str


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the reference data: its name, how to read it, and its shape with d after coding."""

    file: str
    read: Callable[[Path, int | None], tuple[NDArray[np.floating], NDArray[np.int64]]]
    shape: tuple[int, int]


def reference_folder(given: Path | None = None) -> Path | None:
    """The folder with the larger sets: the given one, that of DPDPCA_REFERENCE_DATA, or `shared/data` beside
    the checkout; None if there is none of them.

    Raises:
        InputError: the given folder does not exist.
    """
    if given is not None:
        if not given.is_dir():
            raise InputError("no-such-file", "the folder with the data does not exist", place=str(given))
        return given
    named = os.environ.get("DPDPCA_REFERENCE_DATA")
    folder = Path(named) if named else _BESIDE
    return folder if folder.is_dir() else None


def load(name: str, folder: Path | None, limit: int | None = None) -> Records:
    """The data set with this name, or a stand-in of its shape where its file is missing.

    Args:
        name: one of `NAMES`.
        folder: from `reference_folder`.
        limit: take at most this number of rows, in equal steps over the file.

    Raises:
        UsageError: there is no data set with this name.
    """
    known = _known(name)
    if folder is None or not (folder / known.file).is_file():
        return stand_in(name, limit)
    rows, labels = known.read(folder / known.file, limit)
    cut = f", {len(rows)} of its rows" if limit is not None and len(rows) < known.shape[0] else ""
    return Records(name, rows, labels, f"{known.file}{cut}")


def digest(name: str, folder: Path | None) -> str:
    """What stands for the content of a data set: the SHA-256 of its file, or the name of its stand-in."""
    known = _known(name)
    if folder is None or not (folder / known.file).is_file():
        return f"stand-in-3-{name}"
    return hashlib.sha256((folder / known.file).read_bytes()).hexdigest()


def stand_in(name: str, limit: int | None = None) -> Records:
    """The demo's bundled records for ten columns of Covertype, else a synthetic table of the same columns.

    It is always the same. The rows of a synthetic table are normal, with deviations that fall by a twentieth
    from column to column. The class, from 0 to 9, is the tenth of the rows to which the first column belongs.
    Genomes have five classes with means of their own, so that there are components above the noise.
    """
    n, d = _known(name).shape
    if name == "covtype-10":
        rows = terrain().rows[_spread_out(n, limit)]
        labels = 1 + (rows[:, 0] > np.median(rows[:, 0])).astype(np.int64)
        return Records(name, rows, labels, "the demo's bundled records, with made-up classes")
    # No more rows than this: a stand-in shows that an experiment works, and its figures mean nothing.
    count = min(n, 4000, n if limit is None else limit)
    draws = RealDraws(Repeatable(name))
    falling = np.exp(-np.arange(min(d, _VARYING)) / 20)
    rows = np.zeros((count, d))
    rows[:, : len(falling)] = draws.normals(count, len(falling)) * falling
    labels = np.argsort(np.argsort(rows[:, 0])) * _CLASSES // count
    if name == "genomes":
        labels = np.arange(count) * 5 // count
        means = draws.normals(5, len(falling)) * np.array([[3.0], [2.0], [1.5], [1.0], [0.5]])
        rows[:, : len(falling)] += means[labels] * falling
    return Records(name, rows, labels, "synthetic stand-in of the same columns: its figures mean nothing")


class Repeatable:
    """Bytes that are always the same for one seed, for everything that is not noise."""

    def __init__(self, seed: object) -> None:
        self._seed = str(seed)
        self._asked = 0

    def bytes(self, count: int) -> bytes:
        self._asked += 1
        return hashlib.shake_256(f"{self._seed}/{self._asked}".encode()).digest(count)

    def below(self, bound: int) -> int:
        # 128 bits more than needed: the remainder is uniform for all purposes.
        return int.from_bytes(self.bytes(bound.bit_length() // 8 + 17)) % bound


def _known(name: str) -> _File:
    if name not in _FILES:
        raise UsageError(
            "unknown-data-set", f"there is no data set {name!r}; the data sets are {', '.join(_FILES)}"
        )
    return _FILES[name]


def _spread_out(count: int, limit: int | None) -> NDArray[np.int64]:
    """Positions in equal steps, because some files are sorted by class."""
    if limit is None or limit >= count:
        return np.arange(count)
    return np.arange(limit) * count // limit


def _of_numbers(
    label: str, path: Path, limit: int | None, drop: tuple[str, ...] = (), first: int | None = None
) -> tuple[Floats, NDArray[np.int64]]:
    columns = read_columns(path, drop)
    taken = _spread_out(len(columns[label]), limit)
    labels = np.asarray(columns.pop(label).to_numpy())[taken].astype(np.int64)
    rows = np.column_stack([_numbers(column)[taken] for column in columns.values()])
    return rows[:, :first], labels


def _insurance_rows(path: Path, limit: int | None) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    columns = read_columns(path, drop=("split",))
    taken = _spread_out(len(columns["CARAVAN"]), limit)
    columns = {name: column.take(taken) for name, column in columns.items()}
    labels = np.asarray(columns.pop("CARAVAN").to_numpy()).astype(np.int64)
    return _by_maximum(columns, {name for name in columns if name in _CODED}), labels


def _intrusions(path: Path, limit: int | None) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    columns = read_columns(path, drop=())
    taken = _spread_out(len(columns["label"]), limit)
    columns = {name: column.take(taken) for name, column in columns.items()}
    labels = np.array([text != "normal" for text in columns.pop("label").to_pylist()], dtype=np.int64)
    return _by_maximum(columns, {name for name, column in columns.items() if _is_text(column)}), labels


def _of_arrays(
    member: str, label: str, divisor: int, path: Path, limit: int | None
) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
    """Whole numbers, as float32 if they are not divided: these are below 2²⁴, and there are many."""
    with np.load(path, allow_pickle=False) as arrays:
        rows, labels = arrays[member], arrays[label]
    taken = _spread_out(len(rows), limit)
    classes = labels[taken].astype(np.int64)
    if divisor == 1:
        return np.ascontiguousarray(rows[taken], dtype=np.float32), classes
    return np.ascontiguousarray(rows[taken], dtype=np.float64) / divisor, classes


def _by_maximum(columns: dict[str, Any], coded: set[str]) -> NDArray[np.float32]:
    """(n, d) float32: codes become a 0/1 column for each value; other columns are divided by their maximum.

    Columns that are empty are left out.
    """
    parts: list[NDArray[np.float32]] = []
    for name, column in columns.items():
        if name not in coded:
            numbers = _numbers(column)
            if numbers.max() > 0:
                parts.append((numbers / numbers.max()).astype(np.float32))
    for name, column in columns.items():
        if name in coded:
            values = np.asarray(column.to_pylist())
            parts.extend((values == level).astype(np.float32) for level in np.unique(values))
    return np.column_stack(parts)


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_dictionary(column.type) or pa.types.is_string(column.type))


def _numbers(column: Any) -> Floats:
    return np.asarray(column.to_numpy(), dtype=np.float64)


_FILES = {
    "cnae9": _File("cnae9.parquet", partial(_of_numbers, "class"), (1080, 856)),
    "covtype": _File(COVTYPE, partial(_of_numbers, "Cover_Type"), (20_000, 54)),
    "covtype-10": _File(COVTYPE, partial(_of_numbers, "Cover_Type", first=10), (20_000, 10)),
    "facebook": _File("facebook_variant1.parquet", partial(_of_numbers, "target_comments"), (40_949, 53)),
    "genomes": _File(
        "thousand_genomes_2504x23770.npz", partial(_of_arrays, "G", "superpop", 1), (2504, 23_770)
    ),
    "insurance": _File(INSURANCE, _insurance_rows, (9822, 150)),
    "isolet": _File("isolet.npz", partial(_of_arrays, "X_times_10000", "y", 10_000), (7797, 617)),
    "kddcup": _File(KDDCUP, _intrusions, (494_021, 116)),
    "mnist": _File("mnist_train60k.npz", partial(_of_arrays, "X", "y", 1), (60_000, 784)),
    "musk": _File(
        MUSK, partial(_of_numbers, "class", drop=("molecule_name", "conformation_name")), (6598, 166)
    ),
}
NAMES = tuple(_FILES)
