"""Identity keys that give way to others: the parties' here, and the proxy's own."""

from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection

from dpdpca_protocol.errors import ConflictError, MessageError, NotFoundError
from dpdpca_protocol.messages.rotation import MOST_ROTATIONS, too_many_rotations, verify_rotation
from dpdpca_protocol.study import ShareState
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_proxy.proxy import Proxy, key_files, passphrase_of
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.log import append_entry
from dpdpca_proxy.store.parties import (
    PartyRow,
    find_party,
    find_rotation,
    insert_party,
    insert_rotation,
    keys_of_party,
    last_version,
    list_rotations,
)
from dpdpca_proxy.store.shares import find_share
from dpdpca_runtime.identity_files import IdentityKeys


def rotate_party(proxy: Proxy, caller: PartyRow, party: PartyId, untrusted: bytes) -> PartyId:
    """Enrols the key that the caller's own gives way to, on a statement under both.

    The old key stays good for the studies that began with it. The same statement again changes nothing.

    Returns:
        The id of the new key.

    Raises:
        MessageError: not a rotation of this caller.
        AuthenticationError: one of the two keys has not signed.
        ConflictError: `already-rotated`, `rotation-not-newer`, `already-enrolled`, `too-many-rotations`.
    """
    if party != caller.party:
        raise MessageError("malformed", "the path names another party than the caller", "use your own id")
    rotation, statement = verify_rotation(untrusted)
    if rotation.previous != caller.ed25519 or rotation.role != caller.role:
        raise MessageError("malformed", "the rotation is of another key or role than the caller's")
    successor, now = rotation.identity.party_id, proxy.now()
    with proxy.database.transaction("rotate key") as connection:
        present = find_rotation(connection, party)
        if present == statement.encoded:
            return successor
        if present is not None:
            raise ConflictError(
                "already-rotated", "this key gave way to another one before", "use the key that followed it"
            )
        if rotation.version <= last_version(connection, party):
            raise ConflictError(
                "rotation-not-newer",
                f"rotation {rotation.version} is not newer than the one that led to this key",
                "restore the newest keys from your backup",
            )
        if find_party(connection, successor) is not None:
            raise ConflictError("already-enrolled", "the new key is enrolled already", "make another key")
        if len(keys_of_party(connection, party)) > MOST_ROTATIONS:
            raise too_many_rotations()
        row = PartyRow(
            successor, caller.role, caller.name, rotation.identity.ed25519, rotation.identity.x25519, now
        )
        insert_party(connection, row, statement.encoded)
        insert_rotation(connection, party, successor, rotation.version, statement.encoded)
        append_entry(connection, "rotation", statement.digest, now)
    return successor


def all_rotations(proxy: Proxy) -> list[bytes]:
    """The rotation statements of all parties."""
    with proxy.database.reading("list rotations") as connection:
        return list_rotations(connection)


def check_in_use(caller: PartyRow) -> None:
    """Raises ConflictError `key-given-up` where a new study is begun with a key that gave way to another."""
    if caller.successor is not None:
        raise ConflictError(
            "key-given-up",
            "this key gave way to another one and serves only the studies that began with it",
            "use the new key; restart the service that still holds the old one",
        )


def check_one_key(connection: Connection, caller: PartyRow, study: StudyId) -> None:
    """That a party delivers to a study that is open to all under one of its keys only.

    Raises:
        ConflictError: `share-under-another-key`, `key-given-up`.
    """
    for other in keys_of_party(connection, caller.party) - {caller.party}:
        if find_share(connection, study, other).state in (ShareState.PARTIAL, ShareState.COMPLETE):
            raise ConflictError(
                "share-under-another-key",
                "this party's share is in under another of its keys",
                "go on with the key that the share began with, or take that share back first",
            )
    if find_share(connection, study, caller.party).state is ShareState.ABSENT:
        check_in_use(caller)


def rotate_proxy(home: Path | None, now: datetime) -> IdentityKeys:
    """Gives up the proxy's own key. A server that runs goes on with the old one until it is restarted.

    Raises:
        NotFoundError: `not-initialised`.
    """
    settings = load_settings(home)
    files = key_files(settings.home)
    if not files.exist:
        raise NotFoundError(
            "not-initialised", f"there is no proxy in {settings.home}", "run: dpdpca proxy init"
        )
    return files.rotate("proxy", passphrase_of(settings), now, lambda statement: None)
