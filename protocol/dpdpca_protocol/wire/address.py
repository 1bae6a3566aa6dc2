"""Addresses of services.

The party that announces an address and the party that uses it share this parser. A request is signed for the
host and port that its sender intends, so both sides must write them in the same way. The canonical form has
the scheme and host in lower case. Names are in the ASCII form that DNS uses (IDNA, mapped by UTS #46 as
browsers do), without a final dot. IPv4 addresses are four decimal numbers. IPv6 addresses are in their
shortest form, in brackets. Ports are plain decimals from 1 to 65535, and the default port of the scheme is
omitted. An address has no user, path, query or fragment. IPv6 addresses have no zone, because a zone has a
meaning on one machine only. Plain http is only allowed for this machine: `localhost`, 127.0.0.0/8 and ::1.
Names below `localhost` do not count, because some resolvers send them to other machines.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, NoReturn

import idna

from dpdpca_protocol.errors import UsageError, printable

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_MOST_CHARACTERS = 2000
_MOST_HOST_CHARACTERS = 253
_MOST_AUTHORITY_CHARACTERS = 255
"""The same limit as in manifests, which name the proxy's address."""
_EXAMPLE = "give https://HOST or https://HOST:PORT"

_URL = re.compile(r"(?P<scheme>[A-Za-z]+)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)")
_AUTHORITY = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?P<port>:[^:]*)?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a service, in canonical form. The functions below create addresses.

    Attributes:
        scheme: "https", or "http" on this machine.
        host: a name, an IPv4 address, or an IPv6 address without its brackets.
        port: 1 to 65535.
    """

    scheme: str
    host: str
    port: int

    @property
    def bracketed_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def authority(self) -> str:
        """host[:port], as in a signed Host header."""
        is_default = self.port == _DEFAULT_PORTS[self.scheme]
        return self.bracketed_host if is_default else f"{self.bracketed_host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse_address(text: str) -> Address:
    """Parses `text`, as people type it, as the address of a service.

    Raises:
        UsageError: `bad-address`, or `tls-required` for plain http to another machine.
    """
    address, path = split_address(text)
    if path not in ("", "/"):
        refuse_path(path)
    return address


def split_address(text: str) -> tuple[Address, str]:
    """The address at the beginning of `text`, and the path after it. Raises like `parse_address`."""
    text = text.strip(" \t\r\n")
    if len(text) > _MOST_CHARACTERS or any(letter.isspace() or _is_control(letter) for letter in text):
        _refuse("an address must be one line without spaces and control characters")
    if "@" in text:
        _refuse(
            "an address must not contain a user name or a password"
        )  # the user name and password are not shown
    parts = _URL.fullmatch(text)
    scheme = parts["scheme"].lower() if parts else ""
    if parts is None or scheme not in _DEFAULT_PORTS:
        _refuse("an address must begin with https:// and a host")
    if parts["rest"]:
        _refuse(
            f"an address must not have a {'query' if parts['rest'][0] == '?' else 'fragment'} "
            f"({parts['rest'][0]})"
        )
    address = _parse_host_and_port(scheme, parts["authority"])
    if scheme == "http" and not address.is_loopback:
        raise UsageError(
            "tls-required",
            f"plain http is only allowed to this machine, but {address.bracketed_host} is another machine",
            "give an https:// address; if its certificate comes from your own CA, name the CA with --ca-file",
        )
    return address, parts["path"]


def parse_authority(text: str, local_scheme: str) -> Address:
    """Parses `text` as host[:port].

    The scheme is `local_scheme` if the host is this machine. For other machines the scheme is https, even if
    a reverse proxy ends TLS. Raises UsageError `bad-address`.
    """
    if "://" in text or "/" in text:
        _refuse(
            "this value must be host[:port], without https:// and without a path", "give HOST or HOST:PORT"
        )
    if any(letter.isspace() or _is_control(letter) for letter in text) or "@" in text:
        _refuse(
            "host[:port] must not contain a space, a control character or a user name",
            "give HOST or HOST:PORT",
        )
    address = _parse_host_and_port("https", text)
    return _parse_host_and_port(local_scheme, text) if address.is_loopback else address


def normal_address(text: str) -> str:
    """The canonical form of a stored address, or the text itself if this version refuses it."""
    try:
        return str(parse_address(text))
    except UsageError:
        return text


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine without asking a resolver."""
    name = host.lower().removesuffix(".")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def refuse_path(path: str) -> NoReturn:
    """Raises a UsageError for an address with a path."""
    _refuse(
        f"an address must not have a path, but this one has {printable(path, 60)}",
        "a proxy is always served at the root of its host and port: give https://HOST:PORT, without a "
        "path prefix",
    )


def _parse_host_and_port(scheme: str, text: str) -> Address:
    parts = _AUTHORITY.fullmatch(text)
    if parts is None:
        _refuse(
            "the host and the port cannot be told apart", f"{_EXAMPLE}; write an IPv6 address in brackets"
        )
    host = _parse_host(parts["host"])
    address = Address(scheme, host, _parse_port((parts["port"] or "")[1:], _DEFAULT_PORTS[scheme]))
    if len(address.authority) > _MOST_AUTHORITY_CHARACTERS:
        _refuse(f"host and port together are longer than {_MOST_AUTHORITY_CHARACTERS} characters")
    return address


def _parse_port(text: str, default: int) -> int:
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        _refuse(f"the port {printable(text, 20)} is not a number from 1 to 65535")
    return int(text)


def _parse_host(text: str) -> str:
    if text.startswith("["):
        return _parse_ipv6(text[1:-1])
    name = _to_ascii(text).removesuffix(".")
    if not name:
        _refuse("the address has no host")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return _parse_ipv4(name)
    for label in name.split("."):
        _check_label(label, name)
    if len(name) > _MOST_HOST_CHARACTERS:
        _refuse(f"a host name must have at most {_MOST_HOST_CHARACTERS} characters")
    return name


def _parse_ipv6(text: str) -> str:
    if "%" in text:
        _refuse(
            f"[{printable(text, 60)}] has a zone (%), which has a meaning on one machine only",
            "give an address without a zone",
        )
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        _refuse(f"[{printable(text, 60)}] is not an IPv6 address")
    if address.ipv4_mapped is not None:
        _refuse(f"[{text}] is the IPv4 address {address.ipv4_mapped}", f"give {address.ipv4_mapped}")
    if address.is_link_local:
        _refuse(f"[{address}] is a link-local address, which needs a zone", "give another address")
    return _of_one_machine(address)


def _parse_ipv4(text: str) -> str:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        _refuse(
            f"'{printable(text, 60)}' looks like an IPv4 address, but programs interpret it in different "
            "ways",
            "write four decimal numbers, such as 127.0.0.1",
        )
    return _of_one_machine(address)


def _of_one_machine(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    if address.is_unspecified or address.is_multicast:
        _refuse(f"{address} is not the address of a single machine", "give the address that clients use")
    return str(address)


def _to_ascii(name: str) -> str:
    """`name` in lower case, with labels in other scripts in the form that DNS uses."""
    if name.isascii():
        return name.lower()
    try:
        if len(name) > _MOST_HOST_CHARACTERS:
            raise idna.IDNAError("too long")
        labels = idna.uts46_remap(name, std3_rules=False, transitional=False).split(".")
        return ".".join(label if label.isascii() else idna.alabel(label).decode() for label in labels)
    except UnicodeError:
        _refuse(f"'{printable(name, 60)}' is not a valid international host name (IDNA)")


def _check_label(label: str, name: str) -> None:
    shown = f"the host name '{printable(name, 60)}'"
    if not label:
        _refuse(f"{shown} has an empty part between two dots")
    if not _LABEL.fullmatch(label):
        _refuse(
            f"{shown} has a part that does not consist of 1 to 63 letters, digits and inner hyphens",
            "give the name that is in DNS",
        )
    if label.startswith("xn--"):
        try:
            is_genuine = idna.alabel(idna.ulabel(label)).decode() == label
        except UnicodeError:
            is_genuine = False
        if not is_genuine:
            _refuse(f"{shown} has a part that begins with xn-- but does not encode a valid name (IDNA)")


def _is_control(letter: str) -> bool:
    return letter < " " or "\x7f" <= letter < "\xa0"


def _refuse(problem: str, next_step: str = _EXAMPLE) -> NoReturn:
    raise UsageError("bad-address", problem, next_step)
