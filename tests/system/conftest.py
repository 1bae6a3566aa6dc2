"""The shared federation of real processes."""

import pytest

pytest.register_assert_rewrite("federation")

from federation.demo import demo  # noqa: E402 - asserts are rewritten first
from federation.fixtures import federation, own_owners, pytest_runtest_makereport  # noqa: E402 - the same

__all__ = ["demo", "federation", "own_owners", "pytest_runtest_makereport"]
