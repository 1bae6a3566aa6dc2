"""Whether a request was meant for this service: the host and port that arrived, held against its own.

A reverse proxy that does not pass the Host header on as it came breaks every signature. What it did is said
in words, to unsigned requests too: the first request of a client must not succeed where no later one can.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from dpdpca_protocol.errors import AuthenticationError, MessageError, UsageError, printable
from dpdpca_protocol.wire.address import Address, parse_authority

_PLAIN_HOST = re.compile(r"(?:[A-Za-z0-9.\-_]+|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]{1,5})?")
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_SHOWN_CHARACTERS = 100

_KEEP_HOST = "nginx: proxy_set_header Host $http_host"
"""How a reverse proxy passes on what was asked for; `$host` leaves out the port."""


class KnownAddresses:
    """The addresses under which clients know a service.

    Args:
        public: the one that it announces; on this machine, all names of this machine are meant.
        others: further host[:port].

    Raises:
        UsageError: one of the others is no host[:port].
    """

    def __init__(self, public: Address, others: Iterable[str] = ()) -> None:
        self.public = public
        hosts = _LOCAL_NAMES if public.is_loopback else (public.host,)
        self._known = {Address(public.scheme, host, public.port) for host in hosts}
        self._known |= {parse_authority(other, public.scheme) for other in others}

    @cached_property
    def shown(self) -> str:
        """All of them for people, the public one first."""
        others = sorted(known.authority for known in self._known - {self.public})
        return ", ".join([self.public.authority, *others])

    def others_than(self, arrived: Address) -> list[Address]:
        return sorted(self._known - {arrived}, key=str)

    def arrived_at(self, hosts: Sequence[str]) -> Address:
        """Which of these addresses a request was sent to.

        Args:
            hosts: the Host headers of the request, untrusted.

        Raises:
            MessageError: `malformed`, no usable host.
            AuthenticationError: `wrong-address`, it arrived for another host or port.
        """
        plain = _PLAIN_HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if plain is None:
            raise MessageError("malformed", "the request needs one plain host header")
        try:
            address = parse_authority(hosts[0], self.public.scheme)
        except UsageError:
            address = None  # such as the name of an upstream, which may have an underscore
        if address is None or address not in self._known:
            raise self._refusal(address, hosts[0], has_port=bool(plain["port"]))
        return address

    def _refusal(self, address: Address | None, arrived: str, *, has_port: bool) -> AuthenticationError:
        arrived = printable(arrived, _SHOWN_CHARACTERS)
        ports = {str(known.port) for known in self._known if address and known.host == address.host}
        difference = ""
        if ports:
            port = " or ".join(sorted(ports))
            difference = f": the same host, with another port than {port}"
            if not has_port:
                difference = f": the same host, but its port {port} is missing"
        remedy = (
            f"if another address was asked for, a reverse proxy changed it and must keep it ({_KEEP_HOST})"
        )
        if address is not None:
            remedy += (
                f"; if {arrived} was asked for, ask for {self.public} instead, or let the operator add"
                f" {arrived} to also_known_as (DPDPCA_PROXY_ALSO_KNOWN_AS)"
            )
        return AuthenticationError(
            "wrong-address",
            f"the request arrived for {arrived}, but this service is known as {self.shown}{difference}",
            remedy,
        )


def host_header_changed(signed: Address, arrived: Address) -> AuthenticationError:
    """The refusal of a request that was signed for another of our addresses than it arrived for."""
    return AuthenticationError(
        "wrong-address",
        f"the request was signed for {signed.authority} and arrived for {arrived.authority}:"
        " something on the way has changed its Host header",
        f"let the reverse proxy pass on what was asked for ({_KEEP_HOST})",
    )
