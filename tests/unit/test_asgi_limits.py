"""Places for requests under way: all together, and those of one address."""

import asyncio
from typing import Any

import pytest
from promises import Promise

from dpdpca_asgi.limits import InFlightLimit


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
