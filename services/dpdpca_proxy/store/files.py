"""Bytes too many for rows: chunks, products, noise and releases, each a private file.

A file appears under its name only when it is whole and on the disk (temporary file, fsync, rename, fsync of
the folder), and every folder on the way to it is on the disk as well. Names carry the digest of the content
or a random folder, so that two writers never meet under one name with different bytes. What must not be
readable from a stolen disk is sealed under a data key with its own name as context.
"""

import os
import shutil
import time
from pathlib import Path

from dpdpca_protocol.errors import IntegrityError
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.sealing import open_at_rest, seal_at_rest
from dpdpca_runtime.files import sync_folder, write_private

_CONTEXT = b"dpdpca/at-rest/v1/"
_RESTORE = "stop the service, keep a copy of its home, and put the home back from the newest backup"


def chunk_name(study: StudyId, owner: PartyId, version: int, position: int, digest: Digest) -> str:
    return f"{share_folder(study, owner, version)}/{position}-{digest.hex()[:32]}"


def share_folder(study: StudyId, owner: PartyId, version: int) -> str:
    return f"{owner_folder(study, owner)}/{version}"


def owner_folder(study: StudyId, owner: PartyId) -> str:
    """Of all versions of the owner's share."""
    return f"{sealed_folder(study)}/shares/{owner.hex()}"


def product_name(study: StudyId, position: int, digest: Digest) -> str:
    return f"{sealed_folder(study)}/aggregate/{position}-{digest.hex()[:32]}"


def draw_name(study: StudyId, token: str) -> str:
    return f"{sealed_folder(study)}/draw-{token}"


def sealed_folder(study: StudyId) -> str:
    """Everything that is deleted when the release is there."""
    return f"{study.hex()}/sealed"


def release_name(study: StudyId, folder: str, position: int) -> str:
    return f"{release_folder(study, folder)}/{position}"


def release_folder(study: StudyId, folder: str) -> str:
    return f"{study.hex()}/release-{folder}"


class FileStore:
    """Files under one folder, by relative names made by the functions above."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trouble: str | None = None
        """Why the last write failed; None after one that went well."""

    def write(self, name: str, content: bytes) -> None:
        """Puts `content` at `name`; it is on the disk when this returns."""
        path = self.root / name
        try:
            self._make_folder(path.parent)
            write_private(path, content)
        except OSError as error:
            self.trouble = f"the storage refuses to write: {os.strerror(error.errno or 0)}"
            raise
        self.trouble = None

    def probe(self) -> None:
        """Writes a little and takes it back, so that `trouble` says how things are now."""
        self.write(".probe", bytes(4096))
        self.remove(".probe")

    def read(self, name: str) -> bytes:
        """Raises IntegrityError where the database names a file that is not there."""
        try:
            # many owners mean many small chunks, beside which taking paths apart would show
            with open(f"{self.root}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 # as said
                return file.readall()
        except FileNotFoundError as error:
            raise IntegrityError(
                "state-corrupt", "a stored file is missing", _RESTORE, place=str(self.root / name)
            ) from error

    def altered(self, name: str) -> IntegrityError:
        """What is said of a file that is not what was stored under its name."""
        return IntegrityError(
            "state-corrupt", "a stored file was altered", _RESTORE, place=str(self.root / name)
        )

    def exists(self, name: str) -> bool:
        return (self.root / name).is_file()

    def write_sealed(self, name: str, content: bytes, key: bytes, randomness: Randomness) -> None:
        self.write(name, seal_at_rest(content, key, _CONTEXT + name.encode(), randomness))

    def read_sealed(self, name: str, key: bytes) -> bytes:
        try:
            return open_at_rest(self.read(name), key, _CONTEXT + name.encode())
        except IntegrityError as error:
            error.place = str(self.root / name)
            raise

    def remove(self, name: str) -> None:
        """Removes a file or a folder with all it holds; nothing happens where there is nothing."""
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def folders(self, study: StudyId) -> list[str]:
        """Names of the entries in the study's folder."""
        path = self.root / study.hex()
        return [f"{study.hex()}/{entry.name}" for entry in path.iterdir()] if path.is_dir() else []

    def entries(self, folder: str) -> list[str]:
        """Names of what is in a folder, as far as it is whole; nothing where there is no folder."""
        try:
            names = [entry.name for entry in (self.root / folder).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.startswith("."))

    def age(self, name: str) -> float:
        """Seconds since the entry last changed; 0 where it is gone."""
        try:
            return time.time() - (self.root / name).stat().st_mtime  # noqa: TID251 # the file system's own clock
        except FileNotFoundError:
            return 0.0

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
