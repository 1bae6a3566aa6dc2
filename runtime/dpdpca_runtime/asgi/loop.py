"""The event loop of a service: it limits the time of TLS handshakes and raises the limit of open files."""

import asyncio
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from dpdpca_runtime.system import optional_module

HANDSHAKE_SECONDS = 10.0
"""From the opening of a connection to the end of its TLS handshake; asyncio's default is a minute."""

SHUTDOWN_SECONDS = 5.0
"""How long to wait for the peer when closing a TLS connection."""

_MOST_FILES = 16_384

_resource = optional_module("resource")  # Windows has no such limits


class EdgeLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers cut off peers that do not finish their TLS handshake."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", HANDSHAKE_SECONDS)
            options.setdefault("ssl_shutdown_timeout", SHUTDOWN_SECONDS)
        return await super().create_server(*args, **options)


def raise_file_limit() -> int | None:
    """Raises this process's limit of open files, within reason.

    The usual soft limit of 1,024 is meant for programs that use `select`.

    Returns:
        The new limit, or None if the system has no such limit.
    """
    if _resource is None:
        return None
    soft, hard = _resource.getrlimit(_resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == _resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != _resource.RLIM_INFINITY and soft < wanted:
        _resource.setrlimit(_resource.RLIMIT_NOFILE, (wanted, hard))
    limit: int = _resource.getrlimit(_resource.RLIMIT_NOFILE)[0]
    return limit


def on_stop_signal(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Calls `stop` in the loop when SIGINT or SIGTERM arrives. This function must be called in the main
    thread."""

    def wake(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop)
        except NotImplementedError:  # on Windows
            signal.signal(number, wake)
