"""Checks whether the storage can still be written, for the readiness of a service that is idle."""

import os
import time
from pathlib import Path

from dpdpca_runtime.files import write_private

_BYTES = 4096


class StorageProbe:
    """Tests whether a folder can be written, by writing a small file.

    Args:
        folder: an existing folder.
        seconds: how long a result is reused before the next test.
    """

    def __init__(self, folder: Path, seconds: float = 5.0) -> None:
        self._path = folder / ".probe"
        self._seconds = seconds
        self._next = 0.0
        self._trouble: str | None = None

    def trouble(self) -> str | None:
        """The reason why the storage cannot be written, or None."""
        now = time.monotonic()
        if now >= self._next:
            self._next, self._trouble = now + self._seconds, self._try()
        return self._trouble

    def _try(self) -> str | None:
        try:
            write_private(self._path, bytes(_BYTES))
            self._path.unlink(missing_ok=True)
        except OSError as error:
            return f"the storage cannot be written: {os.strerror(error.errno or 0)}"
        return None
