"""Every write of an owner may be its last: nothing is spent twice, nothing leaves unpaid, nothing is lost."""

import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from children import CHILDREN, start_child
from owner_world import DONE, REFUSED, Errand, desk_of, do, make_owner_home, run, send
from promises import Promise
from proxy_world import OpenStudy, ProxyWorld

from dpdpca_owner.accounts.budget import Cost
from dpdpca_owner.accounts.charge import SpendState

KILLED = -9
MOST_FAILPOINTS = 200
ROUNDS_OF_A_STUDY = 20
"""A proxy takes a limited number of versions of one share."""


@pytest.fixture
def home(world: ProxyWorld, tmp_path: Path) -> Path:
    return make_owner_home(tmp_path / "owner", world)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "records.csv"
    rows = "\n".join(f"0.{i}1,0.{9 - i}5,0.5" for i in range(10))
    path.write_text(f"f0,f1,f2\n{rows}\n", encoding="utf-8")
    return path


def spent(home: Path) -> Fraction:
    """What is live, by a ledger that must be in order."""
    return desk_of(home).home.ledger.read().live_rho


def at_the_proxy(world: ProxyWorld, study: OpenStudy) -> Any:
    return world.client(world.owners[0]).share(study.study)


@pytest.mark.parametrize("stride", [15, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_owner_killed_anywhere_in_joining_and_withdrawing(
    world: ProxyWorld, home: Path, data: Path, promise: Promise, stride: int
) -> None:
    deaths = {"join": 0, "withdraw": 0}
    unhurt: set[str] = set()
    study, price, earlier = world.open_study(), Fraction(0), Fraction(0)
    for number, failpoint in enumerate(range(1, MOST_FAILPOINTS, stride), start=1):
        if number % ROUNDS_OF_A_STUDY == 0:
            world.with_new_key()
            study, earlier = world.open_study(), spent(home)
        to_do = Errand("join", home, world.url, study.study.hex(), data)
        dying = replace(to_do, die_at=failpoint)
        before = at_the_proxy(world, study).version or 0

        status = send(dying)
        assert status in (DONE, KILLED)
        deaths["join"] += status == KILLED
        unhurt |= {"join"} if status == DONE else set()
        facts = at_the_proxy(world, study)
        assert spent(home) - earlier in (0, price or spent(home))
        if (facts.version or 0) > before:
            assert spent(home) > earlier, "something left that was not paid for"
        do(to_do)
        assert at_the_proxy(world, study).state == "complete"
        price = price or spent(home)
        assert spent(home) - earlier == price == Cost.of(study.manifest.figures).rho
        *_, live = [spend for spend in desk_of(home).home.ledger.read().spends if spend.is_live]
        assert live.state is SpendState.COMMITTED

        status = send(replace(dying, act="withdraw"))
        assert status in (DONE, KILLED)
        deaths["withdraw"] += status == KILLED
        unhurt |= {"withdraw"} if status == DONE else set()
        do(replace(to_do, act="withdraw"))
        assert at_the_proxy(world, study).state == "withdrawn"
        assert spent(home) - earlier == price, "the data user has signed nothing that refunds it"
        if unhurt == {"join", "withdraw"}:
            break
    else:
        pytest.fail("there is no end of failpoints")
    assert deaths["join"] > 20 // stride
    assert deaths["withdraw"] > 5 // stride
    promise(
        "P33",
        counted=f"killed at {deaths['join']} points of joining and {deaths['withdraw']} of withdrawing",
        result="0 lost, 0 paid twice, nothing left unpaid",
    )


def test_of_joins_at_once_only_as_many_pass_as_the_budget_holds(
    world: ProxyWorld, home: Path, data: Path, promise: Promise
) -> None:
    studies = []
    for _ in range(4):
        studies.append(world.open_study())
        world.with_new_key()
    rho = studies[0].manifest.figures.rho
    assert rho is not None
    (home / "policy.toml").write_text(
        f"[study]\nmin_owners = 2\n[budget]\nrho = {float(rho) * 2.5:.9f}\n", encoding="utf-8"
    )
    barrier = CHILDREN.Barrier(len(studies))
    children = []
    for study in studies:
        errand = Errand("join", home, world.url, study.study.hex(), data)
        children.append(start_child(run, errand, barrier))
    for child in children:
        child.join(60)
    assert sorted(child.exitcode or 0 for child in children) == [DONE, DONE, REFUSED, REFUSED]
    states = sorted(at_the_proxy(world, study).state for study in studies)
    assert states == ["absent", "absent", "complete", "complete"]
    ledger = desk_of(home).home.ledger.read()
    assert 2 * rho <= ledger.live_rho < 2 * rho + Fraction(1, 2**100)
    assert len(ledger.data_sets) == 1
    promise("P33", counted="4 joins at once on a budget for two", result="2 passed")


def test_an_owner_put_back_from_a_backup_does_not_spend_again(
    world: ProxyWorld, home: Path, data: Path, tmp_path: Path, promise: Promise
) -> None:
    first = world.open_study()
    world.with_new_key()
    second = world.open_study()
    shutil.copytree(home, tmp_path / "backup")
    assert send(Errand("join", home, world.url, first.study.hex(), data)) == DONE
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "backup", home)
    assert send(Errand("join", home, world.url, second.study.hex(), data)) not in (DONE, KILLED)
    assert at_the_proxy(world, second).state == "absent"
    promise("P33", counted="1 home restored from before its last study", result="refused")
