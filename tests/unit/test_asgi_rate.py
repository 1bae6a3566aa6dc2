"""Buckets: bursts, the long run, what is forgotten, and who is told apart from whom."""

import asyncio
from typing import Any

import pytest
from promises import Promise

from dpdpca_protocol.errors import LimitError
from dpdpca_runtime.asgi.rate import BURST_SECONDS, AddressLimit, RateLimit


class HandClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def taken(limit: RateLimit, caller: str, tries: int) -> int:
    count = 0
    for _ in range(tries):
        try:
            limit.take(caller)
            count += 1
        except LimitError as refusal:
            if (refusal.slug, refusal.retry_after_seconds) != ("too-many", 1):
                raise
    return count


def test_a_burst_then_the_rate() -> None:
    clock = HandClock()
    limit = RateLimit(5, clock)
    assert taken(limit, "a", 1000) == 5 * BURST_SECONDS
    assert taken(limit, "b", 10) == 10
    clock.now += 2
    assert taken(limit, "a", 1000) == 10
    clock.now += 10_000
    assert taken(limit, "a", 1000) == 5 * BURST_SECONDS


def test_memory_is_bounded() -> None:
    limit = RateLimit(1, HandClock(), most_callers=10)
    for caller in range(1000):
        limit.take(caller)
    assert len(limit._buckets) == 10


def ask(app: Any, client: tuple[str, int] | None) -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": client}
    asyncio.run(app(scope, receive, send))
    if sent[0]["status"] == 429:
        assert (b"retry-after", b"1") in sent[0]["headers"]
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("clients", "refused"),
    [
        (["203.0.113.5"] * 50, True),
        (["2001:db8::1", "2001:db8::2"] * 25, True),  # one peer has a whole /64
        (["::ffff:203.0.113.5", "203.0.113.5"] * 25, True),
        ([f"203.0.113.{i}" for i in range(50)], False),
        (["127.0.0.1"] * 50, False),
        (["::1"] * 50, False),
        (["a name"] * 50, False),
    ],
)
def test_addresses_are_told_apart(clients: list[str], refused: bool, promise: Promise) -> None:
    async def inner(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    app = AddressLimit(inner, RateLimit(1, HandClock()))
    statuses = [ask(app, (client, 1)) for client in clients]
    assert statuses.count(429) == (50 - BURST_SECONDS if refused else 0)
    assert ask(app, None) == 200
    if refused:
        counted = f"50 requests at once from {clients[0]}, at a rate of 1/s"
        promise("P30", counted=counted, result=f"{statuses.count(429)} refused with Retry-After")
