"""Queries over whole tables, for audits."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_proxy.store.tables import (
    aggregate_chunks,
    chunks,
    cohort,
    components,
    contradictions,
    data_keys,
    draws,
    events,
    parties,
    release_chunks,
    rotations,
    studies,
)

_OF_A_STUDY = (aggregate_chunks, chunks, cohort, components, data_keys, draws, release_chunks)


@dataclass(frozen=True, slots=True)
class Action:
    """An action that must be in the log: its kind, the digest of its statement, and its time."""

    kind: str
    subject: Digest
    time: datetime


def logged_actions(connection: Connection) -> Iterator[Action]:
    """All actions of all studies that must be in the log, except draws and accepted losses.

    Raises:
        MessageError, AuthenticationError: the stored statement of an enrolment or rotation is damaged.
    """
    for kind, digest, time in connection.execute(select(events.c.kind, events.c.digest, events.c.time)):
        yield Action(kind, digest, time)
    for digest, time in connection.execute(select(contradictions.c.digest, contradictions.c.time)):
        yield Action("contradiction", digest, time)
    by_rotation = parties.outerjoin(rotations, rotations.c.successor == parties.c.party)
    asked = select(parties.c.enrolment, parties.c.enrolled_at, rotations.c.statement).select_from(by_rotation)
    for enrolment, time, rotation in connection.execute(asked):
        kind = "enrolment" if rotation is None else "rotation"
        yield Action(kind, verify_statement(kind, rotation or enrolment).digest, time)


def is_stored(connection: Connection, study: StudyId) -> bool:
    """Whether the study itself or an event of it is stored."""
    return any(
        connection.execute(select(table.c.study).where(table.c.study == study).limit(1)).first()
        for table in (studies, events)
    )


def tables_with_rows(connection: Connection, study: StudyId) -> set[str]:
    """Which of the tables in `_OF_A_STUDY` contain rows of this study."""
    return {
        table.name
        for table in _OF_A_STUDY
        if connection.execute(select(table.c.study).where(table.c.study == study).limit(1)).first()
        is not None
    }
