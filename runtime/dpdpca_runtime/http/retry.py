"""Retries of requests: exponential backoff with full jitter, within the caller's patience."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_JITTER = secrets.SystemRandom()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client retries temporary failures.

    Attributes:
        seconds: from the first failure to the last try; 0 tries once.
        first_seconds: the upper bound of the first random wait. The bound doubles for each later wait.
        longest_seconds: the upper bound of any wait, except one that the server asks for in Retry-After.
        on_wait: called with the reason and the seconds before each wait, to inform a person.
        sleep, clock, jitter: for tests; jitter(limit) is uniform in [0, limit].
    """

    seconds: float = 30.0
    first_seconds: float = 0.5
    longest_seconds: float = 15.0
    on_wait: Callable[[str, float], None] | None = None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[float], float] = field(default=lambda limit: _JITTER.uniform(0.0, limit))

    def begin(self) -> "Attempts":
        return Attempts(self)


class Attempts:
    """The attempts to send one request."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._failures = 0
        self._deadline: float | None = None

    def wait(self, reason: str, retry_after_seconds: int | None) -> bool:
        """Sleeps before the next try. Returns False without sleeping if the patience would end before the
        next try."""
        patience = self._patience
        now = patience.clock()
        if self._deadline is None:
            self._deadline = now + patience.seconds
        limit = min(patience.longest_seconds, patience.first_seconds * 2.0 ** min(self._failures, 16))
        # Jitter is also added to Retry-After, because a thousand owners may get the same number.
        pause = (retry_after_seconds or 0) + patience.jitter(limit)
        if now + pause > self._deadline:
            return False
        self._failures += 1
        if patience.on_wait is not None:
            patience.on_wait(reason, pause)
        patience.sleep(pause)
        return True
