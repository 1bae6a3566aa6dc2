"""Canonical JSON (RFC 8785) in and out: a message has one encoding, anything else is refused.

Only objects, arrays, strings, booleans and integers below 2⁵³ occur; reals travel as decimal strings.
"""

import json
from collections.abc import Mapping
from typing import Any

import rfc8785

from dpdpca_protocol.errors import MessageError

_MAX_DEPTH = 16


def canonical_json(value: Mapping[str, Any]) -> bytes:
    """The one encoding of `value`.

    Raises:
        MessageError: a value has no canonical form (a float, a lone surrogate, an integer ≥ 2⁵³).
    """
    try:
        _check_no_reals(value)
        return rfc8785.dumps(dict(value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise MessageError("not-canonical", "a value has no canonical JSON form") from error


def parse_canonical(untrusted: bytes) -> dict[str, Any]:
    """The object that `untrusted` encodes, if these bytes are its canonical form.

    Raises:
        MessageError: not JSON, not an object, a duplicate member, a number that is no integer below 2⁵³,
            or bytes that differ from the canonical form of what they say.
    """
    if _nesting(untrusted) > _MAX_DEPTH:
        raise MessageError("malformed", f"the message nests deeper than {_MAX_DEPTH} levels")
    try:
        value = json.loads(
            untrusted.decode("utf-8", errors="strict"),
            object_pairs_hook=unique_members,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except MessageError:
        raise
    except (ValueError, RecursionError) as error:
        raise MessageError("malformed", "the message is not UTF-8 JSON") from error
    if not isinstance(value, dict):
        raise MessageError("malformed", "the message is not a JSON object")
    if canonical_json(value) != untrusted:
        raise MessageError(
            "not-canonical", "the message is not in canonical form", "encode it by RFC 8785 and send it again"
        )
    return value


def _nesting(untrusted: bytes) -> int:
    """An upper bound on the nesting depth that needs no parser: brackets in strings only raise it."""
    depth = deepest = 0
    for byte in untrusted:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _check_no_reals(value: Any) -> None:
    if isinstance(value, float):
        raise MessageError("not-canonical", "a number is not an integer; reals travel as decimal strings")
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for member in value:
        _check_no_reals(member)


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json`'s `object_pairs_hook`: an object, or MessageError where it names a member twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MessageError("not-canonical", "an object names a member twice")
    return members


def _refuse_number(_literal: str) -> Any:
    raise MessageError("not-canonical", "numbers must be integers; reals travel as decimal strings")
