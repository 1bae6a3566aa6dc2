"""The features of a study, with public bounds or levels, and the scaling and norms that follow from them."""

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from dpdpca_protocol.errors import UsageError
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
MAX_LISTED_FEATURES = 200_000
"""The most encoded features of a study that names a list of features; see `rules`."""
MAX_LEVELS = 1000
MOST_WIDE = 2**14
"""The largest ratio of a feature's half-range to its scale."""

_LARGEST = 2**400
"""Bounds above this, or half-ranges below its inverse, could have variances outside the range of doubles."""
_NAME = 200
_UNIT = 50
_DESCRIPTION = 1000
_ROUNDED_BITS = 128
_USUAL_SIZES = (1e-100, 1e100)
_NUMERIC, _CATEGORICAL = frozenset({"name", "kind", "lower", "upper"}), frozenset({"name", "kind", "levels"})
_OF_NUMERIC, _OF_CATEGORICAL = (
    frozenset({"centre", "scale", "unit", "description"}),
    frozenset({"centre", "unit", "description"}),
)


def _schema(number: Schema, line: Schema, levels: Schema, *, needs_kind: bool) -> dict[str, Any]:
    kinds = {kind: {"kind": {"const": kind}} for kind in ("numeric", "categorical")}
    texts = {"unit": line, "description": line}
    numeric = {"name": line, "lower": number, "upper": number}
    categorical = {"name": line, "levels": levels}
    own = {"centre": number, "scale": number}
    of_levels = {"centre": {"type": "array", "minItems": 1, "maxItems": MAX_LEVELS, "items": number}}
    if needs_kind:
        return {
            "oneOf": [
                object_schema(numeric | kinds["numeric"], own | texts),
                object_schema(categorical | kinds["categorical"], of_levels | texts),
            ]
        }
    return {
        "oneOf": [
            object_schema(numeric, own | texts | kinds["numeric"]),
            object_schema(categorical, of_levels | texts | kinds["categorical"]),
        ]
    }


_LINE = {"type": "string", "minLength": 1, "maxLength": _DESCRIPTION}
_LEVELS = {"type": "array", "minItems": 1, "maxItems": MAX_LEVELS}
FEATURE_SCHEMA = _schema(
    DECIMAL.schema, _LINE, _LEVELS | {"items": {"type": "string", "maxLength": _NAME}}, needs_kind=True
)
"""JSON Schema of a feature in a message."""
DRAFTED_FEATURE_SCHEMA = _schema(
    DECIMAL.draft_schema,
    {"type": "string", "minLength": 1},
    _LEVELS | {"items": {"type": ["string", "integer"]}},
    needs_kind=False,
)
"""JSON Schema of a feature as a person writes it. The program infers `kind` from the other members."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A column that every owner has under this name.

    Attributes:
        name: the column name, in NFC.
        kind: "numeric" or "categorical".
        lower, upper: public bounds, lower < upper; None if categorical. Bounds come from general knowledge,
            never from the data.
        centre: a public guess of the mean, or None for the midpoint of the bounds and if categorical.
        levels: the values of a categorical feature; each becomes a column. Empty if numeric.
        level_centres: public guesses of how frequent each level is, between 0 and 1; empty if all are 0.
        unit, description: text for people; None if not given.
        scale: the size of one scaled unit in the feature's own unit, if it is less than the half-range. A
            scale is useful if the bounds are much wider than the data. None means the half-range.
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
    level_centres: tuple[Fraction, ...] = ()

    @property
    def is_categorical(self) -> bool:
        return self.kind == "categorical"

    @property
    def width(self) -> int:
        """The number of encoded columns: one, or one for each level."""
        return len(self.levels) if self.is_categorical else 1

    @property
    def encoded_names(self) -> tuple[str, ...]:
        if not self.is_categorical:
            return (self.name,)
        return tuple(f"{self.name} = {level}" for level in self.levels)

    @property
    def origins(self) -> tuple[Fraction, ...]:
        """The value that is subtracted from each encoded column: the centre, else the midpoint or, for the
        columns of a categorical feature, 0."""
        if self.is_categorical:
            return self.level_centres or (Fraction(0),) * self.width
        return (self.origin,)

    @property
    def origin(self) -> Fraction:
        """The value that is subtracted from a numeric feature: the centre, else the midpoint."""
        if self.lower is None or self.upper is None:
            raise UsageError("bad-argument", "a categorical feature has a centre for each of its levels")
        return (self.lower + self.upper) / 2 if self.centre is None else self.centre

    @property
    def half_range(self) -> Fraction:
        """(upper − lower)/2 in the feature's own unit; 1 for the columns of a categorical feature."""
        if self.lower is None or self.upper is None:
            return Fraction(1)
        return (self.upper - self.lower) / 2

    @property
    def scaled_unit(self) -> Fraction:
        """The divisor of values in the feature's own metric: the scale if given, else the half-range."""
        return self.half_range if self.scale is None else self.scale

    @classmethod
    def parse(cls, untrusted: Any, where: str) -> Self:
        """The feature that a member of a manifest's `features` describes.

        Raises:
            MessageError: wrong shape.
            PolicyError: bounds, centre, levels or texts that are not allowed.
        """
        if not isinstance(untrusted, dict):
            malformed(where, "an object")
        kind = read_choice(untrusted.get("kind"), f"{where}.kind", ("numeric", "categorical"))
        if kind == "numeric":
            check_members(untrusted, where, _NUMERIC, _OF_NUMERIC)
        else:
            check_members(untrusted, where, _CATEGORICAL, _OF_CATEGORICAL)
        name = read_text(untrusted["name"], f"{where}.name", _NAME)
        lower = upper = centre = scale = None
        levels: tuple[str, ...] = ()
        level_centres: tuple[Fraction, ...] = ()
        if kind == "numeric":
            lower = read_decimal(untrusted["lower"], f"{where}.lower")
            upper = read_decimal(untrusted["upper"], f"{where}.upper")
            if not _is_below(lower, upper):
                refused(
                    f"{where}.lower is not below {where}.upper",
                    "give the range of values that the quantity can have",
                )
            if "centre" in untrusted:
                centre = read_decimal(untrusted["centre"], f"{where}.centre")
                if _is_below(centre, lower) or _is_below(upper, centre):
                    refused(f"{where}.centre is outside its bounds")
            if "scale" in untrusted:
                scale = read_decimal(untrusted["scale"], f"{where}.scale")
                half_range = (upper - lower) / 2
                if not half_range / MOST_WIDE <= scale <= half_range:
                    refused(
                        f"{where}.scale is not between 1/{MOST_WIDE} of the half-range and the half-range"
                    )
        else:
            listed = read_list(untrusted["levels"], f"{where}.levels", MAX_LEVELS)
            levels = tuple(read_text(level, f"{where}.levels[{i}]", _NAME) for i, level in enumerate(listed))
            if not levels:
                refused(f"{where}.levels is empty")
            check_unique(levels, f"{where}.levels")
            if "centre" in untrusted:
                level_centres = _read_level_centres(untrusted["centre"], f"{where}.centre", len(levels))
        unit = read_text(untrusted["unit"], f"{where}.unit", _UNIT) if "unit" in untrusted else None
        description = (
            read_text(untrusted["description"], f"{where}.description", _DESCRIPTION)
            if "description" in untrusted
            else None
        )
        return cls(name, kind, lower, upper, centre, levels, unit, description, scale, level_centres)

    def to_body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.is_categorical:
            body["levels"] = list(self.levels)
            if self.level_centres:
                body["centre"] = [decimal_text(centre) for centre in self.level_centres]
        for member in ("lower", "upper", "centre", "scale"):
            if (value := getattr(self, member)) is not None:
                body[member] = decimal_text(value)
        for member, text in (("unit", self.unit), ("description", self.description)):
            if text is not None:
                body[member] = text
        return body


def _is_below(left: Fraction, right: Fraction) -> bool:
    """left < right, several times faster than the operator, which looks for other types of numbers."""
    return left.numerator * right.denominator < right.numerator * left.denominator


def _read_level_centres(untrusted: Any, where: str, count: int) -> tuple[Fraction, ...]:
    listed = read_list(untrusted, where, MAX_LEVELS)
    centres = tuple(read_decimal(each, f"{where}[{i}]") for i, each in enumerate(listed))
    if len(centres) != count:
        refused(f"{where} has {len(centres)} numbers, but the feature has {count} levels")
    if not all(0 <= centre <= 1 for centre in centres):
        refused(f"{where} has a number that is not between 0 and 1", "give the frequency of each level")
    if not any(centres):
        refused(f"{where} is 0 for every level, which is the default", "omit it")
    return centres


def encoded_names(features: Sequence[Feature]) -> tuple[str, ...]:
    """Names of the d encoded columns, in order."""
    return tuple(name for feature in features for name in feature.encoded_names)


def feature_units(features: Sequence[Feature], scaling: str) -> tuple[tuple[Fraction, Fraction], ...]:
    """(subtracted value, divisor) for each of the d encoded columns, in the feature's own units.

    Args:
        features: the features of the study.
        scaling: "range" divides each feature by its own unit, "common" divides all by the largest half-range.
    """
    if scaling != "common":
        return tuple((origin, feature.scaled_unit) for feature in features for origin in feature.origins)
    common = max(feature.half_range for feature in features)
    return tuple((origin, common) for feature in features for origin in feature.origins)


def check_resolution(features: Sequence[Feature], scaling: str, grid: int) -> None:
    """Checks that double precision can resolve the grid levels of each feature.

    Records are read as doubles.

    Args:
        features: the features of a study or of a local table.
        scaling: "range" or "common".
        grid: q. A feature has 2hq/u levels on the grid; h is its half-range and u its divisor.

    Raises:
        PolicyError: there are fewer doubles between the bounds of a feature than grid levels, or the bounds
            are so large or so close that squares leave the range of doubles. The error names the feature.

    Guarantee: apart from the half level that rounding costs, a value reaches the grid with an error of at
        most one level plus 3·2⁻⁵³ of all levels, so that no z lies beyond 2hq/u + 2.
    Source: docs/claims.md, C16.
    Tested: tests/unit/test_resolution.py, tests/properties/test_extreme_numbers.py.
    """
    start, units = 0, feature_units(features, scaling)
    for feature in features:
        unit = units[start][1]
        if feature.lower is None or feature.upper is None:
            pass
        elif not _is_clearly_resolved(feature.lower, feature.upper, unit, grid):
            width, largest = feature.upper - feature.lower, max(abs(feature.lower), abs(feature.upper))
            steps = int(width / Fraction(math.ulp(float(largest))))
            levels = math.ceil(width * grid / unit)
            bounds = f"the bounds of feature {feature.name} are"
            if steps < levels:
                refused(
                    f"{bounds} {steps} steps of double precision apart, but the study needs {levels} levels"
                    " between them",
                    "measure the quantity from a fixed value near its bounds, or give wider bounds",
                )
            if largest > _LARGEST or feature.half_range * _LARGEST < 1:
                size = "large" if largest > 1 else "small"
                refused(f"{bounds} too {size} for variances in double precision", "use another unit")
        start += feature.width


def _is_clearly_resolved(lower: Fraction, upper: Fraction, unit: Fraction, grid: int) -> bool:
    """Whether double precision resolves twice the levels of a feature and more. If so, exact arithmetic need
    not decide: the figures here are within a thousandth."""
    below, above = float(lower), float(upper)
    width, largest = above - below, max(abs(below), abs(above))
    if not _USUAL_SIZES[0] < width <= 2 * largest < _USUAL_SIZES[1]:
        return False
    return width / math.ulp(largest) > max(2 * width * grid / float(unit) + 4, 1 << 20)


def longest_norm_squared(features: Sequence[Feature], scaling: str, of_pairs: bool = False) -> Fraction:
    """Σ u² of the longest scaled record, or difference of two records, that bounds and centres allow.

    A feature reaches from its centre to the more distant bound. This longest distance is 1 if the centre is
    the midpoint of the bounds, and 2 if it is one of the bounds. A record has only one level of a categorical
    feature: its columns have norm 1 if all centres are 0, and two levels differ by √2. Each term of the sum
    is rounded up to a multiple of 2⁻¹²⁸.
    """
    return sum_up(_longest_parts(features, scaling, of_pairs))


def _longest_parts(features: Sequence[Feature], scaling: str, of_pairs: bool) -> Iterator[Fraction]:
    units, start = feature_units(features, scaling), 0
    for feature in features:
        if feature.lower is None or feature.upper is None:
            yield Fraction(2 if feature.width > 1 else 1) if of_pairs else _longest_level(feature)
        else:
            origin, unit = units[start]
            reach = max(feature.upper - origin, origin - feature.lower)
            yield ((feature.upper - feature.lower if of_pairs else reach) / unit) ** 2
        start += feature.width


def sum_up(terms: Iterable[Fraction]) -> Fraction:
    """Σ of terms, each rounded up to a multiple of 2⁻¹²⁸.

    In an exact sum, the denominator could grow with every feature, and the time with its square.
    """
    grid = 1 << _ROUNDED_BITS
    return Fraction(sum(-(-term.numerator * grid // term.denominator) for term in terms), grid)


def _longest_level(feature: Feature) -> Fraction:
    """Σ u² of the level that is furthest from the centre of a categorical feature."""
    return 1 - 2 * min(feature.origins) + sum(origin**2 for origin in feature.origins)


def check_clip_norm(
    features: Sequence[Feature], scaling: str, clip_norm: Fraction, of_pairs: bool = False
) -> None:
    """Checks that r is at most √d (2√d for pairs) or at most the norm of the longest possible record.

    Raises:
        PolicyError: r is larger. A larger r would add noise without clipping fewer records.
    """
    d = sum(feature.width for feature in features)
    usual = Fraction(4 * d if of_pairs else d)
    if clip_norm**2 <= usual:
        return
    longest = longest_norm_squared(features, scaling, of_pairs)
    if clip_norm**2 <= longest:
        return
    if longest > usual:
        refused(
            f"clip_norm is above {math.sqrt(longest):.6g}, the norm of the longest"
            f" {'difference' if of_pairs else 'record'} that bounds and centres allow"
        )
    if of_pairs:
        refused(f"clip_norm is above 2·√{d}, the largest distance between two records")
    refused(f"clip_norm is above √{d}, the square root of the number of encoded features")


def column_key(name: str) -> str:
    """The form in which column names are compared: NFC, no byte-order mark, no spaces at the ends."""
    return unicodedata.normalize("NFC", name.removeprefix("\ufeff")).strip()


def feature_key(name: str) -> str:
    """The key by which a feature is recognised in other studies: like `column_key`, ignoring case."""
    return name_key(column_key(name))
