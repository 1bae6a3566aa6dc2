"""Runs the listeners of a service in one event loop until a signal arrives.

SIGINT and SIGTERM stop the service. SIGHUP makes the service reload its certificate.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from dpdpca_protocol.errors import UnavailableError, UsageError
from dpdpca_runtime.asgi.certificate import ServedCertificate
from dpdpca_runtime.asgi.limits import DeadlineProtocol
from dpdpca_runtime.asgi.listening import BACKLOG, listen
from dpdpca_runtime.asgi.loop import EdgeLoop, on_stop_signal, raise_file_limit

_KEEP_ALIVE_SECONDS = 15
_SHUTDOWN_SECONDS = 10
_MOST_BESIDE = 64
"""The most connections of a server beside other work, which shares the limit of open files with it."""

_CERTIFICATE_SECONDS = 24 * 3600.0
"""The time between two checks of the certificate's expiry."""

_logger = logging.getLogger("dpdpca.serve")


@dataclass(frozen=True, slots=True)
class Listener:
    """An application and where it is served.

    Attributes:
        name: for people.
        port_option: the command's option for its port.
        certificate: None for plain HTTP.
    """

    name: str
    app: ASGIApp
    host: str
    port: int
    port_option: str = "--port"
    certificate: ServedCertificate | None = None


class _Server(uvicorn.Server):
    """A server that logs when it listens, and leaves signals to `_run_all`, which runs several servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _logger.info("listening", extra={"address": f"{self.config.host}:{self.config.port}"})


class _FewConnections(DeadlineProtocol):
    """Closes each connection above `_MOST_BESIDE` at once, before a byte of it is read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        if len(self.connections) > _MOST_BESIDE:
            transport.abort()


class _Config(uvicorn.Config):
    """A server configuration whose certificate can be replaced."""

    def __init__(
        self, listener: Listener, protocol: type[DeadlineProtocol] = DeadlineProtocol, backlog: int = BACKLOG
    ) -> None:
        super().__init__(
            listener.app,
            host=listener.host,
            port=listener.port,
            http=protocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=32 * 1024,
            backlog=backlog,
        )
        self._certificate = listener.certificate

    def load(self) -> None:
        super().load()
        self.ssl = self._certificate.context if self._certificate else None


def ignore_hangup() -> None:
    """Ignores SIGHUP until the service can handle it. Call it first."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def serve(
    listeners: Sequence[Listener],
    *,
    on_listening: Callable[[], object] = lambda: None,
    on_hangup: Callable[[], object] = lambda: None,
    on_stop: Callable[[], object] = lambda: None,
) -> None:
    """Runs until SIGINT or SIGTERM. All listeners stop together.

    Args:
        listeners: opened in this order.
        on_listening: called when all are open.
        on_hangup: called at SIGHUP.
        on_stop: called when the shutdown begins.

    Raises:
        UnavailableError: `cannot-listen`, or `not-started` if an application fails to start.
    """
    raise_file_limit()
    with contextlib.ExitStack() as opened:
        sockets = []
        for listener in listeners:
            sockets.append(listen(listener.name, listener.host, listener.port, listener.port_option))
            for each in sockets[-1]:
                opened.callback(each.close)
        on_listening()
        with asyncio.Runner(loop_factory=EdgeLoop) as runner:
            runner.run(_run_all(listeners, sockets, on_hangup, on_stop))


@contextlib.contextmanager
def serving_beside(listener: Listener, on_death: Callable[[], object]) -> Iterator[None]:
    """Serves one listener in a thread of its own while the context lasts. Signals are left to the caller.

    It takes few connections, because whoever can connect could otherwise use up all files that the caller may
    open. The backlog is as short, because so many connections are accepted at a time.

    Args:
        listener: plain HTTP.
        on_death: called in that thread if the server ends while the context lasts.

    Raises:
        UnavailableError: `cannot-listen`.
    """
    sockets = listen(listener.name, listener.host, listener.port, listener.port_option)
    server, is_leaving = _Server(_Config(listener, _FewConnections, _MOST_BESIDE)), False

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=EdgeLoop) as runner, contextlib.suppress(SystemExit):
                runner.run(server.serve(sockets))
        finally:
            if not is_leaving:
                on_death()

    thread = threading.Thread(target=run, name=listener.name, daemon=True)
    try:
        thread.start()
        yield
    finally:
        is_leaving = True
        server.should_exit = True
        thread.join(_SHUTDOWN_SECONDS + 1)
        for each in sockets:
            each.close()


async def _run_all(
    listeners: Sequence[Listener],
    sockets: Sequence[list[socket.socket]],
    on_hangup: Callable[[], object],
    on_stop: Callable[[], object],
) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    servers = [_Server(_Config(listener)) for listener in listeners]
    certificates = {listener.certificate for listener in listeners if listener.certificate}

    def stop() -> None:
        on_stop()
        ended.set()
        for server in servers:
            server.should_exit = True

    def reload() -> None:
        _logger.info("hangup")
        on_hangup()
        for certificate in certificates:
            try:
                certificate.reload()
            except UsageError as error:
                _logger.error("certificate not replaced", extra={"slug": error.slug, "reason": error.problem})
            certificate.warn()

    on_stop_signal(loop, stop)
    if hasattr(signal, "SIGHUP"):  # not on Windows
        loop.add_signal_handler(signal.SIGHUP, reload)
    watching = asyncio.create_task(_watch(certificates, ended))
    try:
        running = (_run(server, opened, stop) for server, opened in zip(servers, sockets, strict=True))
        outcomes = await asyncio.gather(*running, return_exceptions=True)
    finally:
        await watching
        _logger.info("stopped")
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _run(server: _Server, sockets: list[socket.socket], stop: Callable[[], None]) -> None:
    """Runs one server. If one server cannot start or dies, the others stop too."""
    try:
        with contextlib.suppress(SystemExit):  # uvicorn exits like this if an application does not start
            await server.serve(sockets)
    finally:
        stop()
    if not server.started:
        raise UnavailableError("not-started", "the service did not start", "see its log")


async def _watch(certificates: set[ServedCertificate], ended: asyncio.Event) -> None:
    """Warns now and daily if a certificate is about to expire."""
    while not ended.is_set():
        for certificate in certificates:
            certificate.warn()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _CERTIFICATE_SECONDS)
