"""A folder whose syncs cost nothing, for tests in which thousands are made and none is the point."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = "/dev/shm"


@contextmanager
def quick_folder() -> Iterator[Path]:
    """In memory where the machine has a place for it, else where temporary files are; gone at the end."""
    folder = Path(tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
