"""Rows of studies, their participants, their cohort and their transcript."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, String, func, insert, select, type_coerce, update

from dpdpca_protocol.errors import IntegrityError, NotFoundError, UnavailableError
from dpdpca_protocol.messages.share import CohortMember
from dpdpca_protocol.messages.transcript import FIRST, Event
from dpdpca_protocol.study import ReleaseKind, ShareState, StudyEvent, StudyState, next_study_state
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.store.log import append_entry
from dpdpca_proxy.store.tables import (
    cohort,
    events,
    participants,
    shares,
    statements,
    studies,
    study_features,
)
from dpdpca_runtime.database import as_written, change_one


@dataclass(frozen=True, slots=True)
class StudyRow:
    """A study without its statements."""

    study: StudyId
    user: PartyId
    title: str
    release_kind: ReleaseKind
    closing: str
    closes_at: datetime
    epsilon: str
    delta: str
    share_bytes: int
    min_owners: int
    max_owners: int
    cohort_distance: int
    created_at: datetime
    state: StudyState
    revision: int
    closed_at: datetime | None
    cohort_digest: Digest | None
    noise_drawn_at: datetime | None
    records: int | None
    release_folder: str | None
    released_at: datetime | None
    failure: str | None
    failure_detail: str | None


@dataclass(frozen=True, slots=True)
class Listed:
    """Studies, and the stored ids of those whose rows are damaged."""

    rows: list[StudyRow]
    unread: tuple[str, ...]


_FIELDS = tuple(StudyRow.__dataclass_fields__)
_COLUMNS = [studies.c[name] for name in _FIELDS]


def _row(values: Any) -> StudyRow:
    fields = dict(zip(_FIELDS, values, strict=True))
    with as_written():
        fields["state"] = StudyState(fields["state"])
        fields["release_kind"] = ReleaseKind(fields["release_kind"])
    return StudyRow(**fields)


def insert_study(
    connection: Connection,
    row: StudyRow,
    *,
    manifest: bytes,
    modulus_digest: Digest,
    named: Iterable[PartyId],
    features: Iterable[str],
) -> None:
    """Stores a new study with its terms.

    Args:
        connection: the transaction.
        row: the study.
        manifest: the signed statement, as received.
        modulus_digest: unique among all studies.
        named: the manifest's participants.
        features: the keys of its feature names.
    """
    values = {name: getattr(row, name) for name in _FIELDS}
    connection.execute(
        insert(studies).values(values | {"manifest": manifest, "modulus_digest": modulus_digest})
    )
    members = [{"study": row.study, "owner": owner} for owner in named]
    if members:
        connection.execute(insert(participants), members)
    connection.execute(
        insert(study_features), [{"study": row.study, "name": name} for name in sorted(set(features))]
    )


def find_study(connection: Connection, study: StudyId) -> StudyRow | None:
    values = connection.execute(select(*_COLUMNS).where(studies.c.study == study)).one_or_none()
    return None if values is None else _row(values)


def load_study(connection: Connection, study: StudyId) -> StudyRow:
    """Raises NotFoundError `not-found`."""
    row = find_study(connection, study)
    if row is None:
        raise NotFoundError(
            "not-found",
            "there is no study with this id at this proxy",
            "check the id against the proxy's list of studies",
        )
    return row


def list_studies(connection: Connection, states: Iterable[StudyState] | None = None) -> list[StudyRow]:
    statement = select(*_COLUMNS).order_by(studies.c.created_at, studies.c.study)
    if states is not None:
        statement = statement.where(studies.c.state.in_([str(state) for state in states]))
    return [_row(values) for values in connection.execute(statement)]


def list_readable(connection: Connection, besides: Iterable[StudyState] = ()) -> Listed:
    """All studies except those in the states `besides`. A damaged row does not hide the others.

    The list always includes a study whose stored state is damaged, so that the damage is noticed.
    """
    wanted = studies.c.state.not_in([str(state) for state in besides])
    order = (studies.c.created_at, studies.c.study)
    try:
        rows = connection.execute(select(*_COLUMNS).where(wanted).order_by(*order))
        return Listed([_row(values) for values in rows], ())
    except IntegrityError:
        names = connection.execute(
            select(type_coerce(studies.c.study, String)).where(wanted).order_by(*order)
        )
        found, unread = [], []
        for name in names.scalars().all():
            try:
                with as_written():
                    found.append(load_study(connection, StudyId.parse(name)))
            except (IntegrityError, NotFoundError):
                unread.append(str(name))
        return Listed(found, tuple(unread))


def load_blob(connection: Connection, study: StudyId, column: str) -> bytes | None:
    """One of the stored statements: manifest, challenge, answer, release, opened or cancel."""
    value = connection.execute(select(studies.c[column]).where(studies.c.study == study)).scalar_one()
    return None if value is None else bytes(value)


def modulus_digest(connection: Connection, study: StudyId) -> Digest:
    asked = select(studies.c.modulus_digest).where(studies.c.study == study)
    digest: Digest = connection.execute(asked).scalar_one()
    return digest


def modulus_is_known(connection: Connection, digest: Digest) -> bool:
    return (
        connection.execute(select(studies.c.study).where(studies.c.modulus_digest == digest)).first()
        is not None
    )


def move_study(connection: Connection, row: StudyRow, event: StudyEvent, **columns: Any) -> StudyState:
    """Applies `event` of the transition table to a study, and sets `columns` in the same write.

    Raises:
        ConflictError: the table does not allow the event.
        UnavailableError: the row changed since it was read, and nothing was written.
    """
    following = next_study_state(
        row.state, event, row.release_kind, noise_drawn=row.noise_drawn_at is not None
    )
    set_study(connection, row, state=str(following), **columns)
    return following


def set_study(connection: Connection, row: StudyRow, **columns: Any) -> None:
    """Sets columns of a study. Raises UnavailableError if the row has changed since `row` was read."""
    change_one(
        connection,
        update(studies)
        .where(
            studies.c.study == row.study,
            studies.c.state == str(row.state),
            studies.c.revision == row.revision,
        )
        .values(revision=row.revision + 1, **columns),
        _changed_meanwhile(),
    )


def _changed_meanwhile() -> UnavailableError:
    return UnavailableError("busy", "the study changed at the same time", "try again", retry_after_seconds=1)


def touch_study(connection: Connection, row: StudyRow) -> None:
    """Marks a study as changed after a change in another table, whatever others have changed since `row` was
    read, except its state. Others that touch it wait until this transaction ends, so this comes last.

    Raises UnavailableError if the state has changed.
    """
    change_one(
        connection,
        update(studies)
        .where(studies.c.study == row.study, studies.c.state == str(row.state))
        .values(revision=studies.c.revision + 1),
        _changed_meanwhile(),
    )


def named_participants(connection: Connection, study: StudyId) -> frozenset[PartyId]:
    rows = connection.execute(select(participants.c.owner).where(participants.c.study == study))
    return frozenset(rows.scalars())


def named_by_study(connection: Connection) -> dict[StudyId, set[PartyId]]:
    """The named participants of each open study that names any."""
    rows = connection.execute(
        select(participants.c.study, participants.c.owner)
        .join(studies, studies.c.study == participants.c.study)
        .where(studies.c.state == str(StudyState.OPEN))
    )
    named: dict[StudyId, set[PartyId]] = {}
    for study, owner in rows:
        named.setdefault(study, set()).add(owner)
    return named


def feature_names(connection: Connection, study: StudyId) -> frozenset[str]:
    """The names of the study's features, in the form in which names are compared."""
    rows = connection.execute(select(study_features.c.name).where(study_features.c.study == study))
    return frozenset(rows.scalars())


def complete_members(connection: Connection, study: StudyId) -> list[CohortMember]:
    """The members of the cohort if the study closed now, sorted."""
    rows = connection.execute(
        select(shares.c.owner, shares.c.signed_version, statements.c.digest)
        .join(
            statements,
            (statements.c.study == shares.c.study)
            & (statements.c.owner == shares.c.owner)
            & (statements.c.version == shares.c.signed_version),
        )
        .where(shares.c.study == study, shares.c.state == str(ShareState.COMPLETE))
    )
    return sorted(CohortMember(*row) for row in rows)


def count_complete(connection: Connection) -> dict[StudyId, int]:
    rows = connection.execute(
        select(shares.c.study, func.count())
        .where(shares.c.state == str(ShareState.COMPLETE))
        .group_by(shares.c.study)
    )
    return {row[0]: row[1] for row in rows}


def freeze_cohort(connection: Connection, study: StudyId, members: Sequence[CohortMember]) -> None:
    connection.execute(
        insert(cohort),
        [
            {
                "study": study,
                "owner": member.owner,
                "version": member.version,
                "statement_digest": member.statement,
            }
            for member in members
        ],
    )


def frozen_cohort(connection: Connection, study: StudyId) -> tuple[CohortMember, ...]:
    rows = connection.execute(
        select(cohort.c.owner, cohort.c.version, cohort.c.statement_digest).where(cohort.c.study == study)
    )
    return tuple(sorted(CohortMember(*row) for row in rows))


def append_event(
    connection: Connection, key: IdentityKey, study: StudyId, kind: str, detail: dict[str, Any], now: datetime
) -> None:
    """Appends a signed event to the study's transcript, and an entry to the proxy's log.

    `now` must be read in the transaction of `connection`. A transaction waits for other processes, and a time
    that was read before may be earlier than their events.

    Raises:
        UnavailableError: `clock-behind`, our clock is before the last event.
    """
    last = connection.execute(
        select(events.c.position, events.c.digest, events.c.time)
        .where(events.c.study == study)
        .order_by(events.c.position.desc())
        .limit(1)
    ).one_or_none()
    position, previous = (0, FIRST) if last is None else (last.position + 1, last.digest)
    if last is not None and time_text(now) < time_text(last.time):
        raise UnavailableError(
            "clock-behind",
            f"the proxy's clock shows {time_text(now)}, which is before the last event at "
            f"{time_text(last.time)}",
            "the operator must set the clock of this machine",
            retry_after_seconds=60,
        )
    statement = Event(study, position, previous, time_text(now), kind, detail).sign(key)
    connection.execute(
        insert(events).values(
            study=study,
            position=position,
            kind=kind,
            time=now,
            digest=statement.digest,
            statement=statement.encoded,
        )
    )
    append_entry(connection, kind, statement.digest, now)


def list_events(connection: Connection, study: StudyId) -> list[bytes]:
    rows = connection.execute(
        select(events.c.statement).where(events.c.study == study).order_by(events.c.position)
    )
    return [bytes(statement) for statement in rows.scalars()]


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of a transcript, with its other stored columns."""

    position: int
    kind: str
    time: datetime
    digest: Digest
    statement: bytes


def list_event_rows(connection: Connection, study: StudyId) -> list[EventRow]:
    columns = (events.c.position, events.c.kind, events.c.time, events.c.digest, events.c.statement)
    rows = connection.execute(select(*columns).where(events.c.study == study).order_by(events.c.position))
    return [EventRow(*row) for row in rows]
