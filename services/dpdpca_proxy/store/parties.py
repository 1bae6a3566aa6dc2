"""Rows of invitations, parties and nonces."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update

from dpdpca_protocol.errors import AuthenticationError
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_proxy.store.tables import forgotten, invitations, nonces, parties, rotations
from dpdpca_runtime.database import change_one, conditional_insert


@dataclass(frozen=True, slots=True)
class PartyRow:
    party: PartyId
    role: str
    name: str
    ed25519: bytes
    kem: bytes | None
    """The key to which others seal messages. None for a data user, and for keys from an earlier version."""
    enrolled_at: datetime
    successor: PartyId | None = None
    """The same party under the key that replaced this one."""


@dataclass(frozen=True, slots=True)
class InvitationRow:
    role: str
    name: str
    expires_at: datetime
    used_by: PartyId | None


_PARTY = (
    parties.c.party,
    parties.c.role,
    parties.c.name,
    parties.c.ed25519,
    parties.c.kem,
    parties.c.enrolled_at,
    rotations.c.successor,
)
_WITH_SUCCESSOR = parties.outerjoin(rotations, rotations.c.party == parties.c.party)


def insert_invitation(
    connection: Connection, digest: Digest, role: str, name: str, now: datetime, expires_at: datetime
) -> None:
    connection.execute(
        insert(invitations).values(
            token_digest=digest, role=role, name=name, created_at=now, expires_at=expires_at
        )
    )


def find_invitation(connection: Connection, digest: Digest) -> InvitationRow | None:
    columns = invitations.c
    row = connection.execute(
        select(columns.role, columns.name, columns.expires_at, columns.used_by).where(
            columns.token_digest == digest
        )
    ).one_or_none()
    return None if row is None else InvitationRow(*row)


def use_invitation(connection: Connection, digest: Digest, party: PartyId, now: datetime) -> None:
    """Marks the invitation as used by `party`, which must already be stored.

    Raises:
        AuthenticationError: the invitation was used in the meantime.
    """
    change_one(
        connection,
        update(invitations)
        .where(invitations.c.token_digest == digest, invitations.c.used_by.is_(None))
        .values(used_by=party, used_at=now),
        AuthenticationError(
            "invitation-used", "this invitation was already used", "ask the operator for a new invitation"
        ),
    )


def insert_party(connection: Connection, row: PartyRow, enrolment: bytes) -> None:
    connection.execute(
        insert(parties).values(
            party=row.party,
            role=row.role,
            name=row.name,
            ed25519=row.ed25519,
            kem=row.kem,
            enrolment=enrolment,
            enrolled_at=row.enrolled_at,
        )
    )


def find_party(connection: Connection, party: PartyId) -> PartyRow | None:
    asked = select(*_PARTY).select_from(_WITH_SUCCESSOR).where(parties.c.party == party)
    row = connection.execute(asked).one_or_none()
    return None if row is None else PartyRow(*row)


def list_parties(connection: Connection) -> list[PartyRow]:
    asked = select(*_PARTY).select_from(_WITH_SUCCESSOR).order_by(parties.c.enrolled_at, parties.c.party)
    return [PartyRow(*row) for row in connection.execute(asked)]


def list_statements(connection: Connection) -> dict[PartyId, bytes]:
    """The enrolment of each party, or the rotation that led to its key."""
    rows = connection.execute(select(parties.c.party, parties.c.enrolment))
    return {row.party: bytes(row.enrolment) for row in rows}


def insert_rotation(
    connection: Connection, party: PartyId, successor: PartyId, version: int, statement: bytes
) -> None:
    """Stores a rotation. Both parties must already be stored."""
    connection.execute(
        insert(rotations).values(party=party, successor=successor, version=version, statement=statement)
    )


def find_rotation(connection: Connection, party: PartyId) -> bytes | None:
    """The statement that replaced this party's key."""
    return connection.execute(
        select(rotations.c.statement).where(rotations.c.party == party)
    ).scalar_one_or_none()


def list_rotations(connection: Connection) -> list[bytes]:
    asked = select(rotations.c.statement).order_by(rotations.c.version, rotations.c.party)
    return list(connection.execute(asked).scalars())


def last_version(connection: Connection, party: PartyId) -> int:
    """The version of the rotation that led to this party's key; 0 if the party enrolled with this key."""
    asked = select(rotations.c.version).where(rotations.c.successor == party)
    return connection.execute(asked).scalar_one_or_none() or 0


def keys_of_party(connection: Connection, party: PartyId) -> frozenset[PartyId]:
    """All ids of the same party: those before `party`, `party` itself and those after it."""
    rows = connection.execute(select(rotations.c.party, rotations.c.successor)).all()
    after: dict[PartyId, PartyId] = {row.party: row.successor for row in rows}
    before: dict[PartyId, PartyId] = {row.successor: row.party for row in rows}
    ids = {party}
    for links in (after, before):
        key = party
        while (key := links.get(key, party)) not in ids:
            ids.add(key)
    return frozenset(ids)


def first_key_of_party(connection: Connection, party: PartyId) -> PartyId:
    """The id with which this party enrolled. A rotation never changes it."""
    rows = connection.execute(select(rotations.c.party, rotations.c.successor)).all()
    before: dict[PartyId, PartyId] = {row.successor: row.party for row in rows}
    seen = {party}
    while (party := before.get(party, party)) not in seen:
        seen.add(party)
    return party


def insert_nonce(connection: Connection, party: PartyId, nonce: str, seen_at: int) -> bool:
    """Whether the nonce is new for this party. A new nonce is stored."""
    row = conditional_insert(connection, nonces).values(party=party, nonce=nonce, seen_at=seen_at)
    counted = {"preserve_rowcount": True}  # SQLAlchemy does not always keep it for an INSERT
    return connection.execute(row.on_conflict_do_nothing(), execution_options=counted).rowcount == 1


def forget_nonces(connection: Connection, before: int) -> None:
    """Deletes the nonces that were seen before this second, and records the second."""
    connection.execute(delete(nonces).where(nonces.c.seen_at < before))
    connection.execute(
        conditional_insert(connection, forgotten)
        .values(only=1, before=before)
        .on_conflict_do_update(index_elements=["only"], set_={"before": before})
    )


def forgotten_before(connection: Connection) -> int:
    """The second up to which nonces were deleted; 0 if none were."""
    return connection.execute(select(forgotten.c.before)).scalar_one_or_none() or 0
