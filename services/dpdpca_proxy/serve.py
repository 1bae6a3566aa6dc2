"""Runs the proxy: the public listener and the operator's, in one loop, until a signal comes."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from dpdpca_asgi.limits import DeadlineProtocol
from dpdpca_asgi.loop import EdgeLoop, forbid_core_dumps, raise_file_limit
from dpdpca_asgi.observe import configure_logging
from dpdpca_protocol.errors import UnavailableError, UsageError
from dpdpca_proxy.app import create_app, create_operator_app
from dpdpca_proxy.proxy import open_proxy
from dpdpca_proxy.settings import Settings

_KEEP_ALIVE_SECONDS = 15
_SHUTDOWN_SECONDS = 10
_BACKLOG = 1024
_TURN_SECONDS = 0.001
"""How long a thread that checks ciphertexts keeps the interpreter from the loop; 5 ms by default."""

_logger = logging.getLogger("dpdpca.serve")


class _Server(uvicorn.Server):
    """A server that leaves signals to `_serve`, which minds two of them, and says when it listens."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _logger.info("listening", extra={"address": f"{self.config.host}:{self.config.port}"})


def serve(settings: Settings) -> None:
    """Serves until SIGINT or SIGTERM.

    Raises:
        UsageError: settings that must not be served with.
        NotFoundError: `not-initialised`.
    """
    forbid_core_dumps()
    settings.check_listener()
    if settings.tls_cert and settings.tls_key:
        _check_certificate(settings.tls_cert, settings.tls_key)
    public = create_app(open_proxy(settings))
    configure_logging(settings.log_level)
    sys.setswitchinterval(_TURN_SECONDS)
    servers = [
        _Server(_config(public, settings.host, settings.port, settings.tls_cert, settings.tls_key)),
        _Server(_config(create_operator_app(public), settings.operator_host, settings.operator_port)),
    ]
    raise_file_limit()
    with asyncio.Runner(loop_factory=EdgeLoop) as runner:
        runner.run(_serve(servers, public))


async def _serve(servers: list[_Server], public: FastAPI) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        public.state.stopping.set()
        for server in servers:
            server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        outcomes = await asyncio.gather(*(_run(server, stop) for server in servers), return_exceptions=True)
    finally:
        _logger.info("stopped")
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _run(server: _Server, stop: Callable[[], None]) -> None:
    """One server; where it cannot start or dies, the other stops too."""
    try:
        await server.serve()
    except SystemExit:
        raise _cannot_listen(server.config) from None  # uvicorn leaves so where the address is taken
    finally:
        stop()
    if not server.started:
        raise _cannot_listen(server.config)


def _cannot_listen(config: uvicorn.Config) -> UnavailableError:
    return UnavailableError(
        "cannot-listen",
        f"cannot listen on {config.host}:{config.port}",
        "choose a free port, or stop what uses it",
    )


def _config(
    app: FastAPI, host: str, port: int, tls_cert: Path | None = None, tls_key: Path | None = None
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=DeadlineProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=tls_cert,
        ssl_keyfile=tls_key,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        h11_max_incomplete_event_size=32 * 1024,
        backlog=_BACKLOG,
    )


def _check_certificate(tls_cert: Path, tls_key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls_cert, tls_key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            "bad-certificate", "the TLS certificate and key do not load", "check both files and their modes"
        ) from error
