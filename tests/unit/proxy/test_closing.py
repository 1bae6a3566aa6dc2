"""Closing, cancelling and the count: every refusal has its type and changes nothing."""

import json
from datetime import timedelta
from typing import Any

import pytest
from proxy_world import HEAD, OpenStudy, ProxyWorld, dump, refused, slug, values_of, wait_for

from dpdpca_protocol.messages.study_messages import StudyAct
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.studies import summaries


@pytest.fixture
def study(world: ProxyWorld) -> OpenStudy:
    return world.open_study(3)


def test_a_closed_study_stays_closed(study: OpenStudy) -> None:
    world = study.world
    chunks = study.plain_chunks(values_of(3, 2))
    for seed, owner in enumerate(world.owners[:2]):
        study.deliver(owner, values_of(3, seed))
    study.upload(world.owners[2], chunks)
    study.close()
    study.close()
    late = world.owners[2]
    claim = study.claim(late, chunks)
    assert refused(lambda: world.client(late).complete_share(study.study, claim)).slug == "study-closed"
    assert refused(lambda: study.withdraw(world.owners[0], 2)).slug == "study-closed"
    assert refused(lambda: study.deliver(late, values_of(3, 3), version=2)).slug == "study-closed"
    study.wait_state("released")
    assert refused(study.cancel).slug in ("wrong-state", "noise-already-drawn")


def test_closing_by_hand_needs_enough_owners(study: OpenStudy) -> None:
    study.deliver(study.world.owners[0], values_of(3, 0))
    before = dump(study.world.proxy)
    error = refused(study.close)
    assert error.slug == "cohort-too-small"
    assert dump(study.world.proxy) == before


def test_too_few_owners_at_closing_time_fail_the_study(study: OpenStudy) -> None:
    world = study.world
    study.deliver(world.owners[0], values_of(3, 0))
    world.clock.ahead = timedelta(seconds=3601)
    world.proxy.wake()
    wait_state(study, "failed")
    world.clock.ahead = timedelta()
    facts = world.client(world.user).study(study.study)
    assert facts.failure == "too-few-owners"
    wait_for(study.is_swept)
    assert refused(lambda: world.client(world.user).release(study.study)).slug == "wrong-state"


def wait_state(study: OpenStudy, state: str) -> None:
    """By the database, for the routes refuse requests while the clock stands ahead."""
    proxy, name = study.world.proxy, study.study.hex()
    wait_for(lambda: {one["study"]: one["state"] for one in summaries(proxy)}[name] == state)


def test_the_closing_time_closes(study: OpenStudy) -> None:
    world = study.world
    for seed, owner in enumerate(world.owners[:2]):
        study.deliver(owner, values_of(3, seed))
    world.clock.ahead = timedelta(seconds=3601)
    world.proxy.wake()
    wait_state(study, "released")


def test_a_cancelled_study_is_over(study: OpenStudy) -> None:
    world = study.world
    study.deliver(world.owners[0], values_of(3, 0))
    study.cancel()
    study.cancel()
    assert study.state() == "cancelled"
    assert study.is_swept()
    assert refused(lambda: study.deliver(world.owners[1], values_of(3, 1))).slug == "study-closed"
    assert refused(lambda: world.client(world.user).release(study.study)).slug == "wrong-state"


def test_a_statement_of_another_kind_does_not_close(study: OpenStudy) -> None:
    world = study.world
    cancel = StudyAct("cancel", study.study).sign(world.user).encoded
    before = dump(world.proxy)
    assert slug(world.request(world.user, "POST", f"{study.path}/close", cancel)) == "malformed"
    assert dump(world.proxy) == before


def masked_to_count(world: ProxyWorld, **changes: Any) -> OpenStudy:
    study = world.open_study(3, release="masked", closing="when-complete", **changes)
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    return study


@pytest.mark.parametrize("lie", [1, -1, 100])
def test_a_false_count_is_refused_and_draws_nothing(world: ProxyWorld, lie: int) -> None:
    study = masked_to_count(world)
    challenge = study.challenge()
    before = dump(world.proxy)
    client = world.client(world.user)
    answer = study.count_answer(challenge, add=lie)
    assert refused(lambda: client.answer_count(study.study, answer)).slug == "count-proof-false"
    assert dump(world.proxy) == before
    assert "draw" not in world.worker.calls  # type: ignore[attr-defined] # it is an InlineWorker
    client.answer_count(study.study, study.count_answer(challenge))
    study.wait_state("released")


def test_the_count_is_answered_once(world: ProxyWorld) -> None:
    study = masked_to_count(world)
    challenge = study.challenge()
    client = world.client(world.user)
    answer = study.count_answer(challenge)
    client.answer_count(study.study, answer)
    client.answer_count(study.study, answer)
    other = study.count_answer(challenge, add=1)
    assert refused(lambda: client.answer_count(study.study, other)).slug == "count-already-answered"
    study.wait_state("released")
    client.answer_count(study.study, answer)


def test_a_count_out_of_range_fails_the_study_before_any_draw(world: ProxyWorld) -> None:
    study = masked_to_count(world, min_records=16)
    client = world.client(world.user)
    answer = study.count_answer(study.challenge())
    assert refused(lambda: client.answer_count(study.study, answer)).slug == "count-out-of-range"
    assert study.state() == "failed"
    assert "draw" not in world.worker.calls  # type: ignore[attr-defined] # it is an InlineWorker
    assert refused(lambda: client.release(study.study)).slug == "wrong-state"


def whole_answers(study: OpenStudy, who: IdentityKey) -> dict[str, Any]:
    """All that the routes which are open to every role tell `who` of a study."""
    paths = ("", "/manifest", "/transcript")
    answers = {path: study.world.request(who, "GET", study.path + path).json() for path in paths}
    return answers | {"all": study.world.request(who, "GET", "/v1/studies").json()}


def integers(value: Any) -> set[int]:
    if isinstance(value, dict):
        return set().union(*map(integers, value.values()))
    if isinstance(value, list):
        return set().union(*map(integers, value))
    return {value} if type(value) is int else set()


RARE = 1753
"""N in these tests: no other number of a study is this one."""


@pytest.mark.parametrize("least", [1, RARE + 1])
def test_the_count_is_told_to_the_data_user_alone(world: ProxyWorld, least: int) -> None:
    """Neither an owner (of two, each could tell the other's) nor anybody else enrolled reads N anywhere."""
    stranger, other = IdentityKey.generate(), IdentityKey.generate()
    world.enrol(stranger, "owner", "Stranger")
    world.enrol(other, "user", "Other institute")
    study = world.open_study(3, release="masked", min_records=least)
    for owner, count in zip(world.owners[:2], (17, RARE - 17), strict=True):
        study.deliver(owner, values_of(3, 1, count=count))
    study.close()
    client, answer = world.client(world.user), study.count_answer(study.challenge())
    if least > RARE:
        error = refused(lambda: client.answer_count(study.study, answer))
        assert error.slug == "count-out-of-range"
        assert str(RARE) in error.problem
    else:
        client.answer_count(study.study, answer)
    study.wait_state("released", "failed")
    assert (RARE in integers(whole_answers(study, world.user))) == (least < RARE)
    for who in (*world.owners, stranger, other):
        known = whole_answers(study, who)
        assert RARE not in integers(known)
        assert str(RARE) not in json.dumps(known[""]["failure_detail"])
        assert known[""]["records"] is None
    (*_, last) = whole_answers(study, stranger)["/transcript"]["events"]
    assert last["body"]["kind"] == ("release" if least < RARE else "failed")


def test_the_count_event_holds_the_digests_that_prove_the_count(world: ProxyWorld) -> None:
    study = masked_to_count(world)
    challenge = study.challenge()
    answer = study.count_answer(challenge)
    world.client(world.user).answer_count(study.study, answer)
    study.wait_state("released")
    events = [json.loads(event)["body"] for event in world.client(world.user).transcript(study.study)]
    (counted,) = [event["detail"] for event in events if event["kind"] == "count"]
    digests = {"answer": answer.digest, "challenge": challenge.digest, "log": HEAD}
    assert counted == {name: digest.hex() for name, digest in digests.items()}


def test_a_joint_study_has_no_count(study: OpenStudy) -> None:
    client = study.world.client(study.world.user)
    assert refused(lambda: client.count_challenge(study.study)).slug == "no-count"
    assert refused(lambda: client.release(study.study)).slug == "not-ready"
