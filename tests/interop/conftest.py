"""The shared federation of real processes."""

import pytest

pytest.register_assert_rewrite("federation")

from federation.fixtures import federation, pytest_runtest_makereport  # noqa: E402 - rewritten asserts first

__all__ = ["federation", "pytest_runtest_makereport"]
