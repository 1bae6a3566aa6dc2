"""Parses drafts, and checks them as far as possible without a key and without the proxy."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpdpca_protocol.errors import LimitError, MessageError
from dpdpca_protocol.terms.feature_list import FeatureLists, no_lists
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import ENROLLED, MAX_PARTICIPANTS
from dpdpca_protocol.terms.parties import KeyTerms, PadsKeyTerms, Participant, Party, ProxyParty, StudyKey
from dpdpca_protocol.terms.terms import SuiteName
from dpdpca_protocol.wire.canonical import unique_members
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_runtime.http.answers import PartyFacts
from dpdpca_user.planning.draft import DEFAULT_MIN_OWNERS, complete_draft, suite_of_draft

TOML_MEDIA_TYPE = "application/toml"
JSON_MEDIA_TYPE = "application/json"


def media_type_of(path: Path) -> str:
    """The media type of a draft file: JSON for the suffix .json, else TOML."""
    return JSON_MEDIA_TYPE if path.suffix.lower() == ".json" else TOML_MEDIA_TYPE


_STAND_IN_KEY_BITS = 3072
_STAND_IN_DAYS = 30

_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_LONG_KEY = re.compile(f"(?<![A-Za-z0-9_.'\"-])(?:{_PART}){{100}}")
"""The time of Python's parser grows with the square of the number of parts in a dotted key."""

_LONG_WORD = re.compile(r"(?<![0-9A-Za-z_])[0-9A-Za-z_]{1000}")
"""Python's parser needs a hundred times the memory of a number's digits."""

MOST_PARTS = 200_000
"""The largest number of values and key parts in a draft; each may need a kilobyte when it is parsed."""


def parse_draft(untrusted: bytes, media_type: str) -> dict[str, Any]:
    """The tables of a draft in TOML or JSON.

    Raises:
        MessageError: the draft is neither TOML nor JSON, a member occurs twice, or the top level is not a
        table.
        LimitError: `too-large`, there are more entries than a draft may have.
    """
    if sum(map(untrusted.count, (b"[", b"{", b",", b"=", b"."))) > MOST_PARTS:
        raise LimitError("too-large", f"the draft has more than {MOST_PARTS} entries", "leave some out")
    try:
        text = untrusted.decode("utf-8")
        if _LONG_WORD.search(text):
            raise MessageError(
                "malformed", "the draft contains a word or number of 1,000 characters or more", "correct it"
            )
        if media_type != JSON_MEDIA_TYPE and _LONG_KEY.search(text):
            raise MessageError("malformed", "a key of the draft has too many parts", "correct it")
        if media_type == JSON_MEDIA_TYPE:
            draft = json.loads(text, object_pairs_hook=unique_members)
        else:
            draft = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MessageError(
            "malformed", f"the draft is not valid TOML: {_place(error)}", "correct it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise MessageError(
            "malformed", "the draft is not valid TOML or JSON in UTF-8", "correct it"
        ) from error
    if not isinstance(draft, dict):
        raise MessageError(
            "malformed", "the draft is not an object", "compare the draft with the example draft"
        )
    return draft


def plain_json(draft: Mapping[str, Any]) -> dict[str, Any]:
    """The same draft as plain JSON, without the types that only TOML has.

    Raises:
        MessageError: the draft has a date or a time of day.
    """
    return dict(json.loads(json.dumps(draft, default=_as_text)))


def _as_text(value: Any) -> str:
    if isinstance(value, datetime):
        return time_text(value)
    raise MessageError(
        "malformed", "the draft has a date or a time of day", "write times as 2026-11-27T22:00:00Z"
    )


def lint(
    draft: Mapping[str, Any],
    user: Party,
    proxy: ProxyParty,
    closes_at: datetime,
    key_bits: int,
    participants: Sequence[Participant] | None = None,
    feature_lists: FeatureLists = no_lists,
) -> Manifest:
    """The manifest that the draft would become with some key, if it satisfies all rules except those on keys.

    Args:
        draft: the parsed draft.
        user, proxy: the parties.
        closes_at: closing time if the draft has none.
        key_bits: length of the future key.
        participants: the enrolled owners; None accepts every name of an owner as enrolled.
        feature_lists: gives the list that the draft may name in place of `features`.

    Raises:
        MessageError, PolicyError: with the reason for which every party would refuse it.
    """
    owners = _stand_ins(draft) if participants is None else participants
    key = _any_key(suite_of_draft(draft), key_bits)
    return complete_draft(draft, user, proxy, owners, key, closes_at=closes_at, feature_lists=feature_lists)


def lint_alone(draft: Mapping[str, Any], now: datetime, feature_lists: FeatureLists = no_lists) -> Manifest:
    """Like `lint`, but with placeholders for data user and proxy, so that no enrolment is needed."""
    user = Party("this data user", b"\xfe" * 32)
    proxy = ProxyParty("the proxy", "https://proxy.example", b"\xff" * 32, PREVIEW_KEM)
    closes_at = closing_time(now, _STAND_IN_DAYS)
    return lint(draft, user, proxy, closes_at, _STAND_IN_KEY_BITS, feature_lists=feature_lists)


def as_enrolled(user: Party, listed: Iterable[PartyFacts]) -> Party:
    """`user` with the name under which the proxy enrolled it, because a manifest with another name is
    refused."""
    names = [party.name for party in listed if party.ed25519 == user.ed25519]
    return replace(user, name=names[0]) if names else user


def closing_time(now: datetime, days: int) -> datetime:
    return now + timedelta(days=days)


def _stand_ins(draft: Mapping[str, Any]) -> list[Participant]:
    """A placeholder owner for every name or key in the draft; `min_owners` placeholders for "enrolled"."""
    named = draft.get("participants")
    if named == ENROLLED:
        least = draft.get("min_owners", DEFAULT_MIN_OWNERS)
        count = min(least, MAX_PARTICIPANTS + 1) if isinstance(least, int) else 0
        named = [f"owner {index}" for index in range(count)]
    listed = named if isinstance(named, list) else []
    names = [" ".join(name.split()) for name in listed if isinstance(name, str)]
    given = [Participant.parse(entry, "participants") for entry in listed if isinstance(entry, Mapping)]
    keyed = [replace(each, x25519=_stand_in(each.name).x25519) for each in given]
    return [*(_stand_in(name) for name in dict.fromkeys(names)), *keyed]


def _stand_in(name: str) -> Participant:
    """An owner with keys that nobody has."""
    digest = Digest.of(name.encode())
    return Participant(
        name, digest, X25519PrivateKey.from_private_bytes(digest).public_key().public_bytes_raw()
    )


def _any_key(suite: SuiteName, bits: int) -> StudyKey:
    """A key of the right length that nobody can use: its secret is unknown, or there is none."""
    if suite is SuiteName.PADS:
        return PadsKeyTerms(PREVIEW_KEM)
    return KeyTerms((1 << (bits - 1)) + 1, ())


def _place(error: tomllib.TOMLDecodeError) -> str:
    """Where the error is, without repeating the text itself."""
    message = str(error)
    start = message.rfind("(at ")
    return message[start:].strip("()") if start >= 0 else "somewhere"
