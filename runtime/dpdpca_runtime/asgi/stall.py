"""Measures how long an event loop was blocked. A long block means that slow code runs in the loop."""

import asyncio

_TICK_SECONDS = 0.01
_WINDOW_TICKS = 3000


class StallWatch:
    """Sleeps for a hundredth of a second repeatedly, and measures how much later it wakes up."""

    def __init__(self) -> None:
        self._present = self._past = 0.0

    @property
    def longest_seconds(self) -> float:
        """The longest stall of the last 30 to 60 seconds."""
        return max(self._present, self._past)

    async def run(self, stopping: asyncio.Event) -> None:
        """Watches the running loop until `stopping` is set."""
        loop, ticks = asyncio.get_running_loop(), 0
        while not stopping.is_set():
            before = loop.time()
            await asyncio.sleep(_TICK_SECONDS)
            self._present = max(self._present, loop.time() - before - _TICK_SECONDS)
            ticks += 1
            if ticks % _WINDOW_TICKS == 0:
                self._past, self._present = self._present, 0.0
