"""An owner declines a study: what is sent and kept, and what no approval does after that."""

import json

import httpx
import pytest
from owner_scene import OwnerCommands

from dpdpca_owner.declining import decline
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.following import Follower, Records
from dpdpca_protocol.errors import DpdpcaError


def words_sent(run: OwnerCommands) -> int:
    return sum(line.endswith("/decline") for line in run.scene.proxy.received)


def refused(run: OwnerCommands, why: str | None = None) -> str:
    with pytest.raises(DpdpcaError) as caught:
        decline(run.scene.desk, run.scene.address, why)
    return caught.value.slug


def test_the_data_user_gets_a_signed_word_and_nothing_is_spent(run: OwnerCommands) -> None:
    scene, address = run.scene, str(run.scene.address)
    before = scene.desk.home.ledger.read()
    status, out, _ = run("decline", address, "--why", "our board meets in January", "--json")
    assert status == 0
    assert json.loads(out)["is_booked"] is False
    said = scene.proxy.declined
    assert said is not None
    assert (said.owner, said.why) == (scene.desk.owner.key.public.ed25519, "our board meets in January")
    assert scene.desk.home.ledger.read().last == before.last
    assert not scene.desk.home.joined()
    (request,) = json.loads(run("inbox", "--json")[1])["requests"]
    assert request["declined"] == {"time": said.time, "why": said.why, "is_told": True}
    shown = run("inbox")[1]
    assert f"you declined on {said.time[:10]}" in shown
    assert "next" not in shown


def test_a_repeated_word_is_the_same_and_another_reason_a_new_one(run: OwnerCommands) -> None:
    address = str(run.scene.address)
    run("decline", address, "--why", "no")
    first = run.scene.proxy.declined
    for words in ((), ("--why", "no")):
        assert run("decline", address, *words)[0] == 0
        assert run.scene.proxy.declined == first
    run.scene.proxy.state = "closed"
    assert run("decline", address)[0] == 0  # the first answer may have been lost
    assert refused(run, "too late") == "study-closed"
    kept = run.scene.desk.home.study(run.scene.address.study).declined()
    assert kept is not None
    assert (kept.why, kept.is_told) == ("no", True)


@pytest.mark.parametrize("why", ["", "x" * 501, "two\nlines", "\x1b[2J", " padded"])
def test_a_reason_that_nobody_should_print_is_not_sent(run: OwnerCommands, why: str) -> None:
    assert refused(run, why) == "bad-why"
    assert not run.scene.proxy.received


def test_a_share_that_is_complete_is_withdrawn_instead(run: OwnerCommands) -> None:
    address = str(run.scene.address)
    run("join", address, "--data", str(run.scene.location.data), "--yes")
    assert refused(run) == "share-complete"
    assert words_sent(run) == 0
    assert "withdraw" in run("decline", address)[2]
    run("withdraw", address, "--yes")
    assert run("decline", address)[0] == 0


def test_a_proxy_that_has_the_share_refuses_and_no_record_stays(run: OwnerCommands) -> None:
    """The receipt was lost: only the proxy knows that the share is complete."""
    address, home = run.scene.address, run.scene.desk.home
    home.followed.add(FollowedStudy(address, "patients", "people"))
    run.scene.proxy.share_state = "complete"
    assert refused(run) == "share-complete"
    assert home.study(address.study).declined() is None
    assert home.followed.all()


def test_the_record_stands_although_the_proxy_is_away(run: OwnerCommands) -> None:
    address, home = run.scene.address, run.scene.desk.home
    home.followed.add(FollowedStudy(address, "patients", "people"))
    run.scene.proxy.interfere = lambda request: (
        httpx.Response(503) if request.url.path.endswith("/decline") else None
    )
    status, _, err = run("decline", str(address))
    assert status == 1
    assert "not told yet" in err
    assert not home.followed.all()
    assert "the data user is not told yet" in run("inbox")[1]
    run.scene.proxy.interfere = lambda request: None
    assert run("decline", str(address))[0] == 0
    assert "not told" not in run("inbox")[1]


def test_what_was_booked_for_a_share_that_was_begun_stays_booked(run: OwnerCommands) -> None:
    address, ledger = run.scene.address, run.scene.desk.home.ledger
    run.scene.proxy.interfere = lambda request: (
        httpx.Response(500) if request.url.path.endswith("complete") else None
    )
    assert run("join", str(address), "--data", str(run.scene.location.data), "--yes")[0] == 1
    before = ledger.read().last
    status, out, _ = run("decline", str(address))
    assert status == 0
    assert "stays booked" in out
    assert ledger.read().last == before


def test_no_earlier_approval_joins_but_a_person_may(run: OwnerCommands) -> None:
    scene, address = run.scene, run.scene.address
    run("decline", str(address))
    follower = Follower(scene.desk, address, Records(scene.location, "people"), is_approved=True)
    with pytest.raises(DpdpcaError) as caught:
        follower.advance()
    assert caught.value.slug == "study-declined"
    assert not any("share" in line for line in scene.proxy.received)
    assert run("join", str(address), "--data", str(scene.location.data), "--yes")[0] == 0
    assert json.loads(run("inbox", "--json")[1])["requests"][0]["declined"] is None


def test_a_word_that_came_while_a_share_was_prepared_stops_it(run: OwnerCommands) -> None:
    from dpdpca_owner.actions import join, prepare_join
    from dpdpca_owner.upload import Watcher

    scene = run.scene
    prepared = prepare_join(scene.desk, scene.address, scene.location, "people")
    decline(scene.desk, scene.address)
    with pytest.raises(DpdpcaError) as caught:
        join(scene.desk, scene.address, prepared, Watcher())
    assert caught.value.slug == "study-declined"
    assert not scene.desk.home.ledger.read().spends
