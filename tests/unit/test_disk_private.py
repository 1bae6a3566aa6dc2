"""Private files: modes under any umask, refusal of exposed keys, old content kept when a write fails."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpdpca_protocol.errors import ConflictError, NotFoundError, PolicyError
from dpdpca_runtime import files
from dpdpca_runtime.files import (
    close_to_others,
    make_private,
    private_dir,
    read_private,
    remove_private,
    replacing,
    write_private,
    write_shared,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o177], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    folder = private_dir(tmp_path / "a" / "b")
    write_private(folder / "key", b"secret")
    assert (mode(tmp_path / "a"), mode(folder), mode(folder / "key")) == (0o700, 0o700, 0o600)
    assert read_private(folder / "key") == b"secret"


@pytest.mark.parametrize("exposed", [0o640, 0o604, 0o620, 0o602])
def test_a_key_that_others_can_reach_is_refused_with_what_to_do(tmp_path: Path, exposed: int) -> None:
    write_private(tmp_path / "key", b"secret")
    (tmp_path / "key").chmod(exposed)
    with pytest.raises(PolicyError, match="chmod 600"):
        read_private(tmp_path / "key")


def test_an_existing_key_is_never_overwritten_unless_asked(tmp_path: Path) -> None:
    write_private(tmp_path / "key", b"first")
    with pytest.raises(ConflictError):
        write_private(tmp_path / "key", b"second", replace=False)
    assert read_private(tmp_path / "key") == b"first"
    write_private(tmp_path / "key", b"second")
    assert read_private(tmp_path / "key") == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_write_that_fails_keeps_the_old_bytes_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(tmp_path / "key", b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as refused:
        write_private(tmp_path / "key", b"new")
    assert refused.value.filename == str(tmp_path / "key")  # the system does not say which
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert read_private(tmp_path / "key") == b"old"


def test_a_folder_that_is_gone_is_named_by_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        write_private(tmp_path / "gone" / "key", b"new")
    assert refused.value.filename == str(tmp_path / "gone" / "key")


def test_what_goes_wrong_within_keeps_its_own_name(tmp_path: Path) -> None:
    """As of the records that scores are made of."""
    with pytest.raises(FileNotFoundError, match="records"), replacing(tmp_path / "scores"):
        (tmp_path / "records").read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_secret_has_the_mode_that_the_umask_gives(tmp_path: Path, umask: int) -> None:
    write_shared(tmp_path / "report", b"all", replace=False)
    assert mode(tmp_path / "report") == 0o666 & ~umask
    with pytest.raises(ConflictError):
        write_shared(tmp_path / "report", b"more", replace=False)
    write_shared(tmp_path / "report", b"more")
    assert (tmp_path / "report").read_bytes() == b"more"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_a_folder_that_others_may_write_into_is_refused_and_a_foreign_one_is_not_changed(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(PolicyError, match="chmod go-w"):
        private_dir(shared)
    shared.chmod(0o755)
    assert mode(private_dir(shared)) == 0o755


def test_what_to_do_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    folder = private_dir(tmp_path / "it's `mine` $HOME")
    write_private(folder / "key", b"secret")
    (folder / "key").chmod(0o644)
    with pytest.raises(PolicyError) as refusal:
        read_private(folder / "key")
    subprocess.run(refusal.value.next_step.removeprefix("run: "), shell=True, check=True)
    assert read_private(folder / "key") == b"secret"
    folder.chmod(0o777)
    with pytest.raises(PolicyError) as refusal:
        private_dir(folder)
    command = refusal.value.next_step.removeprefix("run: ").partition(", or")[0]
    subprocess.run(command, shell=True, check=True)
    assert private_dir(folder) == folder


def test_a_file_for_a_library_is_private_from_the_start_and_one_that_is_there_is_kept(
    tmp_path: Path, umask: int
) -> None:
    make_private(tmp_path / "new")
    assert (mode(tmp_path / "new"), (tmp_path / "new").read_bytes()) == (0o600, b"")
    (tmp_path / "old").write_bytes(b"content")
    (tmp_path / "old").chmod(0o644)
    make_private(tmp_path / "old")
    assert (mode(tmp_path / "old"), (tmp_path / "old").read_bytes()) == (0o600, b"content")
    close_to_others(tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing-here"):
        read_private(tmp_path / "nothing-here")


class Holder:
    """Another program that has a file open for a while, as Windows tells it."""

    def __init__(self, times: int, winerror: int | None = 32) -> None:
        self.times = times
        self.winerror = winerror
        self.tries = 0

    def stand_in(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def acting(*args: Any, **options: Any) -> Any:
            self.tries += 1
            if self.tries <= self.times:
                error = PermissionError(13, "The process cannot access the file")
                error.winerror = self.winerror  # type: ignore[attr-defined] # there it has one
                raise error
            return act(*args, **options)

        return acting


@pytest.mark.parametrize("winerror", [5, 32])
def test_a_file_that_a_scanner_holds_is_replaced_and_removed_a_little_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, winerror: int
) -> None:
    monkeypatch.setattr(files, "_PAUSE_SECONDS", 0.001)
    replacing, removing = Holder(3, winerror), Holder(3, winerror)
    monkeypatch.setattr(Path, "replace", replacing.stand_in(Path.replace))
    write_private(tmp_path / "key", b"secret")
    assert read_private(tmp_path / "key") == b"secret"
    monkeypatch.setattr(Path, "unlink", removing.stand_in(Path.unlink))
    remove_private(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []
    assert (replacing.tries, removing.tries) == (4, 4)


def test_a_file_that_is_never_let_go_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_private(tmp_path / "key", b"old")
    monkeypatch.setattr(files, "_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(files, "_PATIENCE_SECONDS", 0.05)
    holder = Holder(10**9)
    monkeypatch.setattr(Path, "replace", holder.stand_in(Path.replace))
    with pytest.raises(PermissionError):
        write_private(tmp_path / "key", b"new")
    assert holder.tries > 1
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert read_private(tmp_path / "key") == b"old"


def test_what_the_system_forbids_for_good_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Holder(10**9, None)
    monkeypatch.setattr(Path, "replace", holder.stand_in(Path.replace))
    with pytest.raises(PermissionError):
        write_private(tmp_path / "key", b"new")
    assert holder.tries == 1
