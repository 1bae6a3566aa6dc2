"""`dpdpca demo` as people run it, once for all tests that look at what it left."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpdpca_cli.federation.processes import COMMAND

_LIMIT_SECONDS = 600


@dataclass(frozen=True)
class FinishedDemo:
    """What the demo printed as JSON, its report, and the folder that it had for temporary files."""

    said: dict[str, Any]
    report: Path
    temporary: Path


def start_demo(temporary: Path, *words: str) -> subprocess.Popen[str]:
    """The demo with its temporary files in `temporary`."""
    return subprocess.Popen(
        [*COMMAND, "demo", *words],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_behind(folder: Path) -> list[str]:
    """Living processes whose environment names `folder`: the demo's children have their homes there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> FinishedDemo:
    """Minutes of work."""
    folder = tmp_path_factory.mktemp("demo")
    report, temporary = folder / "report.html", folder / "temporary"
    temporary.mkdir()
    process = start_demo(temporary, "--json", "--out", str(report))
    said, errors = process.communicate(timeout=_LIMIT_SECONDS)
    assert process.returncode == 0, errors
    return FinishedDemo(json.loads(said), report, temporary)
