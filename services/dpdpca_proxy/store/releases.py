"""Rows for the time after closing: products, the draw, the release, the components, and the data key."""

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_proxy.store.tables import (
    aggregate_chunks,
    chunks,
    components,
    data_keys,
    draws,
    release_chunks,
    studies,
)


def insert_data_key(connection: Connection, study: StudyId, sealed: bytes) -> None:
    connection.execute(insert(data_keys).values(study=study, sealed=sealed))


def find_data_key(connection: Connection, study: StudyId) -> bytes | None:
    return connection.execute(
        select(data_keys.c.sealed).where(data_keys.c.study == study)
    ).scalar_one_or_none()


def delete_secrets(connection: Connection, study: StudyId) -> None:
    """Deletes the data key first: without it nobody can read the chunks, products, noise and mask."""
    for table in (data_keys, draws, aggregate_chunks, chunks):
        connection.execute(delete(table).where(table.c.study == study))


def insert_product(connection: Connection, study: StudyId, position: int, digest: Digest) -> None:
    connection.execute(insert(aggregate_chunks).values(study=study, position=position, digest=digest))


def product_digests(connection: Connection, study: StudyId) -> dict[int, Digest]:
    rows = connection.execute(
        select(aggregate_chunks.c.position, aggregate_chunks.c.digest).where(
            aggregate_chunks.c.study == study
        )
    )
    return {row.position: row.digest for row in rows}


def insert_draw(connection: Connection, study: StudyId, token: str, now: datetime) -> None:
    connection.execute(insert(draws).values(study=study, token=token, drawn_at=now))


def find_draw(connection: Connection, study: StudyId) -> str | None:
    return connection.execute(select(draws.c.token).where(draws.c.study == study)).scalar_one_or_none()


def list_draw_times(connection: Connection) -> list[datetime]:
    """The time of the draw, for each study that has drawn noise."""
    asked = select(studies.c.noise_drawn_at).where(studies.c.noise_drawn_at.is_not(None))
    return [time for time in connection.execute(asked).scalars() if time is not None]


def insert_release_chunks(connection: Connection, study: StudyId, digests: tuple[Digest, ...]) -> None:
    connection.execute(
        insert(release_chunks),
        [{"study": study, "position": position, "digest": digest} for position, digest in enumerate(digests)],
    )


def release_chunk_digests(connection: Connection, study: StudyId) -> dict[int, Digest]:
    """The digest of each chunk of the release, by its position."""
    asked = select(release_chunks.c.position, release_chunks.c.digest).where(release_chunks.c.study == study)
    return {row.position: row.digest for row in connection.execute(asked)}


def insert_components(connection: Connection, study: StudyId, digest: Digest, statement: bytes) -> None:
    connection.execute(insert(components).values(study=study, digest=digest, statement=statement))


def find_components(connection: Connection, study: StudyId) -> tuple[Digest, bytes] | None:
    row = connection.execute(
        select(components.c.digest, components.c.statement).where(components.c.study == study)
    ).one_or_none()
    return None if row is None else (row.digest, bytes(row.statement))
