"""The forms of values in messages: how each is read, written and described as JSON Schema.

A form reads an untrusted JSON value strictly and writes exactly one representation. A form raises
`MessageError` for a wrong shape and `PolicyError` for refused content, as the readers in `wire.fields` do.
People may write drafts more freely: `tidy` converts such values into the form of a message. `tidy` leaves
anything that it does not know for the strict reader to refuse.
"""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from dpdpca_protocol.wire.fields import (
    decimal_text,
    malformed,
    read_choice,
    read_decimal,
    read_integer,
    read_list,
    read_text,
    read_time,
    real_of,
    time_text,
)
from dpdpca_protocol.wire.schemas import TIME_SCHEMA, Schema

DECIMAL_PATTERN = r"^-?(0|[1-9][0-9]{0,29})(\.[0-9]{0,39}[1-9])?$"


def _as_it_is(value: Any) -> Any:
    return value


def _untouched(value: Any, _where: str) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write a value.

    Attributes:
        words: its description in the specification.
        schema: JSON Schema of the form in a message.
        read: returns the typed value of an untrusted JSON value at a named place.
        write: returns the JSON value of a typed value.
        tidy: converts what a person wrote into the form of a message.
        draft_schema: JSON Schema of what a person may write; if empty, `schema` applies.
    """

    words: str
    schema: Schema
    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any] = _as_it_is
    tidy: Callable[[Any, str], Any] = _untouched
    draft_schema: Schema = field(default_factory=dict)


def text(most: int) -> Form:
    """One line of at most `most` characters. A draft may spread the text over several lines."""
    return Form(
        f"text, at most {most} characters",
        {"type": "string", "minLength": 1, "maxLength": most},
        lambda value, where: read_text(value, where, most),
        tidy=lambda value, _where: one_line(value),
        draft_schema={"type": "string", "minLength": 1},
    )


def integer(least: int, most: int | None = None) -> Form:
    limits = {"minimum": least} | ({"maximum": most} if most is not None else {})
    return Form(
        f"integer from {least}" + (f" to {most}" if most is not None else ""),
        {"type": "integer", **limits},
        lambda value, where: read_integer(value, where, *([least] if most is None else [least, most])),
    )


def choice(kind: type[StrEnum] | tuple[str, ...]) -> Form:
    """One of a set of names; typed if `kind` is an enumeration."""
    names = [str(name) for name in kind]

    def read(value: Any, where: str) -> Any:
        chosen = read_choice(value, where, names)
        return kind(chosen) if isinstance(kind, type) else chosen

    return Form(" or ".join(f"`{name}`" for name in names), {"enum": names}, read, str)


def list_of(
    each: Callable[[Any, str], Any], most: int, items: Schema, words: str, drafted_items: Schema
) -> Form:
    """A list of objects that each define their own form. `items` and `drafted_items` describe one object."""
    return Form(
        words,
        {"type": "array", "maxItems": most, "items": items},
        lambda value, where: tuple(
            each(entry, f"{where}[{index}]") for index, entry in enumerate(read_list(value, where, most))
        ),
        lambda entries: [entry.to_body() for entry in entries],
        draft_schema={"type": "array", "maxItems": most, "items": drafted_items},
    )


def record(each: Callable[[Any, str], Any], schema: Schema, words: str) -> Form:
    """An object that defines its own form."""
    return Form(words, schema, each, lambda value: value.to_body())


def _time_of(value: Any, _where: str) -> Any:
    return time_text(value) if isinstance(value, datetime) else value


DECIMAL = Form(
    "decimal",
    {"type": "string", "pattern": DECIMAL_PATTERN},
    read_decimal,
    decimal_text,
    lambda value, where: decimal_text(real_of(value, where)),
    {"type": ["number", "string"]},
)
TIME = Form(
    "time in UTC",
    TIME_SCHEMA,
    read_time,
    time_text,
    _time_of,
    {"type": "string", "format": "date-time"},
)


def _read_true(value: Any, where: str) -> bool:
    if value is not True:
        malformed(where, "true, or omitted")
    return True


FLAG = Form("`true`", {"type": "boolean", "enum": [True]}, _read_true, draft_schema={"type": "boolean"})


def one_line(value: Any) -> Any:
    """Text in NFC on one line. Anything else is left for the strict reader to refuse."""
    return " ".join(unicodedata.normalize("NFC", value).split()) if isinstance(value, str) else value
