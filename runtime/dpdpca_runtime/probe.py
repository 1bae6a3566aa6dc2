"""Whether the storage still takes a file: for the readiness of a service that nobody makes write anything."""

import os
import time
from pathlib import Path

from dpdpca_runtime.files import write_private

_BYTES = 4096


class StorageProbe:
    """Tries now and then.

    Args:
        folder: where; it exists.
        seconds: the answer of the last try stands for so long.
    """

    def __init__(self, folder: Path, seconds: float = 5.0) -> None:
        self._path = folder / ".probe"
        self._seconds = seconds
        self._next = 0.0
        self._trouble: str | None = None

    def trouble(self) -> str | None:
        """Why the storage takes no file, or None."""
        now = time.monotonic()
        if now >= self._next:
            self._next, self._trouble = now + self._seconds, self._try()
        return self._trouble

    def _try(self) -> str | None:
        try:
            write_private(self._path, bytes(_BYTES))
            self._path.unlink(missing_ok=True)
        except OSError as error:
            return f"the storage refuses to write: {os.strerror(error.errno or 0)}"
        return None
