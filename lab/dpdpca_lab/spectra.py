"""Spectra of real data: reference values that show whether preprocessing or arithmetic has changed.

Scaling by the maximum of a column or a row depends on the data and is not private. The papers treat this
scaling as public.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.reference_data import COVTYPE, INSURANCE, KDDCUP, load
from dpdpca_lab.tables import encode_table
from dpdpca_protocol.errors import InputError

Row = tuple[str, str, float, float | None]

_CHUNK = 50_000


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
    """Reference values of the larger sets, read from files in `folder`.

    Raises:
        InputError: a file is missing.
    """
    for file in (COVTYPE, INSURANCE, KDDCUP):
        if not (folder / file).is_file():
            raise InputError(
                "no-such-file", f"{file} is not in this folder", "give the folder that contains this file"
            )
    yield from _forests(folder)
    yield from _uncentred(folder, "insurance", 18.934259, (0.356000, 0.029879, 0.028251, 0.022013), 0.6415)
    yield from _uncentred(folder, "kddcup", 13.000419, (0.477638, 0.111498, 0.051406, 0.024947), 0.6930)


def _forests(folder: Path) -> Iterator[Row]:
    rows = load("covtype", folder).rows
    rows = rows - rows.mean(axis=0)
    moment, largest = moment_of(rows)
    name = f"covtype, {rows.shape[1]} columns"
    yield name, "largest norm", float(largest**0.5), 5745.310396
    known = (1711.651, 797.31502, 47.176829, 22.532248, 8.0541061)
    yield from _against(name, moment * len(rows), known, 2588.92)


def _uncentred(folder: Path, name: str, norm: float, known: tuple[float, ...], trace: float) -> Iterator[Row]:
    rows = load(name, folder).rows
    moment, largest = moment_of(rows)
    name = f"{name}, {rows.shape[1]} columns"
    yield name, "largest squared norm", largest, norm
    yield from _against(name, moment, known, trace)


def _against(name: str, moment: Floats, known: tuple[float, ...], trace: float) -> Iterator[Row]:
    values = np.linalg.eigvalsh(moment)[::-1]
    for index, (value, reference) in enumerate(zip(values.tolist(), known, strict=False)):
        yield name, f"eigenvalue {index + 1}", value, reference
    yield name, "trace", float(values.sum()), trace


def moment_of(rows: NDArray[np.floating]) -> tuple[Floats, float]:
    """XᵀX/n after dividing all rows by the largest norm, and the square of that norm."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    largest = 0.0
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK].astype(np.float64)
        total += chunk.T @ chunk
        largest = max(largest, float((chunk**2).sum(axis=1).max()))
    return total / len(rows) / largest, largest
