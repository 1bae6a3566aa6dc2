"""A party's log of actions that it must not undo.

A log is a hash chain: each digest covers all entries before it. The proxy and the data user each keep such a
log; an owner's log is its ledger. A party names the newest digest, the head, in the statements that it signs.
Anyone who holds such a statement can later detect a log that does not contain this head.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from dpdpca_protocol.errors import IntegrityError, MessageError
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.fields import check_members, read_integer, read_text, read_time, time_text
from dpdpca_protocol.wire.identifiers import Digest

EMPTY: Final = Digest(bytes(32))
"""The head of an empty log."""
_MOST_KIND = 40


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log. It contains the digest of the entry before it.

    Attributes:
        position: counts from 1. In the proxy's log, numbers are skipped where its operator accepted a loss.
        previous: the digest of the entry before; `EMPTY` for the first entry.
        time: by the party's clock, in whole seconds.
        kind: what was done.
        subject: the digest of the statement that has the details.
    """

    position: int
    previous: Digest
    time: datetime
    kind: str
    subject: Digest

    @property
    def digest(self) -> Digest:
        return Digest.of(b"dpdpca/log/v1\x00" + canonical_json(self.to_body()))

    def to_body(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "position": self.position,
            "previous": self.previous.hex(),
            "subject": self.subject.hex(),
            "time": time_text(self.time),
        }

    @classmethod
    def parse(cls, untrusted: Any) -> Self:
        """Parses what `to_body` writes. Raises MessageError for anything else."""
        check_members(untrusted, "a log entry", ("kind", "position", "previous", "subject", "time"))
        body: Mapping[str, Any] = untrusted
        return cls(
            read_integer(body["position"], "position", 1),
            Digest.parse(body["previous"]),
            read_time(body["time"], "time"),
            read_text(body["kind"], "kind", _MOST_KIND),
            Digest.parse(body["subject"]),
        )


def check_links(entries: Sequence[LogEntry]) -> list[Digest]:
    """The heads in a part of a log: the head before its first entry, and the head after each entry.

    Positions rise, but need not rise by one: the proxy's log skips the positions of entries that it has lost.

    Raises:
        MessageError: `log-broken`, an entry does not follow the entry before it.
    """
    heads = [entry.previous for entry in entries[:1]]
    before = 0
    for entry in entries:
        if entry.previous != heads[-1] or entry.position <= before:
            raise MessageError(
                "log-broken", f"entry {entry.position} of the log does not follow the entry before it"
            )
        heads.append(entry.digest)
        before = entry.position
    return heads


def check_chain(entries: Iterable[LogEntry]) -> list[Digest]:
    """The head after each entry of a log without gaps. The first item is the head of the empty log.

    Raises:
        IntegrityError: `log-broken`, an entry does not follow the entry before it.
    """
    heads = [EMPTY]
    for entry in entries:
        if (entry.position, entry.previous) != (len(heads), heads[-1]):
            raise IntegrityError(
                "log-broken",
                f"entry {entry.position} of the log does not follow the entry before it",
                "restore the newest copy of the log",
            )
        heads.append(entry.digest)
    return heads
