"""An owner tells a data user that it does not take part: what the proxy keeps, and whom it tells."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from proxy_world import OpenStudy, ProxyWorld, refused, slug, unlike_before, values_of
from sqlalchemy import func, select, update

from dpdpca_protocol.messages.share import Decline
from dpdpca_protocol.study import ShareState
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement, sign_statement
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.store.tables import declines, log

TIME = "2026-11-29T08:00:00Z"


def word(study: StudyId, key: IdentityKey, why: str | None = None) -> Statement:
    return Decline(study, key.public.ed25519, TIME, why).sign(key)


def decline(study: OpenStudy, key: IdentityKey, why: str | None = None) -> None:
    study.world.client(key).decline(study.study, word(study.study, key, why))


def told(study: OpenStudy, key: IdentityKey | None = None) -> tuple[bytes, ...]:
    """The declines that the proxy tells this party, by default the data user."""
    return study.world.client(key or study.world.user).study(study.study).declines


def states(study: OpenStudy) -> dict[str, str]:
    facts = study.world.client(study.world.user).study(study.study)
    return {owner.name: owner.state for owner in facts.owners}


def test_only_the_data_user_of_the_study_is_told(world: ProxyWorld) -> None:
    study, (first, second, *_), before = world.open_study(3), world.owners, world.request
    stranger = IdentityKey.generate()
    world.enrol(stranger, "user", "Another institute")
    everybody = (first, second, stranger)

    def seen() -> list[Any]:
        answers = []
        for key in everybody:
            for path in (study.path, f"{study.path}/transcript", "/v1/studies"):
                answer = before(key, "GET", path).json()
                answer.pop("mark", None)  # the time in it
                answers.append(answer)
        with world.proxy.database.reading("log") as connection:
            return [*answers, connection.execute(select(func.count()).select_from(log)).scalar_one()]

    others = seen()
    decline(study, first, "our board meets in January")
    assert told(study) == (word(study.study, first, "our board meets in January").encoded,)
    assert seen() == others
    assert all(told(study, key) == () for key in everybody)
    assert "January" not in json.dumps(seen())


def test_the_newest_word_of_an_owner_counts(world: ProxyWorld) -> None:
    study, owner = world.open_study(3), world.owners[0]
    for why in ("no", "no", "not yet", None):
        decline(study, owner, why)
        assert told(study) == (word(study.study, owner, why).encoded,)
    decline(study, world.owners[1], "neither do we")
    assert len(told(study)) == 2


def test_a_share_that_is_complete_is_the_newer_word(world: ProxyWorld) -> None:
    study, owner = world.open_study(3), world.owners[0]
    decline(study, owner, "no")
    chunks = study.plain_chunks(values_of(3, 1))
    study.upload(owner, chunks)
    assert len(told(study)) == 1  # a share that was begun says nothing yet
    study.complete(owner, chunks)
    assert told(study) == ()
    assert refused(lambda: decline(study, owner, "no")).slug == "share-complete"
    study.withdraw(owner, 2)
    assert told(study) == ()
    decline(study, owner, "we have withdrawn")
    assert len(told(study)) == 1


def test_chunks_of_a_share_that_was_begun_stay(world: ProxyWorld) -> None:
    study, owner = world.open_study(3), world.owners[0]
    chunks = study.plain_chunks(values_of(3, 1))
    study.upload(owner, chunks)
    decline(study, owner)
    assert len(world.client(owner).share(study.study).chunks) == len(chunks)
    study.complete(owner, chunks)
    assert states(study)["Hospital A"] == ShareState.COMPLETE


def test_a_study_that_is_not_open_is_not_declined_but_an_answer_may_be_lost(world: ProxyWorld) -> None:
    study, (first, second, *_) = world.open_study(3), world.owners
    decline(study, first)
    study.cancel()
    decline(study, first)  # the same word
    assert refused(lambda: decline(study, first, "another word")).slug == "study-closed"
    assert refused(lambda: decline(study, second)).slug == "study-closed"
    assert told(study) == (word(study.study, first).encoded,)


def test_a_study_whose_time_is_up_is_not_declined(world: ProxyWorld) -> None:
    study = world.open_study(3)
    world.clock.ahead = study.manifest.closes_at - world.clock() + timedelta(seconds=1)
    said = word(study.study, world.owners[0]).encoded
    created = world.clock()
    answer = world.request(world.owners[0], "POST", f"{study.path}/decline", said, created=created)
    assert slug(answer) == "study-closed"


def test_it_ends_nothing(world: ProxyWorld) -> None:
    study = world.open_study(3)
    for owner in world.owners:
        decline(study, owner)
    assert study.state() == "open"
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    study.close()
    assert told(study) == ()


@pytest.mark.parametrize("named", [True, False])
def test_whoever_may_not_join_cannot_decline(world: ProxyWorld, named: bool) -> None:
    changes: dict[str, Any] = {} if named else {"release": "joint", "noise_by": "proxy"}
    study = world.open_study(3, named=named, features=unlike_before(3), **changes)
    stranger = IdentityKey.generate()
    world.enrol(stranger, "owner", "Hospital of nobody")
    if named:
        assert refused(lambda: decline(study, stranger)).slug == "not-a-participant"
        assert told(study) == ()
    else:
        decline(study, stranger)
        assert "Hospital of nobody" in states(study)
    assert refused(lambda: decline(study, world.user)).slug == "wrong-role"


def bad_words(study: OpenStudy) -> dict[str, Statement]:
    owner, other = study.world.owners[0], study.world.owners[1]
    body = dict(word(study.study, owner).body)
    texts = {
        "long": "x" * 501,
        "empty": "",
        "two lines": "a\nb",
        "escape": "\x1b[31mno",
        "turned": "\u202eno",
    }
    return {
        "another study": word(StudyId(bytes(32)), owner),
        "another owner": word(study.study, other),
        "another kind": sign_statement("withdrawal", body, owner),
        "no time": sign_statement("decline", body | {"time": "now"}, owner),
        "no text": sign_statement("decline", body | {"why": 7}, owner),
        "a member": sign_statement("decline", body | {"log": "00" * 32}, owner),
        **{name: sign_statement("decline", body | {"why": text}, owner) for name, text in texts.items()},
    }


def test_a_word_that_is_not_one_changes_nothing(world: ProxyWorld) -> None:
    study = world.open_study(3)
    for name, said in bad_words(study).items():
        answer = world.request(world.owners[0], "POST", f"{study.path}/decline", said.encoded)
        assert slug(answer) in ("malformed", "bad-signature"), name
    assert told(study) == ()


def audit(study: OpenStudy) -> dict[str, str]:
    return {check.what: check.outcome for check in audit_study(study.world.proxy, study.study)}


@pytest.mark.parametrize(
    "damage",
    [
        lambda study: b"{}",
        lambda study: word(StudyId(bytes(32)), study.world.owners[0]).encoded,
        lambda study: word(study.study, study.world.owners[1]).encoded,
    ],
)
def test_an_audit_finds_a_word_that_its_owner_did_not_sign(
    world: ProxyWorld, damage: Callable[[OpenStudy], bytes]
) -> None:
    study = world.open_study(3)
    decline(study, world.owners[0], "no")
    assert set(audit(study).values()) == {HOLDS}
    with world.proxy.database.transaction("damage") as connection:
        connection.execute(update(declines).values(statement=damage(study)))
    assert [what for what, outcome in audit(study).items() if outcome != HOLDS] == ["declines: signatures"]
