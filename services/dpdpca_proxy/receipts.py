"""Receipts for owners' statements.

Each version of a share has one statement and one receipt. A second, different statement under the same
version is refused but stored: the two statements prove that the signer contradicted itself.
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
    """The existing receipt for this statement, or None if no statement has this version.

    Raises:
        NotFoundError: there is no such study.
        ConflictError: `statement-differs`, another statement was signed for this version. `statement` is
            stored as evidence.
        UnavailableError: like `check_witnessed`.
    """
    with proxy.database.reading("is the statement known") as connection:
        load_study(connection, study)
        signed = find_signed(connection, study, caller.party, version)
    if signed is None:
        return None
    if signed.digest != statement.digest:
        with proxy.database.transaction("keep contradiction", study) as connection:
            now = proxy.now()
            if insert_contradiction(connection, study, caller.party, version, statement, now):
                append_entry(connection, "contradiction", statement.digest, now)
        raise _differs(version)
    check_witnessed(proxy)
    return signed.receipt


def check_witnessed(proxy: Proxy) -> None:
    """Makes sure that the witness knows every stored receipt.

    If the witness cannot be updated, no receipt is given out.

    Raises:
        UnavailableError: the witness cannot be updated.
    """
    with suppress(ConflictError):  # the database is an older copy whose receipts were given out before
        proxy.database.settle_witness()


def signed_before(
    connection: Connection, caller: PartyRow, study: StudyId, version: int, statement: Statement
) -> bytes | None:
    """Like `known_receipt`, but inside the transaction, for statements that arrived meanwhile.

    It stores nothing.
    """
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
    """Stores a statement with its receipt, adds both to the transcript, and returns the receipt.

    Args:
        proxy: signs with the study's key.
        connection: the transaction in which the share changes.
        caller: the signer of the statement.
        study, version: as in the statement.
        subject: "share" or "withdrawal".
        statement: the verified statement.
        now: the time of the receipt.
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
        f"another statement was already signed under version {version}; both are stored",
        f"use a version above {version}",
    )
