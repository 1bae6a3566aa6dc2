"""What the operator's page reads of one study: a bounded number of rows, whatever strangers have stored."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, func, literal, select

from dpdpca_protocol.study import ShareState
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_proxy.store.tables import chunks, declines, events, participants, parties, shares
from dpdpca_runtime.database import as_written

_EXPECTED: Final = literal(str(ShareState.ABSENT)).label("state")


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """An owner that a study names, that has begun a share, or that has declined."""

    owner: PartyId
    name: str
    state: ShareState
    has_declined: bool


@dataclass(frozen=True, slots=True)
class RecentEvent:
    kind: str
    time: datetime
    statement: bytes


def list_owners(connection: Connection, study: StudyId, most: int) -> list[OwnerRow]:
    """The first `most` owners of a study by name."""
    there = _owners_of(study)
    rows = connection.execute(
        select(there.c.owner, parties.c.name, there.c.state, declines.c.owner.is_not(None))
        .select_from(there)
        .outerjoin(parties, parties.c.party == there.c.owner)
        .outerjoin(declines, (declines.c.owner == there.c.owner) & (declines.c.study == study))
        .order_by(parties.c.name, there.c.owner)
        .limit(most)
    )
    with as_written():
        return [
            OwnerRow(owner, name or owner.hex()[:16], ShareState(state), bool(declined))
            for owner, name, state, declined in rows
        ]


def count_owners(connection: Connection, study: StudyId) -> tuple[int, int]:
    """How many owners of a study there are, and how many of them have a complete share."""
    there = _owners_of(study)
    rows = connection.execute(select(there.c.state, func.count()).group_by(there.c.state))
    by_state: dict[str, int] = {row[0]: row[1] for row in rows}
    return sum(by_state.values()), by_state.get(str(ShareState.COMPLETE), 0)


def count_chunks(connection: Connection, study: StudyId) -> int:
    """How many chunks of shares are stored."""
    asked = select(func.count()).select_from(chunks).where(chunks.c.study == study)
    return connection.execute(asked).scalar_one()


def recent_events(connection: Connection, study: StudyId, most: int) -> list[RecentEvent]:
    """The last events of a study's transcript, the newest first."""
    rows = connection.execute(
        select(events.c.kind, events.c.time, events.c.statement)
        .where(events.c.study == study)
        .order_by(events.c.position.desc())
        .limit(most)
    )
    return [RecentEvent(*row) for row in rows]


def name_of(connection: Connection, party: PartyId) -> str:
    """The operator's name for a party; the beginning of its id if it is not enrolled."""
    name = connection.execute(select(parties.c.name).where(parties.c.party == party)).scalar_one_or_none()
    return name or party.hex()[:16]


def _owners_of(study: StudyId) -> Any:
    begun = select(shares.c.owner).where(shares.c.study == study)
    return (
        select(shares.c.owner, shares.c.state)
        .where(shares.c.study == study)
        .union(
            *(
                select(table.c.owner, _EXPECTED).where(table.c.study == study, table.c.owner.not_in(begun))
                for table in (participants, declines)
            )
        )
        .subquery("owners")
    )
