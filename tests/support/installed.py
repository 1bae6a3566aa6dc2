"""Programs that a test needs. Where one is missing the test is skipped, or fails where all must be there."""

import os
import shutil
from typing import NoReturn

import pytest

MUST_RUN = "TESTS_MUST_RUN"
"""With the value 1, a missing program is a failure: for machines on which everything was installed."""


def program(name: str, where: str, path: str | None = None) -> str:
    """The path of a program. `where` says where it comes from."""
    return shutil.which(name, path=path) or missing(name, where)


def missing(name: str, where: str) -> NoReturn:
    """Skips the test, or lets it fail."""
    problem = f"{name} is not installed ({where})"
    if os.environ.get(MUST_RUN) == "1":
        pytest.fail(f"{problem}, and {MUST_RUN}=1 allows no skip")
    pytest.skip(problem)
