"""Rate limits for requests of one party and of one address.

Each caller has a bucket of tokens, which is refilled at a steady rate up to a limit. Each request takes one
token. A caller with an empty bucket is told when the next request is possible. Only the latest callers are
remembered, so memory is bounded.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Hashable

from starlette.types import ASGIApp, Receive, Scope, Send

from dpdpca_protocol.errors import LimitError
from dpdpca_runtime.asgi.problems import problem_response

BURST_SECONDS = 20
"""A full bucket holds the requests of this many seconds."""

_MOST_CALLERS = 10_000


class RateLimit:
    """The buckets of all callers. It is not thread-safe.

    Args:
        per_second: the average rate of one caller.
        clock: a monotonic clock in seconds.
        most_callers: how many are remembered. The caller that was idle longest is forgotten first; its bucket
            is then full again.
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
            LimitError: `too-many`, with the time to wait.
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
                f"you send more than {self._per_second} requests a second",
                "wait, and send fewer requests",
                retry_after_seconds=1,
            )


class AddressLimit:
    """A rate limit by the peer's address, before a request is examined.

    Addresses of this machine are exempt: behind a reverse proxy all peers have such an address, and the
    reverse proxy must limit them.
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
    """The peer's IPv4 address or IPv6 /64, because one peer usually has a whole /64.

    None for this machine and for sockets without addresses.
    """
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
