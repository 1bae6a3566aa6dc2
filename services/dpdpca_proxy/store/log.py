"""The proxy's own log: one chain of all that it did and must not undo, each entry in its act's transaction.

So an act without its entry does not happen, and no entry stands without its act. The number of the last entry
is the proxy's generation. Entries hold digests only: `subject` is that of the statement that tells the rest.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, insert, select

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.messages.log import LogEntry
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_proxy.store.tables import log
from dpdpca_proxy.store.witness import START, Mark

DRAW = "draw"
"""The noise of a study; the subject is the digest of a random name, for noise itself could be guessed."""
LOSS = "loss"
"""The one kind that may leave numbers out: the operator has accepted that what stood under them is lost."""
_WRITTEN = "dpdpca_mark"


def append_entry(
    connection: Connection, kind: str, subject: Digest, now: datetime, *, after: int = 0
) -> Mark:
    """The next entry, whose number is also above `after`; the transaction marks it with the witness."""
    last = last_mark(connection)
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


def last_mark(connection: Connection) -> Mark:
    row = connection.execute(
        select(log.c.position, log.c.digest).order_by(log.c.position.desc()).limit(1)
    ).one_or_none()
    return START if row is None else Mark(row.position, row.digest)


def check_holds(connection: Connection, witness: Mark | None, place: Path) -> None:
    """That the log holds what the witness, whose file is at `place`, has seen.

    Raises:
        ConflictError: `generation-mismatch`.
    """
    present = last_mark(connection).generation
    if witness == START or (witness is None and not present):
        return
    if witness is None:
        raise ConflictError(
            "generation-mismatch",
            f"there is no generation file, and the database stands at generation {present}",
            "if the file is elsewhere, name it there (generation_file) or bring it here; only if it is lost:"
            " dpdpca proxy accept-loss",
            place=str(place),
        )
    at = log.c.position == witness.generation
    if connection.execute(select(log.c.digest).where(at)).scalar_one_or_none() == witness.head:
        return
    raise ConflictError(
        "generation-mismatch",
        f"the database stands at generation {present} and this proxy had come to {witness.generation}:"
        " it was put back from an older copy"
        if present < witness.generation
        else f"the database holds another history than this proxy's up to generation {witness.generation}",
        "put the newer database back, or accept the loss: dpdpca proxy accept-loss",
        place=str(place),
    )


def take_written(connection: Connection) -> Mark | None:
    """The mark that this transaction has set, once."""
    mark: Mark | None = connection.info.pop(_WRITTEN, None)
    return mark


def entries(connection: Connection) -> Iterator[tuple[LogEntry, Digest]]:
    """All of the log, with the digests that are stored."""
    columns = (log.c.position, log.c.previous, log.c.time, log.c.kind, log.c.subject)
    for row in connection.execute(select(*columns, log.c.digest).order_by(log.c.position)):
        yield LogEntry(*row[:5]), row.digest
