"""Rows of shares: their state, their statements with receipts, declines, and the stored chunks."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.study import ShareState
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.signing import Statement
from dpdpca_proxy.store.tables import chunks, contradictions, declines, shares, statements
from dpdpca_runtime.database import as_written, change_one


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One owner's share. A missing row means an absent share."""

    study: StudyId
    owner: PartyId
    state: ShareState = ShareState.ABSENT
    signed_version: int = 0
    upload_version: int | None = None


@dataclass(frozen=True, slots=True)
class SignedShare:
    """An accepted statement and its receipt."""

    version: int
    subject: str
    digest: Digest
    statement: bytes
    receipt: bytes


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two different statements that one owner signed under one version: the valid one and the other."""

    owner: PartyId
    version: int
    statement: bytes
    other: bytes


_SIGNED = (
    statements.c.version,
    statements.c.subject,
    statements.c.digest,
    statements.c.statement,
    statements.c.receipt,
)


def find_share(connection: Connection, study: StudyId, owner: PartyId) -> ShareRow:
    row = connection.execute(
        select(shares.c.state, shares.c.signed_version, shares.c.upload_version).where(
            shares.c.study == study, shares.c.owner == owner
        )
    ).one_or_none()
    if row is None:
        return ShareRow(study, owner)
    with as_written():
        return ShareRow(study, owner, ShareState(row.state), row.signed_version, row.upload_version)


def list_shares(connection: Connection, study: StudyId) -> list[ShareRow]:
    rows = connection.execute(
        select(shares.c.owner, shares.c.state, shares.c.signed_version, shares.c.upload_version)
        .where(shares.c.study == study)
        .order_by(shares.c.owner)
    )
    with as_written():
        return [
            ShareRow(study, row.owner, ShareState(row.state), row.signed_version, row.upload_version)
            for row in rows
        ]


def set_share(connection: Connection, row: ShareRow, state: ShareState, **columns: Any) -> None:
    """Changes a share. Raises UnavailableError if the stored share has changed since `row` was read."""
    if row.state is ShareState.ABSENT:
        values = {"signed_version": 0, "upload_version": None} | columns
        connection.execute(
            insert(shares).values(study=row.study, owner=row.owner, state=str(state), **values)
        )
        return
    change_one(
        connection,
        update(shares)
        .where(
            shares.c.study == row.study,
            shares.c.owner == row.owner,
            shares.c.state == str(row.state),
            shares.c.signed_version == row.signed_version,
            shares.c.upload_version.is_not_distinct_from(row.upload_version),
        )
        .values(state=str(state), **columns),
        UnavailableError("busy", "the share changed at the same time", "try again", retry_after_seconds=1),
    )


def find_signed(connection: Connection, study: StudyId, owner: PartyId, version: int) -> SignedShare | None:
    row = connection.execute(
        select(*_SIGNED).where(
            statements.c.study == study, statements.c.owner == owner, statements.c.version == version
        )
    ).one_or_none()
    return None if row is None else SignedShare(*row)


def list_signed(connection: Connection, study: StudyId) -> list[tuple[PartyId, SignedShare]]:
    """All statements of a study with their owners, by owner and version."""
    rows = connection.execute(
        select(statements.c.owner, *_SIGNED)
        .where(statements.c.study == study)
        .order_by(statements.c.owner, statements.c.version)
    )
    return [(row[0], SignedShare(*row[1:])) for row in rows]


def count_signed_shares(connection: Connection, study: StudyId, owner: PartyId) -> int:
    """The number of versions of its share that an owner has completed, including withdrawn ones."""
    return connection.execute(
        select(func.count()).where(
            statements.c.study == study, statements.c.owner == owner, statements.c.subject == "share"
        )
    ).scalar_one()


def insert_signed(connection: Connection, study: StudyId, owner: PartyId, signed: SignedShare) -> None:
    connection.execute(
        insert(statements).values(
            study=study,
            owner=owner,
            version=signed.version,
            subject=signed.subject,
            digest=signed.digest,
            statement=signed.statement,
            receipt=signed.receipt,
        )
    )


def insert_contradiction(
    connection: Connection, study: StudyId, owner: PartyId, version: int, statement: Statement, now: datetime
) -> bool:
    """Stores a second statement under a version and returns True.

    A third statement under the same version is not stored: two statements prove the contradiction.
    """
    held = (contradictions.c.study == study, contradictions.c.owner == owner)
    there = select(contradictions.c.digest).where(*held, contradictions.c.version == version)
    if connection.execute(there).first() is not None:
        return False
    connection.execute(
        insert(contradictions).values(
            study=study,
            owner=owner,
            version=version,
            digest=statement.digest,
            statement=statement.encoded,
            time=now,
        )
    )
    return True


def list_contradictions(connection: Connection, study: StudyId) -> list[Contradiction]:
    rows = connection.execute(
        select(
            contradictions.c.owner,
            contradictions.c.version,
            statements.c.statement,
            contradictions.c.statement.label("other"),
        )
        .join(
            statements,
            (statements.c.study == contradictions.c.study)
            & (statements.c.owner == contradictions.c.owner)
            & (statements.c.version == contradictions.c.version),
        )
        .where(contradictions.c.study == study)
        .order_by(contradictions.c.owner, contradictions.c.version)
    )
    return [Contradiction(*row) for row in rows]


def count_contradictions(connection: Connection, study: StudyId) -> int:
    """The number of contradictions, including those whose first statement is missing."""
    asked = select(func.count()).select_from(contradictions).where(contradictions.c.study == study)
    return connection.execute(asked).scalar_one()


def find_decline(connection: Connection, study: StudyId, owner: PartyId) -> bytes | None:
    """The statement by which an owner declined a study, unless it has completed a share since."""
    asked = select(declines.c.statement).where(declines.c.study == study, declines.c.owner == owner)
    statement: bytes | None = connection.execute(asked).scalar_one_or_none()
    return statement


def list_declines(connection: Connection, study: StudyId) -> dict[PartyId, bytes]:
    """The statements of all owners that have declined a study."""
    asked = select(declines.c.owner, declines.c.statement).where(declines.c.study == study)
    return {row.owner: row.statement for row in connection.execute(asked.order_by(declines.c.owner))}


def keep_decline(connection: Connection, study: StudyId, owner: PartyId, statement: bytes) -> None:
    """Store an owner's decline in place of an earlier one."""
    delete_decline(connection, study, owner)
    connection.execute(insert(declines).values(study=study, owner=owner, statement=statement))


def delete_decline(connection: Connection, study: StudyId, owner: PartyId) -> None:
    connection.execute(delete(declines).where(declines.c.study == study, declines.c.owner == owner))


def chunk_digests(connection: Connection, study: StudyId, owner: PartyId, version: int) -> dict[int, Digest]:
    """Position → digest, for the chunks of a share version that are on the disk."""
    rows = connection.execute(
        select(chunks.c.position, chunks.c.digest)
        .where(chunks.c.study == study, chunks.c.owner == owner, chunks.c.version == version)
        .order_by(chunks.c.position)
    )
    return {row.position: row.digest for row in rows}


def uploaded_chunks(connection: Connection, study: StudyId) -> dict[tuple[PartyId, int], dict[int, Digest]]:
    """All chunks of a study: (owner, version) → position → digest."""
    columns = (chunks.c.owner, chunks.c.version, chunks.c.position, chunks.c.digest)
    found: dict[tuple[PartyId, int], dict[int, Digest]] = {}
    for owner, version, position, digest in connection.execute(
        select(*columns).where(chunks.c.study == study)
    ):
        found.setdefault((owner, version), {})[position] = digest
    return found


def copy_marks(connection: Connection, study: StudyId) -> dict[tuple[PartyId, int, int], Digest]:
    """The marks of all chunks of a study: (owner, version, position) → mark."""
    columns = (chunks.c.owner, chunks.c.version, chunks.c.position, chunks.c.copy_mark)
    rows = connection.execute(select(*columns).where(chunks.c.study == study))
    return {(owner, version, position): mark for owner, version, position, mark in rows}


def chunk_of_another(connection: Connection, study: StudyId, owner: PartyId, version: int) -> int | None:
    """The first position of a share version whose ciphertexts another owner's complete share has, or None."""
    mine, theirs = chunks.alias("mine"), chunks.alias("theirs")
    position: int | None = connection.execute(
        select(func.min(mine.c.position))
        .join(theirs, (theirs.c.study == mine.c.study) & (theirs.c.copy_mark == mine.c.copy_mark))
        .join(
            shares,
            (shares.c.study == theirs.c.study)
            & (shares.c.owner == theirs.c.owner)
            & (shares.c.signed_version == theirs.c.version),
        )
        .where(
            mine.c.study == study,
            mine.c.owner == owner,
            mine.c.version == version,
            theirs.c.owner != owner,
            shares.c.state == str(ShareState.COMPLETE),
        )
    ).scalar_one()
    return position


def insert_chunk(
    connection: Connection,
    study: StudyId,
    owner: PartyId,
    version: int,
    position: int,
    digest: Digest,
    copy_mark: Digest,
) -> None:
    connection.execute(
        insert(chunks).values(
            study=study,
            owner=owner,
            version=version,
            position=position,
            digest=digest,
            copy_mark=copy_mark,
        )
    )


def delete_chunks(connection: Connection, study: StudyId, owner: PartyId, version: int) -> None:
    connection.execute(
        delete(chunks).where(chunks.c.study == study, chunks.c.owner == owner, chunks.c.version == version)
    )
