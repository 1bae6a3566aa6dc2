"""Drafts as they arrive: parsed, and judged as far as can be without a key and without the proxy."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gmpy2 import mpz

from dpdpca_protocol.errors import LimitError, MessageError
from dpdpca_protocol.paillier.keys import PublicKey
from dpdpca_protocol.paillier.proof import KeyProof
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import MAX_PARTICIPANTS
from dpdpca_protocol.terms.parties import Participant, Party, ProxyParty
from dpdpca_protocol.wire.canonical import unique_members
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_runtime.http.answers import PartyFacts
from dpdpca_user.planning.draft import DEFAULT_MIN_OWNERS, complete_draft

TOML_MEDIA_TYPE = "application/toml"
JSON_MEDIA_TYPE = "application/json"


def media_type_of(path: Path) -> str:
    """JSON for files that say so by their name, else TOML."""
    return JSON_MEDIA_TYPE if path.suffix.lower() == ".json" else TOML_MEDIA_TYPE


_STAND_IN_KEY_BITS = 3072
_STAND_IN_DAYS = 30

_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_LONG_KEY = re.compile(f"(?<![A-Za-z0-9_.'\"-])(?:{_PART}){{100}}")
"""Python's parser takes a time that grows with the square of a dotted key's parts."""

_LONG_WORD = re.compile(r"(?<![0-9A-Za-z_])[0-9A-Za-z_]{1000}")
"""Python's parser takes a hundred times the memory of a number's digits."""

MOST_PARTS = 200_000
"""Values and parts of keys in a draft; each may need a kilobyte once it is parsed."""


def parse_draft(untrusted: bytes, media_type: str) -> dict[str, Any]:
    """The tables of a draft in TOML or JSON.

    Raises:
        MessageError: not one of them, a member named twice, or no table at the top.
        LimitError: `too-large`, it holds more than any draft.
    """
    if sum(map(untrusted.count, (b"[", b"{", b",", b"=", b"."))) > MOST_PARTS:
        raise LimitError("too-large", f"the draft has more than {MOST_PARTS} entries", "leave some out")
    try:
        text = untrusted.decode("utf-8")
        if _LONG_WORD.search(text):
            raise MessageError("malformed", "the draft holds a word or number of 1,000 signs", "correct it")
        if media_type != JSON_MEDIA_TYPE and _LONG_KEY.search(text):
            raise MessageError("malformed", "a key of the draft has too many parts", "correct it")
        if media_type == JSON_MEDIA_TYPE:
            draft = json.loads(text, object_pairs_hook=unique_members)
        else:
            draft = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MessageError("malformed", f"the draft is not TOML: {_place(error)}", "correct it") from error
    except (ValueError, RecursionError) as error:
        raise MessageError(
            "malformed", "the draft is not valid TOML or JSON in UTF-8", "correct it"
        ) from error
    if not isinstance(draft, dict):
        raise MessageError("malformed", "the draft is not an object", "compare it with the example draft")
    return draft


def plain_json(draft: Mapping[str, Any]) -> dict[str, Any]:
    """The same draft without what TOML has and JSON has not.

    Raises:
        MessageError: it has a date or a time of day.
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
) -> Manifest:
    """The manifest as it would be with some key, if every rule but those about the key holds.

    Args:
        draft: parsed.
        user, proxy: the parties.
        closes_at: closing time where the draft has none.
        key_bits: length of the key to come.
        participants: the enrolled owners; None takes any name of an owner as enrolled.

    Raises:
        MessageError, PolicyError: as every party would refuse it.
    """
    owners = _stand_ins(draft) if participants is None else participants
    return complete_draft(draft, user, proxy, owners, _any_key(key_bits), KeyProof(()), closes_at=closes_at)


def lint_alone(draft: Mapping[str, Any], now: datetime) -> Manifest:
    """As `lint`, with stand-ins for both parties too: a draft is judged before anybody is enrolled."""
    user = Party("this data user", b"\xfe" * 32, b"\xfe" * 32)
    proxy = ProxyParty("the proxy", "https://proxy.example", b"\xff" * 32, b"\xff" * 32)
    return lint(draft, user, proxy, closing_time(now, _STAND_IN_DAYS), _STAND_IN_KEY_BITS)


def as_enrolled(user: Party, listed: Iterable[PartyFacts]) -> Party:
    """`user` under the name that the proxy's operator gave it: a manifest under another one is refused."""
    names = [party.name for party in listed if party.identity.ed25519 == user.ed25519]
    return replace(user, name=names[0]) if names else user


def closing_time(now: datetime, days: int) -> datetime:
    return now + timedelta(days=days)


def _stand_ins(draft: Mapping[str, Any]) -> list[Participant]:
    """An owner for every name in the draft, or as many as it needs if it names none."""
    named = draft.get("participants")
    if not isinstance(named, list):
        least = draft.get("min_owners", DEFAULT_MIN_OWNERS)
        count = min(least, MAX_PARTICIPANTS + 1) if isinstance(least, int) else 0
        named = [f"owner {index}" for index in range(count)]
    names = [" ".join(name.split()) for name in named if isinstance(name, str)]
    return [Participant(name, Digest.of(name.encode())) for name in dict.fromkeys(names)]


def _any_key(bits: int) -> PublicKey:
    """A modulus of the right length that is no key at all."""
    return PublicKey(mpz((1 << (bits - 1)) + 1))


def _place(error: tomllib.TOMLDecodeError) -> str:
    """Where the fault is, without the text itself."""
    message = str(error)
    start = message.rfind("(at ")
    return message[start:].strip("()") if start >= 0 else "somewhere"
