import asyncio
import time

import pytest

from dpdpca_runtime.asgi import stall
from dpdpca_runtime.asgi.stall import StallWatch


async def watched(seconds: float, pause: float) -> StallWatch:
    stopping, watch = asyncio.Event(), StallWatch()
    task = asyncio.create_task(watch.run(stopping))
    await asyncio.sleep(0.05)
    time.sleep(seconds)  # what nobody should do in a loop
    await asyncio.sleep(pause)
    stopping.set()
    await task
    return watch


def test_a_blocked_loop_is_seen() -> None:
    assert asyncio.run(watched(0.2, 0.05)).longest_seconds > 0.15


def test_an_old_stall_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "_WINDOW_TICKS", 3)
    assert asyncio.run(watched(0.6, 0.6)).longest_seconds < 0.5
