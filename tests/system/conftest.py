"""The shared federation of real processes. Everything in this folder is run by `make test-system`."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite("federation")

# Their asserts are rewritten first.
from federation.demo import demo  # noqa: E402
from federation.fixtures import federation, own_owners, pytest_runtest_makereport  # noqa: E402

__all__ = ["demo", "federation", "own_owners", "pytest_runtest_makereport"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.system)
