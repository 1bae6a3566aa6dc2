"""A plugin of pytest: proxies and data users keep their facts in PostgreSQL, whose server a variable names.

    PYTHONPATH=tests/support pytest -p on_postgres tests/unit/proxy/test_whole_study.py

So what holds on SQLite is shown on PostgreSQL by the same tests. The settings file of a home names its
database, also in a federation of real processes. A copy of a home, and a backup that is put back, gets a copy
of its database. In a federation of real processes, the data user keeps its SQLite file.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import proxy_process
import proxy_world
import pytest
from postgres_server import FOLDER_VARIABLE, PostgresServer, programs
from user_world import UserWorld

import dpdpca_user.home
from dpdpca_proxy.settings import SETTINGS_FILE
from dpdpca_proxy.store.database import DATABASE_FILE
from dpdpca_runtime.files import private_dir, write_private

if TYPE_CHECKING:
    from federation.processes import Machine

_server = PostgresServer(Path(os.environ[FOLDER_VARIABLE]), programs())
_databases: dict[Path, str] = {}
"""Of each home."""
_FILES = (DATABASE_FILE, dpdpca_user.home.DATABASE_FILE)
_PASSPHRASE = b"open sesame"


def _use(home: Path, database: str) -> None:
    _databases[home] = database
    private_dir(home)
    write_private(home / SETTINGS_FILE, f"database = {json.dumps(_server.url(database))}\n".encode())


def _on_server(start: Callable[..., None]) -> Callable[..., None]:
    def started(world: proxy_world.ProxyWorld, *arguments: Any, **options: Any) -> None:
        if world.home not in _databases:
            _use(world.home, _server.new_database())
        start(world, *arguments, **options)

    return started


def _with_database(copy: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
    def copied(home: Path, to: Path) -> Path:
        copy(home, to)
        if home in _databases:
            _use(to, _server.new_database(like=_databases[home]))
        return to

    return copied


def _on_machine(make: Callable[..., "Machine"]) -> Callable[..., "Machine"]:
    def made(federation: Any, role: str, name: str) -> "Machine":
        machine = make(federation, role, name)
        if role == "proxy":
            _use(machine.home, _server.new_database())
        return machine

    return made


def pytest_collection_finish() -> None:
    """By now the federation is imported, its asserts rewritten, by the tests that need it."""
    world = sys.modules.get("federation.world")
    if world is not None:
        world.Federation._machine = _on_machine(world.Federation._machine)


def _open_user(open_service: Callable[[UserWorld], None]) -> Callable[[UserWorld], None]:
    def opened(user: UserWorld) -> None:
        if user.home not in _databases:
            _databases[user.home] = _server.new_database()
            # On a server, secret keys must be sealed.
            write_private(user.home / "identity.pem", user.world.user.to_pem(_PASSPHRASE))
            write_private(user.home / "passphrase", _PASSPHRASE)
        user.settings.setdefault("passphrase_file", user.home / "passphrase")
        user.settings["database"] = _server.url(_databases[user.home])
        open_service(user)

    return opened


def _backup(user: UserWorld) -> str:
    user.service.close()
    copy = _server.new_database(like=_databases[user.home])
    user.open()
    return copy


def _put_back(user: UserWorld, backup: str) -> None:
    user.service.close()
    _databases[user.home] = _server.new_database(like=backup)
    user.open()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    used = [home for home in _databases for name in _FILES if (home / name).exists()]
    assert not used, "it used SQLite"


for _world in (proxy_world.ProxyWorld, proxy_process.ProcessWorld):
    setattr(_world, "start", _on_server(vars(_world)["start"]))  # noqa: B010 # for all instances, on purpose
setattr(UserWorld, "open", _open_user(UserWorld.open))  # noqa: B010 # the same
setattr(UserWorld, "backup", _backup)  # noqa: B010 - mypy refuses to assign a method
setattr(UserWorld, "put_back", _put_back)  # noqa: B010 - as above
for _copy in ("copy_home", "copy_with_generation"):
    vars(proxy_world)[_copy] = _with_database(vars(proxy_world)[_copy])
