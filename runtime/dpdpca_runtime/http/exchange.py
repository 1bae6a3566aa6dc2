"""One signed request and its answer: tried again, bounded, errors given their class."""

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
    """A request to make. Every route treats a second arrival like the first, so a call may be repeated.

    Attributes:
        limit_bytes: the largest body that is accepted in answer.
        signed: False for what anybody may ask, before there is an enrolment.
    """

    method: str
    path: str
    body: bytes | None = None
    media_type: str = JSON_MEDIA_TYPE
    query: str = ""
    limit_bytes: int = STATEMENT_LIMIT_BYTES
    signed: bool = True


class Exchange:
    """Connections to one proxy, kept alive. Safe to share between threads."""

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
        """The body of a 2xx answer.

        Raises:
            DpdpcaError: the class that the proxy's problem document names.
            UnavailableError: nobody answered within the caller's patience.
            AuthenticationError: somebody else answers, or shows a certificate that is not accepted.
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
        """The lines of an answer that does not end by itself; tried once."""
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
                raise MessageError("malformed", "the proxy's answer is compressed, which was not asked for")
            # A page for people is of another site, or of a network that wants a login, whatever its status.
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
            asked = f"this machine asked for {self._peer.address.authority}"
            failure = AuthenticationError(
                failure.slug, f"{asked}, and the proxy says: {failure.problem}", failure.next_step
            )
        failure = explain_answer(failure, self._peer)
        return _PassingError(failure) if response.status_code in _PASSING else failure

    def _explain_clocks(self, failure: AuthenticationError, date: str | None) -> AuthenticationError:
        """Both times and their difference, where the proxy told its own."""
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
            f"this machine's clock is {abs(seconds)} s {'ahead of' if seconds > 0 else 'behind'} the proxy's"
            f" (here {ours:%Y-%m-%d %H:%M:%S} UTC, there {theirs:%Y-%m-%d %H:%M:%S} UTC),"
            f" and {WINDOW_SECONDS} s are allowed",
            "set the clock that is wrong, best by NTP, and try again",
        )

    def _without_events(self, error: httpx.TransportError) -> UnavailableError:
        """Of a stream that is silent, or ends otherwise than by the proxy's will."""
        if isinstance(error, httpx.ReadTimeout):
            return UnavailableError(
                "no-events",
                f"{self.url} is silent, where a proxy says something every {HEARTBEAT_SECONDS:.0f} s",
                "something before the proxy holds events back: in nginx proxy_buffering must be off for them;"
                " until then ask for the study itself",
            )
        return UnavailableError(
            "no-events",
            f"{self.url} broke its events off",
            "listen again; something before the proxy must bear a silence of"
            f" {HEARTBEAT_SECONDS:.0f} s and more: in nginx proxy_read_timeout",
        )


class _PassingError(Exception):
    """An answer that says to come back later; never leaves this file."""

    def __init__(self, failure: DpdpcaError) -> None:
        super().__init__(failure.slug)
        self.failure = failure


def _read(response: httpx.Response, limit_bytes: int) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > limit_bytes:
            raise LimitError(
                "too-large", f"the proxy's answer is larger than {limit_bytes} bytes", "check the address"
            )
    return bytes(content)


def _lines(response: httpx.Response) -> Iterator[str]:
    """The lines of a stream, none longer than a statement may be (httpx itself would wait for ever)."""
    rest = b""
    for piece in response.iter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
        if len(rest) > STATEMENT_LIMIT_BYTES:
            raise LimitError("too-large", "an event is larger than any that a proxy sends")
