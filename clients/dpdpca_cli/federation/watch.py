"""Follows the live news of a proxy, as its operator sees it, with the time of each item."""

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

_CONNECT_SECONDS = 5.0
_AGAIN_SECONDS = 0.2
_RELEASED = ("released", "published")


@dataclass(slots=True)
class StudyNews:
    """The latest news of one study.

    Attributes:
        state: the state, as the proxy names it.
        progress: (phase, done, total) of long work of the proxy, or None.
        owners_complete: number of complete shares.
        seen_at: for each state, the seconds of the monotonic clock at which it was first seen.
    """

    state: str = ""
    progress: tuple[str, int, int] | None = None
    owners_complete: int = 0
    seen_at: dict[str, float] = field(default_factory=dict)

    def released_at(self) -> float:
        """When the release was first seen; the current time if that news was missed."""
        return min(
            (self.seen_at[state] for state in _RELEASED if state in self.seen_at), default=time.monotonic()
        )


class ProxyNews:
    """Follows the operator's event stream in a thread until the proxy ends.

    Args:
        url: the address of the operator's listener.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._studies: dict[str, StudyNews] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._follow, name="proxy-news", daemon=True).start()

    def of(self, study: str) -> StudyNews:
        """A copy of the latest news about a study."""
        with self._lock:
            known = self._studies.get(study, StudyNews())
            return StudyNews(known.state, known.progress, known.owners_complete, dict(known.seen_at))

    def close(self) -> None:
        """Stop following. The thread ends when its connection ends."""
        self._ended.set()

    def _follow(self) -> None:
        timeout = httpx.Timeout(_CONNECT_SECONDS, read=None)
        while not self._ended.is_set():
            try:
                with (
                    httpx.Client(base_url=self._url, timeout=timeout, trust_env=False) as client,
                    client.stream("GET", "/events") as answer,
                ):
                    for line in answer.iter_lines():
                        if line.startswith("data:"):
                            self._learn(json.loads(line.removeprefix("data:")))
            except httpx.HTTPError:
                self._ended.wait(_AGAIN_SECONDS)

    def _learn(self, body: dict[str, Any]) -> None:
        now = time.monotonic()
        with self._lock:
            for study in body.get("studies", []):
                news = self._studies.setdefault(study["study"], StudyNews())
                progress = study.get("progress")
                news.state = study["state"]
                news.owners_complete = study["owners_complete"]
                news.progress = (progress["phase"], progress["done"], progress["total"]) if progress else None
                news.seen_at.setdefault(news.state, now)
