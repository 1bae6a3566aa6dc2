"""The lines of an owner's ledger. A line is one entry in canonical JSON, with the previous line's digest.

This module only checks that an entry is well formed. `ledger.py` decides whether an entry may follow the
others.

Each entry has a random member that nobody else knows. Owners name the digest of their last entry in what they
sign. Without the random member, anyone who reads the digests of two entries could test guesses of the entries
between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dpdpca_protocol.errors import MessageError
from dpdpca_protocol.randomness import OS_RANDOMNESS, Randomness
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.fields import read_time
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import FILE_FORMAT, check_members, hex_bytes

_RANDOM_BYTES = 16
_TAG = f"dpdpca/ledger/v{FILE_FORMAT}\x00".encode()
_MEMBERS: dict[str, frozenset[str]] = {
    "ledger": frozenset({"id", "key"}),
    "budget": frozenset({"delta", "epsilon", "rho"}),
    "content": frozenset({"data_set", "fingerprint", "records"}),
    "merge": frozenset({"data_set", "merged"}),
    "reserve": frozenset(
        {
            "closes_at", "data_set", "delta", "epsilon", "outside_delta", "owner", "proxy", "rho", "study",
            "title", "user",
        }
    ),
    "commit": frozenset({"evidence", "study", "version"}),
    "refund": frozenset({"evidence", "study", "version", "why"}),
    "rule": frozenset({"chain", "data_set", "delta", "epsilon", "name", "source", "study", "text"}),
    "sending": frozenset({"study", "values"}),
    "recovered": frozenset({"key", "keeps_data_sets", "lost_entries", "lost_rho", "reason"}),
}  # fmt: skip
_MEMBERS["found"] = _MEMBERS["reserve"]
_OPTIONAL = {"recovered": frozenset({"owners"})}
"""Members that entries of earlier versions lack."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    Attributes:
        previous: the digest of the line before; for the first line it is all zeros.
        random: 16 random bytes; None in an entry of an earlier version.
    """

    index: int
    previous: Digest
    time: str
    kind: str
    detail: Mapping[str, Any]
    random: bytes | None

    @property
    def line(self) -> bytes:
        body = {
            "detail": dict(self.detail),
            "format": FILE_FORMAT,
            "index": self.index,
            "kind": self.kind,
            "previous": self.previous.hex(),
            "time": self.time,
        }
        if self.random is not None:
            body["random"] = self.random.hex()
        return canonical_json(body) + b"\n"

    @property
    def digest(self) -> Digest:
        return Digest.of(_TAG + self.line)

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """The entry in `line`, which has no newline at its end. Raises MessageError if this version cannot
        read the entry."""
        body = parse_canonical(line)
        check_members(
            body, "detail", "index", "kind", "previous", "time", optional=("random",), formats=(FILE_FORMAT,)
        )
        if type(body["index"]) is not int or body["index"] < 0:
            raise MessageError("malformed", "an entry's index must be a whole number, 0 or larger")
        if not isinstance(body["kind"], str) or body["kind"] not in _MEMBERS:
            raise MessageError("unsupported-version", "an entry has a kind that this version does not know")
        kind = body["kind"]
        optional = _OPTIONAL.get(kind, frozenset())
        if not isinstance(body["detail"], dict) or body["detail"].keys() - optional != _MEMBERS[kind]:
            raise MessageError("malformed", f"an entry of kind '{kind}' has missing or unknown members")
        read_time(body["time"], "time")
        previous = Digest.parse(body["previous"])
        random = hex_bytes(body["random"], _RANDOM_BYTES, "random") if "random" in body else None
        return cls(body["index"], previous, body["time"], body["kind"], body["detail"], random)


FIRST = Digest(bytes(32))
"""The digest that the first entry names as that of its predecessor."""


class Batch:
    """Builds entries that continue a chain, one after the other.

    Args:
        count: number of entries in the chain.
        last: digest of its last entry; `FIRST` for an empty chain.
        time: RFC 3339 UTC, for all new entries.
        randomness: the source of the random members.
    """

    def __init__(self, count: int, last: Digest, time: str, randomness: Randomness = OS_RANDOMNESS) -> None:
        self.entries: list[Entry] = []
        self._count, self._last, self._time, self._randomness = count, last, time, randomness

    def add(self, kind: str, detail: Mapping[str, Any]) -> None:
        random = self._randomness.bytes(_RANDOM_BYTES)
        entry = Entry(self._count, self._last, self._time, kind, detail, random)
        self.entries.append(entry)
        self._count, self._last = self._count + 1, entry.digest
