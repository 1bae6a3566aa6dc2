"""A clock that is wrong, or was: nothing reopens, nothing is taken twice, and the error says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from promises import Promise
from proxy_world import ProxyWorld, slug, values_of
from sqlalchemy import Connection, func, select
from store_checks import wait_on_disk

from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.wire.fields import time_text
from dpdpca_proxy.enrolment import NONCE_MEMORY_SECONDS, forget_old_nonces
from dpdpca_proxy.store.database import ProxyDatabase
from dpdpca_proxy.store.tables import events

HOUR = timedelta(hours=1)


def captured(world: ProxyWorld, created: datetime) -> dict[str, str]:
    """The headers of a signed request that was let through once."""
    headers: dict[str, str] = {}
    answer = world.request(
        world.user,
        "GET",
        "/v1/studies",
        change=lambda request: headers.update(request.headers),
        created=created,
    )
    assert answer.status_code == 200
    return headers


def replay(world: ProxyWorld, headers: dict[str, str]) -> str:
    answer = world._raw.get(world.url + "/v1/studies", headers=headers)
    assert answer.status_code in (401, 503), answer.text
    return slug(answer)


def test_a_clock_that_is_put_back_reopens_nothing_and_forgets_nothing(
    world: ProxyWorld, promise: Promise
) -> None:
    study = world.open_study(3, closes_at=world.clock() + timedelta(minutes=50))
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    requests = [captured(world, world.clock()) for _ in range(20)]
    world.clock.ahead += HOUR
    forget_old_nonces(world.proxy)

    # Read without a signature of this machine's own clock: what the store says.
    def state() -> str:
        with world.proxy.database.reading("state") as connection:
            return str(connection.exec_driver_sql("SELECT state FROM studies").scalar_one())

    world.restart()
    while state() in ("open", "closed"):
        pass
    assert state() == "released"
    world.clock.ahead -= HOUR
    forget_old_nonces(world.proxy)
    for _ in range(2):
        assert state() == "released"
        assert {replay(world, headers) for headers in requests} == {"replayed-request"}
        world.restart()
    promise(
        "P32",
        counted=f"clock an hour ahead and back again, 2 restarts, {2 * len(requests)} replays",
        result="0 taken, study stays released",
    )


def test_requests_that_may_be_forgotten_are_refused(world: ProxyWorld) -> None:
    headers = captured(world, world.clock())
    world.clock.ahead = timedelta(seconds=NONCE_MEMORY_SECONDS + 600)
    forget_old_nonces(world.proxy)
    world.clock.ahead = timedelta()
    forget_old_nonces(world.proxy)
    assert replay(world, headers) == "clock-behind"
    answer = world.request(world.user, "GET", "/v1/studies")
    assert (answer.status_code, slug(answer)) == (503, "clock-behind")
    assert answer.headers["retry-after"]
    world.clock.ahead = timedelta(seconds=NONCE_MEMORY_SECONDS + 600)
    answer = world.request(world.user, "GET", "/v1/studies", created=world.clock())
    assert answer.status_code == 200


def test_a_skewed_client_is_told_the_difference_and_both_times(world: ProxyWorld, promise: Promise) -> None:
    told = 0
    for minutes in (-10, 10):
        signed_at = (datetime.now(UTC) + timedelta(minutes=minutes)).replace(microsecond=0)
        answer = world.request(world.user, "GET", "/v1/studies", created=signed_at)
        assert (answer.status_code, slug(answer)) == (401, "stale-request")
        detail = answer.json()["detail"]
        assert signed_at.strftime("%Y-%m-%dT%H:%M:%SZ") in detail
        assert detail.count("T") >= 2
        assert "seconds ahead" in detail if minutes > 0 else "seconds ago" in detail
        told += 1
    promise(
        "P32", counted="clients 10 minutes behind and ahead", result=f"{told} of 2 told difference and times"
    )


@pytest.mark.parametrize("end", ["published", "cancelled", "failed"])
def test_no_event_has_a_time_from_before_its_turn_came(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A write may wait for another process, whose events are later than what the clock showed before."""
    real, early, seen = ProxyDatabase.transaction, list[str](), 0

    @contextmanager
    def delayed(self: ProxyDatabase, name: str, *about: bytes, **options: Any) -> Iterator[Connection]:
        nonlocal seen
        with real(self, name, *about, **options) as connection:
            before = connection.execute(select(func.count()).select_from(events)).scalar_one()
            world.clock.ahead += timedelta(seconds=1)
            begun = time_text(world.clock())
            yield connection
            added = connection.execute(select(events.c.time).order_by(events.c.position).offset(before))
            times = [time_text(time) for time in added.scalars()]
            seen += len(times)
            early.extend(name for time in times if time < begun)

    study = world.open_study(3, release="masked")
    monkeypatch.setattr(ProxyDatabase, "transaction", delayed)
    owners = world.owners[:2] if end == "failed" else world.owners
    for seed, owner in enumerate(owners):
        study.deliver(owner, values_of(3, seed))
    study.withdraw(owners[0], 2)
    if end == "cancelled":
        study.cancel()
    elif end == "failed":
        world.clock.ahead += HOUR
        wait_on_disk(study, "failed")
    else:
        study.deliver(owners[0], values_of(3, 0), 3)
        study.close()
        client = world.client(world.user)
        client.answer_count(study.study, study.count_answer(study.challenge()))
        study.wait_state("released")
        sealed = {owner.public.party_id: bytes(200) for owner in owners}
        study.state_opened()
        client.publish_components(study.study, SealedComponents(study.study, sealed).sign(world.user))
    assert seen == {"published": 10, "cancelled": 5, "failed": 4}[end]
    assert early == []
