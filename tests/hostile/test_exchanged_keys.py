"""A home whose key files were exchanged acts for nobody: not for the key's party, not for its own."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from chain_world import Chain
from federation.world import tree
from promises import Promise
from proxy_world import ProxyWorld, dump
from study_parties import Parties
from user_world import UserWorld

from dpdpca_cli import main as cli
from dpdpca_owner.home import OwnerHome
from dpdpca_protocol.errors import IntegrityError
from dpdpca_protocol.wire.signing import Identity
from dpdpca_proxy.proxy import key_files
from dpdpca_proxy.settings import load_settings
from dpdpca_runtime.identity_files import IdentityFiles
from dpdpca_user.home import UserHome
from dpdpca_user_service.store.studies import StudyRow

KEY_FILES = ("identity.pem", "former-keys", "rotations")
MEMORY = "known-key.json"


@dataclass
class Acted:
    """Homes of all roles from which one study was begun, to be spoilt.

    Attributes:
        world: the proxy that goes on serving, from another copy of its home.
        folder: with the homes, named by role.
    """

    world: ProxyWorld
    address: str
    data: Path
    folder: Path

    def home(self, role: str) -> Path:
        return self.folder / role

    def files(self, role: str) -> IdentityFiles:
        """The key files as the role's commands and services open them."""
        home = self.home(role)
        if role == "owner":
            return OwnerHome(home, self.folder / "witness").keys
        return key_files(load_settings(home)) if role == "proxy" else UserHome(home).key_files

    def public(self, role: str) -> Identity:
        return self.files(role).load(None).current.public


@pytest.fixture(scope="module")
def begun(parties: Parties, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Chain, StudyRow]]:
    """The first owner has joined the one study that there is."""
    folder = tmp_path_factory.mktemp("begun")
    world = ProxyWorld(folder / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof)
    world.start()
    world.enrol_all()
    user = UserWorld(world, folder / "user")
    records = np.random.default_rng(3).uniform(-1, 1, (60, 3))  # noqa: TID251  # data, not noise
    chain = Chain.make(world, user, folder, records)
    row = chain.open(min_owners=3)
    chain.join(row, 0)
    yield chain, row
    user.service.close()
    world.stop()


@pytest.fixture
def acted(begun: tuple[Chain, StudyRow], tmp_path: Path) -> Acted:
    chain, row = begun
    for role, home in (
        ("owner", chain.desks[0].home.path),
        ("proxy", chain.world.home),
        ("user", chain.user.home),
    ):
        shutil.copytree(home, tmp_path / role)
    return Acted(chain.world, str(chain.address(row)), chain.data[0], tmp_path)


def state(home: Path) -> dict[str, bytes]:
    """Every file that says something; databases are compared by their rows."""
    content = tree(home, without=".sqlite3")
    content.pop("rotation.lock", None)
    return content


def another_home(acted: Acted, role: str, *, rotated: bool) -> Path:
    """Another party of this role."""
    home = acted.folder / f"other-{role}"
    home.mkdir(0o700)
    IdentityFiles(home, role=role).create(None)
    if rotated:
        IdentityFiles(home, role=role).rotate(None, datetime.now(UTC), lambda statement: None)
    return home


def put(source: Path, home: Path, *names: str) -> None:
    """Lets these files of `home` be those of `source`; what is not there is taken away."""
    for name in names:
        if (home / name).is_dir():
            shutil.rmtree(home / name)
        (home / name).unlink(missing_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, home / name)
        elif (source / name).exists():
            shutil.copy2(source / name, home / name)


def a_key_file_of_another(acted: Acted, role: str) -> None:
    put(another_home(acted, role, rotated=False), acted.home(role), "identity.pem")


def key_files_of_another(acted: Acted, role: str) -> None:
    put(another_home(acted, role, rotated=True), acted.home(role), *KEY_FILES)


def key_files_of_another_and_its_memory(acted: Acted, role: str) -> None:
    put(another_home(acted, role, rotated=True), acted.home(role), *KEY_FILES, MEMORY)


def rotate(acted: Acted, role: str) -> Path:
    """The party rotates its keys; a copy of the home from before."""
    shutil.copytree(acted.home(role), before := acted.folder / f"before-{role}")
    acted.files(role).rotate(None, datetime.now(UTC), lambda statement: None)
    return before


def an_older_key_file(acted: Acted, role: str) -> None:
    put(rotate(acted, role), acted.home(role), "identity.pem")


def older_key_files(acted: Acted, role: str) -> None:
    put(rotate(acted, role), acted.home(role), *KEY_FILES)


def rotations_of_two(acted: Acted, role: str) -> None:
    """The first rotation is this home's, the second one another's."""
    rotate(acted, role)
    home, other = acted.home(role), another_home(acted, role, rotated=True)
    put(other, home, "identity.pem")
    shutil.copy2(other / "rotations" / "1.json", home / "rotations" / "2.json")
    shutil.copy2(other / "former-keys" / "1.pem", home / "former-keys" / "2.pem")


def a_former_key_of_another(acted: Acted, role: str) -> None:
    rotate(acted, role)
    other = another_home(acted, role, rotated=False)
    shutil.copy2(other / "identity.pem", acted.home(role) / "former-keys" / "1.pem")


EXCHANGES: dict[Callable[[Acted, str], None], str] = {
    a_key_file_of_another: "not the key of this home",
    key_files_of_another: "not the key of this home",
    key_files_of_another_and_its_memory: "studies use another key",
    an_older_key_file: "was replaced by a newer key",
    older_key_files: "not the key of this home",
    rotations_of_two: "do not lead to the key",
    a_former_key_of_another: "do not lead to the key",
}
COMMANDS = {
    "owner": [("join", "ADDRESS", "--data", "DATA", "--yes"), ("rotate",), ("withdraw", "ADDRESS", "--yes")],
    "proxy": [("serve",), ("invite", "--role", "owner", "--name", "D"), ("rotate",), ("init",)],
    "user": [("serve",), ("rotate",), ("enrol", "URL", "--yes")],
}


@pytest.mark.parametrize("role", COMMANDS)
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_exchanged_keys_do_nothing(
    acted: Acted,
    role: str,
    exchange: Callable[[Acted, str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    promise: Promise,
) -> None:
    """Every command is refused in words; the home and the proxy stay as they are."""
    acted.public(role)
    exchange(acted, role)
    home = acted.home(role)
    monkeypatch.setenv(f"DPDPCA_{role.upper()}_HOME", str(home))
    monkeypatch.setenv("DPDPCA_OWNER_WITNESS", str(acted.folder / "witness"))
    before, rows = state(home), dump(acted.world.proxy)
    words = {"ADDRESS": acted.address, "DATA": str(acted.data), "URL": acted.world.url}
    for command in COMMANDS[role]:
        with pytest.raises(SystemExit) as left:
            cli.main([role, *(words.get(word, word) for word in command)])
        said = capsys.readouterr().err
        assert left.value.code == 1, said
        assert EXCHANGES[exchange] in said
        assert said.count("\n") == 1
        assert state(home) == before
        assert dump(acted.world.proxy) == rows
    promise("P20", counted=f"{role}: {exchange.__name__.replace('_', ' ')}", result="refused")


@pytest.mark.parametrize("role", COMMANDS)
def test_a_home_from_before_takes_its_own_key_only(acted: Acted, role: str) -> None:
    """It has no memory yet: its studies say whose it is."""
    home, own = acted.home(role), acted.public(role)
    kept = acted.folder / f"kept-{role}"
    shutil.copytree(home, kept)
    (home / MEMORY).unlink()
    a_key_file_of_another(acted, role)
    with pytest.raises(IntegrityError, match="studies use another key"):
        acted.files(role).load(None)
    assert not (home / MEMORY).exists()
    put(kept, home, "identity.pem")
    assert acted.public(role) == own
    assert (home / MEMORY).stat().st_mode & 0o777 == 0o600
    # Rotations lead on from what is remembered, also where they were made with the memory gone.
    (home / MEMORY).unlink()
    rotate(acted, role)
    assert acted.public(role) != own


@pytest.mark.parametrize("role", COMMANDS)
def test_nothing_is_made_anew_where_a_key_is_gone(
    acted: Acted, role: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the memory and without it; an owner's ledger would begin anew, a proxy would serve as another."""
    home = acted.home(role)
    monkeypatch.setenv(f"DPDPCA_{role.upper()}_HOME", str(home))
    acted.public(role)
    (home / "identity.pem").unlink()
    for name in ("none", MEMORY):
        (home / name).unlink(missing_ok=True)
        before = state(home)
        with pytest.raises(SystemExit) as left:
            cli.main([role, "init", "--name", "Somebody"])
        assert left.value.code == 1
        assert "is missing" in capsys.readouterr().err
        assert state(home) == before


def test_the_ledger_alone_says_whose_a_home_is(acted: Acted) -> None:
    """The studies' own folders are gone, and the home has no memory."""
    home = acted.home("owner")
    shutil.rmtree(home / "studies")
    (home / MEMORY).unlink()
    a_key_file_of_another(acted, "owner")
    with pytest.raises(IntegrityError, match="studies use another key"):
        acted.files("owner").load(None)


def test_an_owner_books_in_no_ledger_of_another(acted: Acted, begun: tuple[Chain, StudyRow]) -> None:
    """The ledger was exchanged, not the key: the head agrees, and its other files know of no study."""
    chain, row = begun
    put(acted.home("owner"), chain.desks[1].home.path, "ledger")
    with pytest.raises(IntegrityError, match="another owner has joined"):
        chain.join(row, 1)


def test_a_damaged_memory_is_named(acted: Acted) -> None:
    home = acted.home("proxy")
    acted.public("proxy")
    (home / MEMORY).write_bytes(b'{"ed25519": 7}')
    with pytest.raises(IntegrityError, match=MEMORY):
        acted.public("proxy")
