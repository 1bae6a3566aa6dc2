"""One request and its answer, with retries, size limits and typed errors.

This is the only HTTP client of the product. The clients for a proxy and for the data user's service both use
this client.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from dpdpca_protocol.errors import (
    AuthenticationError,
    DpdpcaError,
    LimitError,
    MessageError,
    UnavailableError,
)
from dpdpca_protocol.wire.canonical import MOST_GROWTH_BYTES, read_object
from dpdpca_protocol.wire.http import (
    HEARTBEAT_SECONDS,
    JSON_MEDIA_TYPE,
    STATEMENT_LIMIT_BYTES,
    WINDOW_SECONDS,
)
from dpdpca_runtime.http.connection import (
    CONNECT_SECONDS,
    Peer,
    explain_answer,
    explain_failure,
    trusted_authorities,
)
from dpdpca_runtime.http.problems import error_from_response
from dpdpca_runtime.http.retry import Patience

_TIMEOUT = httpx.Timeout(60.0, connect=CONNECT_SECONDS)
_STREAM_TIMEOUT = httpx.Timeout(60.0, connect=CONNECT_SECONDS, read=3 * HEARTBEAT_SECONDS)
_PASSING = frozenset({408, 429, 502, 503, 504, 507})

Authorize = Callable[[httpx.Request, bytes | None, datetime], object]
"""Adds the caller's credentials to a request. The second argument is the body of the request, the third is
the time."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to make.

    Attributes:
        limit_bytes: the largest accepted body of the answer.
        is_open: True for requests that need no credentials.
        is_repeatable: whether the route is idempotent. If not, the call is never retried: a server in between
            may have replaced the answer after the work was done.
        takes_html: whether the answer is a page. Any other answer in HTML comes from another site.
        headers: further headers.
    """

    method: str
    path: str
    body: bytes | None = None
    media_type: str = JSON_MEDIA_TYPE
    query: str = ""
    limit_bytes: int = STATEMENT_LIMIT_BYTES
    is_open: bool = False
    is_repeatable: bool = True
    takes_html: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Received:
    """The body and the headers of a 2xx answer."""

    content: bytes
    headers: Mapping[str, str]


class Exchange:
    """Persistent connections to one service. It is thread-safe.

    Args:
        peer: the service.
        authorize: applied to each call that is not open; None if calls bring what proves them.
        patience: how long to retry temporary failures.
        ca_file: a PEM file with the authority that issued the peer's certificate, instead of the system's.
        transport, now: for tests.
        explain: looks for the reason where the peer calls a signature bad; None if it finds no other.
    """

    def __init__(
        self,
        peer: Peer,
        authorize: Authorize | None,
        patience: Patience,
        ca_file: Path | None,
        transport: httpx.BaseTransport | None = None,
        now: Callable[[], datetime] = utc_now,
        explain: Callable[[], DpdpcaError | None] | None = None,
    ) -> None:
        self._explain = explain
        self.url = str(peer.address)
        self._peer = peer
        self._authorize = authorize
        self._patience = patience
        self._now = now
        self._client = httpx.Client(
            base_url=self.url,
            transport=transport,
            verify=trusted_authorities(ca_file),
            timeout=_TIMEOUT,
            follow_redirects=False,
            trust_env=not peer.address.is_loopback,  # a company's HTTP proxy cannot reach our loopback
            headers={"accept-encoding": "identity"},  # no decompression bombs: a body is as long as it is
        )

    def close(self) -> None:
        self._client.close()

    def ask(self, call: Call, most_growth_bytes: int = MOST_GROWTH_BYTES) -> dict[str, Any]:
        """The JSON object in a 2xx answer. Raises like `send`.

        Raises:
            LimitError: `too-large`, see `check_growth`.
            MessageError: the answer is not a readable JSON object.
        """
        content = self.send(call)
        try:
            return read_object(content, most_growth_bytes)
        except LimitError as error:
            raise LimitError(
                error.slug, f"the answer of {self._peer.name} is too large: {error.problem}", "ask for less"
            ) from error
        except MessageError as error:
            raise MessageError(
                error.slug,
                f"the answer of {self._peer.name} cannot be read: {error.problem}",
                "check the address",
            ) from error

    def send(self, call: Call) -> bytes:
        """Sends a call and returns the body of a 2xx answer. Raises like `receive`."""
        return self.receive(call).content

    def receive(self, call: Call) -> Received:
        """Sends a call and returns a 2xx answer.

        Raises:
            DpdpcaError: the error that the peer's problem document names.
            UnavailableError: nobody answered within the caller's patience.
            AuthenticationError: another program answers or shows a certificate that is not accepted.
            LimitError: the answer is larger than `call.limit_bytes`.
        """
        attempts = self._patience.begin()
        while True:
            try:
                with self._open(call) as response:
                    return Received(self._read(response, call.limit_bytes), response.headers)
            except httpx.TransportError as error:
                failure = explain_failure(error, self._peer, self._now())
                is_retried = call.is_repeatable and not self._peer.is_local
                if not isinstance(failure, UnavailableError) or not is_retried:
                    raise failure from error
                wait = None
            except _PassingError as answer:
                failure, wait = answer.failure, answer.failure.retry_after_seconds
                if not call.is_repeatable:
                    raise failure from None
            if not attempts.wait(str(failure.problem), wait):
                raise failure

    @contextmanager
    def stream(self, call: Call) -> Iterator[Iterator[str]]:
        """The lines of an endless answer. The request is not retried."""
        try:
            with self._open(call, _STREAM_TIMEOUT) as response:
                yield _lines(response)
        except (httpx.ReadTimeout, httpx.RemoteProtocolError) as error:
            raise self._without_events(error) from error
        except httpx.TransportError as error:
            raise explain_failure(error, self._peer, self._now()) from error
        except _PassingError as answer:
            raise answer.failure from None

    @contextmanager
    def _open(self, call: Call, timeout: httpx.Timeout | None = None) -> Iterator[httpx.Response]:
        request = self._client.build_request(
            call.method,
            f"{call.path}?{call.query}" if call.query else call.path,
            content=call.body,
            headers={**call.headers, **({"content-type": call.media_type} if call.body is not None else {})},
            timeout=timeout or _TIMEOUT,
        )
        if self._authorize is not None and not call.is_open:
            self._authorize(request, call.body, self._now())
        response = self._client.send(request, stream=True)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise MessageError(
                    "malformed",
                    f"the answer of {self._peer.name} is compressed, although this was not requested",
                )
            # An HTML page comes from another site, or from a network that requires a login, whatever its
            # status.
            is_page = response.headers.get("content-type", "").startswith("text/html")
            if not response.is_success or (is_page and not call.takes_html):
                raise self._failure(response, self._explain if not call.is_open else None)
            yield response
        finally:
            response.close()

    def _failure(
        self, response: httpx.Response, explain: Callable[[], DpdpcaError | None] | None
    ) -> Exception:
        failure = error_from_response(
            self._peer,
            response.status_code,
            response.headers.get("content-type", ""),
            self._read(response, STATEMENT_LIMIT_BYTES),
            response.headers.get("retry-after"),
            int(response.request.headers.get("content-length", 0)),
        )
        # What the data user's service repeats from the proxy is about the connection between those two.
        if isinstance(failure, AuthenticationError) and failure.slug == "stale-request":
            if not self._peer.is_local:
                failure = self._explain_clocks(failure, response.headers.get("date"))
        elif failure.slug == "wrong-address" and not self._peer.is_local:
            asked = f"this machine used the address {self._peer.address.authority}"
            failure = AuthenticationError(
                failure.slug, f"{asked}; {self._peer.name} answered: {failure.problem}", failure.next_step
            )
        elif failure.slug == "bad-signature" and explain is not None:
            failure = explain() or failure
        failure = explain_answer(failure, self._peer)
        return _PassingError(failure, response.status_code) if response.status_code in _PASSING else failure

    def _explain_clocks(self, failure: AuthenticationError, date: str | None) -> AuthenticationError:
        """Adds both clocks' times to the error, if the proxy sent its time and the clocks differ too much."""
        try:
            theirs = parsedate_to_datetime(date or "").astimezone(UTC)
        except ValueError:
            return failure
        ours = self._now()
        seconds = round((ours - theirs).total_seconds())
        if abs(seconds) <= WINDOW_SECONDS / 2:
            return failure
        return AuthenticationError(
            failure.slug,
            f"this machine's clock is {abs(seconds)} s {'ahead of' if seconds > 0 else 'behind'} "
            f"{self._peer.name}'s (here {ours:%Y-%m-%d %H:%M:%S} UTC, there {theirs:%Y-%m-%d %H:%M:%S} "
            f"UTC), but at most {WINDOW_SECONDS} s are allowed",
            "correct the wrong clock, preferably with NTP, and try again",
        )

    def _read(self, response: httpx.Response, limit_bytes: int) -> bytes:
        content = bytearray()
        for piece in response.iter_bytes():
            content += piece
            if len(content) > limit_bytes:
                raise LimitError(
                    "too-large",
                    f"the answer of {self._peer.name} is larger than the limit of {limit_bytes} bytes",
                    "check the address",
                )
        return bytes(content)

    def _without_events(self, error: httpx.TransportError) -> UnavailableError:
        """The error for a stream that is silent or that broke off."""
        if isinstance(error, httpx.ReadTimeout):
            return UnavailableError(
                "no-events",
                f"{self.url} sends no events, although a proxy sends something every "
                f"{HEARTBEAT_SECONDS:.0f} s",
                "a reverse proxy delays the events; for nginx, the operator must set proxy_buffering "
                "off; until then, poll the study instead",
            )
        return UnavailableError(
            "no-events",
            f"the event stream of {self.url} broke off",
            "listen again; if this persists, a reverse proxy must allow a silence of more than "
            f"{HEARTBEAT_SECONDS:.0f} s (nginx: proxy_read_timeout)",
        )


class _PassingError(Exception):
    """An answer that tells the client to try again later. This error is only used in this file."""

    def __init__(self, failure: DpdpcaError, status: int) -> None:
        super().__init__(failure.slug)
        self.failure, self.status = failure, status


def _lines(response: httpx.Response) -> Iterator[str]:
    """The lines of a stream. Lines longer than a statement are refused (httpx would wait forever)."""
    rest = b""
    for piece in response.iter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
        if len(rest) > STATEMENT_LIMIT_BYTES:
            raise LimitError("too-large", "an event is larger than any that a proxy sends")
