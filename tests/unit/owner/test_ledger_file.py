"""A ledger on disk: nothing counts before it is there, and no shorter, older or other copy passes for it."""

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from ledger_world import BUDGET, cancelled, charge, content, receipt, study

from dpdpca_owner.accounts import ledger_file as module
from dpdpca_owner.accounts.bookkeeping import reserve
from dpdpca_owner.accounts.charge import SpendState
from dpdpca_owner.accounts.ledger_file import LedgerFile
from dpdpca_protocol.errors import (
    ConflictError,
    DpdpcaError,
    IntegrityError,
    PolicyError,
    UnavailableError,
)
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import StudyId

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path) -> LedgerFile:
    file = LedgerFile(tmp_path / "home" / "ledger", tmp_path / "state")
    file.create(NOW, OS_RANDOMNESS)
    return file


def pay(file: LedgerFile, number: int, records: int = 0) -> None:
    with file.writing(NOW) as book:
        book.record(reserve(book.ledger, charge(number), content(records), None, BUDGET, book.time))


def refusal(file: LedgerFile) -> str:
    """The slug of the error that reading and writing both end in."""
    with pytest.raises(DpdpcaError) as reading:
        file.read()
    with pytest.raises(DpdpcaError) as writing:
        pay(file, 99)
    assert reading.value.slug == writing.value.slug
    assert reading.value.problem
    assert "--recover" in reading.value.next_step
    return reading.value.slug


def test_what_was_recorded_is_read_again_and_private(file: LedgerFile, tmp_path: Path) -> None:
    pay(file, 1)
    pay(file, 2)
    ledger = LedgerFile(file.folder, tmp_path / "state").read()
    assert ledger.live_rho == Fraction(2, 10)
    for path in (*file.folder.iterdir(), *(tmp_path / "state").iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600
    assert file.folder.stat().st_mode & 0o777 == 0o700


def test_lines_are_on_the_disk_before_the_head_and_both_before_it_returns(
    file: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    honest = os.fsync

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synced.append("head" if name.startswith(".head.json") else name)
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with file.writing(NOW) as book:
        book.record(reserve(book.ledger, charge(1), content(0), None, BUDGET, book.time))
        assert synced[:3] == ["entries.jsonl", "head", "ledger"]


# Copies that are not the ledger


def cut_lines(file: LedgerFile) -> None:
    lines = file.entries_path.read_bytes().splitlines(keepends=True)
    file.entries_path.write_bytes(b"".join(lines[:-1]))


def cut_bytes(file: LedgerFile) -> None:
    file.entries_path.write_bytes(file.entries_path.read_bytes()[:-5])


def cut_all(file: LedgerFile) -> None:
    file.entries_path.write_bytes(b"")


def flip_first(file: LedgerFile) -> None:
    flip(file, 40)


def flip_last(file: LedgerFile) -> None:
    flip(file, -40)


def flip(file: LedgerFile, place: int) -> None:
    encoded = bytearray(file.entries_path.read_bytes())
    encoded[place] ^= 1
    file.entries_path.write_bytes(bytes(encoded))


def swap_last_digit(file: LedgerFile) -> None:
    """The last line in the form of a line, of another study."""
    whole = file.entries_path.read_bytes()
    old, new = study(2).hex().encode(), study(7).hex().encode()
    place = whole.rindex(old)
    file.entries_path.write_bytes(whole[:place] + new + whole[place + len(old) :])


def lose_entries(file: LedgerFile) -> None:
    file.entries_path.unlink()


def lose_folder(file: LedgerFile) -> None:
    shutil.rmtree(file.folder)


def lose_head(file: LedgerFile) -> None:
    file.head_path.unlink()


def lose_key(file: LedgerFile) -> None:
    file.key_path.unlink()


def change_key(file: LedgerFile) -> None:
    file.key_path.write_bytes(bytes(32))


@pytest.mark.parametrize(
    ("damage", "slug"),
    [
        (cut_lines, "ledger-truncated"),
        (cut_bytes, "ledger-truncated"),
        (cut_all, "ledger-truncated"),
        (flip_first, "ledger-corrupt"),
        (flip_last, "ledger-corrupt"),
        (swap_last_digit, "ledger-corrupt"),
        (lose_entries, "ledger-missing"),
        (lose_folder, "ledger-missing"),
        (lose_head, "ledger-truncated"),
        (lose_key, "ledger-key"),
        (change_key, "ledger-key"),
    ],
)
def test_a_damaged_ledger_is_refused_with_its_reason(
    file: LedgerFile, damage: Callable[[LedgerFile], None], slug: str
) -> None:
    pay(file, 1)
    pay(file, 2)
    damage(file)
    assert refusal(file) == slug


def test_an_older_copy_of_the_lines_is_refused(file: LedgerFile, tmp_path: Path) -> None:
    pay(file, 1)
    shutil.copy(file.entries_path, tmp_path / "copy")
    pay(file, 2)
    shutil.copy(tmp_path / "copy", file.entries_path)
    assert refusal(file) == "ledger-truncated"


def test_an_older_copy_of_the_whole_folder_is_seen_by_the_witness(file: LedgerFile, tmp_path: Path) -> None:
    pay(file, 1)
    shutil.copytree(file.folder, tmp_path / "backup")
    pay(file, 2)
    shutil.rmtree(file.folder)
    shutil.copytree(tmp_path / "backup", file.folder)
    assert refusal(file) == "ledger-truncated"
    # A machine that never saw the newer one cannot know.
    assert LedgerFile(file.folder, tmp_path / "elsewhere").read().live_rho == Fraction(1, 10)


def test_a_history_that_parted_is_refused(file: LedgerFile, tmp_path: Path) -> None:
    pay(file, 1)
    shutil.copytree(file.folder, tmp_path / "twin")
    twin = LedgerFile(tmp_path / "twin")
    pay(file, 2)
    pay(twin, 3)
    pay(twin, 4)
    shutil.copy(twin.entries_path, file.entries_path)
    assert refusal(file) == "ledger-corrupt"


def test_the_ledger_of_another_owner_is_refused(file: LedgerFile, tmp_path: Path) -> None:
    other = LedgerFile(tmp_path / "other")
    other.create(NOW, OS_RANDOMNESS)
    pay(other, 1)
    shutil.copy(other.entries_path, file.entries_path)
    assert refusal(file) == "ledger-corrupt"


def test_a_ledger_that_does_not_know_a_joined_study_is_an_older_one(file: LedgerFile) -> None:
    joined: set[StudyId] = {study(1)}
    watched = LedgerFile(file.folder, None, lambda: joined)
    pay(file, 1)
    assert watched.read().live_rho == Fraction(1, 10)
    joined.add(study(2))
    assert refusal(watched) == "ledger-older"


@pytest.mark.parametrize("name", ["entries.jsonl", "head.json", "key"])
def test_files_that_others_can_read_are_refused(file: LedgerFile, name: str) -> None:
    pay(file, 1)
    (file.folder / name).chmod(0o644)
    with pytest.raises(PolicyError, match="chmod"):
        file.read()


def test_a_witness_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    file = LedgerFile(tmp_path / "ledger", tmp_path / "state")
    file.create(NOW, OS_RANDOMNESS)
    pay(file, 1)
    assert file.read().live_rho == Fraction(1, 10)


# Interrupted


def test_a_line_that_was_cut_off_while_it_was_written_never_counted(file: LedgerFile) -> None:
    pay(file, 1)
    whole = file.entries_path.read_bytes()
    file.entries_path.write_bytes(whole + whole.splitlines(keepends=True)[-1][:30])
    assert file.read().live_rho == Fraction(1, 10)
    pay(file, 2)
    assert file.read().live_rho == Fraction(2, 10)


def test_lines_whose_head_was_not_written_any_more_count(file: LedgerFile) -> None:
    head = file.head_path.read_bytes()
    pay(file, 1)
    file.head_path.write_bytes(head)
    assert file.read().live_rho == Fraction(1, 10)
    with file.writing(NOW):
        pass
    assert file.head_path.read_bytes() != head
    cut_lines(file)
    assert refusal(file) == "ledger-truncated"


def test_a_beginning_that_was_interrupted_is_begun_again(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "ledger")
    file.create(NOW, OS_RANDOMNESS)
    file.head_path.unlink()
    file.create(NOW, OS_RANDOMNESS)
    pay(file, 1)
    with pytest.raises(ConflictError) as conflict:
        file.create(NOW, OS_RANDOMNESS)
    assert conflict.value.slug == "already-initialised"
    file.entries_path.unlink()
    with pytest.raises(ConflictError):
        file.create(NOW, OS_RANDOMNESS)


# No record, no act


@contextmanager
def no_fsync(file: LedgerFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fsync(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@contextmanager
def half_written(file: LedgerFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    honest = os.write

    def write(descriptor: int, content: bytes) -> int:
        if len(content) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return honest(descriptor, bytes(content)[: len(content) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        yield


@contextmanager
def file_size_limit(file: LedgerFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.entries_path.stat().st_size + 10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def no_head(file: LedgerFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def save_head(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "save_head", save_head)
        yield


@pytest.mark.parametrize("failure", [no_fsync, half_written, file_size_limit, no_head])
def test_what_cannot_be_written_is_not_recorded(
    file: LedgerFile, monkeypatch: pytest.MonkeyPatch, failure: Callable[..., AbstractContextManager[None]]
) -> None:
    pay(file, 1)
    with failure(file, monkeypatch), pytest.raises(UnavailableError) as refused:
        pay(file, 2)
    assert refused.value.slug == "ledger-not-written"
    pay(file, 2)
    assert LedgerFile(file.folder).read().live_rho == Fraction(2, 10)


def test_a_ledger_that_is_held_for_long_is_busy(file: LedgerFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.1)
    with file.locked(exclusive=True), pytest.raises(ConflictError) as busy:
        file.read()
    assert busy.value.slug == "busy"
    with file.locked(exclusive=False):
        assert file.read().entries


def test_a_copy_to_look_at_needs_no_lock(file: LedgerFile) -> None:
    pay(file, 1)
    (file.folder / "lock").unlink()
    assert file.read().live_rho == Fraction(1, 10)


# Receipts and transcripts


def test_receipts_and_cancellations_are_booked_once(file: LedgerFile) -> None:
    pay(file, 1)
    pay(file, 2)
    for _ in range(2):
        file.settle(receipt(1, 1), NOW)
        file.settle(None, NOW)
        file.refund(cancelled(2), NOW + timedelta(days=1))
    ledger = file.read()
    assert [spend.state for spend in ledger.spends] == [SpendState.COMMITTED, SpendState.CANCELLED]
    assert [entry.kind for entry in ledger.entries].count("refund") == 1


def test_errors_that_explain_are_integrity_errors(file: LedgerFile) -> None:
    pay(file, 1)
    cut_all(file)
    with pytest.raises(IntegrityError):
        file.read()
