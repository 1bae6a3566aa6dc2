"""Studies whose files this version refuses, or cannot read: they hide no other study, and cost no less."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import pytest
from ledger_world import charge
from owner_scene import MakeScene, OwnerCommands, Scene

from dpdpca_owner import actions, reports
from dpdpca_owner.accounts.bookkeeping import reserve
from dpdpca_owner.accounts.budget import NOT_KNOWN, Budget, Cost
from dpdpca_owner.accounts.charge import Content
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.recovery import look_into, recover_ledger
from dpdpca_owner.study_folder import Plan, StudyFolder
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import sign_statement

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WIDE = Budget.of_rho(Fraction(100), Fraction(1, 10**6))
REFUSED = [{"mechanism": "wishart"}, {"calibration": "as-published"}, {"format": 1}, {"former_member": 1}]


def join(scene: Scene) -> None:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    actions.join(scene.desk, scene.address, prepared, Watcher())


def join_old(scene: Scene, rho: Fraction | None = None, **terms: Any) -> StudyFolder:
    """What an earlier version left of a study; without `rho`, of one without proved privacy."""
    home, owner = scene.desk.home, scene.desk.owner.key.public
    body = {**scene.proxy.manifest.body, "title": "Old study", **(terms or {"mechanism": "wishart"})}
    manifest = sign_statement("manifest", body, scene.parties.user)
    folder = home.study(StudyId(manifest.digest))
    booked = replace(
        charge(1),
        study=folder.study,
        title="Old study",
        proxy=scene.parties.proxy.public.ed25519,
        owner=owner.party_id,
        cost=NOT_KNOWN if rho is None else Cost(rho, Fraction(0), 1),
    )
    content = Content(Digest.of(b"old records"), 40)
    with home.ledger.writing(NOW) as book:
        book.record(reserve(book.ledger, booked, content, None, WIDE, book.time))
    folder.save_manifest(manifest)
    folder.save_owner_key(owner.ed25519)
    folder.save_plan(Plan(scene.address.proxy, 1, Digest.of(b"moments"), Digest.of(b"modulus")))
    give_receipt(scene, folder)
    home.ledger.settle(folder.last_receipt_statement(), NOW)
    return folder


def give_receipt(scene: Scene, folder: StudyFolder, version: int = 1, subject: str = "share") -> None:
    owner = scene.desk.owner.key.public.party_id
    said = Receipt(folder.study, owner, version, subject, Digest.of(b"statement"), "2026-01-01T00:00:00Z")
    folder.save_receipt(said, said.sign(scene.parties.proxy))


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


# Status


@pytest.mark.parametrize("terms", REFUSED)
@pytest.mark.parametrize("offline", [(), ("--offline",)])
def test_refused_terms_hide_no_other_study(
    run: OwnerCommands, terms: dict[str, Any], offline: tuple[str, ...]
) -> None:
    join(run.scene)
    reports.status(run.scene.desk, run.scene.address)
    old = join_old(run.scene, **terms)
    status, out, err = run("status", *offline)
    assert (status, err) == (0, "")
    assert "share version 1" in out
    (line,) = [line for line in out.splitlines() if "not known" in line]
    assert "this version refuses the terms" in line
    assert "use the version with which you joined it" in line
    assert "Old study" in out
    status, out, _ = run("status", "--json", *offline)
    told = {study["study"]: study for study in json.loads(out)["studies"]}
    assert told[old.study.hex()]["problem"]["type"] == "manifest-refused"
    assert told[old.study.hex()]["booked"] == "committed"
    assert told[run.scene.address.study.hex()]["state"] == "open"


def test_one_study_asked_for_is_refused_as_before(run: OwnerCommands) -> None:
    old = join_old(run.scene)
    status, out, err = run("status", f"{run.scene.address.proxy}/{old.study.hex()}")
    assert (status, out) == (1, "")
    assert "wishart has no proof of privacy" in err


@pytest.mark.parametrize("name", ["manifest.json", "plan.json", "owner.json", "receipt-1.json"])
def test_a_damaged_file_hides_no_other_study_and_is_a_failure(run: OwnerCommands, name: str) -> None:
    join(run.scene)
    folder = join_old(run.scene, title="Damaged study", mechanism="gaussian")
    damage(folder.path / name)
    status, out, err = run("status")
    assert status == 1
    assert "share version 1" in out
    assert str(folder.path / name) in out
    assert str(folder.path / name) in err
    assert run("ledger")[0] == 0


def test_a_lie_of_the_proxy_is_still_a_failure(run: OwnerCommands) -> None:
    join(run.scene)
    join_old(run.scene)
    run.scene.proxy.close(without_owner=True)
    status, out, err = run("status")
    assert status == 1
    assert "lacks the share" in out
    assert "lacks the share" in err


def test_a_proxy_that_cannot_be_reached_is_asked_once(run: OwnerCommands) -> None:
    join(run.scene)
    join_old(run.scene, title="Another study")
    asked: list[str] = []

    def refuse(request: httpx.Request) -> None:
        asked.append(str(request.url))
        raise httpx.ConnectError("refused", request=request)

    run.scene.proxy.interfere = refuse
    status, out, _ = run("status")
    assert (status, len(asked)) == (1, 1)
    assert out.count("cannot be reached") == 2


def test_files_that_others_left_among_the_studies_are_no_studies(run: OwnerCommands) -> None:
    join(run.scene)
    studies = run.scene.desk.home.path / "studies"
    (studies / ".DS_Store").write_bytes(b"")
    assert run("status")[0] == 0
    (studies / "copy of a study").mkdir()
    status, _, err = run("status")
    assert status == 1
    assert str(studies / "copy of a study") in err


# Recovery


def lose_all(scene: Scene) -> None:
    """The entries are gone, with the head."""
    ledger = scene.desk.home.ledger
    ledger.entries_path.unlink()
    ledger.head_path.unlink()


def lose_entries(scene: Scene) -> None:
    scene.desk.home.ledger.entries_path.unlink()


def recovered(scene: Scene) -> tuple[Ledger, str]:
    told = look_into(scene.desk)
    assert recover_ledger(scene.desk) == told
    return scene.desk.home.ledger.read(), told


@pytest.mark.parametrize("terms", REFUSED)
def test_a_study_with_refused_terms_is_booked_without_an_amount_and_told(
    run: OwnerCommands, terms: dict[str, Any]
) -> None:
    scene = run.scene
    join(scene)
    rho = scene.desk.home.ledger.read().live_rho
    old = join_old(scene, **terms)
    lose_all(scene)
    status, _, err = run("ledger", "--recover")
    assert status == 2
    assert f"study {old.study.hex()[:16]}… cannot be computed: this version refuses the terms" in err
    assert not scene.desk.home.ledger.entries_path.exists()
    status, _, err = run("ledger", "--recover", "--yes", "--json")
    assert status == 0
    assert "cannot be computed" in err
    ledger = scene.desk.home.ledger.read()
    assert (ledger.live_rho, ledger.spent("new").unproved) == (rho, 1)
    spend = ledger.spend(old.study)
    assert spend is not None
    assert (spend.charge.title, spend.state, spend.version) == ("Old study", "committed", 1)
    assert "no amount is known for 1 of these studies" in run("ledger")[1]


def test_what_the_head_knows_of_such_a_study_counts(make_scene: MakeScene) -> None:
    scene = make_scene()
    join(scene)
    join_old(scene, Fraction(7, 100), format=1)
    before = scene.desk.home.ledger.read().live_rho
    lose_entries(scene)
    ledger, told = recovered(scene)
    assert (ledger.live_rho, ledger.lost.rho) == (before, Fraction(7, 100))
    assert "cannot be computed" in told
    assert "was spent without an entry" in told


def test_the_withdrawal_from_such_a_study_is_not_refunded_on_its_receipt(make_scene: MakeScene) -> None:
    scene = make_scene()
    folder = join_old(scene)
    give_receipt(scene, folder, 2, "withdrawal")
    lose_all(scene)
    ledger, _ = recovered(scene)
    assert ledger.spent("new").unproved == 1


def test_entries_that_hold_need_no_manifest(make_scene: MakeScene) -> None:
    scene = make_scene()
    folder = join_old(scene, Fraction(7, 100), format=1)
    path = scene.desk.home.ledger.entries_path
    path.write_bytes(path.read_bytes() + b"{}\n")
    ledger, told = recovered(scene)
    assert (ledger.live_rho, ledger.spent("new").unproved) == (Fraction(7, 100), 0)
    assert ledger.lost.rho == 0
    assert folder.study.hex()[:16] not in told


@pytest.mark.parametrize("change", [damage, Path.unlink])
def test_a_damaged_or_missing_manifest_stops_no_recovery(
    make_scene: MakeScene, change: Callable[[Path], None]
) -> None:
    scene = make_scene()
    join(scene)
    rho = scene.desk.home.ledger.read().live_rho
    folder = join_old(scene, Fraction(7, 100), mechanism="gaussian")
    change(folder.path / "manifest.json")
    lose_entries(scene)
    ledger, told = recovered(scene)
    assert (ledger.live_rho, ledger.lost.rho) == (rho + Fraction(7, 100), Fraction(7, 100))
    assert ledger.spent("new").unproved == 1
    assert "cannot be computed" in told
    join(scene)


def test_a_damaged_receipt_refunds_nothing(make_scene: MakeScene) -> None:
    scene = make_scene()
    join(scene)
    actions.withdraw(scene.desk, scene.address)
    folder = scene.desk.home.study(scene.address.study)
    damage(folder.path / "receipt-2.json")
    lose_entries(scene)
    ledger, told = recovered(scene)
    assert ledger.live_rho > 0
    assert "stays booked, whatever its last receipt says" in told


def test_a_share_that_may_have_been_sent_again_counts(make_scene: MakeScene) -> None:
    scene = make_scene()
    join(scene)
    rho = scene.desk.home.ledger.read().live_rho
    actions.withdraw(scene.desk, scene.address)
    damage(scene.desk.home.study(scene.address.study).path / "plan.json")
    path = scene.desk.home.ledger.entries_path
    path.write_bytes(path.read_bytes() + b"{}\n")
    ledger, _ = recovered(scene)
    assert ledger.live_rho == rho
