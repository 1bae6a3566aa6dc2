"""Strict readers for the members of untrusted messages.

Each reader takes the untrusted value and its place in the message, and returns a typed value. A reader raises
`MessageError` if the shape is wrong, and `PolicyError` if the shape is right but the content is refused. An
error repeats a rejected text only if this version knows it (see `not_offered` in `read_choice`).
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, Never

from dpdpca_protocol.errors import MessageError, PolicyError

_DECIMAL = re.compile(r"(-?)(0|[1-9][0-9]{0,29})(?:\.([0-9]{0,39}[1-9]))?")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_URL = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]{1,255}(?:/[A-Za-z0-9._~/-]{0,200})?")
_REFUSED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Default-ignorable and blank characters outside the refused categories (Unicode, DerivedCoreProperties).
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
_REAL = "a finite number below 10³⁰ with at most 40 decimal places"
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")
_KEPT_NUMBERS = 1 << 15
"""Lists of many features repeat the same few numbers, such as bounds."""
_MOST_DIGITS = 80
_DECIMAL_PLACES = 40
_MAX_INTEGER = 2**53 - 1


def malformed(where: str, expected: str) -> Never:
    raise MessageError("malformed", f"{where} must be {expected}")


def refused(problem: str, next_step: str = "") -> Never:
    raise PolicyError("manifest-refused", problem, next_step)


def check_members(untrusted: Any, where: str, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Checks that `untrusted` is an object with all required members and no unknown ones."""
    if not isinstance(untrusted, Mapping):
        malformed(where, "an object")
    required = frozenset(required)
    if missing := sorted(required - untrusted.keys()):
        raise MessageError("malformed", f"{where} lacks {', '.join(missing)}")
    if unknown := untrusted.keys() - required - frozenset(optional):
        raise MessageError("malformed", f"{where} has {len(unknown)} unknown members")


def read_text(untrusted: Any, where: str, most: int) -> str:
    """One line of 1 to `most` characters in NFC, without control, invisible or reordering characters."""
    if not isinstance(untrusted, str):
        malformed(where, "text")
    if problem := text_problem(untrusted, most):
        refused(f"{where} {problem}", "write plain text on one line")
    return untrusted


def text_problem(untrusted: str, most: int) -> str:
    """The reason why a text must not be shown to people, as the end of a sentence; empty if there is none."""
    if not untrusted:
        return "is empty"
    if len(untrusted) > most:
        return f"is longer than {most} characters"
    # A printable text has only characters outside the refused categories.
    if not untrusted.isprintable() and any(
        unicodedata.category(character) in _REFUSED_CATEGORIES for character in untrusted
    ):
        return "contains control, formatting or unassigned characters"
    if _INVISIBLE.search(untrusted):
        return "contains invisible characters"
    if untrusted != untrusted.strip():
        return "begins or ends with a space"
    if not unicodedata.is_normalized("NFC", untrusted):
        return "is not in Unicode normalisation form C"
    return ""


def name_key(name: str) -> str:
    """A key that is equal for names that a reader could confuse: NFKC, case folded."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def real_of(value: Any, where: str) -> Fraction:
    """The exact value of a number as people write it: a TOML integer or float (as printed), or a string.

    Raises:
        MessageError: the value is not a finite number that a manifest can hold; the error names the field.
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        malformed(where, _REAL)
    if isinstance(value, int) and abs(value) >= 10**30:
        malformed(where, _REAL)
    text = str(value)
    real = _real_value(text) if len(text) <= _MOST_DIGITS else None
    if real is None:
        malformed(where, _REAL)
    return real


@lru_cache(maxsize=_KEPT_NUMBERS)
def _real_value(text: str) -> Fraction | None:
    if not _NUMBER.fullmatch(text):
        return None
    real = Fraction(Decimal(text))
    return None if abs(real) >= 10**30 or (real * 10**40).denominator != 1 else real


def read_choice(untrusted: Any, where: str, choices: Iterable[str], not_offered: Iterable[str] = ()) -> str:
    """One of `choices`. The error for a name in `not_offered` gives the reason."""
    if not isinstance(untrusted, str):
        malformed(where, "text")
    choices = tuple(choices)
    if untrusted in tuple(not_offered):
        refused(f"{where} {untrusted!r} is not available in this version", f"use {' or '.join(choices)}")
    if untrusted not in choices:
        refused(f"{where} must be one of {', '.join(choices)}")
    return untrusted


def read_integer(untrusted: Any, where: str, least: int, most: int = _MAX_INTEGER) -> int:
    """An integer in [least, most]. true and false are not integers."""
    if not isinstance(untrusted, int) or isinstance(untrusted, bool):
        malformed(where, "an integer")
    if not least <= untrusted <= most:
        refused(f"{where} is not between {least} and {most}")
    return untrusted


def read_decimal(untrusted: Any, where: str) -> Fraction:
    """The exact value of a decimal in its canonical form: "1", "-0.5"; not "+1", "1e3", "1.0" or "-0"."""
    value = _decimal_value(untrusted) if isinstance(untrusted, str) else None
    if value is None:
        malformed(where, "a decimal string in its shortest form, such as 1 or -0.5")
    return value


@lru_cache(maxsize=_KEPT_NUMBERS)
def _decimal_value(text: str) -> Fraction | None:
    """The value of a canonical decimal, or None."""
    match = _DECIMAL.fullmatch(text)
    if match is None or text == "-0":
        return None
    sign, whole, fraction = match.groups()
    value = Fraction(int(whole + (fraction or "")), 10 ** len(fraction or ""))
    return -value if sign else value


@lru_cache(maxsize=_KEPT_NUMBERS)
def decimal_text(value: Fraction) -> str:
    """The canonical decimal form of `value`, which must have at most 40 places.

    Raises:
        MessageError: `value` is not exactly a decimal with so few places.
    """
    scaled = abs(value) * 10**_DECIMAL_PLACES
    if scaled.denominator != 1:
        raise MessageError("malformed", f"a number has no exact decimal of at most {_DECIMAL_PLACES} places")
    digits = str(scaled.numerator).rjust(_DECIMAL_PLACES + 1, "0")
    fraction = digits[-_DECIMAL_PLACES:].rstrip("0")
    text = digits[:-_DECIMAL_PLACES] + ("." + fraction if fraction else "")
    return "-" + text if value < 0 else text


def read_time(untrusted: Any, where: str) -> datetime:
    """A time in UTC, in whole seconds, in the form 2026-11-27T22:00:00Z."""
    if isinstance(untrusted, str) and _TIME.fullmatch(untrusted):
        try:
            return datetime.strptime(untrusted, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            pass
    return malformed(where, "a time such as 2026-11-27T22:00:00Z")


def time_text(value: datetime) -> str:
    """The canonical form of an aware time, truncated to whole seconds."""
    if value.tzinfo is None:
        raise MessageError("malformed", "a time has no time zone", "write the time in UTC, with a Z")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def read_url(untrusted: Any, where: str) -> str:
    """An http or https address without user, query or fragment."""
    if not isinstance(untrusted, str) or not _URL.fullmatch(untrusted):
        malformed(where, "an http or https address without user, query or fragment")
    return untrusted


def read_list(untrusted: Any, where: str, most: int) -> list[Any]:
    if not isinstance(untrusted, list):
        malformed(where, "a list")
    if len(untrusted) > most:
        refused(f"{where} has more than {most} entries")
    return untrusted


def read_wide_hex(untrusted: Any, where: str, most_digits: int) -> int:
    """A non-negative integer in lower-case hex with two digits for each byte.

    The caller checks the length of the integer.
    """
    if (
        not isinstance(untrusted, str)
        or not 0 < len(untrusted) <= most_digits
        or len(untrusted) % 2
        or re.fullmatch(r"[0-9a-f]+", untrusted) is None
    ):
        malformed(where, f"at most {most_digits} lower-case hex digits, two for each byte")
    return int(untrusted, 16)


def check_unique(values: Iterable[object], where: str) -> None:
    listed = list(values)
    if len(set(listed)) != len(listed):
        refused(f"{where} contains an entry twice")
