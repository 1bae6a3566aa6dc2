"""Rebuilds a ledger that was lost, in part or completely, from what can still be proved.

1. The lines before the first invalid line are kept.
2. Each study to which this owner has sent a share, according to its other files, is booked if those lines do
   not contain it. What the last receipt of such a study proves is booked as well.
3. The head, beside the ledger or in the witness folder, may say that more ρ was live than these entries
explain. The difference is then booked as lost and counts in every data set: what is in doubt counts as spent.

The refused file is kept beside the new one.
"""

from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from dpdpca_owner.accounts.bookkeeping import find, recover, settle
from dpdpca_owner.accounts.charge import Charge
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.accounts.ledger_file import Head, LedgerFile, writing_to
from dpdpca_owner.actions import Desk
from dpdpca_owner.study_folder import StudyFolder
from dpdpca_protocol.errors import ConflictError, DpdpcaError, IntegrityError, MessageError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.files import private_dir, read_private, write_private
from dpdpca_runtime.own_files import own_file


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A rebuilt ledger.

    Attributes:
        reason: why the old file was refused.
        kept: number of valid entries of the old file.
        lost_entries: number of entries that are known to be missing.
        found: number of studies that were booked from their own files.
        lost_rho: ρ that no entry explains.
        keeps_data_sets: whether records can still be recognised as those of an earlier study.
    """

    ledger: Ledger
    reason: str
    kept: int
    lost_entries: int
    found: int
    lost_rho: Fraction
    keeps_data_sets: bool

    def text(self) -> str:
        lines = [
            f"the ledger was refused: {self.reason}",
            f"{self.kept} entries are valid and at least {self.lost_entries} are lost;"
            f" {self.found} studies are booked again from their own files",
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
    """Describe what a recovery would do. Changes nothing."""
    return _rebuild(desk, _reason(desk.home.ledger), _key(desk.home.ledger)).text()


def recover_ledger(desk: Desk) -> str:
    """Replace an invalid ledger by a valid one, and describe what was done.

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
    found = sum(_book(desk, ledger, folder, time) for folder in desk.home.studies() if folder.plan())
    lost_rho = max(Fraction(0), head.live_rho - ledger.live_rho) if head else Fraction(0)
    lost_entries = max(0, head.length - kept) if head else 0
    ledger.add_all(recover(ledger, reason[:200], lost_entries, lost_rho, check, time))
    return Rebuilt(ledger, reason, kept, lost_entries, found, lost_rho, keeps)


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


def _book(desk: Desk, ledger: Ledger, folder: StudyFolder, time: str) -> bool:
    """Book what a study's own files prove. Returns whether the study itself was missing from the ledger."""
    plan, encoded = folder.plan(), folder.manifest()
    if plan is None or encoded is None:
        raise IntegrityError(
            "state-corrupt",
            "the folder of a study contains a share but no manifest",
            "restore the folder from a backup",
            place=str(folder.path),
        )
    with own_file(folder.path / "manifest.json"):
        body = verify_statement("manifest", encoded).body
        manifest = parse_manifest(body)
    spend = ledger.spend(folder.study)
    # Or the ledger ends with a withdrawal, and the share was sent again later.
    is_missing = spend is None or (not spend.is_live and plan.version > spend.version)
    if is_missing:
        key = desk.for_study(manifest).owner.key
        ledger.add_all(find(ledger, Charge.of(manifest, key.public.party_id), time))
    if (receipt := folder.last_receipt_statement()) is not None:
        ledger.add_all(settle(ledger, receipt, time))
    return is_missing
