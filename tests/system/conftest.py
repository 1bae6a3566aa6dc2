"""The shared federation of real processes."""

import pytest

pytest.register_assert_rewrite("federation")

from federation.fixtures import federation, own_owners, pytest_runtest_makereport  # noqa: E402 - rewritten asserts first

__all__ = ["federation", "own_owners", "pytest_runtest_makereport"]
