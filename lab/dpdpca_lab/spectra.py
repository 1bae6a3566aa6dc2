"""Spectra of real data: reference values that show whether preprocessing or arithmetic has changed.

Scaling by the maximum of a column or a row depends on the data and is not private. The papers treat this
scaling as public.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.reference_data import COVTYPE, INSURANCE, read_columns
from dpdpca_lab.tables import encode_table

Row = tuple[str, str, float, float | None]

_CHUNK = 50_000
_CODED = ("MOSTYPE", "MGEMLEEF", "MOSHOOFD", "MGODRK", "PWAPART")
"""The features of the insurance set whose numbers are codes. With one column for each code, the set has 150
columns, as in the paper."""


def bundled_spectra() -> Iterator[Row]:
    """The digits and breast cancer sets of scikit-learn, relative to the middle of their ranges, in
    half-ranges.

    The reference values for random directions were measured with 20 sets of random directions. The values
    computed here are expectations.
    """
    from sklearn.datasets import load_breast_cancer, load_digits

    tumours, digits = load_breast_cancer().data, load_digits().data
    tumour_ranges = np.column_stack([tumours.min(axis=0), tumours.max(axis=0)])
    sets = (
        ("digits", encode_table(digits, (0.0, 16.0)), (2 * 2.61, 0.141, 0.214)),
        ("breast cancer", encode_table(tumours, tumour_ranges), (2 * 1.53, 0.190, 0.339)),
    )
    for name, table, (offset, of_five, of_ten) in sets:
        mean = table.moments.sum / table.moments.count / table.grid
        yield (
            name,
            "distance of the mean from the middle, in half-ranges",
            float(np.linalg.norm(mean)),
            offset,
        )
        values = np.linalg.eigvalsh(table.scatter)[::-1]
        for k, reference in ((5, of_five), (10, of_ten)):
            share = k / len(values) * values.sum() / values[:k].sum()
            yield name, f"share that {k} random directions capture", float(share), reference


def reference_spectra(folder: Path) -> Iterator[Row]:
    """Reference values of the larger sets, read from Parquet files in `folder`.

    Raises:
        InputError: a file is missing.
    """
    yield from _forests(folder)
    yield from _insurance(folder)
    yield from _intrusions(folder)


def _forests(folder: Path) -> Iterator[Row]:
    columns = read_columns(folder / COVTYPE, drop=("Cover_Type",))
    rows = np.column_stack([_numbers(column) for column in columns.values()])
    rows -= rows.mean(axis=0)
    moment, largest = _moment(rows)
    name = f"covtype, {rows.shape[1]} columns"
    yield name, "largest norm", float(largest**0.5), 5745.310396
    known = (1711.651, 797.31502, 47.176829, 22.532248, 8.0541061)
    yield from _against(name, moment * len(rows), known, 2588.92)


def _insurance(folder: Path) -> Iterator[Row]:
    columns = read_columns(folder / INSURANCE, drop=("CARAVAN", "split"))
    coded = {name: column for name, column in columns.items() if name in _CODED}
    rows = _by_maximum(coded, {name: _numbers(c) for name, c in columns.items() if name not in coded})
    name = f"insurance, {rows.shape[1]} columns"
    moment, largest = _moment(rows)
    yield name, "largest squared norm", largest, 18.934259
    yield from _against(name, moment, (0.356000, 0.029879, 0.028251, 0.022013), 0.6415)


def _intrusions(folder: Path) -> Iterator[Row]:
    columns = read_columns(folder / "kddcup99_10pct.parquet", drop=("label",))
    text = {name: column for name, column in columns.items() if _is_text(column)}
    rows = _by_maximum(text, {name: _numbers(c) for name, c in columns.items() if name not in text})
    name = f"kddcup, {rows.shape[1]} columns"
    moment, largest = _moment(rows)
    yield name, "largest squared norm", largest, 13.000419
    yield from _against(name, moment, (0.477638, 0.111498, 0.051406, 0.024947), 0.6930)


def _against(name: str, moment: Floats, known: tuple[float, ...], trace: float) -> Iterator[Row]:
    values = np.linalg.eigvalsh(moment)[::-1]
    for index, (value, reference) in enumerate(zip(values.tolist(), known, strict=False)):
        yield name, f"eigenvalue {index + 1}", value, reference
    yield name, "trace", float(values.sum()), trace


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_dictionary(column.type) or pa.types.is_string(column.type))


def _numbers(column: Any) -> Floats:
    return np.asarray(column.to_numpy(), dtype=np.float64)


def _by_maximum(coded: dict[str, Any], numbers: dict[str, Floats]) -> Floats:
    """(n, d) float32: codes become a 0/1 column for each value; other columns are divided by their maximum.

    Columns that are empty are left out.
    """
    parts: list[Any] = []
    for column in numbers.values():
        if column.max() > 0:
            parts.append((column / column.max()).astype(np.float32))
    for column in coded.values():
        values = np.asarray(column.to_pylist())
        parts.extend((values == level).astype(np.float32) for level in np.unique(values))
    return np.column_stack(parts)


def _moment(rows: Any) -> tuple[Floats, float]:
    """XᵀX/n after dividing all rows by the largest norm, and the square of that norm."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    largest = 0.0
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK].astype(np.float64)
        total += chunk.T @ chunk
        largest = max(largest, float((chunk**2).sum(axis=1).max()))
    return total / len(rows) / largest, largest
