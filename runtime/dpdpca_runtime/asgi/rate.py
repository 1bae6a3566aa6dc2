"""How often: requests of one party, and of one address, within a time.

A bucket holds as many requests as may come at once and fills at a steady rate; whoever finds it empty is told
when the next one fits. Only the latest callers are remembered, so that memory stays bounded.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Hashable

from starlette.types import ASGIApp, Receive, Scope, Send

from dpdpca_protocol.errors import LimitError
from dpdpca_runtime.asgi.problems import problem_response

BURST_SECONDS = 20
"""A full bucket holds what the rate gives in this time."""

_MOST_CALLERS = 10_000


class RateLimit:
    """Buckets of callers. Not for several threads at once.

    Args:
        per_second: requests of one caller in the long run.
        clock: seconds that only rise.
        most_callers: remembered; the one that was quiet longest is forgotten first, its bucket full again.
    """

    def __init__(
        self, per_second: int, clock: Callable[[], float], most_callers: int = _MOST_CALLERS
    ) -> None:
        self._per_second = per_second
        self._most_tokens = float(per_second * BURST_SECONDS)
        self._clock = clock
        self._most_callers = most_callers
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, caller: Hashable) -> None:
        """Counts one request.

        Raises:
            LimitError: `too-many`, with the time when to come again.
        """
        now = self._clock()
        tokens, then = self._buckets.pop(caller, (self._most_tokens, now))
        tokens = min(self._most_tokens, tokens + (now - then) * self._per_second)
        self._buckets[caller] = max(tokens - 1, 0.0), now
        if len(self._buckets) > self._most_callers:
            self._buckets.popitem(last=False)
        if tokens < 1:
            raise LimitError(
                "too-many",
                f"more than {self._per_second} requests a second come from you",
                "wait, and send fewer",
                retry_after_seconds=1,
            )


class AddressLimit:
    """A rate limit by the peer's address, before anything of a request is looked at.

    Addresses of this machine are left out: behind a reverse proxy all peers have one of them, and it is that
    proxy's part to tell them apart.
    """

    def __init__(self, app: ASGIApp, limit: RateLimit) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (caller := network_of(scope)) is not None:
            try:
                self._limit.take(caller)
            except LimitError as refusal:
                await problem_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def network_of(scope: Scope) -> str | None:
    """The peer's IPv4 address or IPv6 /64, which one peer has whole; None for this machine and for sockets
    without addresses."""
    try:
        address = ipaddress.ip_address((scope.get("client") or ("",))[0])
    except ValueError:
        return None
    if address.is_loopback:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
