"""`dpdpca owner ledger`: what a person and an ethics board read, and how a lost ledger goes on."""

import json
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from ledger_world import OTHER, charge, receipt, withdrawn
from owner_scene import MakeScene, OwnerCommands, Scene
from present import present

from dpdpca_owner import actions, reports
from dpdpca_owner.accounts.bookkeeping import reserve, settle
from dpdpca_owner.accounts.budget import Budget
from dpdpca_owner.accounts.charge import Content, SpendState
from dpdpca_owner.accounts.entries import Entry
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.recovery import look_into, recover_ledger
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import ConflictError, IntegrityError
from dpdpca_protocol.wire.identifiers import Digest

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WIDE = Budget.of_rho(Fraction(100), Fraction(1, 10**6))
RECORDS = Content(Digest.of(b"records"), 40)


def book(scene: Scene, number: int, price: Fraction, data_set: str | None = None) -> None:
    content = Content(Digest.of(f"{data_set}".encode()), 40)
    with scene.desk.home.ledger.writing(NOW) as opened:
        opened.record(reserve(opened.ledger, charge(number, price), content, data_set, WIDE, opened.time))


def join(scene: Scene) -> None:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    actions.join(scene.desk, scene.address, prepared, Watcher())


def test_an_empty_ledger_says_so(run: OwnerCommands) -> None:
    status, out, _ = run("ledger")
    assert status == 0
    assert "nothing has been spent yet" in out
    assert "ε = 10" in out


def test_a_person_sees_each_study_the_running_total_and_what_is_left(
    run: OwnerCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    scene = run.scene
    book(scene, 1, Fraction(1, 100), "patients")
    book(scene, 2, Fraction(2, 100), "patients")
    book(scene, 3, Fraction(1, 100), "staff")
    scene.desk.home.ledger.settle(receipt(1, 1), NOW)
    scene.desk.home.ledger.refund(withdrawn(2, 1), NOW)
    status, out, _ = run("ledger")
    assert status == 0
    for words in ("Data set 'patients'", "Data set 'staff'", "Study 1", "Institute", "committed",
                  "withdrawn, refunded", "reserved", "of ε = 10"):  # fmt: skip
        assert words in out
    status, out, _ = run("ledger", "--dataset", "staff")
    assert "patients" not in out
    status, out, err = run("ledger", "--dataset", "nobody")
    assert (status, out, err.count("\n")) == (1, "", 1)


def test_a_board_can_check_the_chain_and_the_sums_from_the_json(run: OwnerCommands) -> None:
    scene = run.scene
    book(scene, 1, Fraction(1, 100), "patients")
    book(scene, 2, Fraction(2, 100), "patients")
    status, out, _ = run("ledger", "--json")
    facts = json.loads(out)
    assert status == 0
    (patients,) = facts["data_sets"]
    assert (patients["name"], patients["spent"]["rho"]) == ("patients", "3/100")
    assert [study["total"]["rho"] for study in patients["studies"]] == ["1/100", "3/100"]
    assert facts["budget"]["set_as_epsilon"] == "10"
    ledger = Ledger()
    for told in facts["entries"]:
        entry = Entry(
            told["index"],
            Digest.parse(told["previous"]),
            told["time"],
            told["kind"],
            told["detail"],
            bytes.fromhex(told["random"]),
        )
        assert entry.digest.hex() == told["digest"]
        ledger.add(entry)
    assert ledger.last.hex() == facts["head"]
    assert ledger.spent("patients").rho == Fraction(3, 100)


def test_texts_of_others_are_not_interpreted(run: OwnerCommands) -> None:
    scene = run.scene
    book(scene, 1, Fraction(1, 100), "[red]patients[/red]")
    _, out, _ = run("ledger")
    assert "[red]patients[/red]" in out


# Recovery


def broken(scene: Scene, lines: int = 1) -> None:
    path = scene.desk.home.ledger.entries_path
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lines]))


def test_a_ledger_in_order_is_not_recovered(run: OwnerCommands) -> None:
    status, out, err = run("ledger", "--recover", "--yes")
    assert (status, out) == (1, "")
    assert "in order" in err


def test_recovery_asks_first_and_keeps_what_holds(run: OwnerCommands) -> None:
    scene = run.scene
    book(scene, 1, Fraction(1, 100), "patients")
    book(scene, 2, Fraction(2, 100), "patients")
    broken(scene)
    status, out, err = run("ledger")
    assert (status, out) == (1, "")
    assert "--recover" in err
    before = scene.desk.home.ledger.entries_path.read_bytes()
    status, _, err = run("ledger", "--recover")
    assert status == 2
    assert "truncated" in err
    assert scene.desk.home.ledger.entries_path.read_bytes() == before
    status, out, err = run("ledger", "--recover", "--yes", "--json")
    assert status == 0
    facts = json.loads(out)
    assert facts["data_sets"][0]["spent"]["rho"] == "3/100"
    assert facts["lost"]["rho"] == "1/50"
    assert [entry["kind"] for entry in facts["entries"]][-1] == "recovered"
    assert next(scene.desk.home.ledger.folder.glob("entries.refused-*")).read_bytes() == before
    book(scene, 4, Fraction(1, 100), "new")
    assert scene.desk.home.ledger.read().spent("new").rho == Fraction(3, 100)


def test_a_joined_study_is_booked_again_from_its_own_files(make_scene: MakeScene) -> None:
    scene = make_scene()
    join(scene)
    rho = scene.desk.home.ledger.read().live_rho
    broken(scene, 2)  # the commitment and the reservation
    assert "1 studies are booked again" in look_into(scene.desk)
    recover_ledger(scene.desk)
    ledger = scene.desk.home.ledger.read()
    spend = ledger.spend(scene.address.study)
    assert spend is not None
    assert (spend.state, spend.data_set, ledger.live_rho, ledger.lost.rho) == (
        SpendState.COMMITTED, None, rho, Fraction(0),
    )  # fmt: skip
    assert ledger.spent("whatever").rho == rho
    join(scene)
    assert scene.desk.home.ledger.read().live_rho == rho
    with pytest.raises(ConflictError):
        recover_ledger(scene.desk)


def test_a_share_taken_back_and_sent_again_is_not_forgotten(make_scene: MakeScene) -> None:
    scene = make_scene()
    join(scene)
    actions.withdraw(scene.desk, scene.address)
    join(scene)
    rho = scene.desk.home.ledger.read().live_rho
    broken(scene, 2)
    recover_ledger(scene.desk)
    ledger = scene.desk.home.ledger.read()
    assert (ledger.live_rho, ledger.lost.rho) == (rho, Fraction(0))


def test_a_withdrawal_that_was_lost_is_refunded_again(make_scene: MakeScene) -> None:
    scene = make_scene()
    join(scene)
    actions.withdraw(scene.desk, scene.address)
    scene.proxy.close(OTHER, without_owner=True)
    scene.proxy.open(scene.parties.user)
    reports.status(scene.desk, scene.address)
    broken(scene, 1)
    recover_ledger(scene.desk)
    assert scene.desk.home.ledger.read().live_rho > 0
    reports.status(scene.desk, scene.address)
    assert scene.desk.home.ledger.read().live_rho == 0


def test_with_nothing_left_but_the_head_all_of_it_counts_everywhere(make_scene: MakeScene) -> None:
    scene = make_scene()
    book(scene, 1, Fraction(7, 100), "patients")
    scene.desk.home.ledger.entries_path.unlink()
    recover_ledger(scene.desk)
    assert scene.desk.home.ledger.read().spent("new").rho == Fraction(7, 100)


def test_the_ledger_of_somebody_else_proves_nothing(make_scene: MakeScene) -> None:
    scene = make_scene()
    book(scene, 1, Fraction(7, 100), "patients")
    other = Ledger()
    other.add(Ledger.begin(Digest.of(b"other"), Digest.of(b"key"), "2026-01-01T00:00:00Z"))
    scene.desk.home.ledger.entries_path.write_bytes(other.entries[0].line)
    recover_ledger(scene.desk)
    assert scene.desk.home.ledger.read().spent("new").rho == Fraction(7, 100)


def test_a_lost_key_costs_the_memory_of_which_records_were_which(make_scene: MakeScene) -> None:
    scene = make_scene()
    join(scene)
    rho = scene.desk.home.ledger.read().live_rho
    scene.desk.home.ledger.key_path.unlink()
    with pytest.raises(IntegrityError):
        join(scene)
    assert "no longer be recognised" in recover_ledger(scene.desk)
    ledger = scene.desk.home.ledger.read()
    assert (ledger.data_sets, ledger.contents) == ((), {})
    assert ledger.spent("new").rho == rho
    join(scene)
    assert scene.desk.home.ledger.read().live_rho == rho


def test_a_home_from_before_there_was_a_ledger_gets_one(make_scene: MakeScene) -> None:
    import shutil

    scene = make_scene()
    join(scene)
    rho = scene.desk.home.ledger.read().live_rho
    shutil.rmtree(scene.desk.home.ledger.folder)
    recover_ledger(scene.desk)
    ledger = scene.desk.home.ledger.read()
    assert ledger.spent("new").rho == rho
    receipt = present(scene.desk.home.study(scene.address.study).last_receipt_statement())
    assert settle(ledger, receipt, "") == []


def test_the_witness_gives_what_the_folder_has_lost(make_scene: MakeScene, tmp_path: Path) -> None:
    import shutil

    from dpdpca_owner.accounts.ledger_file import LedgerFile

    scene = make_scene()
    file = scene.desk.home.ledger
    watched = LedgerFile(file.folder, tmp_path / "state")
    object.__setattr__(scene.desk.home, "ledger", watched)
    book(scene, 1, Fraction(1, 100), "patients")
    shutil.copytree(file.folder, tmp_path / "backup")
    book(scene, 2, Fraction(5, 100), "patients")
    shutil.rmtree(file.folder)
    shutil.copytree(tmp_path / "backup", file.folder)
    recover_ledger(scene.desk)
    assert watched.read().lost.rho == Fraction(5, 100)
    assert watched.read().spent("patients").rho == Fraction(6, 100)
