"""Content that is too large for rows: chunks, products, noise and releases, each in a file of its own.

The files are in a private folder, or in object storage (`dpdpca_proxy.store.objects`). In both, a file only
appears under its name when it is complete and stored. Names contain the digest of the content or a random
folder, so that two writers never use one name for different bytes. Content that must not be readable from a
stolen disk is sealed under a data key, with its own name as context.
"""

import os
import shutil
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dpdpca_protocol.errors import IntegrityError
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.wire.identifiers import Digest, PartyId, StudyId
from dpdpca_protocol.wire.sealing import open_at_rest, seal_at_rest
from dpdpca_runtime.files import sync_folder, write_private

_CONTEXT = b"dpdpca/at-rest/v1/"
RESTORE_FILES = "stop the service, keep a copy of its home, then restore the home from the newest backup"


def chunk_name(study: StudyId, owner: PartyId, version: int, position: int, digest: Digest) -> str:
    return f"{share_folder(study, owner, version)}/{position}-{digest.hex()[:32]}"


def is_salted(name: str) -> bool:
    """Whether a file holds a chunk with a salt: that of a share, or a product over the cohort."""
    return "/sealed/shares/" in name or "/sealed/aggregate/" in name


def share_folder(study: StudyId, owner: PartyId, version: int) -> str:
    return f"{owner_folder(study, owner)}/{version}"


def owner_folder(study: StudyId, owner: PartyId) -> str:
    """The folder of all versions of an owner's share."""
    return f"{sealed_folder(study)}/shares/{owner.hex()}"


def product_name(study: StudyId, position: int, digest: Digest) -> str:
    return f"{sealed_folder(study)}/aggregate/{position}-{digest.hex()[:32]}"


def draw_name(study: StudyId, token: str) -> str:
    return f"{sealed_folder(study)}/draw-{token}"


def calls_folder(study: StudyId, token: str) -> str:
    """The folder of calls to a cluster and their results, while they are under way."""
    return f"{sealed_folder(study)}/calls/{token}"


def sealed_folder(study: StudyId) -> str:
    """The folder of everything that is deleted once the release is finished."""
    return f"{study.hex()}/sealed"


def feature_list_name(digest: Digest) -> str:
    return f"feature-lists/{digest.hex()}"


def release_name(study: StudyId, folder: str, position: int) -> str:
    return f"{release_folder(study, folder)}/{position}"


def release_folder(study: StudyId, folder: str) -> str:
    return f"{study.hex()}/release-{folder}"


class FileStore(Protocol):
    """Files under relative names, which functions such as `release_folder` give.

    Worker processes get a store through their pipe. So a store must be picklable, and it must not carry
    credentials.
    """

    trouble: str | None
    """The reason why the store failed last; None after a successful write."""
    listing_cost: float = 1.0
    """How much more listing costs than in a folder: leftovers are looked for so much less often."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Writes `content` to `name`. The file is stored when this returns.

        Raises:
            OSError: the disk is full or fails.
            UnavailableError: `storage-full` or `storage-failing`, as object storage reports it.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Raises IntegrityError if the database names a file that is missing."""

    @abstractmethod
    def exists(self, name: str) -> bool: ...

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file or a folder with its content. Does nothing if there is no such file or folder."""

    @abstractmethod
    def folders(self, study: StudyId) -> list[str]:
        """The names of the entries in the study's folder."""

    @abstractmethod
    def entries(self, folder: str) -> list[str]:
        """The names of complete files in a folder; empty if there is no folder."""

    def entries_of(self, folders: Sequence[str]) -> list[list[str]]:
        """`entries` of each of these folders, which are all in one folder."""
        return [self.entries(folder) for folder in folders]

    @abstractmethod
    def age(self, name: str) -> float:
        """The seconds since the entry last changed; 0 if it is gone."""

    @abstractmethod
    def probe(self) -> None:
        """Writes a small file and removes it, so that `trouble` is up to date. Raises like `write`."""

    @abstractmethod
    def check(self) -> None:
        """Called once before the proxy serves.

        Raises:
            UsageError: `bad-settings`, the store can never keep what this class promises.
        """

    @abstractmethod
    def place(self, name: str) -> str:
        """Where the operator finds the file."""

    def write_sealed(self, name: str, content: bytes, key: bytes, randomness: Randomness) -> None:
        self.write(name, self.sealed(name, content, key, randomness))

    def read_sealed(self, name: str, key: bytes) -> bytes:
        return self.opened(name, self.read(name), key)

    def sealed(self, name: str, content: bytes, key: bytes, randomness: Randomness) -> bytes:
        return seal_at_rest(content, key, _CONTEXT + name.encode(), randomness)

    def opened(self, name: str, sealed: bytes, key: bytes) -> bytes:
        """Raises IntegrityError unless `sealed` was sealed for this name, under this key."""
        try:
            return open_at_rest(sealed, key, _CONTEXT + name.encode())
        except IntegrityError as error:
            error.place = self.place(name)
            raise

    def missing(self, name: str) -> IntegrityError:
        """The error for a file that the database names and that is not there."""
        return IntegrityError(
            "state-corrupt", "a stored file is missing", RESTORE_FILES, place=self.place(name)
        )

    def altered(self, name: str) -> IntegrityError:
        """The error for a file whose content differs from what was stored."""
        return IntegrityError(
            "state-corrupt", "a stored file was altered", RESTORE_FILES, place=self.place(name)
        )


class FolderStore(FileStore):
    """Private files under one folder.

    A file gets its name after its bytes are on the disk (temporary file, fsync, rename, fsync of the folder),
    and all its parent folders are on the disk too.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trouble: str | None = None

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        try:
            self._make_folder(path.parent)
            write_private(path, content)
        except OSError as error:
            self.trouble = f"the storage cannot be written: {os.strerror(error.errno or 0)}"
            raise
        self.trouble = None

    def probe(self) -> None:
        self.write(".probe", bytes(4096))
        self.remove(".probe")

    def check(self) -> None:
        """A folder can always keep its promises; `probe` says whether it does now."""

    def place(self, name: str) -> str:
        return str(self.root / name)

    def read(self, name: str) -> bytes:
        try:
            # with many owners there are many small chunks, and parsing paths would take noticeable time
            with open(f"{self.root}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 # as said
                return file.readall()
        except FileNotFoundError as error:
            raise self.missing(name) from error

    def exists(self, name: str) -> bool:
        return (self.root / name).is_file()

    def remove(self, name: str) -> None:
        path = self.root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def folders(self, study: StudyId) -> list[str]:
        path = self.root / study.hex()
        return [f"{study.hex()}/{entry.name}" for entry in path.iterdir()] if path.is_dir() else []

    def entries(self, folder: str) -> list[str]:
        try:
            names = [entry.name for entry in (self.root / folder).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.startswith("."))

    def age(self, name: str) -> float:
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
