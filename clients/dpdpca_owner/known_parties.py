"""Parties that an owner names in its policy, each by its key or by the twelve words of its key."""

from dataclasses import dataclass
from typing import Any

from dpdpca_protocol.wire.fields import check_members, malformed, read_list, read_text
from dpdpca_protocol.wire.signing import hex_bytes
from dpdpca_runtime.words import fingerprint_words

_NAME = 200
_MOST = 10_000
_WORDS = 12


@dataclass(frozen=True, slots=True)
class Recognised:
    """A party that this owner knows, by its raw Ed25519 key or by the words of that key."""

    name: str
    ed25519: bytes | None
    words: str | None

    def is_key(self, ed25519: bytes) -> bool:
        return (
            ed25519 == self.ed25519 if self.ed25519 is not None else fingerprint_words(ed25519) == self.words
        )


def read_recognised(given: Any, where: str) -> tuple[Recognised, ...]:
    """The parties in a list of TOML tables. Raises MessageError or PolicyError."""
    known = []
    for index, entry in enumerate(read_list(given, where, _MOST)):
        place = f"{where}[{index}]"
        check_members(entry, place, ("name",), ("ed25519", "words"))
        key, words = entry.get("ed25519"), entry.get("words")
        if (key is None) == (words is None):
            malformed(place, "a name and either ed25519 or words")
        if words is not None and len(read_text(words, f"{place}.words", _NAME).split()) != _WORDS:
            malformed(f"{place}.words", f"{_WORDS} words")
        known.append(
            Recognised(
                read_text(entry["name"], f"{place}.name", _NAME),
                None if key is None else hex_bytes(key, 32, f"{place}.ed25519"),
                None if words is None else " ".join(words.split()),
            )
        )
    return tuple(known)
