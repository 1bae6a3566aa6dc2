"""Rebuilds a ledger that was lost, in part or completely, from what can still be proved.

1. The lines before the first invalid line are kept.
2. Each study to which this owner has sent a share, according to the owner's other files, is booked unless the
   kept lines contain the study. What the last receipt of such a study proves is booked as well. A study whose
   terms cannot be read is booked as a study whose ρ is not known, and the owner is told before it decides.
   A blinded study of which something may have been sent is booked for good.
3. The head, beside the ledger or in the witness folder, may say that more ρ was live than these entries
   explain. The difference is then booked as lost and counts in every data set: what is in doubt counts as
   spent.

The refused file is kept beside the new one.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpdpca_owner.accounts.bookkeeping import begin_sending, find, recover, settle
from dpdpca_owner.accounts.budget import NOT_KNOWN
from dpdpca_owner.accounts.charge import TITLE, Charge
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.accounts.ledger_file import Head, LedgerFile, writing_to
from dpdpca_owner.actions import Desk
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.errors import (
    ConflictError,
    DpdpcaError,
    IntegrityError,
    MessageError,
    NotFoundError,
    PolicyError,
)
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.wire.fields import read_text, read_time, time_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.signing import hex_bytes, verify_statement
from dpdpca_runtime.files import private_dir, read_private, write_private

_UNKNOWN = Digest(bytes(32))
"""The digest of values that are not known: no share has these."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuilt ledger.

    Attributes:
        reason: why the old file was refused.
        kept: number of valid entries of the old file.
        lost_entries: number of entries that are known to be missing.
        found: number of studies that were booked from their own files.
        doubts: what a person must know about single studies, a line each.
        lost_rho: ρ that no entry explains.
        keeps_data_sets: whether records can still be recognised as those of an earlier study.
    """

    ledger: Ledger
    reason: str
    kept: int
    lost_entries: int
    found: int
    doubts: tuple[str, ...]
    lost_rho: Fraction
    keeps_data_sets: bool

    def text(self) -> str:
        lines = [
            f"the ledger was refused: {self.reason}",
            f"{self.kept} entries are valid and at least {self.lost_entries} are lost;"
            f" {self.found} studies are booked again from their own files",
            *self.doubts,
        ]
        if self.lost_rho:
            lines.append(
                f"ρ = {float(self.lost_rho):.4g} was spent without an entry; it counts in every data set"
            )
        if not self.keeps_data_sets:
            lines.append(
                "earlier records can no longer be recognised: everything spent so far counts in every data"
                " set"
            )
        return "\n".join(lines)


def look_into(desk: Desk) -> str:
    """Returns a text that says what a recovery would do. Changes nothing."""
    return _rebuild(desk, _reason(desk.home.ledger), _key(desk.home.ledger)).text()


def recover_ledger(desk: Desk) -> str:
    """Replace an invalid ledger by a valid one, and return a text that says what was done.

    Raises:
        ConflictError: `nothing-to-recover`, the ledger is valid.
        UnavailableError: the ledger cannot be written.
    """
    file = desk.home.ledger
    with writing_to(file.folder):
        private_dir(file.folder)
        with file.locked(exclusive=True):
            reason, key = _reason(file), _key(file)
            rebuilt = _rebuild(desk, reason, key)
            if not file.key_path.exists():
                write_private(file.key_path, key)
            if file.entries_path.exists():
                mark = time_text(desk.now()).replace(":", "").replace("-", "")
                aside = file.entries_path.with_name(f"entries.refused-{mark}.jsonl")
                write_private(aside, file.entries_path.read_bytes(), replace=False)
            write_private(file.entries_path, b"".join(entry.line for entry in rebuilt.ledger.entries))
            file.save_head(rebuilt.ledger)
    return rebuilt.text()


def _reason(file: LedgerFile) -> str:
    try:
        file.check()
    except IntegrityError as error:
        return error.problem
    raise ConflictError("nothing-to-recover", "the ledger is in order", "see: dpdpca owner ledger")


def _key(file: LedgerFile) -> bytes:
    return read_private(file.key_path) if file.key_path.exists() else OS_RANDOMNESS.bytes(32)


def _rebuild(desk: Desk, reason: str, key: bytes) -> Rebuilt:
    file, time, check = desk.home.ledger, time_text(desk.now()), LedgerFile.check_of(key)
    ledger = Ledger()
    if file.entries_path.exists():
        content = file.entries_path.read_bytes()
        with suppress(MessageError):
            ledger.extend(content)
    head = _last_head(file, ledger)
    if head is not None and ledger.entries and head.ledger != ledger.id:
        ledger = Ledger()  # it belongs to another owner or another folder, so it proves nothing here
    kept = len(ledger.entries)
    if not kept:
        ledger.add(Ledger.begin(Digest(OS_RANDOMNESS.bytes(32)), check, time))
    keeps = check == ledger.key_check and kept > 0
    booked = [_book(desk, ledger, folder, time) for folder in desk.home.joined()]
    found = sum(each.is_found for each in booked)
    doubts = tuple(doubt for each in booked for doubt in each.doubts)
    lost_rho = max(Fraction(0), head.live_rho - ledger.live_rho) if head else Fraction(0)
    lost_entries = max(0, head.length - kept) if head else 0
    ledger.add_all(recover(ledger, reason[:200], lost_entries, lost_rho, check, time, desk.owner.parties))
    return Rebuilt(ledger, reason, kept, lost_entries, found, doubts, lost_rho, keeps)


def _last_head(file: LedgerFile, ledger: Ledger) -> Head | None:
    """The head with the most entries, of those that can be read."""
    heads = _read_head(file.head_path)
    ids = {head.ledger for head in heads} | ({ledger.id} if ledger.entries else set())
    for known in ids:
        heads += _read_head(file.witness_path(known))
    return max(heads, key=lambda head: head.length, default=None)


def _read_head(path: Path | None) -> list[Head]:
    with suppress(DpdpcaError, OSError):
        return [Head.load(path)] if path is not None else []
    return []


@dataclass(frozen=True, slots=True)
class _Booked:
    """Whether a study was missing from the ledger, and what a person must know about it."""

    is_found: bool
    doubts: tuple[str, ...]


def _book(desk: Desk, ledger: Ledger, folder: StudyFolder, time: str) -> _Booked:
    """Book the costs that a study's own files prove. A file that cannot be read never makes a study
    cheaper."""
    spend, doubts = ledger.spend(folder.study), list[str]()
    # Or the ledger ends with a withdrawal, and the share was sent again later.
    is_found = spend is None or (not spend.is_live and _may_be_newer(folder, spend.version))
    if is_found:
        charge, doubt = _charge(desk, folder) if spend is None else (spend.charge, None)
        ledger.add_all(find(ledger, charge, time))
        doubts += [doubt] if doubt else []
    try:
        if (receipt := folder.last_receipt_statement()) is not None:
            ledger.add_all(settle(ledger, receipt, time))
    except DpdpcaError as error:
        doubts.append(f"{_name(folder)} stays booked, whatever its last receipt says: {error.problem}")
    if (spend := ledger.spend(folder.study)) is not None and spend.is_live and _may_be_blinded(folder):
        kept = folder.secrets()
        ledger.add_all(begin_sending(ledger, folder.study, kept.values if kept else _UNKNOWN, time))
    return _Booked(is_found, tuple(doubts))


def _may_be_blinded(folder: StudyFolder) -> bool:
    """Whether the study is blinded; True if this is not known."""
    try:
        return "blinding" in _signed_body(folder)
    except IntegrityError:
        return True


def _may_be_newer(folder: StudyFolder, version: int) -> bool:
    """Whether the share was sent again after the withdrawal with this version; True if this is not known."""
    try:
        return folder.need_plan().version > version
    except IntegrityError:
        return True


def _charge(desk: Desk, folder: StudyFolder) -> tuple[Charge, str | None]:
    """What a study cost. If its ρ is not known, a line says to a person why; otherwise the line is None."""
    unread = _unread_charge(desk, folder)
    try:
        body = _signed_body(folder)
    except IntegrityError as error:
        return unread, _not_counted(folder, error.problem)
    try:
        manifest = parse_manifest(body, desk.home.feature_lists)
    except (MessageError, NotFoundError, PolicyError) as error:
        refused = f"this version refuses the terms of the study: {error.problem}"
        return _named_in(body, unread), _not_counted(folder, refused)
    return Charge.of(manifest, desk.for_study(manifest).owner.key.public.party_id), None


def _signed_body(folder: StudyFolder) -> Mapping[str, Any]:
    """The body of the study's manifest. Raises IntegrityError if the manifest is missing or damaged."""
    encoded = folder.manifest()
    statement = None if encoded is None else verify_statement("manifest", encoded)
    if statement is None or statement.digest != folder.study:
        raise IntegrityError(
            "state-corrupt",
            "the study's folder contains a share but no manifest",
            "restore the folder from a backup",
            place=str(folder.path),
        )
    return statement.body


def _named_in(body: Mapping[str, Any], unread: Charge) -> Charge:
    """`unread` with the title, data user, proxy and closing time of terms that this version refuses.

    The proxy's key makes a refund possible, with a version that reads the terms.
    """
    with suppress(MessageError, KeyError, TypeError):
        return replace(
            unread,
            title=read_text(body["title"], "title", TITLE),
            user=read_text(body["user"]["name"], "user", TITLE),
            proxy=hex_bytes(body["proxy"]["ed25519"], 32, "ed25519"),
            closes_at=read_time(body["closes_at"], "closes_at"),
        )
    return unread


def _unread_charge(desk: Desk, folder: StudyFolder) -> Charge:
    """The charge of a study of which nothing can be read. It names no real proxy key, so no signature can
    refund it."""
    own: frozenset[PartyId] = frozenset()
    with suppress(DpdpcaError):
        own = folder.owners() & desk.owner.parties
    owner, nobody = next(iter(own), desk.owner.key.public.party_id), bytes(32)
    return Charge(folder.study, _name(folder), "not known", nobody, owner, None, None, desk.now(), NOT_KNOWN)


def _not_counted(folder: StudyFolder, reason: str) -> str:
    return (
        f"the cost of {_name(folder)} cannot be computed: {reason}; the study is booked with an unknown"
        " ρ, so neither the total nor the budget covers it (to include its cost, restore its folder from a"
        " backup, or recover the ledger with the version with which you joined it)"
    )


def _name(folder: StudyFolder) -> str:
    return f"study {folder.study.hex()[:16]}…"
