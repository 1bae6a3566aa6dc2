"""What a data user's service shows of owners that do not take part."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proxy_world import OpenStudy, ProxyWorld
from sqlalchemy import insert, update
from user_world import UserWorld

from dpdpca_protocol.messages.share import Decline
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.store.tables import declines
from dpdpca_user.commands.run import declined_text
from dpdpca_user.commands.study import waiting_text
from dpdpca_user_service.bodies import StudyBody
from dpdpca_user_service.operations import study_facts
from dpdpca_user_service.stages import Stage
from dpdpca_user_service.store.studies import StudyRow

TIME = "2026-11-29T08:00:00Z"


@pytest.fixture
def user(world: ProxyWorld, tmp_path: Path) -> Iterator[UserWorld]:
    made = UserWorld(world, tmp_path / "user")
    yield made
    made.service.close()


def facts_of(user: UserWorld, row: StudyRow) -> dict[str, Any]:
    facts = study_facts(user.service, user.advance(row))
    StudyBody.model_validate(facts)
    return facts


def declined(facts: dict[str, Any]) -> dict[str, Any]:
    return {owner["name"]: owner["declined"] for owner in facts["owners"] if owner["declined"]}


def word(study: StudyId, key: IdentityKey, why: str | None = "not this year") -> Decline:
    return Decline(study, key.public.ed25519, TIME, why)


def say(study: OpenStudy, key: IdentityKey) -> None:
    study.world.client(key).decline(study.study, word(study.study, key).sign(key))


def test_it_shows_who_has_declined_and_why_until_the_owner_joins(user: UserWorld) -> None:
    row = user.advance_to(user.create(release="joint"), Stage.OPEN)
    study, owner = user.opened(row), user.world.owners[1]
    assert declined(facts_of(user, row)) == {}
    say(study, owner)
    facts = facts_of(user, row)
    assert declined(facts) == {"Hospital B": {"time": TIME, "why": "not this year"}}
    assert waiting_text(facts) == "Hospital A, Hospital B (declined), Hospital C"
    (shown,) = (declined_text(each) for each in facts["owners"] if each["declined"])
    assert shown == "declined on 2026-11-29: “not this year”"
    user.deliver_all(row)
    assert declined(facts_of(user, row)) == {}


def test_a_word_that_its_owner_did_not_sign_is_not_shown_and_stops_nothing(user: UserWorld) -> None:
    """By a proxy that lies."""
    row = user.advance_to(user.create(release="joint"), Stage.OPEN)
    study, (first, second, *_) = user.opened(row), user.world.owners
    stranger = IdentityKey.generate()
    say(study, first)
    for forged in (
        word(StudyId(bytes(32)), first).sign(first),
        word(study.study, first).sign(second),
        word(study.study, stranger).sign(stranger),
    ):
        with user.world.proxy.database.transaction("lie") as connection:
            connection.execute(update(declines).values(statement=forged.encoded))
        assert declined(facts_of(user, row)) == {}
    user.deliver_all(row)
    with user.world.proxy.database.transaction("lie") as connection:
        said = word(study.study, first).sign(first).encoded
        connection.execute(
            insert(declines).values(study=study.study, owner=first.public.party_id, statement=said)
        )
    assert declined(facts_of(user, row)) == {}  # the proxy has its share
    study.close()
    user.advance_to(row, Stage.FITTED, Stage.PUBLISHED)


def test_a_study_that_names_nobody_has_words_of_any_owner(user: UserWorld) -> None:
    row = user.create(
        release="joint", participants=None, noise_by="proxy", max_colluding=None, closing="at-time"
    )
    row = user.advance_to(row, Stage.OPEN)
    say(user.opened(row), user.world.owners[2])
    assert declined(facts_of(user, row)) == {"Hospital C": {"time": TIME, "why": "not this year"}}
