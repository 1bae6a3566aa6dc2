"""Limits of size and time: body sizes, concurrent requests, and an absolute deadline for each request.

The web framework has none of these: it accepts a body of 50 MB, and a client that sends one byte a second
could keep its connection forever.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio
import h11
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpdpca_protocol.errors import LimitError, MessageError, UnavailableError
from dpdpca_runtime.asgi.problems import problem_response
from dpdpca_runtime.asgi.rate import network_of

HEAD_SECONDS = 10.0
"""The time from the first byte of a request (or the opening of the connection) to the end of its head."""

BODY_GRACE_SECONDS = 10.0
BODY_BYTES_PER_SECOND = 16 * 1024
"""The time limit for a body is the grace time plus the declared length divided by this rate.

The same applies to reading a response.
"""

UNDECLARED_BODY_SECONDS = 30.0
MOST_BODY_SECONDS = 600.0

_PIECE_BYTES = 256 * 1024


_T = TypeVar("_T")


async def read_body(request: Request, media_type: str, max_bytes: int) -> bytes:
    """The complete raw body; see `read_large_body`."""
    return bytes(await read_large_body(request, media_type, max_bytes))


async def read_large_body(request: Request, media_type: str, max_bytes: int) -> bytearray:
    """The complete raw body. The body is never in memory twice.

    Args:
        request: untrusted.
        media_type: the required content type, without parameters.
        max_bytes: the limit of this route.

    Raises:
        MessageError: `unsupported-media-type`.
        LimitError: `too-large`, by declared length or by received bytes.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media_type:
        raise MessageError(
            "unsupported-media-type", f"this route only accepts {media_type}", f"send {media_type}"
        )
    if declared_length(request) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return body


def declared_length(request: Request) -> int:
    """The declared length of the body; 0 if there is none, or if the body is chunked.

    Raises:
        MessageError: the declared length is not a number.
    """
    if "transfer-encoding" in request.headers:  # which wins
        return 0
    declared = request.headers.get("content-length", "0")
    if not declared.isascii() or not declared.isdigit() or len(declared) > 20:
        raise MessageError("malformed", "the content length is not a number")
    return int(declared)


class LargeBodies:
    """A limit on the memory for large bodies.

    A request that would exceed the limit is refused before any byte of its body is read.

    Args:
        most_bytes: the limit for all callers together.
        of_one_bytes: the limit for one caller.
    """

    def __init__(self, most_bytes: int, of_one_bytes: int) -> None:
        self._most, self._of_one = most_bytes, of_one_bytes
        self._reserved: list[tuple[Hashable, int]] = []

    @contextmanager
    def room(self, caller: Hashable, size: int) -> Iterator[None]:
        """Reserves `size` bytes for `caller` while the context lasts.

        Raises:
            UnavailableError: `busy`.
        """
        theirs = sum(taken for other, taken in self._reserved if other == caller)
        if theirs + size > self._of_one or sum(taken for _, taken in self._reserved) + size > self._most:
            raise UnavailableError(
                "busy", "the service is receiving other large bodies", "try again", retry_after_seconds=2
            )
        self._reserved.append((caller, size))
        try:
            yield
        finally:
            self._reserved.remove((caller, size))


class ConcurrencyLimit:
    """Limits how many heavy tasks run at a time. Further tasks wait a little and are then refused.

    Args:
        count: how many run at a time.
        wait_seconds: how long a task may wait for its turn.
    """

    def __init__(self, count: int, wait_seconds: float) -> None:
        self._free = anyio.CapacityLimiter(count)
        self._wait_seconds = wait_seconds

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Holds one slot while the context lasts.

        Raises:
            UnavailableError: `busy`.
        """
        try:
            with anyio.fail_after(self._wait_seconds):
                await self._free.acquire()
        except TimeoutError as error:
            raise UnavailableError(
                "busy",
                "the service already handles as many requests of this kind as it accepts",
                "try again",
                retry_after_seconds=2,
            ) from error
        try:
            yield
        finally:
            self._free.release()


class CancellationToken:
    """Tells the work in a thread that its result is no longer needed."""

    def __init__(self) -> None:
        self._reason: Exception | None = None

    def now(self, reason: Exception) -> None:
        self._reason = reason

    def check(self) -> None:
        """Raises the exception given to `now`, if any. The work calls this method often."""
        if self._reason is not None:
            raise self._reason


async def run_until_cancelled(
    request: Request, work: Callable[[CancellationToken], _T], most_seconds: float
) -> _T:
    """Runs `work` in a thread. Stops the work if the client disconnects or `most_seconds` have passed.

    Args:
        request: its body must have been read.
        work: checks its `CancellationToken` often.
        most_seconds: how long it may take.

    Raises:
        ClientDisconnect: the client is gone.
        LimitError: `deadline`.
    """
    stop = CancellationToken()

    async def watch() -> None:
        with anyio.move_on_after(most_seconds):
            while (await request.receive())["type"] != "http.disconnect":
                pass
            stop.now(ClientDisconnect())
            return
        stop.now(
            LimitError(
                "deadline", f"this request takes longer than {most_seconds:g} s", "send less data at once"
            )
        )

    watching = asyncio.create_task(watch())
    try:
        return await run_in_threadpool(work, stop)
    finally:
        watching.cancel()


class BoundedStream(StreamingResponse):
    """A response in pieces, which are produced while the client reads.

    A client that reads too slowly is cut off.
    """

    async def stream_response(self, send: Send) -> None:
        with anyio.move_on_after(MOST_BODY_SECONDS):
            await super().stream_response(send)


async def in_pieces(*parts: bytes) -> AsyncIterator[bytes]:
    """Sends the pieces one after the other, so that only one piece waits in the connection's buffer."""
    for part in parts:
        for start in range(0, len(part), _PIECE_BYTES):
            yield part[start : start + _PIECE_BYTES]


class InFlightLimit:
    """At most `most` requests at once, and at most a quarter of them from one address.

    More are refused with status 503. Without the limit for one address, one slow client could take all
    of them. As in `AddressLimit`, an IPv6 /64 counts as one address, and the limit
    for one address does not apply to this machine's own addresses.

    Args:
        app: the inner application.
        most: how many requests may run at the same time.
        exempt: paths that are always served (health), and streams, which have their own limit.
    """

    def __init__(self, app: ASGIApp, most: int, exempt: tuple[str, ...] = ()) -> None:
        self._app = app
        self._most = most
        self._most_of_one = max(most // 4, 1)
        self._exempt = exempt
        self._under_way = 0
        self._by_address: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(self._exempt):
            await self._app(scope, receive, send)
            return
        address = network_of(scope)
        if self._under_way >= self._most or (address and self._by_address[address] >= self._most_of_one):
            refusal = UnavailableError(
                "busy",
                "the service has reached its limit of concurrent requests",
                "try again",
                retry_after_seconds=1,
            )
            await problem_response(refusal)(scope, receive, send)
            return
        self._under_way += 1
        if address:
            self._by_address[address] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1
            if address:
                self._by_address[address] -= 1
                self._by_address += Counter()  # removes addresses without requests


class DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with absolute deadlines for the peer.

    There is a deadline for the head of a request (from the opening of the connection, or from its first
    byte), for its body (by its length), and for reading a response that no longer fits the socket (by its
    length). A peer that misses a deadline is cut off. Between requests uvicorn's own keep-alive timeout
    applies.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receive_timer: asyncio.TimerHandle | None = None
        self._awaited: str = ""
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._await("head", HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await("", 0)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and not self._awaited:
            self._await("head", HEAD_SECONDS)
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            if self._awaited != "body":
                self._await("body", self._body_seconds())
        elif state is not h11.IDLE:
            self._await("", 0)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            seconds = BODY_GRACE_SECONDS + self.transport.get_write_buffer_size() / BODY_BYTES_PER_SECOND
            self._write_timer = self.loop.call_later(seconds, self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            # The answer came before the body was complete. The rest of the body is discarded, and soon cut
            # off.
            self._await("body", BODY_GRACE_SECONDS)
        self._bound_closing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._bound_closing()

    def _bound_closing(self) -> None:
        """A closing transport waits for its last bytes to be read, but not forever."""
        if self.transport.is_closing() and self._write_timer is None:
            self._write_timer = self.loop.call_later(BODY_GRACE_SECONDS, self._cut_off)

    def _await(self, what: str, seconds: float) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
            self._receive_timer = None
        self._awaited = what
        if what:
            self._receive_timer = self.loop.call_later(seconds, self._cut_off)

    def _body_seconds(self) -> float:
        for name, value in self.headers:
            if name == b"content-length":
                # h11 has checked that this is a number.
                return min(BODY_GRACE_SECONDS + int(value[:15]) / BODY_BYTES_PER_SECOND, MOST_BODY_SECONDS)
        return UNDECLARED_BODY_SECONDS

    def _cut_off(self) -> None:
        self.transport.abort()


def _too_large(max_bytes: int) -> LimitError:
    return LimitError(
        "too-large", f"the body is larger than the limit of {max_bytes} bytes", "send less data"
    )
