"""Each file of each home in turn holds something else: whoever needs it is told which."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from folders import files_below
from owner_world import Errand, desk_of, do, make_owner_home
from proxy_world import TOY_BITS, ProxyWorld, copy_home
from study_parties import Parties
from user_world import UserWorld

from dpdpca_owner import actions, reports
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.proxy import open_proxy
from dpdpca_proxy.settings import load_settings as proxy_settings
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_user_service.service import open_service
from dpdpca_user_service.settings import load_settings as user_settings
from dpdpca_user_service.stages import Stage

Act = Callable[[Path], object]

GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "bytes": lambda content: bytes(range(256)),
    "no UTF-8": lambda content: b'{"name": "Z\xfcrich"}',
    "object": lambda content: b"{}",
    "null": lambda content: b"null",
    "half": lambda content: content[: len(content) // 2],
}
NOT_DAMAGED_HERE = {
    "lock",
    "rotation.lock",
    "proxy.sqlite3",  # in test_damage
    "user.sqlite3",
    "share-1.json",  # of use only where a share is sent once more: then another is made
}
MEANS_SOMETHING = {("policy.toml", "empty")}
"""The default policy."""


@pytest.fixture(scope="module")
def homes(parties: Parties, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The homes of three roles in a study that the owner has joined."""
    folder = tmp_path_factory.mktemp("homes")
    world = ProxyWorld(folder / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof)
    world.start()
    world.enrol_all()
    user = UserWorld(world, folder / "user")
    home = make_owner_home(folder / "owner", world)
    study = user.opened(user.advance_to(user.create(), Stage.OPEN))
    data = folder / "data.csv"
    data.write_text("f0,f1,f2\n" + "0.5,-0.25,0.125\n" * 20)
    do(Errand("join", home, world.url, study.study.hex(), data))
    reports.status(desk_of(home), StudyAddress(world.url, study.study))
    user.service.close()
    (folder / "study").write_text(f"{world.url} {study.study.hex()}")
    world.stop()
    kept = {role: copy_home(folder / role, folder / "kept" / role) for role in ("proxy", "user", "owner")}
    for name in ("proxy-generation", "witness"):
        shutil.copytree(folder / name, folder / "kept" / name)
    world.start()
    yield kept
    world.stop()


def acts_of(role: str, folder: Path) -> Sequence[Act]:
    """What reads the files of a home, each on a fresh copy."""
    url, study = (folder / "study").read_text().split()
    address = StudyAddress(url, StudyId.parse(study))
    data = DataLocation(str(folder / "data.csv"))

    def look_at_proxy(home: Path) -> None:
        open_proxy(proxy_settings(home), key_rules=KeyRules(TOY_BITS)).database.close()

    def look_at_user(home: Path) -> None:
        service = open_service(user_settings(home), key_rules=KeyRules(TOY_BITS))
        try:
            service.home.proxies()
            service.store.all()
        finally:
            service.close()

    def join(home: Path) -> None:
        desk = desk_of(home)
        actions.join(desk, address, actions.prepare_join(desk, address, data), Watcher())

    return {
        "proxy": (look_at_proxy,),
        "user": (look_at_user,),
        "owner": (
            lambda home: reports.status(desk_of(home), address),
            lambda home: reports.status_offline(desk_of(home), address),
            lambda home: desk_of(home).home.policy(),
            join,
            lambda home: actions.withdraw(desk_of(home), address),
        ),
    }[role]


@pytest.mark.parametrize(("role", "least"), [("proxy", 5), ("user", 20), ("owner", 85)])
def test_a_damaged_file_is_named_and_nobody_stumbles_over_it(
    homes: dict[str, Path], role: str, least: int, tmp_path: Path
) -> None:
    kept, tried = homes[role], 0
    for file in sorted(path.relative_to(kept) for path in files_below(kept)):
        for what, change in GARBAGE.items():
            if file.name in NOT_DAMAGED_HERE or (file.name, what) in MEANS_SOMETHING:
                continue
            if file.parts[0] == "processes" or "sealed" in file.parts:
                continue  # locks; and the chunks of a share, whose digests are compared when they are used
            said = []
            for act in acts_of(role, kept.parent.parent):
                shutil.rmtree(tmp_path)
                shutil.copytree(kept.parent, tmp_path)
                path = tmp_path / role / file
                path.write_bytes(change(path.read_bytes()))
                try:
                    act(tmp_path / role)
                except DpdpcaError as error:
                    said.append(str(error))
                    if str(path) in said[-1] and error.next_step:
                        tried += 1
                        break
            else:
                pytest.fail(f"{file}, {what}: {said}")
    assert tried >= least
