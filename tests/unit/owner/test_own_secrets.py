"""The secrets that an owner draws in its commands; see tests/unit/test_secrets.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from folders import files_below
from owner_scene import MakeScene, Scene

from dpdpca_owner import actions, recovery
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.messages.share import ShareStatement
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import verify_statement


def done_twice(make_scene: MakeScene, tmp_path: Path, act: Callable[[Scene], Any]) -> list[Any]:
    """What `act` finds in two homes of one owner with the same records; they share only its keys."""
    found = []
    for number in range(2):
        scene = make_scene()
        found.append(act(scene))
        scene.desk.home.path.rename(tmp_path / f"home {number}")
    return found


def test_what_is_made_ahead_differs(make_scene: MakeScene, tmp_path: Path) -> None:
    def prepared(scene: Scene) -> bytes:
        assert actions.work_ahead(scene.desk, scene.address, lambda made: None).made
        folder = scene.desk.home.study(scene.address.study).path / "randomizers"
        return b"".join(path.read_bytes() for path in files_below(folder))

    first, second = done_twice(make_scene, tmp_path, prepared)
    assert first
    assert first != second


def test_no_two_samples_are_alike(make_scene: MakeScene, tmp_path: Path) -> None:
    """Without the owner's noise, the same pads would give the same chunks."""
    scene = make_scene(suite="pads")
    digests: list[Digest] = []
    for number in range(2):
        folder = tmp_path / f"sample {number}"
        actions.review(scene.desk, scene.address, scene.location, save=folder)
        statement = verify_statement("share", (folder / "statement.json").read_bytes())
        digests += ShareStatement.parse(statement).chunk_digests
    assert len(digests) >= 2
    assert len(set(digests)) == len(digests)


def test_no_two_shares_are_alike(make_scene: MakeScene, tmp_path: Path) -> None:
    def shared(scene: Scene) -> dict[int, bytes]:
        prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
        actions.join(scene.desk, scene.address, prepared, Watcher())
        return scene.proxy.chunks

    first, second = done_twice(make_scene, tmp_path, shared)
    assert first.keys() == second.keys() == {0}
    assert first[0] != second[0]


def test_a_recovered_ledger_is_new(make_scene: MakeScene) -> None:
    desk = make_scene().desk
    ledger = desk.home.ledger
    ledger.key_path.unlink()
    ledger.entries_path.unlink()
    keys = [recovery._key(ledger) for _ in range(2)]
    assert keys[0] != keys[1]
    rebuilt = [recovery._rebuild(desk, "it was lost", keys[0]).ledger.id for _ in range(2)]
    assert rebuilt[0] != rebuilt[1]
