"""An owner holds the proxy's transcript against its receipts; each lie of the proxy is one test."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from owner_scene import MakeScene, Scene
from present import present

from dpdpca_owner import actions, reports
from dpdpca_owner.inclusion import check_extends
from dpdpca_owner.upload import Watcher
from dpdpca_protocol.errors import AuthenticationError, DpdpcaError, MessageError
from dpdpca_protocol.messages.share import CohortMember, cohort_digest
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.signing import FORMAT, IdentityKey, sign_statement

OTHER = CohortMember(PartyId.of(b"other"), 1, Digest.of(b"statement"))


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    return make_scene()


def join(scene: Scene) -> None:
    actions.join(
        scene.desk,
        scene.address,
        actions.prepare_join(scene.desk, scene.address, scene.location),
        Watcher(),
    )


def inclusion(scene: Scene) -> Any:
    return reports.status(scene.desk, scene.address).inclusion


def test_open_then_closed_with_this_share_in_it(scene: Scene) -> None:
    join(scene)
    assert inclusion(scene).included is None
    scene.proxy.close(OTHER)
    found = inclusion(scene)
    assert (found.state, found.included, found.receipt.version) == ("closed", True, 1)


def test_closed_without_a_share_of_ours(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    assert (inclusion(scene).included, inclusion(scene).receipt) == (False, None)


def test_closed_after_a_withdrawal(scene: Scene) -> None:
    join(scene)
    actions.withdraw(scene.desk, scene.address)
    scene.proxy.close(OTHER)
    assert inclusion(scene).included is False


@pytest.mark.parametrize("ended", ["cancelled", "failed"])
def test_a_study_that_ended_before_closing(scene: Scene, ended: str) -> None:
    join(scene)
    if ended == "cancelled":
        scene.proxy.cancel(scene.parties.user)
    else:
        scene.proxy.state = ended
        scene.proxy.record(ended, {"reason": "too-few-owners"})
    assert (inclusion(scene).state, inclusion(scene).included) == (ended, None)


def test_a_study_that_closes_between_two_questions_is_no_contradiction(scene: Scene) -> None:
    join(scene)
    asked: list[str] = []

    def close_after_the_first(request: httpx.Request) -> None:
        asked.append(request.url.path)
        if len(asked) == 2:
            scene.proxy.close(OTHER)

    scene.proxy.interfere = close_after_the_first
    assert inclusion(scene).included is True


def test_the_data_user_has_opened_the_release_with_this_share_in_it(scene: Scene) -> None:
    join(scene)
    scene.proxy.close(OTHER)
    scene.proxy.open(scene.parties.user)
    assert (inclusion(scene).state, inclusion(scene).included) == ("released", True)


def test_joined_studies_are_listed(scene: Scene) -> None:
    assert scene.desk.home.joined() == []
    join(scene)
    assert [actions.joined_at(folder) for folder in scene.desk.home.joined()] == [scene.address]


def left_out(scene: Scene) -> None:
    scene.proxy.close(OTHER, without_owner=True)


def older_version(scene: Scene) -> None:
    scene.proxy.close(CohortMember(scene.proxy.owner, 7, Digest.of(b"x")), without_owner=True)


def unsigned_cohort(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    present(scene.proxy.cohort).append(CohortMember(PartyId.of(b"third"), 1, Digest.of(b"y")))


def forgotten_receipt(scene: Scene) -> None:
    scene.proxy.events.clear()


def closed_without_a_word(scene: Scene) -> None:
    scene.proxy.close(OTHER, without_owner=True)
    scene.proxy.events.pop()


def released_without_a_word(scene: Scene) -> None:
    closed_without_a_word(scene)
    scene.proxy.state = "released"


def counted_without_a_word(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.state = "counted"


def released_and_the_last_event_gone(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.state = "released"


def published_and_the_last_event_gone(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.record("release", {"statement": Digest.of(b"release").hex()})
    scene.proxy.state = "published"


def failed_after_a_release(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.record("release", {"statement": Digest.of(b"release").hex()})
    scene.proxy.state = "failed"


def left_out_somebody_else(scene: Scene) -> None:
    scene.proxy.record("receipt", CohortMember(PartyId.of(b"third"), 1, Digest.of(b"y")).to_body())
    scene.proxy.close(OTHER)


def let_somebody_in_without_a_receipt(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.events.pop()
    present(scene.proxy.cohort).append(CohortMember(PartyId.of(b"third"), 1, Digest.of(b"y")))
    scene.proxy.record("closed", {"cohort": cohort_digest(present(scene.proxy.cohort)).hex()})


def cancelled_without_a_word(scene: Scene) -> None:
    scene.proxy.state = "cancelled"


def cancelled_without_the_data_user(scene: Scene) -> None:
    scene.proxy.cancel(scene.parties.user)
    scene.proxy.cancelled = None


def cancelled_by_the_proxy(scene: Scene) -> None:
    scene.proxy.cancel(scene.proxy.key)


def cancelled_with_another_statement(scene: Scene) -> None:
    scene.proxy.cancel(scene.parties.user)
    scene.proxy.cancelled = sign_statement(
        "cancel", {"format": FORMAT, "study": "00" * 32}, scene.parties.user
    )


def opened_without_the_data_user(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.open(scene.parties.user)
    scene.proxy.opened = None


def opened_by_the_proxy(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.open(scene.proxy.key)


def opened_with_another_cohort(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.cohort, shown = [OTHER], scene.proxy.cohort
    scene.proxy.open(scene.parties.user)
    scene.proxy.cohort = shown


def open_again(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.state = "open"


def forged_events(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    scene.proxy.key, honest = IdentityKey.generate(), scene.proxy.key
    scene.proxy.events.pop()
    scene.proxy.record("closed", {"cohort": Digest.of(b"z").hex()})
    scene.proxy.key = honest


def cut_event(scene: Scene) -> None:
    scene.proxy.close(OTHER)
    del scene.proxy.events[0]


@pytest.mark.parametrize(
    "lie",
    [
        left_out,
        older_version,
        unsigned_cohort,
        forgotten_receipt,
        closed_without_a_word,
        released_without_a_word,
        counted_without_a_word,
        released_and_the_last_event_gone,
        published_and_the_last_event_gone,
        failed_after_a_release,
        left_out_somebody_else,
        let_somebody_in_without_a_receipt,
        cancelled_without_a_word,
        cancelled_without_the_data_user,
        cancelled_by_the_proxy,
        cancelled_with_another_statement,
        opened_without_the_data_user,
        opened_by_the_proxy,
        opened_with_another_cohort,
        open_again,
        forged_events,
        cut_event,
    ],
)
def test_a_proxy_that_contradicts_its_signature_is_reported(scene: Scene, lie: Callable[[Any], None]) -> None:
    join(scene)
    lie(scene)
    with pytest.raises((AuthenticationError, MessageError)):
        inclusion(scene)


def test_a_share_after_its_withdrawal_is_reported(scene: Scene) -> None:
    join(scene)
    first = scene.proxy.receipt
    actions.withdraw(scene.desk, scene.address)
    scene.proxy.receipt, scene.proxy.share_state = first, "complete"
    scene.proxy.close(OTHER)
    with pytest.raises(DpdpcaError, match="withdrew"):
        inclusion(scene)


def test_what_was_kept_is_judged_again_without_the_proxy(scene: Scene) -> None:
    join(scene)
    scene.proxy.close(OTHER)
    told = reports.status(scene.desk, scene.address)
    asked = len(scene.proxy.received)
    again = reports.status_offline(scene.desk, scene.address)
    assert len(scene.proxy.received) == asked
    assert (again.inclusion, again.facts.state) == (told.inclusion, told.facts.state)
    kept = scene.desk.home.study(scene.address.study).path / "seen.json"
    kept.write_bytes(kept.read_bytes().replace(b'"closed"', b'"opened"'))
    with pytest.raises(DpdpcaError):
        reports.status_offline(scene.desk, scene.address)


def test_a_transcript_that_lost_what_was_kept_is_an_alarm() -> None:
    kept = (b"one", b"two")
    check_extends((), kept)
    check_extends(kept, (*kept, b"three"))
    for shown in ((), (b"one",), (b"one", b"other"), (b"two", b"one")):
        with pytest.raises(AuthenticationError) as alarm:
            check_extends(kept, shown)
        assert alarm.value.slug == "receipt-contradicts"
