"""A plugin of pytest: every `ProxyWorld` keeps its facts in PostgreSQL, at the server that a variable names.

    PYTHONPATH=tests/support pytest -p on_postgres tests/unit/proxy/test_whole_study.py

So what holds on SQLite is shown on PostgreSQL by the same tests. A copy of a home gets a copy of its
database.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import proxy_process
import proxy_world
import store_checks
from postgres_server import FOLDER_VARIABLE, PostgresServer, programs

_binaries = programs()
assert _binaries is not None, "this plugin is loaded where PostgreSQL is installed"
_server = PostgresServer(Path(os.environ[FOLDER_VARIABLE]), _binaries)
_databases: dict[Path, str] = {}
"""Of each home."""


def _on_server(start: Callable[..., None]) -> Callable[..., None]:
    def started(world: proxy_world.ProxyWorld, *arguments: Any, **options: Any) -> None:
        if world.home not in _databases:
            _databases[world.home] = _server.new_database()
        world.settings["database"] = _server.url(_databases[world.home])
        start(world, *arguments, **options)

    return started


def _with_database(copy: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
    def copied(home: Path, to: Path) -> Path:
        if home in _databases:
            _databases[to] = _server.new_database(like=_databases[home])
        return copy(home, to)

    return copied


for _world in (proxy_world.ProxyWorld, proxy_process.ProcessWorld):
    setattr(_world, "start", _on_server(vars(_world)["start"]))  # noqa: B010 # for all instances, on purpose
vars(proxy_world)["copy_with_generation"] = _with_database(proxy_world.copy_with_generation)
vars(store_checks)["_check_database"] = lambda world: None  # it looks into a file
