"""Live updates of studies.

One task watches the database and feeds all streams. A stream begins with the present state, so that no change
is missed. A stream sends at least a comment every few seconds, so that dead connections are detected.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dpdpca_protocol.errors import NotFoundError, UnavailableError
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.http import HEARTBEAT_SECONDS
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.jobs import Jobs
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.studies import summaries

LOOK_SECONDS = 0.5

Summaries = dict[str, dict[str, Any]]


class Watch:
    """Feeds streams. Events: `state` (a study in short), `progress` (of its job), `studies` (all of them)."""

    def __init__(self, proxy: Proxy, jobs: Jobs, most_streams: int) -> None:
        self._proxy = proxy
        self._jobs = jobs
        self._most = most_streams
        self._open = 0
        self._present: Summaries = {}
        self._changed = asyncio.Event()
        self._opened = asyncio.Event()

    async def run(self, stopping: asyncio.Event) -> None:
        """Watches the database while there are listeners, until `stopping` is set."""
        while not stopping.is_set():
            if self._open:
                await self._look()
                await _sleep(stopping, LOOK_SECONDS)
            else:
                self._opened.clear()
                await _sleep(self._opened, 2.0)
        self._tell()

    def wake(self) -> None:
        """Makes `run` check at once whether it must stop."""
        self._opened.set()

    async def of_study(self, study: StudyId, stopping: asyncio.Event) -> AsyncIterator[bytes]:
        """The events of one study.

        Raises:
            UnavailableError: `busy`, there are too many streams.
            NotFoundError: there is no such study.
        """
        name = study.hex()
        self._enter()
        try:
            await self._look()
            if name not in self._present:
                raise NotFoundError(
                    "not-found",
                    "there is no study of this id here",
                    "check the id against the proxy's list of studies",
                )
            told: dict[str, Any] | None = None
            told_progress: dict[str, Any] | None = None
            async for _ in self._moments(stopping):
                summary = self._present.get(name)
                progress = self._jobs.progress(study)
                body = progress.to_body() | {"study": name} if progress else None
                if summary is not None and summary != told:
                    told = summary
                    yield _event("state", summary)
                elif body is not None and body != told_progress:
                    yield _event("progress", body)
                else:
                    yield b": still here\n\n"
                told_progress = body
        finally:
            self._open -= 1

    async def of_all(self, stopping: asyncio.Event) -> AsyncIterator[bytes]:
        """The list of all studies with their progress, whenever it changes; for the operator's page."""
        self._enter()
        try:
            await self._look()
            told: list[dict[str, Any]] | None = None
            async for _ in self._moments(stopping):
                listed = self.all_studies()
                if listed != told:
                    told = listed
                    yield _event("studies", {"studies": listed})
                else:
                    yield b": still here\n\n"
        finally:
            self._open -= 1

    def all_studies(self) -> list[dict[str, Any]]:
        listed = []
        for name, summary in self._present.items():
            progress = self._jobs.progress(StudyId.parse(name))
            listed.append(summary | {"progress": progress.to_body() if progress else None})
        return listed

    async def _moments(self, stopping: asyncio.Event) -> AsyncIterator[None]:
        """Yields now, then after every change, and at least at every heartbeat."""
        while not stopping.is_set():
            changed = self._changed
            yield
            await _sleep(changed, HEARTBEAT_SECONDS)

    async def _look(self) -> None:
        before = self._present, self._progress()
        self._present = {
            summary["study"]: summary for summary in await asyncio.to_thread(summaries, self._proxy)
        }
        if (self._present, self._progress()) != before:
            self._tell()

    def _progress(self) -> list[Any]:
        return [self._jobs.progress(StudyId.parse(name)) for name in self._present]

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _enter(self) -> None:
        if self._open >= self._most:
            raise UnavailableError(
                "busy", "the proxy has reached its limit of open streams", "try again", retry_after_seconds=10
            )
        self._open += 1
        self._opened.set()


def _event(kind: str, body: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + canonical_json(body) + b"\n\n"


async def _sleep(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, at most `seconds`."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
