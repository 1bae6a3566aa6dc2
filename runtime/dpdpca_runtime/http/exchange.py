"""One signed request and its answer, with retries, size limits and typed errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from dpdpca_protocol.errors import (
    AuthenticationError,
    DpdpcaError,
    LimitError,
    MessageError,
    UnavailableError,
)
from dpdpca_protocol.wire.address import parse_address
from dpdpca_protocol.wire.http import (
    HEARTBEAT_SECONDS,
    JSON_MEDIA_TYPE,
    STATEMENT_LIMIT_BYTES,
    WINDOW_SECONDS,
)
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.connection import (
    CONNECT_SECONDS,
    Peer,
    explain_answer,
    explain_failure,
    trusted_authorities,
)
from dpdpca_runtime.http.problems import error_from_response
from dpdpca_runtime.http.retry import Patience
from dpdpca_runtime.http.signature import RequestSigner

_TIMEOUT = httpx.Timeout(60.0, connect=CONNECT_SECONDS)
_STREAM_TIMEOUT = httpx.Timeout(60.0, connect=CONNECT_SECONDS, read=3 * HEARTBEAT_SECONDS)
_PASSING = frozenset({408, 429, 502, 503, 504, 507})


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to make. All routes are idempotent, so a call may be repeated.

    Attributes:
        limit_bytes: the largest accepted body of the answer.
        signed: False for requests that need no enrolment.
    """

    method: str
    path: str
    body: bytes | None = None
    media_type: str = JSON_MEDIA_TYPE
    query: str = ""
    limit_bytes: int = STATEMENT_LIMIT_BYTES
    signed: bool = True


class Exchange:
    """Persistent connections to one proxy. It is thread-safe."""

    def __init__(
        self,
        url: str,
        key: IdentityKey,
        transport: httpx.BaseTransport | None,
        patience: Patience,
        ca_file: Path | None,
        now: Callable[[], datetime] = _now,
    ) -> None:
        address = parse_address(url)
        self.url = str(address)
        self._peer = Peer("the proxy", address, "--ca-file or DPDPCA_CA_FILE")
        self._signer = RequestSigner(key)
        self._patience = patience
        self._now = now
        self._client = httpx.Client(
            base_url=self.url,
            transport=transport,
            verify=trusted_authorities(ca_file),
            timeout=_TIMEOUT,
            follow_redirects=False,
            trust_env=not address.is_loopback,  # a company's HTTP proxy cannot reach our loopback
            headers={"accept-encoding": "identity"},  # no decompression bombs: a body is as long as it is
        )

    def close(self) -> None:
        self._client.close()

    def send(self, call: Call) -> bytes:
        """Sends a call and returns the body of a 2xx answer.

        Raises:
            DpdpcaError: the error that the proxy's problem document names.
            UnavailableError: nobody answered within the caller's patience.
            AuthenticationError: another program answers or shows a certificate that is not accepted.
            LimitError: the answer is larger than `call.limit_bytes`.
        """
        attempts = self._patience.begin()
        while True:
            try:
                with self._open(call) as response:
                    return _read(response, call.limit_bytes)
            except httpx.TransportError as error:
                failure = explain_failure(error, self._peer, self._now())
                if not isinstance(failure, UnavailableError):
                    raise failure from error
                wait = None
            except _PassingError as answer:
                failure, wait = answer.failure, answer.failure.retry_after_seconds
            if not attempts.wait(str(failure.problem), wait):
                raise failure

    @contextmanager
    def stream(self, call: Call) -> Iterator[Iterator[str]]:
        """The lines of an answer that does not end by itself. It is not retried."""
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
            headers={"content-type": call.media_type} if call.body is not None else None,
            timeout=timeout or _TIMEOUT,
        )
        if call.signed:
            self._signer.sign(request, call.body, self._now())
        response = self._client.send(request, stream=True)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise MessageError(
                    "malformed", "the proxy's answer is compressed, although this was not requested"
                )
            # An HTML page comes from another site, or from a network that requires a login, whatever its
            # status.
            if not response.is_success or response.headers.get("content-type", "").startswith("text/html"):
                raise self._failure(response)
            yield response
        finally:
            response.close()

    def _failure(self, response: httpx.Response) -> Exception:
        failure = error_from_response(
            response.status_code,
            response.headers.get("content-type", ""),
            _read(response, STATEMENT_LIMIT_BYTES),
            response.headers.get("retry-after"),
            int(response.request.headers.get("content-length", 0)),
        )
        if isinstance(failure, AuthenticationError) and failure.slug == "stale-request":
            failure = self._explain_clocks(failure, response.headers.get("date"))
        if failure.slug == "wrong-address":
            asked = f"this machine used the address {self._peer.address.authority}"
            failure = AuthenticationError(
                failure.slug, f"{asked}; the proxy answered: {failure.problem}", failure.next_step
            )
        failure = explain_answer(failure, self._peer)
        return _PassingError(failure) if response.status_code in _PASSING else failure

    def _explain_clocks(self, failure: AuthenticationError, date: str | None) -> AuthenticationError:
        """Adds both times and their difference, if the proxy sent its time."""
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
            f"this machine's clock is {abs(seconds)} s {'ahead of' if seconds > 0 else 'behind'} the "
            f"proxy's (here {ours:%Y-%m-%d %H:%M:%S} UTC, there {theirs:%Y-%m-%d %H:%M:%S} UTC), but at "
            f"most {WINDOW_SECONDS} s are allowed",
            "correct the wrong clock, preferably with NTP, and try again",
        )

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
    """An answer that asks to try again later. It is only used in this file."""

    def __init__(self, failure: DpdpcaError) -> None:
        super().__init__(failure.slug)
        self.failure = failure


def _read(response: httpx.Response, limit_bytes: int) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > limit_bytes:
            raise LimitError(
                "too-large",
                f"the proxy's answer is larger than the limit of {limit_bytes} bytes",
                "check the address",
            )
    return bytes(content)


def _lines(response: httpx.Response) -> Iterator[str]:
    """The lines of a stream. Lines longer than a statement are refused (httpx would wait forever)."""
    rest = b""
    for piece in response.iter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
        if len(rest) > STATEMENT_LIMIT_BYTES:
            raise LimitError("too-large", "an event is larger than any that a proxy sends")
