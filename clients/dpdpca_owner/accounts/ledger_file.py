"""The owner's ledger on disk: a chain of lines that only grows, and two copies of its head.

    ledger/entries.jsonl    the chain
    ledger/head.json        the head: number of entries, digest of the last one, and live ρ
    ledger/key              the key of fingerprints, of the order of pairs, and of this owner's noise
    WITNESS/<id>.json       a second copy of the head, outside this owner's folder

`record` first writes the lines and then the head, and returns when both are on the disk. If a run is
interrupted between the two, the chain is longer than its head says. The chain is never shorter, unless it was
truncated or replaced by an older copy. Only one process writes at a time, and it holds a lock while it
decides what a study may spend.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path

from dpdpca_owner.accounts.bookkeeping import Ending, refund, settle
from dpdpca_owner.accounts.budget import rational_text, read_rational
from dpdpca_owner.accounts.entries import Entry
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_protocol.errors import (
    ConflictError,
    DpdpcaError,
    IntegrityError,
    MessageError,
    NotFoundError,
    UnavailableError,
)
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.wire.fields import read_integer, time_text
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_runtime.files import private_dir, read_private, write_private
from dpdpca_runtime.locks import locked
from dpdpca_runtime.own_files import load, own_file, save

_LOCK_SECONDS = 60.0
_BINARY = getattr(os, "O_BINARY", 0)  # without it, Windows writes two bytes for a newline
_RECOVERY = (
    "restore the newest copy of the ledger; if there is none, 'dpdpca owner ledger --recover' rebuilds it"
    " from what can still be proved (docs/ledger.md)"
)


@dataclass(frozen=True, slots=True)
class Head:
    """The state of a ledger after it was last written.

    Attributes:
        ledger: its id.
        length: the number of entries.
        digest: the digest of the last entry.
        live_rho: the ρ of everything that was live.
    """

    ledger: Digest
    length: int
    digest: Digest
    live_rho: Fraction

    @classmethod
    def of(cls, ledger: Ledger) -> "Head":
        return cls(ledger.id, len(ledger.entries), ledger.last, ledger.live_rho)

    @classmethod
    def load(cls, path: Path) -> "Head":
        body = load(path, "digest", "ledger", "length", "live_rho")
        with own_file(path):
            return cls(
                Digest.parse(body["ledger"]),
                read_integer(body["length"], "length", 1),
                Digest.parse(body["digest"]),
                read_rational(body["live_rho"], "live_rho"),
            )

    def save(self, path: Path) -> None:
        save(
            path,
            {
                "digest": self.digest.hex(),
                "ledger": self.ledger.hex(),
                "length": self.length,
                "live_rho": rational_text(self.live_rho),
            },
        )


class Book:
    """A ledger that is open for writing; its lock is held."""

    def __init__(self, file: "LedgerFile", ledger: Ledger, now: datetime) -> None:
        self._file = file
        self.ledger = ledger
        self.time = time_text(now)

    def record(self, entries: Sequence[Entry]) -> None:
        """Write entries to the disk, then add them to the ledger.

        Raises:
            UnavailableError: `ledger-not-written`. After this error, the caller must do nothing that needs
            these entries.
        """
        if entries:
            with writing_to(self._file.folder):
                append_synced(self._file.entries_path, b"".join(entry.line for entry in entries))
                self.ledger.add_all(entries)
                self._file.save_head(self.ledger)


class LedgerFile:
    """One owner's ledger.

    Args:
        folder: the folder of the ledger, inside the owner's folder.
        witness: a folder elsewhere for a second copy of the head, or None. If the second copy
            cannot be written, this is not an error.
        joined: returns the studies to which this owner has sent, or tried to send, a share, according to its
            other files.
    """

    def __init__(
        self,
        folder: Path,
        witness: Path | None = None,
        joined: Callable[[], Collection[StudyId]] = frozenset,
    ) -> None:
        self.folder = folder
        self.entries_path = folder / "entries.jsonl"
        self.head_path = folder / "head.json"
        self.key_path = folder / "key"
        self._lock_path = folder / "lock"
        self._witness = witness
        self._joined = joined

    def create(self, now: datetime, randomness: Randomness) -> None:
        """Create a ledger. The new ledger replaces an empty one that an interrupted run left behind.

        Raises:
            ConflictError: there is a ledger with entries, or a part of one.
            UnavailableError: the ledger cannot be written.
        """
        with writing_to(self.folder):
            private_dir(self.folder)
            with self.locked(exclusive=True):
                if self._is_in_use():
                    raise ConflictError(
                        "already-initialised",
                        f"{self.folder} contains the ledger of an owner whose keys are missing",
                        "restore the keys from a backup, or choose another folder with --home",
                    )
                key = randomness.bytes(32)
                write_private(self.key_path, key)
                first = Ledger.begin(Digest(randomness.bytes(32)), self.check_of(key), time_text(now))
                write_private(self.entries_path, first.line)
                ledger = Ledger()
                ledger.add(first)
                self.save_head(ledger)

    def read(self) -> Ledger:
        """Read the ledger.

        Raises:
            IntegrityError: the ledger is missing, corrupt, truncated or an older copy; the message says
                which.
        """
        with self.locked(exclusive=False):
            return self._load()[0]

    def owners(self) -> frozenset[PartyId]:
        """The parties that booked something in this ledger, according to its valid lines."""
        ledger = Ledger()
        with suppress(DpdpcaError, OSError):
            content = read_private(self.entries_path)
            ledger.extend(content[: content.rfind(b"\n") + 1])
        return frozenset(spend.charge.owner for spend in ledger.spends)

    @contextmanager
    def writing(self, now: datetime) -> Iterator[Book]:
        """Open the ledger for writing, with an exclusive lock.

        Raises like `read`, and ConflictError `busy`.
        """
        with self.locked(exclusive=True):
            ledger, complete = self._load()
            with writing_to(self.folder):
                self._finish(ledger, complete)
            yield Book(self, ledger, now)

    def key(self) -> bytes:
        """The ledger's key, from which fingerprints, the order of pairs and this owner's noise are derived.

        Raises IntegrityError if the key or the ledger is missing.
        """
        if not self.entries_path.exists():
            raise _missing(self.folder)
        try:
            return read_private(self.key_path)
        except NotFoundError as error:
            raise IntegrityError(
                "ledger-key",
                "the key of the ledger's fingerprints is missing",
                _RECOVERY,
                place=str(self.key_path),
            ) from error

    def check(self) -> None:
        """Raises IntegrityError if `read` would. The caller must hold the lock."""
        self._load()

    @staticmethod
    def check_of(key: bytes) -> Digest:
        """The digest by which a ledger recognises its key of fingerprints."""
        return Digest.of(b"dpdpca/fingerprint-key\x00" + key)

    def settle(self, receipt: bytes | None, now: datetime) -> Ledger:
        """Book what a receipt proves, unless it is booked already. Raises like `bookkeeping.settle`."""
        return self._book(lambda ledger, time: settle(ledger, receipt, time) if receipt else [], now)

    def refund(self, told: Ending, now: datetime) -> Ledger:
        """Book the refund of a study that ended, unless it is booked already.

        Raises like `bookkeeping.refund`.
        """
        return self._book(lambda ledger, time: refund(ledger, told, time), now)

    def _book(self, make: Callable[[Ledger, str], list[Entry]], now: datetime) -> Ledger:
        """Write the entries that `make` returns, if any. Returns the ledger including these entries."""
        ledger = self.read()
        if not make(ledger, time_text(now)):
            return ledger
        with self.writing(now) as book:
            book.record(make(book.ledger, book.time))
            return book.ledger

    def witness_path(self, ledger: Digest) -> Path | None:
        """The file with the second copy of the head of the ledger with this id, or None."""
        return None if self._witness is None else self._witness / f"{ledger.hex()}.json"

    def save_head(self, ledger: Ledger) -> None:
        """Write both copies of the head. Raises OSError if the copy beside the ledger cannot be written."""
        head, elsewhere = Head.of(ledger), self.witness_path(ledger.id)
        head.save(self.head_path)
        if elsewhere is not None:
            # An old second copy proves less but does no harm. A container may have nowhere else to keep it.
            with suppress(OSError, DpdpcaError):
                head.save(elsewhere)

    def _heads(self, ledger: Digest) -> list[Head]:
        heads, elsewhere = [], self.witness_path(ledger)
        with suppress(NotFoundError):
            heads.append(Head.load(self.head_path))
        if elsewhere is not None:
            with suppress(NotFoundError, OSError):
                heads.append(Head.load(elsewhere))
        return heads

    @contextmanager
    def locked(self, *, exclusive: bool) -> Iterator[None]:
        """Lock the ledger. Raises ConflictError if another process holds the lock for a minute."""
        if not self.folder.is_dir():
            raise _missing(self.folder)
        if not exclusive and not self._lock_path.exists():
            yield  # a copy that is only read; nobody writes to it
            return
        busy = ConflictError(
            "busy", "another command of this owner is using its ledger", "wait until that command has ended"
        )
        with ExitStack() as stack:
            with writing_to(self.folder):
                stack.enter_context(
                    locked(self._lock_path, patience_seconds=_LOCK_SECONDS, busy=busy, shared=not exclusive)
                )
            yield

    def _load(self) -> tuple[Ledger, int]:
        """The ledger, checked against all other files, and the length of its complete lines in bytes."""
        try:
            return self._load_checked()
        except IntegrityError as error:
            error.place = error.place or str(self.entries_path)
            raise

    def _load_checked(self) -> tuple[Ledger, int]:
        try:
            content = read_private(self.entries_path)
        except NotFoundError as error:
            raise _missing(self.folder) from error
        complete = content.rfind(b"\n") + 1
        try:
            ledger = Ledger.parse(content[:complete])
        except MessageError as error:
            raise IntegrityError("ledger-corrupt", error.problem, _RECOVERY) from error
        if not ledger.entries:
            raise IntegrityError("ledger-truncated", "the ledger is empty", _RECOVERY)
        if not self.head_path.exists() and len(ledger.entries) > 1:
            raise IntegrityError(
                "ledger-truncated", "the head of the ledger is missing", _RECOVERY, place=str(self.head_path)
            )
        for head in self._heads(ledger.id):
            _check_head(ledger, head)
        if ledger.key_check != self.check_of(self.key()):
            raise IntegrityError(
                "ledger-key",
                "the key file does not contain the key of the ledger's fingerprints",
                _RECOVERY,
                place=str(self.key_path),
            )
        unknown = sum(ledger.spend(study) is None for study in self._joined())
        if unknown:
            raise IntegrityError(
                "ledger-older",
                f"the ledger lacks {unknown} of the studies that this owner has joined: it is an older copy",
                _RECOVERY,
            )
        return ledger, complete

    def _finish(self, ledger: Ledger, complete: int) -> None:
        """Finish what an interrupted run left: cut off an incomplete line, and update the head."""
        if self.entries_path.stat().st_size > complete:
            _cut(self.entries_path, complete)
        if not self.head_path.exists() or Head.load(self.head_path).length < len(ledger.entries):
            append_synced(self.entries_path, b"")
            self.save_head(ledger)

    def _is_in_use(self) -> bool:
        """Whether anything after the first line was ever recorded."""
        return (self.entries_path.exists() and read_private(self.entries_path).count(b"\n") > 1) or (
            self.head_path.exists() and Head.load(self.head_path).length > 1
        )


def append_synced(path: Path, content: bytes) -> None:
    """Append to a file and sync the file to the disk. If appending fails, try to restore the old length of
    the file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | _BINARY)
    try:
        length = os.fstat(descriptor).st_size
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, length)
                os.fsync(descriptor)
            raise
    finally:
        os.close(descriptor)


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turns an OSError of the disk into the UnavailableError `ledger-not-written`."""
    try:
        yield
    except OSError as error:
        raise _not_written(folder, error) from error


def _cut(path: Path, length: int) -> None:
    with path.open("r+b", buffering=0) as file:
        file.truncate(length)
        os.fsync(file.fileno())


def _check_head(ledger: Ledger, head: Head) -> None:
    if head.ledger != ledger.id:
        raise IntegrityError("ledger-corrupt", "the head belongs to a different ledger", _RECOVERY)
    count = len(ledger.entries)
    if count < head.length:
        raise IntegrityError(
            "ledger-truncated",
            f"the ledger has {count} entries but had {head.length}: it was truncated or is an older copy",
            _RECOVERY,
        )
    if ledger.entries[head.length - 1].digest != head.digest:
        raise IntegrityError(
            "ledger-corrupt", f"entry {head.length} of the ledger was changed after it was written", _RECOVERY
        )


def _missing(folder: Path) -> IntegrityError:
    return IntegrityError("ledger-missing", "there is no ledger", _RECOVERY, place=str(folder))


def _not_written(folder: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        "ledger-not-written",
        f"the ledger in {folder} cannot be written ({error.strerror or type(error).__name__})",
        "nothing is sent without an entry in the ledger: make the folder writable or free disk space, and try"
        " again",
    )
