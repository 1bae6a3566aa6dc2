"""What lies in folders that a running service may change meanwhile."""

import os
from pathlib import Path


def paths_below(folder: Path) -> list[Path]:
    """All files and folders in it, sorted. `rglob` fails where one goes meanwhile."""
    return sorted(Path(top, name) for top, folders, files in os.walk(folder) for name in [*folders, *files])


def files_below(folder: Path) -> list[Path]:
    """The files among them."""
    return [path for path in paths_below(folder) if path.is_file()]
