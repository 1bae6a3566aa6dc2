"""The witness: the newest entry of the proxy's log, stored outside the database and its backups.

The witness detects a database that was restored from an older backup. With an older database, the proxy could
draw noise a second time, or use a withdrawn share again. The proxy writes the witness atomically and
syncs it after each commit that must not be undone, before anyone learns of the commit.
"""

import errno
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpdpca_protocol.errors import ConflictError, MessageError, NotFoundError, PolicyError, UnavailableError
from dpdpca_protocol.messages.log import EMPTY
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_runtime.files import private_dir, read_private, write_private
from dpdpca_runtime.locks import locked

_LOCK_SECONDS = 20.0
"""The longest wait for the lock: longer than a slow disk needs to write a small file for each process."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_logger = logging.getLogger("dpdpca.store")


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A position in the proxy's log: the number of an entry and its digest."""

    generation: int
    head: Digest


START = Mark(0, EMPTY)
"""Before the first entry."""


class Witness:
    """The file that stores a `Mark`. Several processes may use the file at once.

    Args:
        path: its folder is created if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Mark | None:
        """The mark, or None if there is no file.

        Raises:
            ConflictError: `generation-mismatch`, the file contains something else.
            UnavailableError: `storage-failing`, the file cannot be read.
        """
        try:
            with self._in_our_words("read"):
                body = parse_canonical(read_private(self.path))
            if set(body) == {"generation", "head"} and type(body["generation"]) is int:
                return Mark(body["generation"], Digest.parse(body["head"]))
        except NotFoundError:
            return None
        except MessageError:
            pass
        raise ConflictError(
            "generation-mismatch",
            "the generation file does not contain a generation",
            "check that generation_file names the right file; only if it is lost, run: dpdpca proxy "
            "accept-loss",
            place=str(self.path),
        )

    def raise_to(self, mark: Mark) -> None:
        """Makes the file contain `mark` or a later mark. The mark is on the disk when this returns.

        Raises:
            UnavailableError: `storage-full`, `storage-failing`, or `busy`: other processes of this proxy took
                too long.
        """
        with self._in_our_words("written"), self._locked():
            present = self.read()
            if present is None or present.generation < mark.generation:
                self._write(mark)

    def replace(self, mark: Mark) -> None:
        """Like `raise_to`, but overwrites whatever the file contained."""
        with self._in_our_words("written"), self._locked():
            self._write(mark)

    def _write(self, mark: Mark) -> None:
        write_private(self.path, canonical_json({"generation": mark.generation, "head": mark.head.hex()}))

    @contextmanager
    def _in_our_words(self, act: str) -> Iterator[None]:
        try:
            yield
        except (OSError, PolicyError) as error:
            full = isinstance(error, OSError) and error.errno in _FULL
            reason = error.strerror if isinstance(error, OSError) else error.problem
            _logger.error("generation", extra={"error_class": type(error).__name__, "file": self.path})
            raise UnavailableError(
                "storage-full" if full else "storage-failing",
                f"the generation file cannot be {act}: {reason}",
                "make room on its disk" if full else "check the owner and mode of the file and its folder",
                retry_after_seconds=60,
                place=str(self.path),
            ) from error

    def _locked(self) -> AbstractContextManager[None]:
        busy = UnavailableError(
            "busy",
            "another process of this proxy has locked the generation file",
            "try again; if this persists, look for a hanging process of the proxy",
            retry_after_seconds=2,
        )
        path = private_dir(self.path.parent) / f"{self.path.name}.lock"
        return locked(path, patience_seconds=_LOCK_SECONDS, busy=busy)
