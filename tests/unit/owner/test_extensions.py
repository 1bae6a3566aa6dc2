"""A study that extends another takes new records only, as far as this owner's ledger can tell."""

from dataclasses import replace
from pathlib import Path

import pytest
from owner_scene import MakeScene, Scene
from owner_world import desk_of, make_owner_home
from proxy_world import ProxyWorld
from study_parties import Parties

from dpdpca_owner import actions
from dpdpca_owner.extensions import check_new_records
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_runtime.http.address import StudyAddress

FIRST = StudyId(b"\x01" * 32)


def joined(scene: Scene) -> Manifest:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    actions.join(scene.desk, scene.address, prepared, Watcher())
    return prepared.manifest


def check(scene: Scene, manifest: Manifest, data_set: str | None) -> None:
    home = scene.desk.home
    check_new_records(manifest, home, home.ledger.read(), data_set)


def test_a_data_set_in_the_extended_study_is_not_new(make_scene: MakeScene) -> None:
    scene = make_scene()
    manifest = joined(scene)
    (data_set,) = scene.desk.home.ledger.read().data_sets
    extension = replace(manifest, title="More", extends=manifest.study_id)
    with pytest.raises(PolicyError, match="name another data set with --dataset") as refused:
        check(scene, extension, data_set)
    assert refused.value.slug == "not-new"
    check(scene, extension, "newcomers")
    check(scene, extension, None)
    check(scene, replace(extension, extends=FIRST), data_set)
    check(scene, replace(extension, extends=None), data_set)


def test_nor_is_a_data_set_in_another_extension_of_the_same_study(make_scene: MakeScene) -> None:
    scene = make_scene(extends=FIRST.hex())
    manifest = joined(scene)
    (data_set,) = scene.desk.home.ledger.read().data_sets
    with pytest.raises(PolicyError, match=f"through study {manifest.study_id.hex()}"):
        check(scene, replace(manifest, title="Still more"), data_set)
    check(scene, manifest, data_set)  # the same study again: a join that is resumed


def test_the_sheet_says_what_joining_states(make_scene: MakeScene) -> None:
    scene = make_scene(extends=FIRST.hex())
    sheet = actions.review(scene.desk, scene.address, scene.location)
    told = " ".join(line for _, lines in sheet.sections() for line in lines)
    assert f"this study adds to study {FIRST.hex()}" in told
    assert "by joining, you state that they are new" in told
    assert sheet.to_json()["extends"] == FIRST.hex()


def test_a_join_is_refused_before_anything_is_sent(tmp_path: Path, parties: Parties) -> None:
    """Two studies at a running proxy: an owner of both brings records under another name to the second."""
    world = ProxyWorld(tmp_path / "proxy", parties.user, list(parties.owners), parties.secret, parties.proof)
    world.start()
    try:
        world.enrol_all()
        first = world.open_study(title="First")
        world.with_new_key()
        second = world.open_study(title="Second", extends=first.study.hex())
        desk = desk_of(make_owner_home(tmp_path / "owner", world))
        mine, others = tmp_path / "mine.csv", tmp_path / "others.csv"
        mine.write_text("f0,f1,f2\n" + "0.1,0.2,0.3\n" * 9, encoding="utf-8")
        others.write_text("f0,f1,f2\n" + "0.3,0.1,0.2\n" * 9, encoding="utf-8")
        location = DataLocation(str(mine))
        before = StudyAddress(world.url, first.study)
        address = StudyAddress(world.url, second.study)
        actions.join(desk, before, actions.prepare_join(desk, before, location), Watcher())
        with pytest.raises(PolicyError, match="is part of that through study"):
            actions.prepare_join(desk, address, location)
        assert second.study not in {spend.charge.study for spend in desk.home.ledger.read().spends}
        prepared = actions.prepare_join(desk, address, DataLocation(str(others)), "newcomers")
        actions.join(desk, address, prepared, Watcher())
        spends = desk.home.ledger.read().spends
        assert {spend.data_set for spend in spends} >= {"newcomers"}
        assert len({spend.data_set for spend in spends}) == 2
    finally:
        world.stop()
