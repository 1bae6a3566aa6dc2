"""Operations on one owner's share: store a chunk, complete, withdraw, decline.

Each operation gives the same answer if it is repeated.
"""

import hmac
from contextlib import suppress
from dataclasses import dataclass

import gmpy2
from sqlalchemy import Connection

from dpdpca_protocol.errors import (
    ConflictError,
    CryptographicError,
    MessageError,
    NotAllowedError,
    UnavailableError,
)
from dpdpca_protocol.messages.share import MAX_VERSION, Decline, ShareStatement, Withdrawal
from dpdpca_protocol.study import ShareEvent, ShareState, StudyState, next_share_state
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.salts import SALT_BYTES, unsalted
from dpdpca_protocol.wire.sealing import chunk_info, open_sealed
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.receipts import check_witnessed, give_receipt, known_receipt, signed_before
from dpdpca_proxy.rotation import check_one_key
from dpdpca_proxy.store.files import chunk_name, owner_folder, share_folder
from dpdpca_proxy.store.parties import PartyRow, first_key_of_party
from dpdpca_proxy.store.shares import (
    ShareRow,
    chunk_digests,
    chunk_of_another,
    count_signed_shares,
    delete_chunks,
    delete_decline,
    find_decline,
    find_share,
    find_signed,
    insert_chunk,
    keep_decline,
    list_shares,
    set_share,
)
from dpdpca_proxy.store.studies import (
    StudyRow,
    load_study,
    named_participants,
    touch_study,
)
from dpdpca_proxy.studies import close_if_due, fail_study, sweep

_FOR_GOOD = frozenset({"chunk-differs", "share-version-not-newer", "study-closed", "too-many-versions"})
"""Refusals of a chunk that no later change of the study or the share lifts."""
_COPIES = b"dpdpca/copies/v2"
MOST_VERSIONS = 64
"""The most versions of a share that an owner can complete. Each version makes the transcript permanently
longer."""


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """What an owner's client needs to resume an upload.

    Attributes:
        state: the state of the share.
        version: the version to which `chunks` belong: the one being uploaded, else the last signed one, else
            None.
        chunks: the positions of the chunks on the proxy's disk.
        receipt: the receipt of the last accepted statement, or None.
    """

    state: ShareState
    version: int | None
    chunks: tuple[int, ...]
    receipt: bytes | None


def put_chunk(
    proxy: Proxy, caller: PartyRow, study: StudyId, version: int, position: int, untrusted: bytes
) -> None:
    """Stores one chunk of share `version`. Repeating the same chunk changes nothing.

    Raises:
        NotAllowedError: `not-a-participant`.
        ConflictError: `study-closed`, `share-version-not-newer`, `cohort-full`, `chunk-differs`,
            `too-many-versions`, `blinded-share-is-final`.
        CryptographicError: the chunk does not open, or a ciphertext is invalid. The whole chunk is refused.
        MessageError: the length, position or version is wrong.
    """
    if not 1 <= version <= MAX_VERSION:
        raise MessageError("malformed", "a share version must be a whole number of 1 or more")
    terms = proxy.terms(study)
    _check_final(terms.manifest, version)
    gmpy2.get_context().allow_release_gil = True
    chunk = open_sealed(
        untrusted, proxy.key_of(study).opening_key, chunk_info(study, caller.party, version, position)
    )
    digest = Digest.of(chunk)
    with proxy.database.reading("is the chunk there") as connection:
        present = chunk_digests(connection, study, caller.party, version).get(position)
        if _same_chunk(present, digest):
            return
        _check_upload(connection, load_study(connection, study), caller, version)
        first_key = first_key_of_party(connection, caller.party)
    terms.suite.check_chunk(chunk, position, SALT_BYTES)
    name = chunk_name(study, caller.party, version, position, digest)
    key = proxy.data_key(study)
    proxy.files.write_sealed(name, chunk, key, proxy.randomness)
    mark = copy_mark(chunk, key)
    try:
        superseded = _record_chunk(proxy, caller, first_key, study, version, position, digest, mark)
    except ConflictError as error:
        if error.slug in _FOR_GOOD:
            _remove_unnamed(proxy, study, caller.party, version, position, digest)
        raise
    if superseded is not None:
        proxy.files.remove(share_folder(study, caller.party, superseded))


def copy_mark(chunk: bytes, data_key: bytes) -> Digest:
    """A mark that is the same for all chunks with the same ciphertexts, whatever their salts.

    The mark's key is derived from the study's data key, which is deleted together with the shares. After
    that, nobody can test guesses of a share against marks in an old copy of the database.
    """
    key = hmac.digest(data_key, _COPIES, "sha256")
    return Digest(hmac.digest(key, unsalted(chunk), "sha256"))


def _record_chunk(
    proxy: Proxy,
    caller: PartyRow,
    first_key: PartyId,
    study: StudyId,
    version: int,
    position: int,
    digest: Digest,
    mark: Digest,
) -> int | None:
    """Records the stored file as a chunk of the share. Returns the upload that this version replaces.

    Chunks of different owners are recorded side by side. `first_key` stands for all keys of this owner,
    because it may use only one of them in a study.
    """
    with proxy.database.transaction("take chunk", study, first_key) as connection:
        row = load_study(connection, study)
        share = _check_upload(connection, row, caller, version)
        present = chunk_digests(connection, study, caller.party, version).get(position)
        if _same_chunk(present, digest):
            return None
        superseded = share.upload_version if share.upload_version != version else None
        if superseded is not None:
            delete_chunks(connection, study, caller.party, superseded)
        if share.upload_version != version:
            following = next_share_state(
                share.state,
                ShareEvent.UPLOAD,
                version=version,
                signed_version=share.signed_version,
                study=StudyState.OPEN,
            )
            set_share(connection, share, following, upload_version=version)
        insert_chunk(connection, study, caller.party, version, position, digest, mark)
        touch_study(connection, row)
    return superseded


def status_of(proxy: Proxy, caller: PartyRow, study: StudyId) -> ShareStatus:
    with proxy.database.reading("read share") as connection:
        load_study(connection, study)
        share = find_share(connection, study, caller.party)
        version = share.upload_version or share.signed_version or None
        signed = find_signed(connection, study, caller.party, share.signed_version)
        there = chunk_digests(connection, study, caller.party, version) if version else {}
    if signed is not None:
        check_witnessed(proxy)
    return ShareStatus(share.state, version, tuple(sorted(there)), signed.receipt if signed else None)


def complete(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> bytes:
    """Completes the share with the owner's signed statement, and returns the signed receipt.

    Repeating the statement gives the same receipt, whatever happened since.

    Raises:
        MessageError: the statement is not about this study, or its digests differ from those of the chunks.
        ConflictError: `study-closed`, `share-version-not-newer`, `statement-differs`, `share-incomplete`,
            `cohort-full`, `too-many-versions`, `blinded-share-is-final`.
        CryptographicError: `ciphertext-repeated`, two chunks contain the same ciphertext;
            `chunk-of-another-owner`, another owner's complete share contains the chunk.
    """
    statement = verify_statement("share", untrusted, caller.ed25519)
    claim = ShareStatement.parse(statement)
    _check_study(claim.study, study)
    if (known := known_receipt(proxy, caller, study, claim.version, statement)) is not None:
        return known
    terms = proxy.terms(study)
    _check_final(terms.manifest, claim.version)
    if claim.kem != caller.kem:
        raise MessageError(
            "malformed",
            "the statement names another `kem` than the enrolled one",
            "sign the statement with your own keys",
        )
    if len(claim.chunk_digests) != terms.manifest.figures.chunk_count:
        raise MessageError(
            "malformed",
            f"the statement lists {len(claim.chunk_digests)} chunks, but a share of this study has "
            f"{terms.manifest.figures.chunk_count}",
        )
    terms.suite.check_member(claim.pad)
    _check_no_repeats(proxy, caller, claim)
    close_if_due(proxy, study)
    with proxy.database.transaction("complete share", study) as connection:
        now = proxy.now()
        row = load_study(connection, study)
        if (known := signed_before(connection, caller, study, claim.version, statement)) is not None:
            return known
        share = _check_upload(connection, row, caller, claim.version)
        _check_whole(connection, caller, claim)
        _check_own(connection, caller, claim)
        following = next_share_state(
            share.state,
            ShareEvent.COMPLETE,
            version=claim.version,
            signed_version=share.signed_version,
            study=row.state,
        )
        set_share(connection, share, following, signed_version=claim.version, upload_version=None)
        replaced = share.signed_version if share.state is ShareState.COMPLETE else None
        if replaced is not None:
            delete_chunks(connection, study, caller.party, replaced)
        delete_decline(connection, study, caller.party)  # the latest decision counts
        touch_study(connection, row)
        receipt = give_receipt(proxy, connection, caller, study, claim.version, "share", statement, now)
    if replaced is not None:
        proxy.files.remove(share_folder(study, caller.party, replaced))
    close_if_due(proxy, study)
    proxy.wake()
    return receipt


def withdraw(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> bytes:
    """Withdraws a complete share from an open study with the owner's signed statement, and returns a receipt.

    A withdrawal from a blinded study ends the study for all.

    Raises:
        MessageError: the statement is not a withdrawal from this study.
        ConflictError: `study-closed`, `share-version-not-newer`, `statement-differs`, or there is no
            complete share.
    """
    statement = verify_statement("withdrawal", untrusted, caller.ed25519)
    wish = Withdrawal.parse(statement)
    _check_study(wish.study, study)
    if (known := known_receipt(proxy, caller, study, wish.version, statement)) is not None:
        return known
    blinded = proxy.terms(study).manifest.is_blinded
    close_if_due(proxy, study)
    with proxy.database.transaction("withdraw share", study) as connection:
        now = proxy.now()
        row = load_study(connection, study)
        if (known := signed_before(connection, caller, study, wish.version, statement)) is not None:
            return known
        share = find_share(connection, study, caller.party)
        following = next_share_state(
            share.state,
            ShareEvent.WITHDRAW,
            version=wish.version,
            signed_version=share.signed_version,
            study=row.state,
        )
        _check_not_behind(share, wish.version)
        gone = [share.signed_version, *([share.upload_version] if share.upload_version else [])]
        set_share(connection, share, following, signed_version=wish.version, upload_version=None)
        for version in gone:
            delete_chunks(connection, study, caller.party, version)
        touch_study(connection, row)
        receipt = give_receipt(proxy, connection, caller, study, wish.version, "withdrawal", statement, now)
        if blinded:
            # Without this owner the masks of the others never vanish: nothing could be opened.
            fail_study(
                proxy,
                connection,
                load_study(connection, study),
                now,
                "cohort-incomplete",
                "an owner has withdrawn its share from this blinded study, which needs all owners",
            )
    for version in gone:
        proxy.files.remove(share_folder(study, caller.party, version))
    sweep(proxy, study)
    proxy.wake()
    return receipt


def decline(proxy: Proxy, caller: PartyRow, study: StudyId, untrusted: bytes) -> None:
    """Stores an owner's signed statement that it does not take part in an open study. Only the study's data
    user is told. An earlier decline of this owner is replaced. Chunks that have arrived are kept, because the
    owner may still change its mind.

    A decline ends nothing and is in neither the transcript nor the log, which others can read.

    Raises:
        MessageError: the statement is not a decline of this study.
        NotAllowedError: `not-a-participant`.
        ConflictError: `study-closed`; `share-complete`, the owner has to withdraw its share instead;
            `share-under-another-key`, `key-given-up`.
    """
    statement = verify_statement("decline", untrusted, caller.ed25519)
    _check_study(Decline.parse(statement).study, study)
    close_if_due(proxy, study)
    with proxy.database.transaction("decline study", study) as connection:
        row = load_study(connection, study)
        if find_decline(connection, study, caller.party) == statement.encoded:
            return
        if row.state is not StudyState.OPEN:
            raise ConflictError(
                "study-closed",
                f"the study is {row.state}: nobody can decline it any more",
                "nothing is needed",
            )
        _check_named(connection, row, caller)
        if find_share(connection, study, caller.party).state is ShareState.COMPLETE:
            raise ConflictError(
                "share-complete",
                "this owner's share is complete, so it has joined the study",
                "withdraw the share instead",
            )
        keep_decline(connection, study, caller.party, statement.encoded)


def _check_final(manifest: Manifest, version: int) -> None:
    """Refuses a second version of a blinded share: two shares under one mask would show their difference."""
    if manifest.is_blinded and version != 1:
        raise ConflictError(
            "blinded-share-is-final",
            "a share of a blinded study has version 1 only, and cannot be replaced",
            "withdraw the share, which ends the study for all owners",
        )


def _check_not_behind(share: ShareRow, version: int) -> None:
    if share.upload_version is not None and version < share.upload_version:
        raise ConflictError(
            "share-version-not-newer",
            f"version {share.upload_version} of this share is being uploaded, not version {version}",
            f"continue with version {share.upload_version}",
        )


def replaced_folders(proxy: Proxy, study: StudyId) -> list[str]:
    """The folders of replaced or withdrawn versions. No chunk can be added to these folders."""
    with proxy.database.reading("list shares") as connection:
        rows = list_shares(connection, study)
    folders: list[str] = []
    found = proxy.files.entries_of([owner_folder(study, row.owner) for row in rows])
    for row, names in zip(rows, found, strict=True):
        live = {row.upload_version, row.signed_version if row.state is ShareState.COMPLETE else None}
        newest = max(row.signed_version, row.upload_version or 0)
        gone = {int(name) for name in names if name.isdecimal() and int(name) <= newest} - live
        folders += [share_folder(study, row.owner, version) for version in sorted(gone)]
    return folders


def _check_upload(connection: Connection, row: StudyRow, caller: PartyRow, version: int) -> ShareRow:
    """Checks that this owner may add to `version` of its share now."""
    share = find_share(connection, row.study, caller.party)
    next_share_state(
        share.state, ShareEvent.UPLOAD, version=version, signed_version=share.signed_version, study=row.state
    )
    _check_not_behind(share, version)
    if count_signed_shares(connection, row.study, caller.party) >= MOST_VERSIONS:
        raise ConflictError(
            "too-many-versions",
            f"this owner has completed {MOST_VERSIONS} versions of its share, which is the limit",
            "keep the last version, or withdraw it",
        )
    _check_named(connection, row, caller)
    if share.state is not ShareState.COMPLETE:
        others = sum(other.state is ShareState.COMPLETE for other in list_shares(connection, row.study))
        if others >= row.max_owners:
            raise ConflictError(
                "cohort-full",
                f"{row.max_owners} owners have complete shares, which is the manifest's limit",
                "ask the data user for a new study",
            )
    return share


def _check_named(connection: Connection, row: StudyRow, caller: PartyRow) -> None:
    """Checks that this key may take part in the study."""
    named = named_participants(connection, row.study)
    if named and caller.party not in named:
        raise NotAllowedError(
            "not-a-participant", "the manifest does not name this owner", "ask the data user for a new study"
        )
    if not named:
        check_one_key(connection, caller, row.study)


def _check_no_repeats(proxy: Proxy, caller: PartyRow, claim: ShareStatement) -> None:
    """Checks the chunks in the statement together. Each chunk was already checked by itself."""
    if len(claim.chunk_digests) == 1:
        return
    with proxy.database.reading("list chunks to compare") as connection:
        there = chunk_digests(connection, claim.study, caller.party, claim.version)
    if any(there.get(position) != digest for position, digest in enumerate(claim.chunk_digests)):
        return  # the transaction reports which chunk is missing or different
    key = proxy.data_key(claim.study)
    names = (
        chunk_name(claim.study, caller.party, claim.version, position, digest)
        for position, digest in enumerate(claim.chunk_digests)
    )
    # Only read where there is something to check.
    proxy.terms(claim.study).suite.check_share(unsalted(proxy.files.read_sealed(name, key)) for name in names)


def _check_whole(connection: Connection, caller: PartyRow, claim: ShareStatement) -> None:
    there = chunk_digests(connection, claim.study, caller.party, claim.version)
    missing = [position for position in range(len(claim.chunk_digests)) if position not in there]
    if missing:
        raise ConflictError(
            "share-incomplete",
            f"{len(missing)} chunks have not arrived, the first of them chunk {missing[0]}",
            "send the missing chunks, then complete the share again",
        )
    for position, digest in enumerate(claim.chunk_digests):
        if there[position] != digest:
            raise ConflictError(
                "chunk-differs",
                f"the digest of chunk {position} in the statement differs from that of the chunk that "
                "arrived",
                "start a new share version",
            )


def _check_own(connection: Connection, caller: PartyRow, claim: ShareStatement) -> None:
    """Checks that no chunk has the ciphertexts of another owner's chunk.

    Fresh encryptions are never equal, and a copied share would count twice. This check runs only while the
    study is open. After the release, its answer could confirm a guess of another owner's share.
    """
    position = chunk_of_another(connection, claim.study, caller.party, claim.version)
    if position is not None:
        raise CryptographicError(
            "chunk-of-another-owner",
            f"chunk {position} of this share is also in the share of another owner",
            "encrypt the share again with fresh randomness, under a new version",
        )


def _same_chunk(present: Digest | None, digest: Digest) -> bool:
    """Whether the same chunk is already stored. Raises ConflictError if a different chunk is stored."""
    if present is not None and present != digest:
        raise ConflictError(
            "chunk-differs",
            "a different chunk is already stored at this position of this share version",
            "start a new share version to send different content",
        )
    return present is not None


def _remove_unnamed(
    proxy: Proxy, study: StudyId, owner: PartyId, version: int, position: int, digest: Digest
) -> None:
    """Removes the file of a chunk that was refused for good, unless it was accepted before.

    No other request can name the file after that, so nothing is locked. After any other refusal the file
    stays, because the chunk may come again, until the folder of its version or study is removed. So it does
    if the storage fails now.
    """
    with suppress(UnavailableError):
        with proxy.database.reading("is the refused chunk there") as connection:
            there = chunk_digests(connection, study, owner, version)
        if there.get(position) != digest:
            proxy.files.remove(chunk_name(study, owner, version, position, digest))


def _check_study(named: StudyId, study: StudyId) -> None:
    if named != study:
        raise MessageError("malformed", "the statement and the path name different studies")
