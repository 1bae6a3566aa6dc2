"""The proxy's own log: one chain of all actions that it must not undo.

Each entry is written in the same transaction as its action, so both are stored or neither is. The number of
the last entry is the proxy's generation. Entries contain only digests: `subject` is the digest of the
statement that has the details.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, ScalarSelect, func, insert, select

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy.store.tables import log
from dpdpca_proxy.store.witness import START, Mark
from dpdpca_runtime.database import wait_turn

DRAW = "draw"
"""The draw of a study's noise.

The subject is the digest of a random name: from a digest of the noise itself, the noise could be guessed.
"""
LOSS = "loss"
"""The only kind of entry that may skip numbers: the operator accepted that the skipped entries are lost."""
_WRITTEN = "dpdpca_mark"


def append_entry(
    connection: Connection, kind: str, subject: Digest, now: datetime, *, after: int = 0
) -> Mark:
    """Appends the next entry, with a number above `after`. The transaction reports the entry to the
    witness.

    All others that append wait until this transaction ends, so this is the last thing that it does. Times of
    entries about different studies need not rise, because each is read before the wait.
    """
    last = mark_to_follow(connection)
    entry = LogEntry(max(last.generation, after) + 1, last.head, now, kind, subject)
    connection.execute(
        insert(log).values(
            position=entry.position,
            previous=entry.previous,
            time=now,
            kind=kind,
            subject=subject,
            digest=entry.digest,
        )
    )
    mark = Mark(entry.position, entry.digest)
    connection.info[_WRITTEN] = mark
    return mark


def mark_to_follow(connection: Connection) -> Mark:
    """The mark that the next entry of this transaction will follow: nobody else appends before."""
    wait_turn(connection)
    return last_mark(connection)


def last_mark(connection: Connection) -> Mark:
    row = connection.execute(
        select(log.c.position, log.c.digest).order_by(log.c.position.desc()).limit(1)
    ).one_or_none()
    return START if row is None else Mark(row.position, row.digest)


def check_holds(connection: Connection, witness: Mark | None, place: Path) -> None:
    """Checks that the log contains what the witness has seen. `place` is the file of the witness.

    Raises:
        ConflictError: `generation-mismatch`.
    """
    present = last_mark(connection).generation
    if witness == START or (witness is None and not present):
        return
    if witness is None:
        raise ConflictError(
            "generation-mismatch",
            f"there is no generation file, but the database is at generation {present}",
            "if the file is elsewhere, set generation_file or move the file here; only if it is lost, "
            "run: dpdpca proxy accept-loss",
            place=str(place),
        )
    at = log.c.position == witness.generation
    if connection.execute(select(log.c.digest).where(at)).scalar_one_or_none() == witness.head:
        return
    raise ConflictError(
        "generation-mismatch",
        f"the database is at generation {present}, but this proxy had reached {witness.generation}: an "
        "older copy of the database was restored"
        if present < witness.generation
        else "the history in the database differs from this proxy's history up to generation "
        f"{witness.generation}",
        "restore the newer database, or accept the loss with: dpdpca proxy accept-loss",
        place=str(place),
    )


def take_written(connection: Connection) -> Mark | None:
    """Removes and returns the mark that this transaction has set, or returns None.

    A connection that broke has lost its transaction, and there is nothing that it could tell.
    """
    if connection.invalidated:
        return None
    mark: Mark | None = connection.info.pop(_WRITTEN, None)
    return mark


_ENTRY = (log.c.position, log.c.previous, log.c.time, log.c.kind, log.c.subject)


def entries(connection: Connection) -> Iterator[tuple[LogEntry, Digest]]:
    """The whole log, with the stored digests."""
    for row in connection.execute(select(*_ENTRY, log.c.digest).order_by(log.c.position)):
        yield LogEntry(*row[:5]), row.digest


def entries_between(connection: Connection, first: Digest, last: Digest) -> list[LogEntry]:
    """The entries from the one with the subject `first` to the one before that with the subject `last`."""

    def position(subject: Digest) -> ScalarSelect[int]:
        return select(func.min(log.c.position)).where(log.c.subject == subject).scalar_subquery()

    wanted = select(*_ENTRY).where(log.c.position >= position(first), log.c.position < position(last))
    return [LogEntry(*row) for row in connection.execute(wanted.order_by(log.c.position))]
