"""Opens the sockets of a service. If a socket cannot be opened, the error explains the operating system's
reason."""

import errno
import os
import socket

from dpdpca_protocol.errors import UnavailableError

BACKLOG = 1024
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})


def listen(name: str, host: str, port: int, port_option: str) -> list[socket.socket]:
    """Sockets that listen on `port` of every address of `host` on this machine.

    Args:
        name: the name of the listener, for people.
        host: an IP address, or a name that this machine can resolve.
        port: 1 to 65535.
        port_option: the command's option for the port.

    Raises:
        UnavailableError: `cannot-listen`, with the reason and what to do about it.
    """
    host = host.strip("[]")
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    opened: list[socket.socket] = []
    failures: list[OSError] = []
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            try:
                opened.append(socket.create_server(address, family=family, backlog=BACKLOG))
            except OSError as error:
                failures.append(error)
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
        if not opened:
            raise failures[0]
    except (OSError, UnicodeError) as error:
        for listening in opened:
            listening.close()
        reason, next_step = _explain(error, host, port, port_option)
        raise UnavailableError(
            "cannot-listen", f"{name} cannot listen on {place}: {reason}", next_step
        ) from error
    return opened


def _explain(error: OSError | UnicodeError, host: str, port: int, port_option: str) -> tuple[str, str]:
    """The reason, and what to do about it."""
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
        return "the name cannot be resolved now", "give an IP address, or repair this machine's DNS"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "the name is unknown", "give an IP address, or a name that this machine can resolve"
    if error.errno == errno.EADDRINUSE:
        return (
            "another program is already listening there",
            f"choose a free port with {port_option}, or stop that program",
        )
    if error.errno in _NO_SUCH_ADDRESS and ":" in host and not _has_ipv6():
        return "this machine has no IPv6", "give an IPv4 address, such as 127.0.0.1"
    if error.errno in _NO_SUCH_ADDRESS:
        return (
            "this machine has no such address",
            "give an address of this machine, or 0.0.0.0 for all of IPv4",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = f"choose a port from 1024 up with {port_option}, or give the process CAP_NET_BIND_SERVICE"
        return f"this user is not allowed to use port {port}", remedy
    return os.strerror(error.errno or 0), "fix the problem that the operating system reports"


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
