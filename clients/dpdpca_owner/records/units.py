"""Suspects that a feature is in another unit than the study's. Only the owner sees what this module says.

A median outside the bounds, or in a far corner of them, is suspicious if a usual conversion of units puts
nearly all values into the bounds. The bounds may also be wrong, so each sentence says both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.records.columns import Column, pick_columns, read_numbers
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.wire.fields import decimal_text

_LEAST_VALUES = 10
_LOOKED_AT = 500
"""About so many values of a feature are looked at in the first batch, at equal distances."""
_EVERY = 128
"""After the first batches, one record of so many is looked at."""
_NEARLY_ALL = 0.95
_CORNER = 100
"""Values within the bounds are suspicious only if all are a hundred times too small: many bounds are wide."""
_ALL = 0.995
_FILLED = 8
"""After a conversion, at least half of the values reach an eighth of the larger bound."""


@dataclass(frozen=True, slots=True)
class _Conversion:
    """value in the study's unit = factor · value in the owner's unit + offset.

    Attributes:
        words: what the owner would have to do, in words.
        units: the study's units for which the conversion makes sense; empty for every unit.
    """

    factor: float
    words: str
    units: frozenset[str] = frozenset()
    offset: float = 0.0

    def suits(self, unit: str | None) -> bool:
        """Whether the conversion makes sense for a feature, whose unit the study may not name."""
        return not self.units or unit is None or unit.strip().lower().strip(".") in self.units


_METRIC_LENGTHS = frozenset({"cm", "centimetre", "centimetres", "centimeter", "centimeters"})
_INCHES = frozenset({"in", "inch", "inches", '"'})
_KILOGRAMS = frozenset({"kg", "kilogram", "kilograms"})
_POUNDS = frozenset({"lb", "lbs", "pound", "pounds"})
_CELSIUS = frozenset({"°c", "c", "celsius", "degc", "℃"})
_FAHRENHEIT = frozenset({"°f", "f", "fahrenheit", "degf", "℉"})
_POWERS = range(1, 7)

_CONVERSIONS = (
    _Conversion(2.54, "multiplied by 2.54 (inches to centimetres)", _METRIC_LENGTHS),
    _Conversion(1 / 2.54, "divided by 2.54 (centimetres to inches)", _INCHES),
    _Conversion(0.45359237, "multiplied by 0.4536 (pounds to kilograms)", _KILOGRAMS),
    _Conversion(1 / 0.45359237, "divided by 0.4536 (kilograms to pounds)", _POUNDS),
    _Conversion(1 / 1.8, "converted from °F to °C", _CELSIUS, -32 / 1.8),
    _Conversion(1.8, "converted from °C to °F", _FAHRENHEIT, 32.0),
    *(_Conversion(float(10**power), f"multiplied by {10**power:,}") for power in _POWERS),
    *(_Conversion(1 / 10**power, f"divided by {10**power:,}") for power in _POWERS),
)
_FACTORS = np.array([each.factor for each in _CONVERSIONS])[:, None]
_OFFSETS = np.array([each.offset for each in _CONVERSIONS])[:, None]


class UnitCheck:
    """Counts, batch by batch, how many values of each numeric feature a conversion puts into the bounds.

    Args:
        features: of the study.
        before: how many records come before those of the first batch.
    """

    def __init__(self, features: Sequence[Feature], before: int = 0) -> None:
        self._features = tuple(feature for feature in features if not feature.is_categorical)
        self._looked = False
        self._records = before

    @cached_property
    def _seen(self) -> list["_Seen"]:
        """Made when values are looked at first: some sources of many features show none."""
        return [_Seen.of(feature) for feature in self._features]

    def add(self, columns: Mapping[str, Column]) -> None:
        """Look at some records of a batch. No value of a record causes an error."""
        picked = pick_columns(columns, self._features)
        count = len(picked[0]) if picked else 0
        step = max(1, count // _LOOKED_AT) if self._records < _LOOKED_AT else _EVERY
        self._records += count
        self._looked = True
        for column, seen in zip(picked, self._seen, strict=True):
            values, _ = read_numbers(column[::step])
            seen.add(values[~np.isnan(values)])

    def merge(self, following: "UnitCheck") -> None:
        """Adds what was counted in the records that come next."""
        self._records = following._records
        if not following._looked:
            return
        self._looked = True
        for seen, other in zip(self._seen, following._seen, strict=True):
            seen.merge(other)

    def suspected(self) -> tuple[str, ...]:
        """One sentence for each feature that seems to be in another unit."""
        if not self._looked:
            return ()
        pairs = zip(self._features, self._seen, strict=True)
        return tuple(said for feature, seen in pairs if (said := _said(feature, seen)))


class _Seen:
    """What was counted for one feature, with its bounds.

    Attributes:
        bounds: the feature's bounds, in words.
        values: how many values were looked at.
        outside: how many of them are outside the bounds.
        inside: (conversions,) how many the conversion puts into the bounds.
        filling: (conversions,) how many of these reach an eighth of the larger bound.
    """

    def __init__(self, lower: Fraction, upper: Fraction) -> None:
        self.bounds = f"{decimal_text(lower)} to {decimal_text(upper)}"
        self.lower, self.upper = float(lower), float(upper)
        self.values = self.outside = 0
        self.inside = np.zeros(len(_CONVERSIONS), dtype=np.int64)
        self.filling = np.zeros(len(_CONVERSIONS), dtype=np.int64)

    @classmethod
    def of(cls, feature: Feature) -> "_Seen":
        assert feature.lower is not None
        assert feature.upper is not None
        return cls(feature.lower, feature.upper)

    def add(self, values: NDArray[np.float64]) -> None:
        self.values += len(values)
        self.outside += int(np.count_nonzero((values < self.lower) | (values > self.upper)))
        with np.errstate(over="ignore"):
            converted = values * _FACTORS + _OFFSETS
        inside = (converted >= self.lower) & (converted <= self.upper)
        filling = inside & (np.abs(converted) >= max(abs(self.lower), abs(self.upper)) / _FILLED)
        self.inside += np.count_nonzero(inside, axis=1)
        self.filling += np.count_nonzero(filling, axis=1)

    def merge(self, other: "_Seen") -> None:
        self.values += other.values
        self.outside += other.outside
        self.inside += other.inside
        self.filling += other.filling

    @property
    def is_outside(self) -> bool:
        """Whether the median is outside the bounds."""
        return 2 * self.outside > self.values

    def fits(self, place: int) -> bool:
        """Whether a conversion puts enough values into the bounds, and not into a corner of them."""
        enough = (_NEARLY_ALL if self.is_outside else _ALL) * self.values
        return int(self.inside[place]) >= enough and 2 * int(self.filling[place]) >= self.values


def _said(feature: Feature, seen: _Seen) -> str | None:
    if seen.values < _LEAST_VALUES:
        return None
    fitting = [
        conversion.words
        for place, conversion in enumerate(_CONVERSIONS)
        if conversion.suits(feature.unit)
        and (seen.is_outside or conversion.factor >= _CORNER)
        and seen.fits(place)
    ]
    if not fitting:
        return None
    where = "outside the bounds" if seen.is_outside else "in a far corner of the bounds"
    share = "Most" if seen.is_outside else "Nearly all"
    unit = f" {feature.unit}" if feature.unit else ""
    *others, last = fitting
    either = f"{', '.join(others)} or {last}" if others else last
    return (
        f"Is '{feature.name}' in the study's unit? {share} of your values are {where}"
        f" {seen.bounds}{unit}. They would fit if they were"
        f" {either}. If your unit is right, the bounds are wrong: tell the data user."
    )
