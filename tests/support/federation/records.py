"""The study that the system tests run, its records in every format, and its sums by brute force.

Five quantities of patients, one of them a category: seven encoded columns. The records have three clear
directions and stay inside the norm bound, so that the encoding can be redone here in exact rationals.
"""

import csv
import random
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

Record = Mapping[str, Any]
"""Feature name to value; None is a missing value."""

HEIGHT = unicodedata.normalize("NFC", "Größe")
"""A header that decomposes into other code points than it is written with."""

FEATURES: list[dict[str, Any]] = [
    {"name": HEIGHT, "lower": 140, "upper": 210, "unit": "cm"},
    {"name": "weight", "lower": "30.5", "upper": 150, "centre": 75, "unit": "kg"},
    {"name": "age", "lower": 0, "upper": 110, "unit": "years"},
    {"name": "pressure", "lower": 60, "upper": 260, "centre": 125},
    {"name": "ward", "levels": ["A", "B", "C"]},
]
NAMES = [str(feature["name"]) for feature in FEATURES]
ENCODED = 7
FRACTION_BITS = 10


def draft(**changes: Any) -> dict[str, Any]:
    """The draft of the study; None takes a member out."""
    written = {
        "title": "Blood pressure and stature",
        "purpose": "To see what varies together over all hospitals.",
        "features": FEATURES,
        "fraction_bits": FRACTION_BITS,
        "clip_norm": "2.6",
        "release": "joint",
        "epsilon": 30,
        "max_records": 10_000,
        "min_records": 1,
    }
    return {name: value for name, value in {**written, **changes}.items() if value is not None}


def patients(count: int, seed: int) -> list[Record]:
    """Correlated records inside all bounds; three decimals, so that no value lies half-way on the grid."""
    source = random.Random(seed)
    records: list[Record] = []
    for _ in range(count):
        size, years, strain = (source.uniform(-1, 1) for _ in range(3))
        records.append(
            {
                HEIGHT: round(174 + 32 * size + source.uniform(-1, 1), 3),
                "weight": round(85 + 45 * size + source.uniform(-1, 1), 3),
                "age": round(54 + 49 * years + source.uniform(-1, 1), 3),
                "pressure": round(140 + 18 * years + 56 * strain + source.uniform(-1, 1), 3),
                "ward": source.choices("ABC", (0.985, 0.01, 0.005))[0],
            }
        )
    return records


# Files


def write_csv(
    path: Path, records: Sequence[Record], names: Sequence[str] = NAMES, *, encoding: str = "utf-8"
) -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for record in records:
            row = (record.get(unicodedata.normalize("NFC", name)) for name in names)
            writer.writerow("" if value is None else value for value in row)
    return path


def write_parquet(path: Path, records: Sequence[Record]) -> Path:
    pyarrow.parquet.write_table(pa.table({name: [r[name] for r in records] for name in NAMES}), path)
    return path


def write_npz(path: Path, records: Sequence[Record]) -> Path:
    """One array a column; a missing number is NaN."""
    arrays: dict[str, Any] = {
        name: np.array([np.nan if r[name] is None else r[name] for r in records])
        if name != "ward"
        else np.array([r[name] or "" for r in records])
        for name in NAMES
    }
    np.savez(path, **arrays)
    return path


# What must come out


@dataclass(frozen=True)
class Sums:
    """N, v and R of some records, exact, in grid units."""

    count: int
    sum: list[int]
    second_moment: list[list[int]]

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.count + other.count,
            [a + b for a, b in zip(self.sum, other.sum, strict=True)],
            [
                [a + b for a, b in zip(*rows, strict=True)]
                for rows in zip(self.second_moment, other.second_moment, strict=True)
            ],
        )

    @property
    def scaled_scatter(self) -> list[list[int]]:
        """N·S = N·R − v vᵀ."""
        d = len(self.sum)
        return [
            [self.count * self.second_moment[i][j] - self.sum[i] * self.sum[j] for j in range(d)]
            for i in range(d)
        ]


def encode(record: Record, features: Sequence[Mapping[str, Any]] = FEATURES) -> list[int]:
    """One record on the grid, by the protocol's text, in exact rationals; a missing value is the centre."""
    encoded: list[int] = []
    for feature in features:
        value = record[feature["name"]]
        if "levels" in feature:
            encoded += [(value == level) << FRACTION_BITS for level in feature["levels"]]
            continue
        lower, upper = Fraction(feature["lower"]), Fraction(feature["upper"])
        centre = Fraction(feature.get("centre", (lower + upper) / 2))
        exact = centre if value is None else min(max(Fraction(str(value)), lower), upper)
        # round() of a Fraction takes ties to even, as the protocol does.
        encoded.append(round((exact - centre) / ((upper - lower) / 2) * 2**FRACTION_BITS))
    return encoded


def add_up(records: Iterable[Record], features: Sequence[Mapping[str, Any]] = FEATURES) -> Sums:
    """Plain integers and two loops."""
    rows = [encode(record, features) for record in records]
    d = len(rows[0])
    return Sums(
        len(rows),
        [sum(row[i] for row in rows) for i in range(d)],
        [[sum(row[i] * row[j] for row in rows) for j in range(d)] for i in range(d)],
    )
