"""P38: whatever a home is called, its files are in it, 0600 before their first byte, under any umask."""

import os
import sqlite3
import stat
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import chdir, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from folders import paths_below
from owner_world import Errand, desk_of, do, make_owner_home
from promises import Promise
from proxy_world import ProxyWorld, values_of
from sqlalchemy import Engine, event
from study_parties import Parties
from user_world import UserWorld

from dpdpca_cli import main as cli
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.enrolment import invite
from dpdpca_proxy.proxy import make_home, open_proxy
from dpdpca_proxy.settings import load_settings as proxy_settings
from dpdpca_proxy.store.database import ProxyDatabase
from dpdpca_runtime.database import Database
from dpdpca_runtime.home_folder import expanded, home_folder
from dpdpca_user_service.service import open_service
from dpdpca_user_service.settings import load_settings as user_settings
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.database import service_database

NAMES = [
    "a?b",
    "a?mode=memory&cache=shared",
    "x%41",
    "x%2Fy",
    "100%",
    "%(here)s",
    "a#b",
    "a&b",
    "a=b",
    "a;b",
    "a:b",
    "user:word@host",
    "two words",
    " space around ",
    "it's",
    'say "so"',
    "back\\slash",
    "new\nline",
    "tab\tbed",
    "\x1b[31mred\x07",
    unicodedata.normalize("NFC", "für Zoë"),
    unicodedata.normalize("NFD", "für Zoë"),
    "\u202etxt.exe",
    "-leading",
    "--home",
    "~leading",
    "trailing.",
    "...",
    "file:x",
    "file:x?mode=memory",
    ":memory:",
    "$HOME",
    "${HOME}`id`",
    "[a-z]*{b,c}",
    "sqlite:",
    "n" * 200,
    "ü" * 100,
    os.fsdecode(b"not utf-8 \xff"),
]
ODDEST = "a?b%41#c&d=e;f:g h'i\"j\\k\nl\tmü*[n]{o}$HOME~\u202e."

PRIVATE = {stat.S_IFREG: 0o600, stat.S_IFDIR: 0o700}


def open_to_others(folder: Path) -> list[str]:
    """What in `folder` is not of mode 0600, or 0700 for a folder."""
    found = []
    for path in paths_below(folder):
        with suppress(FileNotFoundError):  # SQLite's own files come and go
            mode = path.lstat().st_mode
            if stat.S_IMODE(mode) != PRIVATE[stat.S_IFMT(mode)]:
                found.append(str(path))
    return found


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[list[str]]:
    """What is wrong with files at the opening of a database below `tmp_path` and before each statement.

    The database must be there before SQLite opens it, empty at first and private.
    """
    wrong: list[str] = []

    def connect(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
        path = Path(arguments[0])
        if not path.is_file() or tmp_path not in path.parents:
            wrong.append(f"{path} is to be opened")
            path.parent.mkdir(exist_ok=True)
        wrong.extend(open_to_others(path.parent))
        connection = sqlite3.connect(*arguments, **options)
        connection.set_trace_callback(lambda _: wrong.extend(open_to_others(path.parent)))
        return connection

    event.listen(Engine, "do_connect", connect)
    yield wrong
    event.remove(Engine, "do_connect", connect)


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 0, words


def tables(path: Path) -> set[str]:
    # Opened as it lies on the disk, by a name that means nothing else.
    with chdir(path.parent), closing(sqlite3.connect(path.name)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def make_proxy(home: Path) -> set[str]:
    run("proxy", "init", "--name", "Relay", f"--home={home}")
    proxy = open_proxy(proxy_settings())  # by the variable
    proxy.files.write("study/sealed/0", b"chunk")
    invite(proxy, "owner", "Hospital A")  # the witness is told
    proxy.database.close()
    assert {"invitations", "log"} <= tables(home / "proxy.sqlite3")
    return {"proxy.toml", "identity.pem", "studies"}


def make_user(home: Path) -> set[str]:
    run("user", "init", "--name", "Institute", f"--home={home}")
    service = open_service(user_settings())
    service.store.add("a" * 32, "t", "joint", b"d", "application/toml", "u", True, datetime.now(UTC))
    service.close()
    assert "studies" in tables(home / "user.sqlite3")
    return {"identity.pem", "token", "profile.json"}


def make_owner(home: Path) -> set[str]:
    run("owner", "init", "--name", "Hospital A", f"--home={home}")
    run("owner", "ledger")
    folder = desk_of(home).home.study(StudyId(bytes(32)))
    with folder.locked():
        folder.save_owner_key(bytes(32))
        folder.save_chunk(0, b"chunk")
    return {"identity.pem", "owner.json", "policy.toml", "ledger", "studies"}


@pytest.mark.parametrize("make", [make_proxy, make_user, make_owner], ids=["proxy", "user", "owner"])
def test_the_files_of_a_home_are_in_it_whatever_it_is_called(
    make: Callable[[Path], set[str]],
    tmp_path: Path,
    watched: list[str],
    monkeypatch: pytest.MonkeyPatch,
    promise: Promise,
) -> None:
    role = make.__name__.removeprefix("make_")
    monkeypatch.setenv("DPDPCA_OWNER_WITNESS", str(tmp_path / "witness"))
    for number, name in enumerate(NAMES):
        home = tmp_path / str(number) / name
        monkeypatch.setenv(f"DPDPCA_{role.upper()}_HOME", str(home))
        expected = make(home)
        assert expected <= {path.name for path in home.iterdir()}, name
        beside = {f"{name}-generation"} if role == "proxy" else set()
        assert {path.name for path in home.parent.iterdir()} == {name} | beside
        assert watched == [], name
    assert open_to_others(tmp_path) == []
    promise("P38", counted=f"{len(NAMES)} odd names of the {role}'s home", result="0 files elsewhere or open")


@pytest.mark.parametrize("make", [make_proxy, make_user, make_owner], ids=["proxy", "user", "owner"])
def test_a_home_that_is_named_from_the_working_folder_is_the_same(
    make: Callable[[Path], set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = make.__name__.removeprefix("make_")
    for name in ("file:x?mode=memory", ":memory:", "a?b", "x%41"):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv(f"DPDPCA_{role.upper()}_HOME", name)
        make(tmp_path / name)
        assert {path.name for path in tmp_path.iterdir()} <= {name, f"{name}-generation", "witness"}
        monkeypatch.chdir(tmp_path / name)
        (tmp_path / name).rename(tmp_path.parent / f"{role}-{name.replace('/', '')}")
        generation = tmp_path / f"{name}-generation"
        if generation.exists():
            generation.rename(tmp_path.parent / f"{role}-{name}-generation")


def test_a_whole_study_between_odd_homes(
    tmp_path: Path, parties: Parties, watched: list[str], promise: Promise
) -> None:
    """The owner that is a whole client is the first; the others send their shares by hand."""
    place = tmp_path / "homes"
    world = ProxyWorld(
        place / f"p{ODDEST}", parties.user, list(parties.owners), parties.secret, parties.proof
    )
    world.start()
    try:
        world.enrol_all()
        user = UserWorld(world, place / f"u{ODDEST}")
        home = make_owner_home(place / f"o{ODDEST}", world)
        (home / "identity.pem").chmod(0o600)
        row = user.advance_to(user.create(), Stage.OPEN)
        study = user.opened(row)
        data = tmp_path / f"{ODDEST}.csv"
        data.write_text("f0,f1,f2\n" + "0.5,-0.25,0.125\n" * 20)
        data.chmod(0o600)
        do(Errand("join", home, world.url, study.study.hex(), data))
        for seed, owner in enumerate(world.owners[1:]):
            study.deliver(owner, values_of(study.d, seed, 20))
        user.advance_to(row, Stage.PUBLISHED, Stage.FITTED)
        user.service.close()
    finally:
        world.stop()
    assert {path.name[0] for path in place.iterdir()} == {"p", "u", "o", "w"}
    assert watched == []
    assert open_to_others(tmp_path) == []
    files = [path for path in paths_below(place) if path.is_file()]
    promise("P38", counted=f"{len(files)} files of a study between three odd homes", result="0600/0700")


@pytest.mark.parametrize("database", [ProxyDatabase, service_database])
def test_files_that_an_earlier_version_left_open_are_closed(
    database: Callable[[Path], Database], tmp_path: Path
) -> None:
    first = database(tmp_path / "x.sqlite3")
    first.upgrade()
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    assert {path.name for path in tmp_path.iterdir()} >= {"x.sqlite3", "x.sqlite3-wal", "x.sqlite3-shm"}
    second = database(tmp_path / "x.sqlite3")
    second.upgrade()
    assert open_to_others(tmp_path) == []
    second.close()
    first.close()


def test_a_second_opening_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    """Closing a descriptor of a file gives up all locks that the process has on it."""
    home = tmp_path / "proxy"
    make_home(proxy_settings(home))
    first = open_proxy(proxy_settings(home))
    locks = Path("/proc/locks").read_text()
    open_proxy(proxy_settings(home)).database.close()
    inodes = {f":{path.stat().st_ino} " for path in home.glob("proxy.sqlite3*")}
    held = {inode for inode in inodes if inode in locks}
    assert held
    assert {inode for inode in inodes if inode in Path("/proc/locks").read_text()} == held
    first.database.close()


def test_a_tilde_is_the_home_of_a_user_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert home_folder("owner", Path("~/x"), {}) == Path("/home/me/x")
    assert home_folder("owner", None, {"DPDPCA_OWNER_HOME": "~/x"}) == Path("/home/me/x")
    assert expanded(Path("/a/~x")) == Path("/a/~x")
    with pytest.raises(UsageError, match="no such user"):
        home_folder("owner", Path("~nobody-of-this-name/x"), {})


def test_the_generation_is_beside_a_home_that_is_named_from_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "relay" / "studies").mkdir(parents=True)
    named = proxy_settings(tmp_path / "relay").witness_path
    monkeypatch.chdir(tmp_path / "relay" / "studies")
    assert proxy_settings(Path("..")).witness_path == named
    monkeypatch.chdir(tmp_path / "relay")
    assert proxy_settings(Path()).witness_path == named
