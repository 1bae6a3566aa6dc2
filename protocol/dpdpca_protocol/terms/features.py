"""The features of a study: public bounds or a public list of levels, and what follows for its records."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from dpdpca_protocol.terms.forms import DECIMAL
from dpdpca_protocol.wire.fields import (
    check_members,
    check_unique,
    decimal_text,
    malformed,
    name_key,
    read_choice,
    read_decimal,
    read_list,
    read_text,
    refused,
)
from dpdpca_protocol.wire.schemas import Schema, object_schema

MAX_ENCODED_FEATURES = 10_000
MAX_LEVELS = 1000
MOST_WIDE = 2**14
"""How many times wider than its scale a feature's bounds may be."""

_LARGEST = 2**400
"""Bounds beyond it, or half-ranges below its inverse, have variances that doubles might not hold."""
_NAME = 200
_UNIT = 50
_DESCRIPTION = 1000


def _schema(number: Schema, line: Schema, levels: Schema, *, needs_kind: bool) -> dict[str, Any]:
    kinds = {kind: {"kind": {"const": kind}} for kind in ("numeric", "categorical")}
    texts = {"unit": line, "description": line}
    numeric = {"name": line, "lower": number, "upper": number}
    categorical = {"name": line, "levels": levels}
    own = {"centre": number, "scale": number}
    if needs_kind:
        return {
            "oneOf": [
                object_schema(numeric | kinds["numeric"], own | texts),
                object_schema(categorical | kinds["categorical"], texts),
            ]
        }
    return {
        "oneOf": [
            object_schema(numeric, own | texts | kinds["numeric"]),
            object_schema(categorical, texts | kinds["categorical"]),
        ]
    }


_LINE = {"type": "string", "minLength": 1, "maxLength": _DESCRIPTION}
_LEVELS = {"type": "array", "minItems": 1, "maxItems": MAX_LEVELS}
FEATURE_SCHEMA = _schema(
    DECIMAL.schema, _LINE, _LEVELS | {"items": {"type": "string", "maxLength": _NAME}}, needs_kind=True
)
"""Of a feature in a message."""
DRAFTED_FEATURE_SCHEMA = _schema(
    DECIMAL.draft_schema,
    {"type": "string", "minLength": 1},
    _LEVELS | {"items": {"type": ["string", "integer"]}},
    needs_kind=False,
)
"""Of a feature as a person writes it: `kind` follows from its members."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A column that every owner has under this name.

    Attributes:
        name: column name, in NFC.
        kind: "numeric" or "categorical".
        lower, upper: public bounds, lower < upper; None if categorical. From knowledge, never from the data.
        centre: public guess of the mean, or None for the midpoint of the bounds.
        levels: the values of a categorical feature, each one column of its own; empty if numeric.
        unit, description: for people; None if not given.
        scale: what one scaled unit is worth in its own unit, where that is less than the half-range, for
            bounds that are far too wide; None for the half-range.
    """

    name: str
    kind: str
    lower: Fraction | None = None
    upper: Fraction | None = None
    centre: Fraction | None = None
    levels: tuple[str, ...] = ()
    unit: str | None = None
    description: str | None = None
    scale: Fraction | None = None

    @property
    def is_categorical(self) -> bool:
        return self.kind == "categorical"

    @property
    def width(self) -> int:
        """Encoded columns: one, or one a level."""
        return len(self.levels) if self.is_categorical else 1

    @property
    def encoded_names(self) -> tuple[str, ...]:
        if not self.is_categorical:
            return (self.name,)
        return tuple(f"{self.name} = {level}" for level in self.levels)

    @property
    def origin(self) -> Fraction:
        """What is subtracted: the centre, else the midpoint; 0 for the columns of a categorical feature."""
        if self.lower is None or self.upper is None:
            return Fraction(0)
        return (self.lower + self.upper) / 2 if self.centre is None else self.centre

    @property
    def half_range(self) -> Fraction:
        """(upper − lower)/2 in the feature's own unit; 1 for the columns of a categorical feature."""
        if self.lower is None or self.upper is None:
            return Fraction(1)
        return (self.upper - self.lower) / 2

    @property
    def scaled_unit(self) -> Fraction:
        """What values are divided by in the feature's own metric: the scale, else the half-range."""
        return self.half_range if self.scale is None else self.scale

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        """The feature that a member of a manifest's `features` describes.

        Raises:
            MessageError: wrong shape.
            PolicyError: bounds, centre, levels or texts that no study may have.
        """
        if not isinstance(untrusted, dict):
            malformed(where, "an object")
        kind = read_choice(untrusted.get("kind"), f"{where}.kind", ("numeric", "categorical"))
        texts = ("unit", "description")
        if kind == "numeric":
            check_members(untrusted, where, ("name", "kind", "lower", "upper"), ("centre", "scale", *texts))
        else:
            check_members(untrusted, where, ("name", "kind", "levels"), texts)
        name = read_text(untrusted["name"], f"{where}.name", _NAME)
        lower = upper = centre = scale = None
        levels: tuple[str, ...] = ()
        if kind == "numeric":
            lower = read_decimal(untrusted["lower"], f"{where}.lower")
            upper = read_decimal(untrusted["upper"], f"{where}.upper")
            if lower >= upper:
                refused(f"{where}.lower is not below its upper", "give the range that the quantity can have")
            if "centre" in untrusted:
                centre = read_decimal(untrusted["centre"], f"{where}.centre")
                if not lower <= centre <= upper:
                    refused(f"{where}.centre is outside the bounds")
            if "scale" in untrusted:
                scale = read_decimal(untrusted["scale"], f"{where}.scale")
                half_range = (upper - lower) / 2
                if not half_range / MOST_WIDE <= scale <= half_range:
                    refused(f"{where}.scale is not between 1/{MOST_WIDE} of the half-range and all of it")
        else:
            listed = read_list(untrusted["levels"], f"{where}.levels", MAX_LEVELS)
            levels = tuple(read_text(level, f"{where}.levels[{i}]", _NAME) for i, level in enumerate(listed))
            if not levels:
                refused(f"{where}.levels is empty")
            check_unique(levels, f"{where}.levels")
        unit = read_text(untrusted["unit"], f"{where}.unit", _UNIT) if "unit" in untrusted else None
        description = (
            read_text(untrusted["description"], f"{where}.description", _DESCRIPTION)
            if "description" in untrusted
            else None
        )
        return cls(name, kind, lower, upper, centre, levels, unit, description, scale)

    def to_body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.is_categorical:
            body["levels"] = list(self.levels)
        for member in ("lower", "upper", "centre", "scale"):
            if (value := getattr(self, member)) is not None:
                body[member] = decimal_text(value)
        for member, text in (("unit", self.unit), ("description", self.description)):
            if text is not None:
                body[member] = text
        return body


def encoded_names(features: Sequence[Feature]) -> tuple[str, ...]:
    """Names of the d encoded columns, in order."""
    return tuple(name for feature in features for name in feature.encoded_names)


def feature_units(features: Sequence[Feature], scaling: str) -> tuple[tuple[Fraction, Fraction], ...]:
    """(what is subtracted, what it is divided by) for each of the d encoded columns, in own units.

    Args:
        features: of the study.
        scaling: "range" for a unit of its own for each feature, "common" for the largest half-range.
    """
    common = max(feature.half_range for feature in features)
    return tuple(
        (feature.origin, common if scaling == "common" else feature.scaled_unit)
        for feature in features
        for _ in range(feature.width)
    )


def check_resolution(features: Sequence[Feature], scaling: str, grid: int) -> None:
    """That doubles, which records are read as, tell values of each feature apart as finely as the grid does.

    Args:
        features: of a study, or of a table at hand.
        scaling: "range" or "common".
        grid: q; a feature has 2hq/u levels on it, h its half-range and u what it is divided by.

    Raises:
        PolicyError: doubles have fewer steps between the bounds of a feature than the grid has levels, or the
            bounds are so large or so close that squares leave the range of doubles. It names the feature.

    Guarantee: beside the half level that rounding costs, a value reaches the grid with an error of at most
        one level and 3·2⁻⁵³ of all levels, so that no z lies beyond 2hq/u + 2.
    Source: docs/claims.md, C14.
    Tested: tests/unit/test_resolution.py, tests/properties/test_extreme_numbers.py.
    """
    start, units = 0, feature_units(features, scaling)
    for feature in features:
        if feature.lower is not None and feature.upper is not None:
            width, largest = feature.upper - feature.lower, max(abs(feature.lower), abs(feature.upper))
            steps = int(width / Fraction(math.ulp(float(largest))))
            levels = math.ceil(width * grid / units[start][1])
            apart = f"feature {feature.name}: its bounds are {steps} steps of double precision apart, and"
            if steps < levels:
                refused(
                    f"{apart} the study tells {levels} levels apart between them",
                    "measure it from a fixed value near its bounds, or give wider bounds",
                )
            if largest > _LARGEST or feature.half_range * _LARGEST < 1:
                size = "large" if largest > 1 else "small"
                refused(f"{apart} too {size} for variances in doubles", "give it in another unit")
        start += feature.width


def longest_norm_squared(features: Sequence[Feature], scaling: str, of_pairs: bool = False) -> Fraction:
    """Σ u² of the longest scaled record that bounds and centres allow, or difference of two records.

    A feature reaches from its centre to the bound that is further away: 1 about the middle of its bounds, 2
    about one of them. Levels of one category exclude each other: together they are 1, and √2 apart.
    """
    units = feature_units(features, scaling)
    total, start = Fraction(0), 0
    for feature in features:
        if feature.lower is None or feature.upper is None:
            total += 2 if of_pairs and feature.width > 1 else 1
        else:
            origin, unit = units[start]
            reach = max(feature.upper - origin, origin - feature.lower)
            total += ((feature.upper - feature.lower if of_pairs else reach) / unit) ** 2
        start += feature.width
    return total


def check_clip_norm(
    features: Sequence[Feature], scaling: str, clip_norm: Fraction, of_pairs: bool = False
) -> None:
    """That r is not above what any record can reach: √d (2√d for pairs), or the longest record's norm.

    Raises:
        PolicyError: it is; noise would grow and nothing less would be clipped.
    """
    d = sum(feature.width for feature in features)
    usual = Fraction(4 * d if of_pairs else d)
    longest = longest_norm_squared(features, scaling, of_pairs)
    if clip_norm**2 <= max(usual, longest):
        return
    if longest > usual:
        refused(
            f"clip_norm is above {math.sqrt(longest):.6g}, the norm of the longest"
            f" {'difference' if of_pairs else 'record'} that bounds and centres allow"
        )
    if of_pairs:
        refused(f"clip_norm is above 2·√{d}, and no two records are further apart")
    refused(f"clip_norm is above √{d}, the square root of the number of encoded features")


def column_key(name: str) -> str:
    """The form in which column names are compared: NFC, without a byte-order mark or outer spaces."""
    return unicodedata.normalize("NFC", name.removeprefix("\ufeff")).strip()


def feature_key(name: str) -> str:
    """What the names of one feature in two studies have in common: as columns are compared, case aside."""
    return name_key(column_key(name))
