"""The data user's own log: every move of a study, in one chain, written in the transaction that moves it."""

from datetime import datetime

from sqlalchemy import Connection, insert, select

from dpdpca_protocol.fields import read_time
from dpdpca_protocol.identifiers import Digest
from dpdpca_protocol.log import EMPTY, LogEntry
from dpdpca_user_service.store.tables import log


def append_entry(connection: Connection, kind: str, subject: Digest, now: datetime) -> None:
    last = connection.execute(
        select(log.c.position, log.c.digest).order_by(log.c.position.desc()).limit(1)
    ).one_or_none()
    position, previous = (1, EMPTY) if last is None else (last.position + 1, Digest.parse(last.digest))
    entry = LogEntry(position, previous, now, kind, subject)
    connection.execute(insert(log).values(**entry.to_body(), digest=entry.digest.hex()))


def head_of(connection: Connection) -> Digest:
    last = connection.execute(select(log.c.digest).order_by(log.c.position.desc()).limit(1))
    found = last.scalar_one_or_none()
    return EMPTY if found is None else Digest.parse(found)


def entries(connection: Connection) -> list[LogEntry]:
    """All of it, oldest first, as it is stored."""
    return [
        LogEntry(
            row.position,
            Digest.parse(row.previous),
            read_time(row.time, "time"),
            row.kind,
            Digest.parse(row.subject),
        )
        for row in connection.execute(select(log).order_by(log.c.position))
    ]
