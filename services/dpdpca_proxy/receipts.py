"""The proxy's word for an owner's statement: one version, one statement, one receipt.

A second statement under a version is refused and kept: the two together show that their signer contradicts
itself.
"""

from contextlib import suppress
from datetime import datetime

from sqlalchemy import Connection

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import Statement
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.log import append_entry
from dpdpca_proxy.store.parties import PartyRow
from dpdpca_proxy.store.shares import SignedShare, find_signed, insert_contradiction, insert_signed
from dpdpca_proxy.store.studies import append_event, load_study


def known_receipt(
    proxy: Proxy, caller: PartyRow, study: StudyId, version: int, statement: Statement
) -> bytes | None:
    """The receipt that was given for this statement, or None where there is none under its version.

    Raises:
        NotFoundError: no such study.
        ConflictError: `statement-differs`, another statement stands under this version; this one is kept.
        UnavailableError: as `check_witnessed`.
    """
    with proxy.database.reading("is the statement known") as connection:
        load_study(connection, study)
        signed = find_signed(connection, study, caller.party, version)
    if signed is None:
        return None
    if signed.digest != statement.digest:
        now = proxy.now()
        with proxy.database.transaction("keep contradiction") as connection:
            if insert_contradiction(connection, study, caller.party, version, statement, now):
                append_entry(connection, "contradiction", statement.digest, now)
        raise _differs(version)
    check_witnessed(proxy)
    return signed.receipt


def check_witnessed(proxy: Proxy) -> None:
    """That the witness knows of every receipt that is stored; where it could not be told, none was given yet.

    Raises:
        UnavailableError: it cannot be told.
    """
    with suppress(ConflictError):  # on an older copy of the database, whose receipts were given before
        proxy.database.settle_witness()


def signed_before(
    connection: Connection, caller: PartyRow, study: StudyId, version: int, statement: Statement
) -> bytes | None:
    """As `known_receipt`, in a transaction: what came in since it was asked for. Nothing is kept."""
    signed = find_signed(connection, study, caller.party, version)
    if signed is not None and signed.digest != statement.digest:
        raise _differs(version)
    return signed.receipt if signed else None


def give_receipt(
    proxy: Proxy,
    connection: Connection,
    caller: PartyRow,
    study: StudyId,
    version: int,
    subject: str,
    statement: Statement,
    now: datetime,
) -> bytes:
    """Stores a statement with its receipt, and both in the transcript; the receipt.

    Args:
        proxy: signs with the study's key.
        connection: of the transaction in which the share changes.
        caller: whose statement it is.
        study, version: as it says.
        subject: "share" or "withdrawal".
        statement: verified.
        now: of the receipt.
    """
    key = proxy.key_of(study)
    receipt = Receipt(study, caller.party, version, subject, statement.digest, time_text(now)).sign(key)
    insert_signed(
        connection,
        study,
        caller.party,
        SignedShare(version, subject, statement.digest, statement.encoded, receipt.encoded),
    )
    detail = {"owner": caller.party.hex(), "statement": statement.digest.hex(), "version": version}
    append_event(connection, key, study, "receipt" if subject == "share" else "withdrawal", detail, now)
    return receipt.encoded


def _differs(version: int) -> ConflictError:
    return ConflictError(
        "statement-differs",
        f"another statement was signed under version {version}, and both are kept",
        f"use a version above {version}",
    )
