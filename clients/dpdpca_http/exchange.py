"""One signed request and its answer: tried again, bounded, errors given their class."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from dpdpca_http.address import is_loopback, parse_proxy_url
from dpdpca_http.problems import error_from_response
from dpdpca_http.retry import Patience
from dpdpca_http.signature import RequestSigner
from dpdpca_protocol.errors import (
    AuthenticationError,
    DpdpcaError,
    LimitError,
    MessageError,
    UnavailableError,
    UsageError,
)
from dpdpca_protocol.signing import IdentityKey
from dpdpca_protocol.wire import JSON_MEDIA_TYPE, STATEMENT_LIMIT_BYTES, WINDOW_SECONDS

_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_STREAM_TIMEOUT = httpx.Timeout(60.0, connect=10.0, read=120.0)
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
        self.url = parse_proxy_url(url)
        host = urlsplit(self.url).hostname or ""
        self._signer = RequestSigner(key)
        self._patience = patience
        self._now = now
        self._client = httpx.Client(
            base_url=self.url,
            transport=transport,
            verify=_trust(ca_file),
            timeout=_TIMEOUT,
            follow_redirects=False,
            trust_env=not is_loopback(host),  # a company's HTTP proxy cannot reach our loopback
            headers={"accept-encoding": "identity"},  # no decompression bombs: a body is as long as it is
        )

    def close(self) -> None:
        self._client.close()

    def send(self, call: Call) -> bytes:
        """The body of a 2xx answer.

        Raises:
            DpdpcaError: the class that the proxy's problem document names.
            UnavailableError: nobody answered within the caller's patience.
            LimitError: the answer is larger than `call.limit_bytes`.
        """
        attempts = self._patience.begin()
        while True:
            try:
                with self._open(call) as response:
                    return _read(response, call.limit_bytes)
            except httpx.TransportError as error:
                failure = self._unreachable(error)
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
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except _PassingError as answer:
            raise answer.failure from None

    @contextmanager
    def _open(self, call: Call, timeout: httpx.Timeout = _TIMEOUT) -> Iterator[httpx.Response]:
        request = self._client.build_request(
            call.method,
            f"{call.path}?{call.query}" if call.query else call.path,
            content=call.body,
            headers={"content-type": call.media_type} if call.body is not None else None,
            timeout=timeout,
        )
        if call.signed:
            self._signer.sign(request, call.body, self._now())
        response = self._client.send(request, stream=True)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise MessageError("malformed", "the proxy's answer is compressed, which was not asked for")
            if not response.is_success:
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
        )
        if isinstance(failure, AuthenticationError) and failure.slug == "stale-request":
            failure = self._explain_clocks(failure, response.headers.get("date"))
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

    def _unreachable(self, error: httpx.TransportError) -> DpdpcaError:
        if isinstance(error, httpx.ConnectError) and _is_certificate_failure(error):
            raise AuthenticationError(
                "untrusted-certificate",
                f"the TLS certificate of {self.url} is not from an authority that this machine trusts",
                "name the proxy's CA with --ca-file or DPDPCA_CA_FILE",
            ) from error
        if isinstance(error, httpx.TimeoutException):
            return UnavailableError("no-answer", f"{self.url} does not answer in time", "try again later")
        return UnavailableError(
            "unreachable",
            f"{self.url} cannot be reached ({type(error).__name__})",
            "check that the proxy runs and that its address is right",
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


@lru_cache(maxsize=4)  # reading the authorities of a machine takes longer than a request
def _trust(ca_file: Path | None) -> ssl.SSLContext:
    if ca_file is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            "bad-ca-file", f"{ca_file} does not hold certificates in PEM form", "name the CA's PEM file"
        ) from error


def _is_certificate_failure(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
