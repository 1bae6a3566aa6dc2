"""Opens the sockets of a service; where that fails, the reason is the operating system's."""

import errno
import os
import socket

from dpdpca_protocol.errors import UnavailableError

BACKLOG = 1024
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT})


def listen(name: str, host: str, port: int, port_option: str) -> list[socket.socket]:
    """Sockets that listen on `port` of every address that `host` stands for on this machine.

    Args:
        name: of the listener, for people.
        host: an IP address, or a name that this machine knows.
        port: 1 to 65535.
        port_option: the command's option for it.

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
    """The reason, and what to do."""
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
        return "this name cannot be looked up now", "give an IP address, or repair this machine's DNS"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "this machine knows no such name", "give an IP address, or a name that this machine knows"
    if error.errno == errno.EADDRINUSE:
        return "another program listens there", f"choose a free port with {port_option}, or stop that program"
    if error.errno in _NO_SUCH_ADDRESS and ":" in host and not _has_ipv6():
        return "this machine has no IPv6", "give an IPv4 address, such as 127.0.0.1"
    if error.errno in _NO_SUCH_ADDRESS:
        return (
            "this machine has no such address",
            "give an address of this machine, or 0.0.0.0 for all of IPv4",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = f"choose one from 1024 up with {port_option}, or give the process CAP_NET_BIND_SERVICE"
        return f"this user may not use port {port}", remedy
    return os.strerror(error.errno or 0), "repair what the operating system complains about"


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
