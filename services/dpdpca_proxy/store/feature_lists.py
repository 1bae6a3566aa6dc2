"""Rows of stored lists of features. The lists themselves are files, named by their digests."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, select, update

from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_proxy.store.tables import feature_lists


def is_listed(connection: Connection, digest: Digest) -> bool:
    """Whether the proxy has the list with this digest."""
    query = select(feature_lists.c.digest).where(feature_lists.c.digest == digest)
    return connection.execute(query).one_or_none() is not None


def count_unnamed(connection: Connection, party: PartyId) -> int:
    """How many lists of a data user no study names."""
    query = select(func.count()).where(feature_lists.c.party == party, feature_lists.c.study.is_(None))
    return int(connection.execute(query).scalar_one())


def insert_list(connection: Connection, digest: Digest, party: PartyId, size: int, now: datetime) -> None:
    connection.execute(
        insert(feature_lists).values(digest=digest, party=party, bytes=size, stored_at=now, study=None)
    )


def name_list(connection: Connection, digest: Digest, study: StudyId) -> bool:
    """Notes that a study names the list, which is then kept. False if there is no such list."""
    unnamed = (feature_lists.c.digest == digest) & feature_lists.c.study.is_(None)
    named_now = connection.execute(update(feature_lists).where(unnamed).values(study=study)).rowcount
    return named_now == 1 or is_listed(connection, digest)


def unnamed_since(connection: Connection, before: datetime) -> Sequence[Digest]:
    """The lists that no study names although they were stored before this time."""
    query = select(feature_lists.c.digest).where(
        feature_lists.c.study.is_(None), feature_lists.c.stored_at < before
    )
    return list(connection.execute(query).scalars())


def delete_unnamed(connection: Connection, digest: Digest) -> bool:
    """Deletes the row of a list that no study names. False if a study has named it meanwhile."""
    unnamed = (feature_lists.c.digest == digest) & feature_lists.c.study.is_(None)
    return connection.execute(delete(feature_lists).where(unnamed)).rowcount == 1
