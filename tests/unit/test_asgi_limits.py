"""Limits on requests under way, all together and of one address; heavy work, its clients and its answers."""

import asyncio
import threading
import time
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from promises import Promise
from starlette.requests import ClientDisconnect, Request

from dpdpca_protocol.errors import LimitError, UnavailableError
from dpdpca_runtime.asgi import limits
from dpdpca_runtime.asgi.limits import (
    BoundedStream,
    CancellationToken,
    ConcurrencyLimit,
    InFlightLimit,
    read_large_body,
    run_until_cancelled,
)


class Waiting:
    """An application whose requests stay under way until they are let go."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        await self.gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})


async def ask(app: Any, address: str | None, path: str = "/v1/parties") -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    client = None if address is None else (address, 1)
    await app(
        {"type": "http", "method": "POST", "path": path, "headers": [], "client": client}, receive, send
    )
    return int(sent[0]["status"])


async def crowd(
    places: int, addresses: list[str | None], late: list[str | None]
) -> tuple[list[int], list[int]]:
    """Statuses of requests that stay, and of those that came meanwhile; all places are free afterwards."""
    inner = Waiting()
    app = InFlightLimit(inner, places, exempt=("/healthz",))
    early = [asyncio.create_task(ask(app, address)) for address in addresses]
    await asyncio.sleep(0)
    following = [asyncio.create_task(ask(app, address)) for address in late]
    await asyncio.sleep(0)
    inner.gate.set()
    assert await ask(app, late[0], "/healthz") == 200
    statuses = await asyncio.gather(*early), await asyncio.gather(*following)
    assert (app._under_way, len(app._by_address)) == (0, 0)
    return statuses


@pytest.mark.parametrize("stranger", ["203.0.113.5", "2001:db8::1"])
def test_one_address_does_not_take_the_places_of_others(stranger: str, promise: Promise) -> None:
    early, late = asyncio.run(crowd(16, [stranger] * 100, ["203.0.113.9", "127.0.0.1", None, stranger]))
    assert sorted(early) == [200] * 4 + [503] * 96
    assert late == [200, 200, 200, 503]
    promise("P30", counted="100 slow requests of one address, 16 places", result="4 wait, others are served")


def test_behind_a_reverse_proxy_all_places_are_for_all() -> None:
    early, late = asyncio.run(crowd(16, ["127.0.0.1"] * 16, ["203.0.113.9"]))
    assert early == [200] * 16
    assert late == [503]


def test_a_service_of_few_places_has_one_for_each() -> None:
    early, late = asyncio.run(crowd(2, ["203.0.113.5"], ["203.0.113.5", "203.0.113.6", "203.0.113.7"]))
    assert (early, late) == ([200], [503, 200, 503])


def test_one_more_waits_for_its_place_and_is_then_refused() -> None:
    async def run() -> None:
        places, gate, order = ConcurrencyLimit(2, 0.2), asyncio.Event(), []

        async def hold(name: str) -> None:
            async with places.take():
                order.append(name)
                await gate.wait()

        first, second = (asyncio.create_task(hold(name)) for name in "ab")
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError) as refusal:
            await hold("c")
        assert (refusal.value.slug, refusal.value.retry_after_seconds) == ("busy", 2)
        third = asyncio.create_task(hold("d"))
        await asyncio.sleep(0.01)
        first.cancel()  # whoever leaves gives its place to one who waits
        await asyncio.sleep(0.05)
        assert order == ["a", "b", "d"]
        gate.set()
        await asyncio.gather(second, third)
        async with places.take():
            pass

    asyncio.run(run())


def a_request(*messages: dict[str, Any]) -> Request:
    """One whose messages come at once, and nothing after them."""
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    scope = {"type": "http", "headers": [(b"content-type", b"text/plain")]}
    return Request(scope, receive)


def test_work_is_told_that_its_client_has_gone() -> None:
    began = threading.Event()

    def work(stop: CancellationToken) -> None:
        began.set()
        while True:
            stop.check()
            time.sleep(0.001)

    gone = a_request({"type": "http.request"}, {"type": "http.disconnect"})
    with pytest.raises(ClientDisconnect):
        asyncio.run(run_until_cancelled(gone, work, 600))
    assert began.is_set()
    with pytest.raises(LimitError) as refusal:
        asyncio.run(run_until_cancelled(a_request(), work, 0.05))
    assert refusal.value.slug == "deadline"


def test_work_whose_client_waits_is_done() -> None:
    async def run() -> int:
        outcome = await run_until_cancelled(a_request(), lambda stop: 7, 600)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1  # nobody watches any more
        return outcome

    assert asyncio.run(run()) == 7


def test_a_large_body_is_taken_up_to_its_limit() -> None:
    parts = [{"type": "http.request", "body": b"x" * 10, "more_body": index < 3} for index in range(4)]
    assert asyncio.run(read_large_body(a_request(*parts), "text/plain", 40)) == b"x" * 40
    with pytest.raises(LimitError):
        asyncio.run(read_large_body(a_request(*parts), "text/plain", 39))


def test_an_answer_that_is_read_too_slowly_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_BODY_SECONDS", 0.1)
    made, sent = [], []

    def pieces() -> Iterator[bytes]:
        for index in range(100):
            made.append(index)
            yield b"piece"

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        if len(sent) > 3:
            await asyncio.Event().wait()

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    asyncio.run(BoundedStream(pieces())(scope, a_request().receive, send))
    assert len(made) == 3
    assert all(message.get("more_body", True) for message in sent)
