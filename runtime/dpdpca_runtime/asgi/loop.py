"""The event loop of a service: TLS handshakes end in time, and there are file handles for many peers."""

import asyncio
import resource
from typing import Any

HANDSHAKE_SECONDS = 10.0
"""From the opening of a connection to the end of its TLS handshake; the loop's own default is a minute."""

SHUTDOWN_SECONDS = 5.0
"""For the peer's part in closing a TLS connection."""

_MOST_FILES = 16_384


class EdgeLoop(asyncio.SelectorEventLoop):
    """A loop whose servers cut off peers that do not end their TLS handshake."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", HANDSHAKE_SECONDS)
            options.setdefault("ssl_shutdown_timeout", SHUTDOWN_SECONDS)
        return await super().create_server(*args, **options)


def raise_file_limit() -> int:
    """Takes as many file handles as this process may have, within reason; the number that it has then.

    The usual soft limit of 1,024 is for programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def forbid_core_dumps() -> None:
    """No image of this process, which holds keys, is written to a disk when it dies."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
