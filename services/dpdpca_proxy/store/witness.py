"""How far the proxy had come, kept beside the database and outside of its backups.

A database that was put back from a backup is then seen to be older than what this proxy has done: it could
draw a noise that was drawn, or take back a share that was taken back. The mark is written whole and synced
after each commit that must not be undone, and before anything that rests on it leaves.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpdpca_disk.private import private_dir, read_private, write_private
from dpdpca_protocol.canonical import canonical_json, parse_canonical
from dpdpca_protocol.errors import ConflictError, MessageError, NotFoundError, UnavailableError
from dpdpca_protocol.identifiers import Digest
from dpdpca_protocol.log import EMPTY


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A point of the proxy's log: the number of an entry, and its digest."""

    generation: int
    head: Digest


START = Mark(0, EMPTY)
"""Before the first entry."""


class Witness:
    """The file that holds the mark. Several processes may use it at once.

    Args:
        path: its folder is made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Mark | None:
        """The mark, or None where there is no file.

        Raises:
            ConflictError: `generation-mismatch`, the file holds something else.
            UnavailableError: `storage-failing`, it cannot be read.
        """
        try:
            body = parse_canonical(read_private(self.path))
            if set(body) == {"generation", "head"} and type(body["generation"]) is int:
                return Mark(body["generation"], Digest.parse(body["head"]))
        except NotFoundError:
            return None
        except MessageError:
            pass
        except OSError as error:
            raise UnavailableError(
                "storage-failing",
                "the file of the proxy's generation cannot be read",
                "try again later",
                retry_after_seconds=60,
            ) from error
        raise ConflictError(
            "generation-mismatch",
            "the file of the proxy's generation holds something else",
            "the operator must look at it: see the section on backups of the operator's guide",
        )

    def raise_to(self, mark: Mark) -> None:
        """The file says `mark` or a later one when this returns, and that is on the disk."""
        with self._locked():
            present = self.read()
            if present is None or present.generation < mark.generation:
                self._write(mark)

    def replace(self, mark: Mark) -> None:
        """As `raise_to`, whatever the file held."""
        with self._locked():
            self._write(mark)

    def _write(self, mark: Mark) -> None:
        write_private(self.path, canonical_json({"generation": mark.generation, "head": mark.head.hex()}))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(private_dir(self.path.parent), os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
