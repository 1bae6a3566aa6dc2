"""A proxy shows an owner another history than the data user, so that the owner's ledger refunds a share that
is released.

In each attack the data user opens a release with the victim's share in it, and its evidence verifies.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from owner_world import desk_of, make_owner_home
from proxy_world import ProxyWorld, wait_for
from user_world import UserWorld, share_values

from dpdpca_owner import actions, reports
from dpdpca_owner.accounts import bookkeeping
from dpdpca_owner.accounts.bookkeeping import Ending
from dpdpca_owner.accounts.charge import Spend, SpendState
from dpdpca_owner.actions import Desk
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import AuthenticationError
from dpdpca_protocol.messages.share import CohortMember, Receipt, cohort_digest
from dpdpca_protocol.messages.study_messages import StudyAct, StudyMark
from dpdpca_protocol.messages.transcript import Event, verify_transcript
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement, sign_statement, verify_statement
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.answers import History, StudyFacts
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_user import evidence
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow

_RECORDS = "f0,f1,f2\n" + "".join(f"{i / 50},{-i / 60},{i / 70}\n" for i in range(40))


class Scene:
    """A study with a victim, whose proxy the test has in its hands."""

    def __init__(self, world: ProxyWorld, folder: Path) -> None:
        self.world = world
        self.user = UserWorld(world, folder / "user")
        self.row: StudyRow = self.user.advance_to(self.user.create(), Stage.OPEN)
        self.study: StudyId = self.row.known_study
        self.desk: Desk = desk_of(make_owner_home(folder / "home", world))
        self.address = StudyAddress(world.url, self.study)
        self.location = DataLocation(str(folder / "records.csv"))
        (folder / "records.csv").write_text(_RECORDS)
        self.before: tuple[bytes, ...] = ()

    def join(self) -> None:
        prepared = actions.prepare_join(self.desk, self.address, self.location)
        actions.join(self.desk, self.address, prepared, Watcher())
        self.before = self.world.client(self.world.user).transcript(self.study)

    def others(self) -> list[CohortMember]:
        """The other owners deliver; what the cohort has of them."""
        study, receipts = self.user.opened(self.row), []
        for seed, owner in enumerate(self.world.owners[1:]):
            receipts.append(Receipt.parse(study.deliver(owner, share_values(study, seed))))
        return [CohortMember(each.owner, each.version, each.statement) for each in receipts]

    def lie(self, **answers: Callable[..., Any]) -> None:
        """Whatever the victim's client asks by these methods, the proxy answers so."""
        honest = self.desk.connect

        def connect(url: str, key: IdentityKey, pinned: bytes | None, seconds: float) -> ProxyClient:
            client = honest(url, key, pinned, seconds)
            for name, answer in answers.items():
                setattr(client, name, answer)
            return client

        self.desk = replace(self.desk, connect=connect)

    def events(self, *told: tuple[str, dict[str, Any]]) -> tuple[bytes, ...]:
        """The events that the victim has seen, and further ones."""
        events = list(self.before)
        for kind, detail in told:
            before = verify_statement("event", events[-1])
            event = Event(self.study, len(events), before.digest, before.body["time"], kind, detail)
            events.append(event.sign(self.world.proxy.key).encoded)
        return tuple(events)

    def facts(self, state: str, cohort: list[CohortMember]) -> StudyFacts:
        honest = self.world.client(self.world.owners[0]).study(self.study)
        mark = StudyMark(self.study, state, 99, Digest.of(b"fork"), time_text(self.world.clock()))
        return replace(
            honest,
            state=state,
            cohort_members=tuple(cohort),
            failure=None,
            mark=mark.sign(self.world.proxy.key).encoded,
        )

    def release(self) -> None:
        """The data user opens a release with the victim's share in it, and verifies it."""
        self.row = self.user.advance_to(self.row, Stage.PUBLISHED)
        model = self.user.service.model_of(self.row.id)
        assert len(model.provenance.owners) == 3
        assert model.components.count == 2 * 200 + 40

    def spent(self) -> Fraction:
        rho: Fraction = self.desk.home.ledger.read().live_rho
        return rho


@pytest.fixture
def scene(world: ProxyWorld, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(world, tmp_path)
    yield made
    made.user.service.close()


Found = tuple[SpendState, Statement, int] | None


def refund_without_the_data_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first version refunded: on what the proxy alone has signed."""

    def cancelled(told: Ending, spend: Spend) -> Found:
        events = verify_transcript(told.transcript, told.study, spend.charge.proxy)
        if events[-1].kind != "cancelled":
            return None
        return SpendState.CANCELLED, verify_statement("event", told.transcript[-1]), spend.version

    def withdrawn(told: Ending, spend: Spend) -> Found:
        statement = verify_statement("receipt", told.receipt or b"", spend.charge.proxy)
        said = Receipt.parse(statement)
        return (SpendState.WITHDRAWN, statement, said.version) if said.subject == "withdrawal" else None

    monkeypatch.setattr(bookkeeping, "_cancelled", cancelled)
    monkeypatch.setattr(bookkeeping, "_withdrawn", withdrawn)
    monkeypatch.setattr(reports, "check_ending", lambda *_: None)


def say_cancelled(scene: Scene, by: IdentityKey | None) -> None:
    """The proxy tells the victim that the study is cancelled. No `cancel` is by the data user."""
    cancel = None if by is None else StudyAct("cancel", scene.study).sign(by)
    named = {} if cancel is None else {"statement": cancel.digest.hex()}
    events = scene.events(("cancelled", named))
    shown = History(events, None if cancel is None else cancel.encoded, None)
    scene.lie(history=lambda _: shown, study=lambda _: scene.facts("cancelled", []))


@pytest.mark.parametrize(
    ("signed", "defended"),
    [("by nobody", True), ("by the proxy", True), ("by another data user", True), ("by the proxy", False)],
)
def test_a_cancellation_that_only_one_owner_sees(
    scene: Scene, signed: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.join()
    price = scene.spent()
    scene.others()
    keys = {"by nobody": None, "by the proxy": scene.world.proxy.key}
    say_cancelled(scene, keys.get(signed, IdentityKey.generate()))
    if defended:
        with pytest.raises(AuthenticationError):
            reports.status(scene.desk, scene.address)
    else:
        refund_without_the_data_user(monkeypatch)
        reports.status(scene.desk, scene.address)
    scene.release()
    assert scene.spent() == (price if defended else 0)


def withdraw_in_vain(scene: Scene) -> None:
    """The proxy gives the victim a receipt for its withdrawal, and keeps the share."""

    def acknowledge(study: StudyId, wish: Statement) -> Statement:
        owner, time = scene.world.owners[0].public.party_id, time_text(scene.world.clock())
        receipt = Receipt(study, owner, wish.body["version"], "withdrawal", wish.digest, time)
        return receipt.sign(scene.world.proxy.key)

    scene.lie(withdraw_share=acknowledge)
    settled = actions.withdraw(scene.desk, scene.address)
    said = settled.receipt
    scene.before = scene.events(
        (
            "withdrawal",
            {"owner": said.owner.hex(), "version": said.version, "statement": said.statement.hex()},
        )
    )


@pytest.mark.parametrize(
    ("shown", "defended"),
    [
        ("closed", True),
        ("the data user's own `opened`", True),
        ("an `opened` by the proxy", True),
        ("closed", False),
    ],
)
def test_a_withdrawal_that_only_one_owner_sees(
    scene: Scene, shown: str, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.join()
    price = scene.spent()
    if not defended:
        refund_without_the_data_user(monkeypatch)
    withdraw_in_vain(scene)
    cohort = scene.others()
    scene.release()
    honest = scene.world.client(scene.world.user).history(scene.study)
    told: list[tuple[str, dict[str, Any]]] = [
        *(("receipt", member.to_body()) for member in cohort),
        ("closed", {"cohort": cohort_digest(cohort).hex(), "owners": 2, "reason": "on time"}),
    ]
    opened, state = honest.opened, "closed"
    assert opened is not None
    if shown != "closed":
        body = dict(verify_statement("opened", opened).body)
        told.append(("release", {"statement": body["release"], "owners": 2}))
        if shown == "an `opened` by the proxy":
            forged = body | {"cohort": cohort_digest(cohort).hex()}
            opened = sign_statement("opened", forged, scene.world.proxy.key).encoded
        told.append(("opened", {"statement": verify_statement("opened", opened).digest.hex()}))
        state = "released"
    history = History(scene.events(*told), None, opened if shown != "closed" else None)
    scene.lie(history=lambda _: history, study=lambda _: scene.facts(state, cohort))
    if defended and shown != "closed":
        with pytest.raises(AuthenticationError):
            reports.status(scene.desk, scene.address)
    else:
        reports.status(scene.desk, scene.address)
    assert scene.spent() == (price if defended else 0)


@pytest.mark.parametrize("defended", [True, False])
def test_a_fork_before_an_owners_statement(
    scene: Scene, defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The victim names the head that it was shown, and the data user's log does not contain this head."""
    if not defended:
        monkeypatch.setattr(evidence, "_check_log", lambda *_: None)
    scene.lie(study=lambda _: scene.facts("open", []))
    scene.join()
    scene.others()
    if not defended:
        scene.release()
        return
    wait_for(lambda: scene.user.advance(scene.row).stage is Stage.FAILED)
    row = scene.user.row(scene.row.id)
    assert (row.problem_slug, "different histories" in (row.problem or "")) == ("transcript-broken", True)
    assert "open_release" not in scene.user.workers.calls
    assert scene.world.client(scene.world.user).history(scene.study).opened is None
