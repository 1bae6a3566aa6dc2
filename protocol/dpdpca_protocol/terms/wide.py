"""The members of a manifest that belong to sketch, lift and scores: releases for many features.

A chain of such releases is for tables whose matrix of second moments is too large to send. A sketch shows
which mixtures of features vary. From it, the data user makes a public rule that turns each record into a few
numbers. A lift is the sum of the records times these numbers. Scores say how much the components vary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from dpdpca_protocol.terms.forms import DECIMAL
from dpdpca_protocol.wire.fields import (
    check_members,
    decimal_text,
    malformed,
    read_decimal,
    read_integer,
    read_list,
    refused,
)
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.schemas import hex_schema, object_schema
from dpdpca_protocol.wire.signing import hex_bytes

LEAST_ROWS, MOST_ROWS = 16, 2_048
MOST_COLUMNS = 100
ENTRY_LIMIT = 2**40
OFFSET_LIMIT = 2**52
SEED_BYTES = 32

_COLUMNS_SCHEMA = {"type": "integer", "minimum": 1, "maximum": MOST_COLUMNS}
SKETCH_SCHEMA = object_schema(
    {
        "rows": {"type": "integer", "minimum": LEAST_ROWS, "maximum": MOST_ROWS, "multipleOf": 2},
        "seed": hex_schema(SEED_BYTES),
    }
)


def _integers_schema(limit: int, most: int) -> dict[str, Any]:
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": most,
        "items": {"type": "integer", "minimum": 1 - limit, "maximum": limit - 1},
    }


LIFT_SCHEMA = object_schema(
    {
        "columns": _COLUMNS_SCHEMA,
        "matrix": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_COLUMNS,
            "items": _integers_schema(ENTRY_LIMIT, MOST_ROWS),
        },
        "offset": _integers_schema(OFFSET_LIMIT, MOST_COLUMNS),
    }
)
SCORES_SCHEMA = object_schema(
    {
        "columns": _COLUMNS_SCHEMA,
        "study": hex_schema(32),
        "components": hex_schema(32),
        "norm": DECIMAL.schema,
    }
)


@dataclass(frozen=True, slots=True)
class SketchTerms:
    """The public mixtures of a sketch.

    Attributes:
        rows: m, even: into how many numbers a record is mixed.
        seed: 32 bytes from the data user's source of randomness, from which P₀ follows.
    """

    rows: int
    seed: bytes

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        check_members(untrusted, where, ("rows", "seed"))
        rows = read_integer(untrusted["rows"], f"{where}.rows", LEAST_ROWS, MOST_ROWS)
        if rows % 2:
            refused(f"{where}.rows is {rows}, which is odd", "use an even number")
        return cls(rows, hex_bytes(untrusted["seed"], SEED_BYTES, f"{where}.seed"))

    def to_body(self) -> dict[str, Any]:
        return {"rows": self.rows, "seed": self.seed.hex()}


@dataclass(frozen=True, slots=True)
class LiftTerms:
    """The public rule that makes k numbers of a record: a = cut(⌊(C·P₀z + o)/2¹⁶ + ½⌋).

    Attributes:
        columns: k.
        matrix: C, k rows of m integers.
        offset: o, k integers; all 0 in a lift of pairs.
    """

    columns: int
    matrix: tuple[tuple[int, ...], ...]
    offset: tuple[int, ...]

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        check_members(untrusted, where, ("columns", "matrix", "offset"))
        columns = read_integer(untrusted["columns"], f"{where}.columns", 1, MOST_COLUMNS)
        rows = read_list(untrusted["matrix"], f"{where}.matrix", MOST_COLUMNS)
        matrix = tuple(
            _read_integers(row, f"{where}.matrix[{i}]", ENTRY_LIMIT, MOST_ROWS) for i, row in enumerate(rows)
        )
        offset = _read_integers(untrusted["offset"], f"{where}.offset", OFFSET_LIMIT, MOST_COLUMNS)
        if len(matrix) != columns or len(offset) != columns:
            malformed(where, f"an object with {columns} rows of matrix and {columns} numbers in offset")
        return cls(columns, matrix, offset)

    def to_body(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "matrix": [list(row) for row in self.matrix],
            "offset": list(self.offset),
        }


@dataclass(frozen=True, slots=True)
class ScoresTerms:
    """Which components the records are projected on.

    The components reach owners sealed, and this names the sealed statement. A digest of the components
    themselves would let the proxy check guesses at them.

    Attributes:
        columns: k.
        study: the lift's study.
        components: digest of the lift's statement of components.
        norm: r′, the largest norm of a record's scores, in scaled units.
    """

    columns: int
    study: StudyId
    components: Digest
    norm: Fraction

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        check_members(untrusted, where, ("columns", "study", "components", "norm"))
        norm = read_decimal(untrusted["norm"], f"{where}.norm")
        if norm <= 0:
            refused(f"{where}.norm must be above 0")
        return cls(
            read_integer(untrusted["columns"], f"{where}.columns", 1, MOST_COLUMNS),
            StudyId.parse(untrusted["study"]),
            Digest.parse(untrusted["components"]),
            norm,
        )

    def to_body(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "study": self.study.hex(),
            "components": self.components.hex(),
            "norm": decimal_text(self.norm),
        }


def tidy_scores(drafted: Any, where: str) -> Any:
    """What a person or a chain wrote as `scores`, with the norm as a decimal."""
    if not isinstance(drafted, Mapping) or "norm" not in drafted:
        return drafted
    return {**drafted, "norm": DECIMAL.tidy(drafted["norm"], f"{where}.norm")}


def _read_integers(untrusted: Any, where: str, limit: int, most: int) -> tuple[int, ...]:
    listed = read_list(untrusted, where, most)
    if not listed:
        malformed(where, "a list of integers")
    return tuple(read_integer(each, where, 1 - limit, limit - 1) for each in listed)
