"""A party's log of what it did and must not undo: digests in a chain, of which the last binds all before it.

Proxy and data user keep one; the owner's is its ledger. Each names its newest digest, the head, in what it
signs: who holds such a statement can later tell a log that no longer leads to it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from dpdpca_protocol.errors import IntegrityError
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.fields import check_members, read_integer, read_text, read_time, time_text
from dpdpca_protocol.wire.identifiers import Digest

EMPTY: Final = Digest(bytes(32))
"""The head of a log without entries."""
_MOST_KIND = 40


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One link.

    Attributes:
        position: counts from 1; in the proxy's, numbers are left out where its operator accepted a loss.
        previous: digest of the entry before; `EMPTY` for the first.
        time: by the party's clock, whole seconds.
        kind: what was done.
        subject: digest of the statement that tells the rest.
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
        """Raises MessageError unless it has the form of `to_body`."""
        check_members(untrusted, "a log entry", ("kind", "position", "previous", "subject", "time"))
        body: Mapping[str, Any] = untrusted
        return cls(
            read_integer(body["position"], "position", 1),
            Digest.parse(body["previous"]),
            read_time(body["time"], "time"),
            read_text(body["kind"], "kind", _MOST_KIND),
            Digest.parse(body["subject"]),
        )


def check_chain(entries: Iterable[LogEntry]) -> list[Digest]:
    """The head after each entry of a log without gaps, the empty log's first.

    Raises:
        IntegrityError: `log-broken`, an entry does not follow the one before.
    """
    heads = [EMPTY]
    for entry in entries:
        if (entry.position, entry.previous) != (len(heads), heads[-1]):
            raise IntegrityError(
                "log-broken",
                f"entry {entry.position} of the log does not follow the one before",
                "put the newest copy back",
            )
        heads.append(entry.digest)
    return heads
