"""Connections to a service: the trusted authorities, and explanations of failed connections.

If the cause of a failure is unclear, another connection is made to find the cause. This second connection
sends no request, and what it receives is not trusted.
"""

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path

import httpx
from cryptography import x509

from dpdpca_protocol.errors import (
    AuthenticationError,
    DpdpcaError,
    UnavailableError,
    UsageError,
    printable,
)
from dpdpca_protocol.wire.address import Address
from dpdpca_protocol.wire.fields import time_text

CA_FILE_VARIABLE = "DPDPCA_CA_FILE"
CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 5.0
_MOST_NAMES = 5

# OpenSSL's numbers for certificate errors (x509_vfy.h).
_NOT_YET_VALID = 9
_EXPIRED = 10
_SELF_SIGNED = 18
_UNKNOWN_ISSUER = frozenset({2, 19, 20, 21})
_OTHER_HOST = frozenset({62, 64})

_TLS_RECORDS = (b"\x15", b"\x16")
"""The first bytes of a TLS alert or handshake."""
_PLAIN_TEXT = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
"""OpenSSL's errors for bytes that are not TLS."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection.

    Attributes:
        kind: the kind of service, for people.
        address: its address.
        ca_option: the option that names the CA of its certificate.
        if_not_running: what to do if nobody listens.
        is_local: whether the caller runs this service itself. Such a service passes on errors of the proxy,
            and waiting does not start it.
    """

    kind: str
    address: Address
    ca_option: str = CA_FILE_VARIABLE
    if_not_running: str = "check that the service is running, and check the port"
    is_local: bool = False

    @property
    def name(self) -> str:
        return f"the {self.kind}"

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"


def ca_file_of_environment() -> Path | None:
    named = os.environ.get(CA_FILE_VARIABLE)
    return Path(named) if named else None


@lru_cache(maxsize=4)  # reading the authorities of a machine takes longer than a request, so they are cached
def trusted_authorities(ca_file: Path | None) -> ssl.SSLContext:
    """The trusted authorities: those in a PEM file, or those of this machine.

    Raises:
        UsageError: `bad-ca-file`.
    """
    if ca_file is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            "bad-ca-file",
            f"{ca_file} does not contain certificates in PEM format",
            "give the PEM file of the CA",
        ) from error


def explain_failure(error: httpx.TransportError, peer: Peer, now: datetime) -> DpdpcaError:
    """Explains why `peer` could not be reached, and what to do.

    Returns:
        UnavailableError if another try may help; AuthenticationError if another program answers or shows a
            certificate that is not accepted.
    """
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _refused_certificate(cause, peer, now)
        if isinstance(cause, ssl.SSLError) and isinstance(error, httpx.ConnectError):
            return _failed_handshake(cause, peer)
        if isinstance(cause, socket.gaierror):
            return _unknown_name(cause, peer)
        if isinstance(cause, ConnectionRefusedError):
            return _unreachable(peer, "no program listens there (connection refused)", peer.if_not_running)
    if isinstance(error, httpx.TimeoutException):
        return _too_slow(error, peer)
    if _is_tls_expected(peer):
        return _tls_expected(peer)
    if isinstance(error, httpx.RemoteProtocolError) and "illegal" in str(error):
        return AuthenticationError("not-http", f"{peer} does not answer with HTTP", "check the port")
    if isinstance(error, httpx.ProxyError):
        return _unreachable(
            peer, "the HTTP proxy in the environment refuses the connection", "check HTTPS_PROXY and NO_PROXY"
        )
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        return UnavailableError(
            "cut-off", f"{peer} closed the connection before its answer was complete", "try again"
        )
    reasons = [cause.strerror for cause in _causes(error) if isinstance(cause, OSError) and cause.strerror]
    reason = reasons[0] if reasons else type(error).__name__
    return _unreachable(peer, reason, "check the address and the network of this machine")


def explain_answer(failure: DpdpcaError, peer: Peer) -> DpdpcaError:
    """`failure`, or its real cause: web servers answer in HTML if plain HTTP arrives at a port with TLS."""
    return _tls_expected(peer) if failure.slug == "not-a-proxy" and _is_tls_expected(peer) else failure


def _is_tls_expected(peer: Peer) -> bool:
    """Whether plain http was sent to a port that speaks TLS."""
    if peer.address.scheme != "http":
        return False
    outgoing = ssl.MemoryBIO()
    greeting = _unverified().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=peer.address.host)
    with suppress(ssl.SSLWantReadError):
        greeting.do_handshake()
    where = (peer.address.host, peer.address.port)
    with suppress(OSError), socket.create_connection(where, _LOOK_SECONDS) as link:
        link.sendall(
            outgoing.read() + b"\r\n\r\n"
        )  # a server without TLS would also answer at the end of a line
        return link.recv(1) in _TLS_RECORDS
    return False


def _tls_expected(peer: Peer) -> AuthenticationError:
    return AuthenticationError(
        "tls-expected",
        f"{peer} requires TLS, but plain http was used",
        f"give https://{peer.address.authority}",
    )


def _refused_certificate(
    error: ssl.SSLCertVerificationError, peer: Peer, now: datetime
) -> AuthenticationError:
    """The error for a refused certificate: OpenSSL's reason, with the dates, names or issuer added."""
    number: int = getattr(error, "verify_code", 0)
    reason = printable(getattr(error, "verify_message", "") or "certificate verify failed", 120).rstrip(".")
    shown = _peer_certificate(peer.address)
    host, clock = peer.address.host, f"this machine's clock says {time_text(now)}"
    if number == _EXPIRED:
        what = "has expired"
        if shown is not None:
            ends = shown.not_valid_after_utc
            what = (
                f"expired at {time_text(ends)}"
                if ends < now
                else "comes from a CA whose own certificate has expired"
            )
        what += f", and {clock}"
        next_step = (
            "the operator must renew the certificate;"
            " if the clock of this machine is wrong, correct the clock"
        )
    elif number == _NOT_YET_VALID:
        what = "is not valid yet"
        if shown is not None:
            begins = shown.not_valid_before_utc
            what = (
                f"is valid from {time_text(begins)}"
                if begins > now
                else "comes from a CA whose own certificate is not valid yet"
            )
        what += f", and {clock}"
        next_step = "correct this machine's clock if it is wrong; otherwise ask the operator"
    elif number in _OTHER_HOST:
        what = f"is valid for {_names(shown)}, not for {host}"
        next_step = (
            "use an address for which the certificate is valid,"
            f" or ask the operator for a certificate for {host}"
        )
    elif number == _SELF_SIGNED:
        what = "is self-signed, so no authority confirms it"
        next_step = (
            "if the operator made this certificate, get it from the operator over a safe channel and name"
            " it with "
            f"{peer.ca_option}"
        )
    elif number in _UNKNOWN_ISSUER:
        what = f"comes from an authority that this machine does not trust: {_issuer(shown)}"
        next_step = (
            f"name the CA with {peer.ca_option}, or ask the operator to include the intermediate certificates"
        )
    else:
        what, next_step = "is not accepted", "report this to the operator of the service"
    return AuthenticationError(
        "untrusted-certificate",
        f"the TLS certificate of {peer} {what} (OpenSSL: {reason})",
        next_step,
    )


def _failed_handshake(error: ssl.SSLError, peer: Peer) -> DpdpcaError:
    if error.reason in _PLAIN_TEXT:
        remedy = "check the port, and ask the operator whether TLS is on"
        if peer.address.is_loopback:
            remedy = f"check the port, or give http://{peer.address.bracketed_host}:{peer.address.port}"
        return AuthenticationError("no-tls", f"{peer} does not use TLS: it answers in plain text", remedy)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return UnavailableError("cut-off", f"{peer} closed the connection in the TLS handshake", "try again")
    reason = (error.reason or "unknown reason").replace("_", " ").lower()
    return _unreachable(
        peer,
        f"the TLS handshake failed ({printable(reason, 80)})",
        "report this to the operator of the service",
    )


def _unknown_name(error: socket.gaierror, peer: Peer) -> UnavailableError:
    if error.errno == socket.EAI_AGAIN:
        return _unreachable(
            peer,
            f"the name {peer.address.host} cannot be resolved now",
            "check this machine's network and DNS",
        )
    return _unreachable(
        peer, f"the host name {peer.address.host} is unknown", "check the address and the DNS"
    )


def _too_slow(error: httpx.TimeoutException, peer: Peer) -> UnavailableError:
    if isinstance(error, httpx.ConnectTimeout):
        problem = f"{peer} does not answer: no connection within {CONNECT_SECONDS:.0f} s"
        return UnavailableError("no-answer", problem, "check the address, and look for a firewall in between")
    doing = (
        "does not accept the data that is sent"
        if isinstance(error, httpx.WriteTimeout)
        else "does not answer"
    )
    return UnavailableError(
        "no-answer", f"{peer} accepted the connection, but {doing} in time", "try again later"
    )


def _unreachable(peer: Peer, reason: str, next_step: str) -> UnavailableError:
    return UnavailableError("unreachable", f"{peer} cannot be reached: {reason}", next_step)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _peer_certificate(address: Address) -> x509.Certificate | None:
    """The certificate that the peer shows, unverified; None if there is no TLS."""
    with (
        suppress(OSError, ValueError),
        socket.create_connection((address.host, address.port), _LOOK_SECONDS) as link,
        _unverified().wrap_socket(link, server_hostname=address.host) as encrypted,
    ):
        encoded = encrypted.getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(encoded) if encoded else None
    return None


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _names(certificate: x509.Certificate | None) -> str:
    """The hosts for which a certificate claims to be valid; for people only."""
    names: list[str] = []
    with suppress(ValueError, x509.ExtensionNotFound):
        if certificate is not None:
            found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = found.get_values_for_type(x509.DNSName)
            names += [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    shown = [printable(name, 60) for name in names[:_MOST_NAMES]]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(shown) + more if shown else "other names"


def _issuer(certificate: x509.Certificate | None) -> str:
    with suppress(ValueError):
        if certificate is not None:
            return printable(certificate.issuer.rfc4514_string(), 120) or "an unnamed authority"
    return "an unknown authority"
