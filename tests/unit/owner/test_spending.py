"""A share is paid for before any of it leaves, once, and refunded only on what the data user has signed."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import pytest
from ledger_world import OTHER, charge
from owner_scene import MakeScene, Scene
from present import present

from dpdpca_owner import actions, reports
from dpdpca_owner.accounts.bookkeeping import reserve
from dpdpca_owner.accounts.budget import Budget, Cost
from dpdpca_owner.accounts.charge import Content, SpendState
from dpdpca_owner.accounts.entries import Batch
from dpdpca_owner.accounts.ledger import Ledger
from dpdpca_owner.accounts.ledger_file import LedgerFile
from dpdpca_owner.records.contribution import read_contribution
from dpdpca_owner.recovery import recover_ledger
from dpdpca_owner.upload import Outcome, Settled, Watcher
from dpdpca_protocol.errors import (
    AuthenticationError,
    ConflictError,
    DpdpcaError,
    IntegrityError,
    PolicyError,
    UnavailableError,
    UsageError,
)
from dpdpca_protocol.messages.share import CohortMember
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import Statement, named_head

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    return make_scene()


def join(scene: Scene, data_set: str | None = None) -> Settled:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location, data_set)
    return actions.join(scene.desk, scene.address, prepared, Watcher())


def ledger(scene: Scene) -> Ledger:
    read: Ledger = scene.desk.home.ledger.read()
    return read


def state(scene: Scene) -> SpendState | None:
    spend = ledger(scene).spend(scene.address.study)
    return None if spend is None else spend.state


def rho(scene: Scene) -> Fraction:
    return Cost.of(actions.review(scene.desk, scene.address, None).manifest.figures).rho


def book(scene: Scene, number: int, price: Fraction, content: Content, data_set: str | None = None) -> None:
    """Another study of this owner, booked without being run."""
    budget = Budget.of_rho(Fraction(100), Fraction(1, 10**6))
    booked = replace(charge(number, price), owner=scene.desk.owner.key.public.party_id)
    with scene.desk.home.ledger.writing(NOW) as opened:
        entries = reserve(opened.ledger, booked, content, data_set, budget, opened.time)
        opened.record(entries)


def content_of(scene: Scene) -> Content:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    return prepared.contribution.content


def puts(scene: Scene) -> list[str]:
    return [line for line in scene.proxy.received if line.startswith("PUT")]


def add_record(scene: Scene) -> None:
    with Path(scene.location.data).open("a", encoding="utf-8") as file:
        file.write("1,100,3\n")


def test_the_entry_is_on_the_disk_when_the_first_byte_leaves(scene: Scene) -> None:
    seen = []

    def interfere(request: httpx.Request) -> None:
        if request.method == "PUT":
            seen.append((state(scene), scene.desk.home.ledger.read().live_rho))

    scene.proxy.interfere = interfere
    join(scene)
    assert seen == [(SpendState.RESERVED, rho(scene))] * len(seen) != []
    assert (state(scene), ledger(scene).live_rho) == (SpendState.COMMITTED, rho(scene))


def test_nothing_is_booked_by_looking_or_refusing(scene: Scene) -> None:
    actions.review(scene.desk, scene.address, scene.location)
    actions.prepare_join(scene.desk, scene.address, scene.location)
    scene.proxy.state = "closed"
    with pytest.raises(ConflictError):
        join(scene)
    assert ledger(scene).spends == []


def test_a_share_that_is_replaced_or_sent_again_costs_nothing_more(scene: Scene) -> None:
    join(scene)
    assert join(scene).outcome is Outcome.ALREADY
    add_record(scene)
    assert join(scene).receipt.version == 2
    assert ledger(scene).live_rho == rho(scene)
    assert len(ledger(scene).data_sets) == 1
    assert [records for _, records, _ in ledger(scene).contents.values()] == [40, 41]


def test_an_interrupted_join_is_paid_once(scene: Scene) -> None:
    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.method == "PUT":
            raise httpx.ReadError("cut")
        return None

    scene.proxy.interfere = interfere
    with pytest.raises(UnavailableError):
        join(scene)
    assert state(scene) is SpendState.RESERVED
    scene.proxy.interfere = lambda request: None
    join(scene)
    assert (state(scene), ledger(scene).live_rho) == (SpendState.COMMITTED, rho(scene))


def test_a_receipt_that_was_not_booked_is_booked_by_the_next_command(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "settle", lambda *_: None)
        join(scene)
    assert state(scene) is SpendState.RESERVED
    reports.status(scene.desk, scene.address)
    assert state(scene) is SpendState.COMMITTED


def signed(scene: Scene, kind: str, version: int) -> Statement:
    statement: Statement | None = scene.desk.home.study(scene.address.study).statement(kind, version)
    assert statement is not None
    return statement


def test_what_an_owner_signs_names_its_ledger_and_status_tells_when_that_was_replaced(scene: Scene) -> None:
    join(scene)
    share, *before, _ = [named_head(signed(scene, "share", 1).body), *ledger(scene).entries]
    assert share == before[-1].digest
    assert before[-1].kind == "reserve"
    assert reports.status(scene.desk, scene.address).is_ledger_whole is True
    file = scene.desk.home.ledger
    file.entries_path.write_bytes(b"".join(entry.line for entry in before[:-1]))
    recover_ledger(scene.desk)
    assert state(scene) is SpendState.COMMITTED
    assert reports.status(scene.desk, scene.address).is_ledger_whole is False
    actions.withdraw(scene.desk, scene.address)
    assert named_head(signed(scene, "withdrawal", 2).body) == ledger(scene).entries[-1].digest
    assert reports.status(scene.desk, scene.address).is_ledger_whole is True


def test_a_damaged_statement_keeps_nobody_from_asking_or_withdrawing(scene: Scene) -> None:
    join(scene)
    folder: Path = scene.desk.home.study(scene.address.study).path
    (folder / "share-1.json").write_bytes(b"{")
    assert reports.status(scene.desk, scene.address).is_ledger_whole is None
    (folder / "withdrawal-2.json").write_bytes(b"{")
    (folder / "withdrawal-2.json").chmod(0o600)
    actions.withdraw(scene.desk, scene.address)
    assert scene.proxy.share_state == "withdrawn"


def test_a_claim_that_got_lost_is_the_same_again_though_the_ledger_has_grown(scene: Scene) -> None:
    """One that is only late would else meet another statement under its own version."""

    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/complete"):
            raise httpx.ReadError("cut")
        return None

    scene.proxy.interfere = interfere
    with pytest.raises(UnavailableError):
        join(scene)
    first = signed(scene, "share", 1)
    book(scene, 1, Fraction(1, 100), content_of(scene))
    scene.proxy.interfere = lambda request: None
    assert join(scene).receipt.statement == first.digest


def test_a_withdrawal_is_refunded_when_the_data_user_opens_a_cohort_without_the_share(scene: Scene) -> None:
    join(scene)
    actions.withdraw(scene.desk, scene.address)
    scene.proxy.close(OTHER, without_owner=True)
    reports.status(scene.desk, scene.address)
    assert (state(scene), ledger(scene).live_rho) == (SpendState.COMMITTED, rho(scene))
    scene.proxy.open(scene.parties.user)
    reports.status(scene.desk, scene.address)
    assert (state(scene), ledger(scene).live_rho) == (SpendState.WITHDRAWN, Fraction(0))


def test_a_share_that_is_sent_again_after_a_withdrawal_is_paid_once(scene: Scene) -> None:
    join(scene)
    actions.withdraw(scene.desk, scene.address)
    join(scene)
    assert [entry.kind for entry in ledger(scene).entries][-2:] == ["commit", "commit"]
    scene.proxy.close(OTHER)
    scene.proxy.open(scene.parties.user)
    reports.status(scene.desk, scene.address)
    assert (state(scene), ledger(scene).live_rho) == (SpendState.COMMITTED, rho(scene))


def test_a_withdrawal_that_the_proxy_refuses_refunds_nothing(scene: Scene) -> None:
    join(scene)
    scene.proxy.close()
    with pytest.raises(ConflictError):
        actions.withdraw(scene.desk, scene.address)
    assert state(scene) is SpendState.COMMITTED


@pytest.mark.parametrize("withdrawn", [False, True])
def test_status_finds_a_cancellation_and_refunds_it(scene: Scene, withdrawn: bool) -> None:
    join(scene)
    if withdrawn:
        actions.withdraw(scene.desk, scene.address)
    scene.proxy.cancel(scene.parties.user)
    report = reports.status(scene.desk, scene.address)
    assert present(report.spend).state is SpendState.CANCELLED
    assert ledger(scene).live_rho == 0
    reports.status(scene.desk, scene.address)
    add_record(scene)
    with pytest.raises(ConflictError):
        join(scene)


@pytest.mark.parametrize("state_word", ["failed", "closed"])
def test_a_study_that_fails_or_closes_stays_booked(scene: Scene, state_word: str) -> None:
    join(scene)
    scene.proxy.close()
    if state_word == "failed":
        scene.proxy.record("failed", {"reason": "cohort-too-small"})
        scene.proxy.state = "failed"
    assert present(reports.status(scene.desk, scene.address).spend).state is SpendState.COMMITTED


def test_a_cancellation_that_is_only_said_refunds_nothing(scene: Scene) -> None:
    join(scene)
    scene.proxy.state = "cancelled"
    with pytest.raises(AuthenticationError):
        reports.status(scene.desk, scene.address)
    assert state(scene) is SpendState.COMMITTED


def test_a_cohort_that_holds_a_withdrawn_share_is_charged_again_and_reported(scene: Scene) -> None:
    """An earlier version has refunded the share on the receipt of the withdrawal."""
    taken = join(scene).receipt
    actions.withdraw(scene.desk, scene.address)
    with scene.desk.home.ledger.writing(NOW) as book:
        batch = Batch(len(book.ledger.entries), book.ledger.last, book.ledger.entries[-1].time)
        study = scene.address.study.hex()
        told = {"evidence": Digest.of(b"receipt").hex(), "study": study, "version": 2, "why": "withdrawn"}
        batch.add("refund", told)
        book.record(batch.entries)
    assert ledger(scene).live_rho == 0
    scene.proxy.close(CohortMember(taken.owner, taken.version, taken.statement))
    with pytest.raises(AuthenticationError, match="withdrew"):
        reports.status(scene.desk, scene.address)
    assert ledger(scene).live_rho == rho(scene)


# The budget


def test_what_was_spent_on_the_same_records_counts(scene: Scene) -> None:
    content, price = content_of(scene), rho(scene)
    scene.desk.home.policy_path.write_text(f"[budget]\nrho = {float(price * 19 / 2):.6f}\n")
    book(scene, 1, price * 9, content)
    with pytest.raises(PolicyError) as refusal:
        join(scene)
    assert refusal.value.slug == "budget-exceeded"
    assert not puts(scene)
    add_record(scene)  # other records, and so another budget, unless the owner names them
    with pytest.raises(PolicyError):
        join(scene, ledger(scene).data_sets[0])
    join(scene)
    assert len(ledger(scene).data_sets) == 2


def test_a_name_in_the_policy_holds_whatever_the_records(scene: Scene) -> None:
    price = rho(scene)
    text = f'[budget]\nrho = {float(price * 3 / 2):.6f}\n[data]\ndataset = "patients"\n'
    scene.desk.home.policy_path.write_text(text)
    join(scene)
    assert ledger(scene).data_sets == ("patients",)
    add_record(scene)
    assert "these records belong to the data set 'patients'" in sentences(scene)
    content, budget = content_of(scene), scene.desk.home.policy().budget
    with pytest.raises(PolicyError):
        reserve(ledger(scene), charge(1, price), content, "patients", budget, "2026-01-01T00:00:00Z")


def test_two_joins_that_were_both_allowed_do_not_both_pass(scene: Scene) -> None:
    price = rho(scene)
    scene.desk.home.policy_path.write_text(f"[budget]\nrho = {float(price * 3 / 2):.6f}\n")
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)
    book(scene, 1, price, prepared.contribution.content)
    with pytest.raises(PolicyError) as refusal:
        actions.join(scene.desk, scene.address, prepared, Watcher())
    assert refusal.value.slug == "budget-exceeded"
    assert not puts(scene)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 200])
def test_a_bad_name_is_refused_before_anything_is_read(scene: Scene, name: str) -> None:
    with pytest.raises(UsageError):
        actions.prepare_join(scene.desk, scene.address, scene.location, name or "\n")


# The consent sheet


def sentences(scene: Scene, data_set: str | None = None, *, data: bool = True) -> str:
    location = scene.location if data else None
    return "\n".join(actions.review(scene.desk, scene.address, location, data_set).spending.lines())


def test_the_sheet_says_what_was_spent_and_will_be(scene: Scene) -> None:
    assert "nothing has been spent on these records yet" in sentences(scene)
    book(scene, 1, rho(scene), content_of(scene))
    text = sentences(scene)
    assert f"spent before: ε = {float(epsilon(scene, 1)):.4g}" in text
    assert f"with this study: ε = {float(epsilon(scene, 2)):.4g}" in text
    assert "your budget: ε = 10" in text
    facts = actions.review(scene.desk, scene.address, scene.location).to_json()["ledger"]
    assert facts["before"]["epsilon"] < facts["after"]["epsilon"] < facts["budget"]["epsilon"]
    assert json.dumps(facts)


def epsilon(scene: Scene, studies: int) -> Fraction:
    return scene.desk.home.policy().budget.epsilon_of(rho(scene) * studies)


def test_the_sheet_names_other_data_sets_that_may_be_the_same_people(scene: Scene) -> None:
    book(scene, 1, Fraction(1), Content(content_of(scene).fingerprint, 40), "patients")
    add_record(scene)
    text = sentences(scene)
    assert "if they are about the same people as 'patients'" in text
    assert "these records belong to the data set 'patients'" in sentences(scene, "patients")


def test_without_records_the_sheet_says_what_it_can(scene: Scene) -> None:
    assert "0 data sets" in sentences(scene, data=False)
    book(scene, 1, Fraction(1, 10), content_of(scene), "patients")
    assert "these records belong to the data set 'patients'" in sentences(scene, data=False)
    add_record(scene)
    book(scene, 2, Fraction(1, 10), content_of(scene), "others")
    assert "2 data sets" in sentences(scene, data=False)
    facts = actions.review(scene.desk, scene.address, None).to_json()["ledger"]
    assert (facts["data_set"], facts["fits"]) == (None, None)


def test_a_study_that_is_booked_shows_itself_once(scene: Scene) -> None:
    join(scene)
    text = sentences(scene)
    assert "spent before: ε = 0 (ρ = 0)" in text
    assert "costs nothing more" in text


def test_a_merge_is_announced(scene: Scene) -> None:
    book(scene, 1, Fraction(1, 100), content_of(scene))
    assert "will be merged into this data set" in sentences(scene, "patients")
    join(scene, "patients")
    assert ledger(scene).data_sets == ("patients",)
    assert ledger(scene).spent("patients").rho == rho(scene) + Fraction(1, 100)


def test_a_study_and_the_records_of_another_data_set_are_not_mixed_unasked(scene: Scene) -> None:
    join(scene)
    add_record(scene)
    content = read_contribution(
        scene.location, actions.review(scene.desk, scene.address, None).manifest, scene.desk.home.ledger.key()
    ).content
    book(scene, 1, Fraction(1, 100), content, "others")
    with pytest.raises(ConflictError) as refusal:
        join(scene)
    assert refusal.value.slug == "two-data-sets"
    join(scene, "others")
    assert ledger(scene).data_sets == ("others",)


# A ledger that is not in order


def break_ledger(scene: Scene) -> None:
    path = scene.desk.home.ledger.entries_path
    path.write_bytes(path.read_bytes()[:-10])


def try_review(scene: Scene) -> None:
    actions.review(scene.desk, scene.address, scene.location)


def try_join(scene: Scene) -> None:
    add_record(scene)
    join(scene)


def try_withdraw(scene: Scene) -> None:
    actions.withdraw(scene.desk, scene.address)


@pytest.mark.parametrize("act", [try_review, try_join, try_withdraw])
def test_nothing_is_done_on_a_ledger_that_is_not_in_order(scene: Scene, act: Callable[[Any], None]) -> None:
    join(scene)
    scene.proxy.received.clear()
    break_ledger(scene)
    with pytest.raises(IntegrityError):
        act(scene)
    assert all(line.startswith("GET") for line in scene.proxy.received)


def test_a_lost_ledger_folder_is_refused_and_not_begun_anew(scene: Scene) -> None:
    join(scene)
    shutil.rmtree(scene.desk.home.ledger.folder)
    with pytest.raises(IntegrityError) as refusal:
        join(scene)
    assert refusal.value.slug == "ledger-missing"


def test_a_ledger_that_cannot_be_written_lets_nothing_leave(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = actions.prepare_join(scene.desk, scene.address, scene.location)

    def refuse(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("dpdpca_owner.accounts.ledger_file.append_synced", refuse)
        with pytest.raises(UnavailableError) as refusal:
            actions.join(scene.desk, scene.address, prepared, Watcher())
    assert refusal.value.slug == "ledger-not-written"
    assert not puts(scene)
    assert scene.desk.home.study(scene.address.study).plan() is None
    assert actions.join(scene.desk, scene.address, prepared, Watcher()).outcome is Outcome.DONE


def test_times_of_the_books_are_the_desk_s(scene: Scene) -> None:
    join(scene)
    times = {entry.time for entry in ledger(scene).entries}
    assert all(datetime.fromisoformat(time) <= datetime.now(UTC) + timedelta(minutes=1) for time in times)


def test_evidence_is_verified_again_when_it_is_booked(scene: Scene) -> None:
    join(scene)
    actions.withdraw(scene.desk, scene.address)
    folder = scene.desk.home.study(scene.address.study)
    path = folder.path / "receipt-2.json"
    path.write_bytes(path.read_bytes().replace(b'"version":2', b'"version":9'))
    with pytest.raises(DpdpcaError):
        scene.desk.home.ledger.settle(folder.last_receipt_statement(), NOW)
