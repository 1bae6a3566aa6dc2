"""One federation a session (a worker's session, under pytest-xdist), for the tests that can share it.

Tests of one file share studies as well: `--dist loadfile` spares a second worker making them again.
"""

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from federation.world import Federation, federation_in


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A running proxy, shared. Tests bring owners, data users and studies of their own."""
    with federation_in(tmp_path_factory.mktemp("federation")) as shared:
        yield shared


@pytest.fixture(scope="module", autouse=True)
def own_owners(request: pytest.FixtureRequest) -> None:
    """Each file begins with owners that have been in no study."""
    if "federation" in request.fixturenames:
        world = request.getfixturevalue("federation")
        if isinstance(world, Federation):  # the one in containers makes its own
            world.forget_owners()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Show the ends of all logs of a federation that a failed test used."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Federation):
                report.sections.extend(value.report())
    return report
