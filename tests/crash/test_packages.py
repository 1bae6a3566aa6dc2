"""Every write of a machine without a network, and of the machine that sends its folder, may be the last."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from owner_world import DONE, Errand, desk_of, do, make_owner_home, send
from proxy_world import ProxyWorld

from dpdpca_owner.accounts.charge import SpendState
from dpdpca_owner.package import CarriedRequest, Package
from dpdpca_protocol.wire.identifiers import StudyId

KILLED = -9
MOST_FAILPOINTS = 400


@pytest.fixture
def errand(world: ProxyWorld, tmp_path: Path) -> Errand:
    data = tmp_path / "records.csv"
    rows = "\n".join(f"0.{i}1,0.{9 - i}5,0.5" for i in range(10))
    data.write_text(f"f0,f1,f2\n{rows}\n", encoding="utf-8")
    home = make_owner_home(tmp_path / "owner", world)
    study = world.open_study(suite="pads")
    return Errand("pack", home, world.url, study.study.hex(), data, folder=tmp_path / "stick")


def share_in(folder: Path) -> list[CarriedRequest]:
    """The requests of a share in a folder that may be sent."""
    if not Package.exists(folder):
        return []
    package = Package.load(folder)
    package.clear()  # what the next command does first
    package.check()
    return [request for request in package.requests if not request.reads]


def state_of(errand: Errand) -> SpendState | None:
    spend = desk_of(errand.home).home.ledger.read().spend(StudyId.parse(errand.study))
    return None if spend is None else spend.state


def put_back(copies: Path, errand: Errand) -> None:
    for path in (errand.home, errand.folder, errand.home.parent / "witness"):
        shutil.rmtree(path, ignore_errors=True)
        if (copies / path.name).exists():
            shutil.copytree(copies / path.name, path)


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_owner_killed_anywhere_while_it_packs(errand: Errand, tmp_path: Path, stride: int) -> None:
    """The folder has a whole share that is paid for, or nothing of it; and the next run makes one share."""
    do(errand)
    do(replace(errand, act="carry"))
    copies = tmp_path / "copies"
    for path in (errand.home, errand.folder, errand.home.parent / "witness"):
        shutil.copytree(path, copies / path.name)
    deaths, left = 0, set()
    for failpoint in range(1, MOST_FAILPOINTS, stride):
        put_back(copies, errand)
        status = send(replace(errand, die_at=failpoint))
        assert status in (DONE, KILLED)
        share = share_in(errand.folder)
        assert [request.method for request in share] in ([], ["PUT", "POST"])
        if share:
            assert state_of(errand) is SpendState.RESERVED
        left.add(bool(share))
        do(errand)
        made = share_in(errand.folder)
        assert [request.method for request in made] == ["PUT", "POST"]
        # Version 2 if it died after the plan and before the secrets, of which nothing can have left.
        assert made[0].target.endswith(("version=1", "version=2"))
        assert not share or made == share
        deaths += status == KILLED
        if status == DONE:
            break
    else:
        pytest.fail("there is no end of failpoints")
    assert deaths > 30 // stride
    assert stride > 1 or left == {True, False}
    do(replace(errand, act="carry"))
    do(errand)
    assert state_of(errand) is SpendState.COMMITTED


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_machine_killed_anywhere_while_it_sends(
    world: ProxyWorld, errand: Errand, tmp_path: Path, stride: int
) -> None:
    do(errand)
    do(replace(errand, act="carry"))
    do(errand)
    whole = tmp_path / "whole"
    shutil.copytree(errand.folder, whole)
    client, study, deaths = world.client(world.owners[0]), StudyId.parse(errand.study), 0
    for failpoint in range(1, MOST_FAILPOINTS, stride):
        shutil.rmtree(errand.folder)
        shutil.copytree(whole, errand.folder)
        status = send(replace(errand, act="carry", die_at=failpoint))
        assert status in (DONE, KILLED)
        deaths += status == KILLED
        do(replace(errand, act="carry"))
        facts = client.share(study)
        assert (facts.state, facts.version) == ("complete", 1)
        if status == DONE:
            break
    else:
        pytest.fail("there is no end of failpoints")
    assert deaths > 30 // stride
    do(errand)
    assert state_of(errand) is SpendState.COMMITTED
