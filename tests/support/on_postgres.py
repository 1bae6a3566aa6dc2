"""A plugin of pytest: every `ProxyWorld` keeps its facts in PostgreSQL, at the server that a variable names.

    PYTHONPATH=tests/support pytest -p on_postgres tests/unit/proxy/test_whole_study.py

So what holds on SQLite is shown on PostgreSQL by the same tests. A copy of a home gets a copy of its
database.
"""

import os
from pathlib import Path
from typing import Any

import proxy_world
from postgres_server import PostgresServer, programs
from proxy_world import ProxyWorld

FOLDER_VARIABLE = "DPDPCA_TESTS_POSTGRES"

_binaries = programs()
assert _binaries is not None, "this plugin is loaded where PostgreSQL is installed"
_server = PostgresServer(Path(os.environ.pop(FOLDER_VARIABLE)), _binaries)
_databases: dict[Path, str] = {}
"""Of each home."""

_start, _copy = ProxyWorld.start, proxy_world.copy_with_generation


def _start_on_server(world: ProxyWorld, *arguments: Any) -> None:
    if world.home not in _databases:
        _databases[world.home] = _server.new_database()
    world.settings["database"] = _server.url(_databases[world.home])
    _start(world, *arguments)


def _copy_with_database(home: Path, to: Path) -> Path:
    if home in _databases:
        _databases[to] = _server.new_database(like=_databases[home])
    return _copy(home, to)


ProxyWorld.start = _start_on_server  # type: ignore[method-assign, assignment] # this is what the plugin is for
proxy_world.copy_with_generation = _copy_with_database
