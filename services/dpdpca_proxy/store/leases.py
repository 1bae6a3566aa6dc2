"""Rows of leases: which process works on which study, until when, and how often the study was taken.

The clock is the database's. A row stays when its lease ends, because the number must never repeat.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.store.tables import leases
from dpdpca_runtime.database import change_one, seconds_now

_FREE = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """`until` in seconds since 1970. `number` rises whenever the study is taken."""

    holder: str
    until: int
    number: int

    @property
    def is_free(self) -> bool:
        """Whether its holder gave the study back."""
        return self.until == _FREE


def find_lease(connection: Connection, study: StudyId) -> Lease | None:
    """The last lease of a study, whether it has ended or not."""
    row = connection.execute(
        select(leases.c.holder, leases.c.until, leases.c.number).where(leases.c.study == study)
    ).one_or_none()
    return None if row is None else Lease(*row)


def has_ended(connection: Connection, lease: Lease, most_seconds: int) -> bool:
    """Whether a lease, which lasts at most so long, has ended. One that lasts longer is damaged: it counts as
    ended too."""
    now = seconds_now(connection)
    return not now < lease.until <= now + most_seconds


def take_lease(
    connection: Connection, study: StudyId, holder: str, seconds: int, present: Lease | None
) -> int:
    """Gives the study to `holder` and returns the number of its lease.

    Raises UnavailableError if the lease changed since `present` was read.
    """
    until = seconds_now(connection) + seconds
    if present is None:
        connection.execute(insert(leases).values(study=study, holder=holder, until=until, number=1))
        return 1
    number = present.number + 1
    change_one(
        connection,
        update(leases)
        .where(leases.c.study == study, leases.c.number == present.number)
        .values(holder=holder, until=until, number=number),
        UnavailableError(
            "busy", "another process changed the lease of this study", "try again", retry_after_seconds=1
        ),
    )
    return number


def prolong_lease(connection: Connection, study: StudyId, number: int, seconds: int) -> bool:
    """Lets a lease end later. Returns False if another process took the study."""
    until = seconds_now(connection) + seconds
    return _set_end(connection, study, number, until)


def end_lease(connection: Connection, study: StudyId, number: int) -> None:
    """Ends a lease, unless another process took the study."""
    _set_end(connection, study, number, _FREE)


def is_last_lease(connection: Connection, study: StudyId, number: int) -> bool:
    """Whether nobody took the study after this lease."""
    last = connection.execute(select(leases.c.number).where(leases.c.study == study)).scalar_one_or_none()
    return last == number


def _set_end(connection: Connection, study: StudyId, number: int, until: int) -> bool:
    changed = connection.execute(
        update(leases).where(leases.c.study == study, leases.c.number == number).values(until=until)
    )
    return changed.rowcount == 1
