"""The data user's own log: one chain of all stage changes, each written in the transaction of the change."""

from datetime import datetime

from sqlalchemy import Connection, insert, select

from dpdpca_protocol.messages.log import EMPTY, LogEntry
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_runtime.database import as_written
from dpdpca_user_service.store.tables import log

_COLUMNS = (log.c.position, log.c.previous, log.c.time, log.c.kind, log.c.subject)


def append_entry(connection: Connection, kind: str, subject: Digest, now: datetime) -> None:
    position, head = _last(connection)
    entry = LogEntry(position + 1, head, now, kind, subject)
    connection.execute(insert(log).values(**entry.to_body(), digest=entry.digest.hex()))


def head_of(connection: Connection) -> Digest:
    return _last(connection)[1]


def entries(connection: Connection) -> list[LogEntry]:
    """The whole log as it is stored, oldest entry first."""
    rows = connection.execute(select(*_COLUMNS).order_by(log.c.position))
    with as_written():
        return [LogEntry.parse(dict(row._mapping)) for row in rows]


def _last(connection: Connection) -> tuple[int, Digest]:
    """The position and digest of the newest entry; (0, EMPTY) if the log is empty."""
    last = connection.execute(
        select(log.c.position, log.c.digest).order_by(log.c.position.desc()).limit(1)
    ).one_or_none()
    with as_written():
        return (0, EMPTY) if last is None else (last.position, Digest.parse(last.digest))
