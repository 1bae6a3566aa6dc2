"""Checks that a request is addressed to this service: its host and port are compared with our own.

A reverse proxy that changes the Host header breaks every signature. The error explains this change, for
unsigned requests too: the first request of a client must not succeed if all later ones would fail.
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
"""The nginx setting that passes the Host header on unchanged; `$host` would omit the port."""


class KnownAddresses:
    """The addresses under which clients know a service.

    Args:
        public: the announced address. If this address is on this machine, all names of this machine count.
        others: further host[:port].

    Raises:
        UsageError: one of the other addresses is not host[:port].
    """

    def __init__(self, public: Address, others: Iterable[str] = ()) -> None:
        self.public = public
        hosts = _LOCAL_NAMES if public.is_loopback else (public.host,)
        self._known = {Address(public.scheme, host, public.port) for host in hosts}
        self._known |= {parse_authority(other, public.scheme) for other in others}

    @cached_property
    def shown(self) -> str:
        """All addresses, for people, with the public one first."""
        others = sorted(known.authority for known in self._known - {self.public})
        return ", ".join([self.public.authority, *others])

    def others_than(self, arrived: Address) -> list[Address]:
        return sorted(self._known - {arrived}, key=str)

    def arrived_at(self, hosts: Sequence[str]) -> Address:
        """The one of these addresses to which a request was sent.

        Args:
            hosts: the Host headers of the request, untrusted.

        Raises:
            MessageError: `malformed`, there is no usable host.
            AuthenticationError: `wrong-address`, the request is for another host or port.
        """
        plain = _PLAIN_HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if plain is None:
            raise MessageError("malformed", "the request must have exactly one plain Host header")
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
            difference = f": the host is right, but the port is not {port}"
            if not has_port:
                difference = f": the host is right, but its port {port} is missing"
        remedy = (
            "if you used another address, a reverse proxy changed the Host header; configure it to keep "
            f"the header ({_KEEP_HOST})"
        )
        if address is not None:
            remedy += (
                f"; if you used {arrived}, use {self.public} instead, or ask the operator to add "
                f"{arrived} to also_known_as (DPDPCA_PROXY_ALSO_KNOWN_AS)"
            )
        return AuthenticationError(
            "wrong-address",
            f"the request is addressed to {arrived}, but this service is known as {self.shown}{difference}",
            remedy,
        )


def host_header_changed(signed: Address, arrived: Address) -> AuthenticationError:
    """The refusal of a request that was signed for one of our addresses and arrived for another."""
    return AuthenticationError(
        "wrong-address",
        f"the request was signed for {signed.authority} but arrived for {arrived.authority}: a reverse "
        "proxy changed its Host header",
        f"configure the reverse proxy to pass the Host header on unchanged ({_KEEP_HOST})",
    )
