"""Private files, written so that after a crash they have either the old or the new content.

A file only appears under its name when its bytes are on the disk: temporary file in the same folder, fsync,
rename, fsync of the folder. Modes do not depend on the umask. Windows has no modes: there a file is as
private as its folder. Windows also refuses to rename or remove a file that a virus scanner or a reader has
open, so both are retried for a while.
"""

import os
import secrets
import shlex
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dpdpca_protocol.errors import ConflictError, NotFoundError, PolicyError

_FILE_MODE = 0o600
_SHARED_FILE_MODE = 0o666
_FOLDER_MODE = 0o700
_OTHERS_MAY_READ = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_HAS_MODES = hasattr(os, "getuid")

_HELD_BY_OTHERS = (5, 32)  # Windows: access denied, sharing violation
_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.05


def private_dir(path: Path) -> Path:
    """Makes sure that `path` is a folder.

    A new folder gets mode 0700, and its parents are created too. An existing folder keeps its mode, because
    other programs may need it.

    Returns:
        `path`.

    Raises:
        PolicyError: the folder exists and others may write into it, so they could replace a key.
    """
    if not path.is_dir():
        for missing in reversed([path, *(p for p in path.parents if not p.exists())]):
            with suppress(FileExistsError):
                missing.mkdir(_FOLDER_MODE)
                missing.chmod(_FOLDER_MODE)
        sync_folder(path.parent)
    if may_others_write(path):
        raise PolicyError(
            "folder-not-private",
            "other users may write into a private folder",
            f"run: chmod go-w {shlex.quote(str(path))}, or name another folder",
            place=str(path),
        )
    return path


def write_private(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Writes `content` to `path` atomically, with mode 0600.

    Args:
        path: its folder must exist.
        content: the whole file.
        replace: if False, an existing file (for example a key) is not replaced.

    Raises:
        ConflictError: the file exists and `replace` is False.
        OSError: the system cannot write the file `path`; the old file is unchanged.
    """
    with replacing(path, replace=replace) as file:
        if hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), _FILE_MODE)
        file.write(content)


def write_shared(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Like `write_private`, for content that is not secret. Others may read the file as far as the umask
    allows."""
    with replacing(path, replace=replace, mode=_SHARED_FILE_MODE) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, replace: bool = True, mode: int = _FILE_MODE) -> Iterator[IO[bytes]]:
    """A file that gets the name `path` if the block ends without an error, and is removed otherwise.

    Raises like `write_private`.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            _patiently(lambda: temporary.replace(path))
        else:
            _link_new(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        # If a disk is full, the system names no file, and our temporary name would mean nothing to a reader.
        if error.filename in (None, temporary, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            _patiently(lambda: temporary.unlink(missing_ok=True))


def make_private(path: Path) -> None:
    """Creates an empty file with mode 0600 at `path`, for a library that writes it later.

    An existing file is kept.

    Raises:
        OSError: the system cannot create the file.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
    except FileExistsError:
        # It is not opened, because closing it again would drop this process's locks on it.
        close_to_others(path)
        return
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, _FILE_MODE)
    finally:
        os.close(descriptor)
    sync_folder(path.parent)


def close_to_others(path: Path) -> None:
    """Sets the mode of the file at `path`, if there is one, to 0600."""
    with suppress(FileNotFoundError):
        if stat.S_IMODE(path.stat().st_mode) != _FILE_MODE:
            path.chmod(_FILE_MODE)


def read_private(path: Path) -> bytes:
    """The bytes at `path`, if only its owner can read or change them.

    Raises:
        NotFoundError: there is no such file.
        PolicyError: the group or others have access.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise NotFoundError("no-such-file", "a file is missing", place=str(path)) from error
    with os.fdopen(descriptor, "rb") as file:
        # The mode is read from the open file and not by name, so that nobody can swap the file in between.
        if _HAS_MODES and os.fstat(file.fileno()).st_mode & _OTHERS_MAY_READ:
            raise PolicyError(
                "file-not-private",
                "other users may read or change a private file",
                f"run: chmod 600 {shlex.quote(str(path))}",
                place=str(path),
            )
        return file.read()


def remove_private(path: Path) -> None:
    """Removes the file at `path`. After this returns, a crash cannot bring the file back."""
    _patiently(path.unlink)
    sync_folder(path.parent)


def may_others_write(path: Path) -> bool:
    """Whether the mode of a file or folder lets other users change it. False on systems without modes."""
    return _HAS_MODES and bool(path.stat().st_mode & _OTHERS_MAY_WRITE)


def sync_folder(folder: Path) -> None:
    """Makes sure that the names in `folder` are on the disk."""
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows cannot open folders
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _patiently(act: Callable[[], object]) -> None:
    """Calls `act`. On Windows, tries again for a few seconds while another program has the file open."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            act()
            return
        except PermissionError as error:
            if getattr(error, "winerror", None) not in _HELD_BY_OTHERS or time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


def _link_new(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)
    except FileExistsError as error:
        raise ConflictError(
            "file-exists", "a file already exists and was not changed", place=str(path)
        ) from error
