"""Rows of leases: which process works on which study, and until when."""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.store.tables import leases
from dpdpca_runtime.database import change_one


@dataclass(frozen=True, slots=True)
class Lease:
    """`until` in seconds since 1970."""

    holder: str
    until: int


def find_lease(connection: Connection, study: StudyId) -> Lease | None:
    row = connection.execute(
        select(leases.c.holder, leases.c.until).where(leases.c.study == study)
    ).one_or_none()
    return None if row is None else Lease(*row)


def set_lease(connection: Connection, study: StudyId, holder: str, until: int, present: Lease | None) -> None:
    """Creates or changes a lease. Raises UnavailableError if the lease changed since it was read."""
    if present is None:
        connection.execute(insert(leases).values(study=study, holder=holder, until=until))
        return
    change_one(
        connection,
        update(leases)
        .where(leases.c.study == study, leases.c.holder == present.holder, leases.c.until == present.until)
        .values(holder=holder, until=until),
        UnavailableError(
            "busy", "another process changed the lease of this study", "try again", retry_after_seconds=1
        ),
    )


def remove_lease(connection: Connection, study: StudyId, holder: str) -> None:
    connection.execute(delete(leases).where(leases.c.study == study, leases.c.holder == holder))
