"""Reads and writes canonical JSON (RFC 8785).

A message has exactly one encoding; everything else is refused. Only objects, arrays, strings, booleans and
integers below 2⁵³ are used. Reals are sent as decimal strings.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import rfc8785

from dpdpca_protocol.errors import LimitError, MessageError

MOST_GROWTH_BYTES = 96 * 1024 * 1024
"""The most memory that a parsed message may need beyond its text."""

_MAX_DEPTH = 16
_TEXTS = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)
_BYTES_OF_A_VALUE = 300
_BEYOND_LATIN, _BEYOND_BASIC = re.compile(rb"[\xc4-\xff]"), re.compile(rb"[\xf0-\xff]")
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""The closing quote is optional.

With a required closing quote, a search in bytes without that quote would start again at every earlier quote.
"""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """The canonical encoding of `value`.

    Raises:
        MessageError: a value has no canonical form (a float, a lone surrogate, an integer ≥ 2⁵³).
    """
    try:
        _check_no_reals(value)
        return rfc8785.dumps(dict(value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise MessageError("not-canonical", "a value has no canonical JSON form") from error


def canonical_texts(value: Any) -> str:
    """Like `canonical_json`, much faster, for texts, lists and integers, and for objects of these whose
    member names are ASCII. The caller knows that there is nothing else in `value`."""
    return _TEXTS.encode(value)


def named_list(name: str, encoded: Sequence[bytes]) -> bytes:
    """The text `"name":[…]` of a member that lists encoded objects, without the braces around it."""
    return f'"{name}":['.encode() + b",".join(encoded) + b"]"


def parse_canonical(untrusted: bytes) -> dict[str, Any]:
    """The object that `untrusted` encodes, if these bytes are its canonical form.

    Raises:
        MessageError: the bytes are not JSON, not an object, contain a duplicate member or a number that is
            not an integer below 2⁵³, or differ from the canonical form.
        LimitError: `too-large`, see `check_growth`.
    """
    value = read_object(untrusted, parse_float=_refuse_number, parse_constant=_refuse_number)
    if canonical_json(value) != untrusted:
        raise MessageError(
            "not-canonical",
            "the message is not in canonical form",
            "encode the message according to RFC 8785 and send it again",
        )
    return value


def read_object(
    untrusted: bytes, most_growth_bytes: int = MOST_GROWTH_BYTES, **options: Any
) -> dict[str, Any]:
    """The JSON object that `untrusted` encodes, in any form.

    Args:
        untrusted: UTF-8 without a byte-order mark.
        most_growth_bytes: see `check_growth`.
        options: those of `json.loads`.

    Raises:
        MessageError: the text is not JSON, not an object, has a duplicate member, or is nested more than 16
            levels deep.
        LimitError: `too-large`.
    """
    check_growth(untrusted, most_growth_bytes)
    if _nesting(untrusted) > _MAX_DEPTH:
        raise MessageError("malformed", f"the message is nested more than {_MAX_DEPTH} levels deep")
    try:
        value = json.loads(
            untrusted.decode("utf-8", errors="strict"), object_pairs_hook=unique_members, **options
        )
    except (ValueError, RecursionError) as error:
        raise MessageError("malformed", "the message is not UTF-8 JSON") from error
    if not isinstance(value, dict):
        raise MessageError("malformed", "the message is not a JSON object")
    return value


def check_growth(untrusted: bytes, most_bytes: int = MOST_GROWTH_BYTES) -> None:
    """Checks that `untrusted` does not need too much memory once it is parsed.

    The three bytes `[],` of JSON take seventy bytes as Python objects. The check uses an upper bound: the
    largest object for each value, and texts as wide as their widest character, counted as a whole and once
    more in parts.

    Raises:
        LimitError: `too-large`.
    """
    is_wide = b"\\u" in untrusted or _BEYOND_BASIC.search(untrusted)
    width = 4 if is_wide else 2 if _BEYOND_LATIN.search(untrusted) else 1
    values = 1 + sum(map(untrusted.count, (b"[", b"{", b",")))
    if 2 * (width - 1) * len(untrusted) + _BYTES_OF_A_VALUE * values > most_bytes:
        raise LimitError(
            "too-large",
            f"the parsed message would need more than {most_bytes >> 20} MiB beyond its text",
            "send less",
        )


def _nesting(untrusted: bytes) -> int:
    """The depth to which brackets outside strings are nested.

    This function uses no parser, because a parser could run out of stack.
    """
    depth = deepest = 0
    for bracket in _TEXT.sub(b"", untrusted).translate(None, _NO_BRACKETS):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def _check_no_reals(value: Any) -> None:
    if isinstance(value, float):
        raise MessageError("not-canonical", "a number is not an integer; reals are sent as decimal strings")
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for member in value:
        _check_no_reals(member)


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` for `json`. Raises MessageError if an object names a member twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MessageError("not-canonical", "an object names a member twice")
    return members


def _refuse_number(_literal: str) -> Any:
    raise MessageError("not-canonical", "numbers must be integers; reals are sent as decimal strings")
