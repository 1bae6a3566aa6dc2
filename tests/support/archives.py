"""Archives that the tests themselves made."""

import tarfile
from pathlib import Path
from typing import Any


def extract(archive: tarfile.TarFile, to: Path) -> None:
    """With the filter against paths outside, which Python has from 3.11.4 on."""
    known: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(to, **known)
