"""Rotation of identity keys: those of the enrolled parties, and the proxy's own."""

from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection

from dpdpca_protocol.errors import ConflictError, MessageError, NotFoundError
from dpdpca_protocol.messages.rotation import MOST_ROTATIONS, too_many_rotations, verify_rotation
from dpdpca_protocol.pads.masks import check_blinding_key
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
    """Enrols the caller's new key, on a statement that the old and the new key sign.

    The old key stays valid for the studies that began with it. Repeating the same statement changes nothing.

    Returns:
        The id of the new key.

    Raises:
        MessageError: the statement is not a rotation of this caller.
        AuthenticationError: one of the two keys has not signed.
        CryptographicError: `unfit-blinding-key`, the new key for blinding has low order.
        ConflictError: `already-rotated`, `rotation-not-newer`, `already-enrolled`, `too-many-rotations`.
    """
    if party != caller.party:
        raise MessageError(
            "malformed", "the path names another party than the caller", "use your own id in the path"
        )
    rotation, statement = verify_rotation(untrusted)
    if rotation.previous != caller.ed25519 or rotation.role != caller.role:
        raise MessageError("malformed", "the rotation is for another key or role than the caller's")
    if rotation.identity.x25519 is not None:
        check_blinding_key(rotation.identity.x25519)
    successor = rotation.identity.party_id
    with proxy.database.transaction("rotate key") as connection:
        now = proxy.now()
        present = find_rotation(connection, party)
        if present == statement.encoded:
            return successor
        if present is not None:
            raise ConflictError(
                "already-rotated",
                "this key was already replaced by another key",
                "use the key that replaced it",
            )
        if rotation.version <= last_version(connection, party):
            raise ConflictError(
                "rotation-not-newer",
                f"rotation version {rotation.version} is not above the version that led to this key",
                "restore the newest keys from your backup",
            )
        if find_party(connection, successor) is not None:
            raise ConflictError("already-enrolled", "the new key is already enrolled", "make another key")
        if len(keys_of_party(connection, party)) > MOST_ROTATIONS:
            raise too_many_rotations()
        row = PartyRow(
            successor, caller.role, caller.name, rotation.identity.ed25519, rotation.identity.kem, now
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
    """Raises ConflictError `key-given-up` if the caller begins a new study with a replaced key."""
    if caller.successor is not None:
        raise ConflictError(
            "key-given-up",
            "this key was replaced and is only valid for the studies that began with it",
            "use the new key; restart the service that still uses the old one",
        )


def check_one_key(connection: Connection, caller: PartyRow, study: StudyId) -> None:
    """Checks that a party uses only one of its keys in a study that is open to all owners.

    Raises:
        ConflictError: `share-under-another-key`, `key-given-up`.
    """
    for other in keys_of_party(connection, caller.party) - {caller.party}:
        if find_share(connection, study, other).state in (ShareState.PARTIAL, ShareState.COMPLETE):
            raise ConflictError(
                "share-under-another-key",
                "this party already has a share in this study under another of its keys",
                "continue with the key of that share, or withdraw that share first",
            )
    if find_share(connection, study, caller.party).state is ShareState.ABSENT:
        check_in_use(caller)


def rotate_proxy(home: Path | None, now: datetime) -> IdentityKeys:
    """Replaces the proxy's own key. A running server uses the old key until it is restarted.

    Raises:
        NotFoundError: `not-initialised`.
    """
    settings = load_settings(home)
    files = key_files(settings)
    if not files.exist:
        raise NotFoundError(
            "not-initialised", f"there is no proxy in {settings.home}", "run: dpdpca proxy init"
        )
    return files.rotate(passphrase_of(settings), now, lambda statement: None)
