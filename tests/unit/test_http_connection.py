"""Connections that fail, to real servers: a sentence for each reason, the same for both clients of ours."""

import re
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from certificates import DAY, Issued, answering, issue

from dpdpca_protocol.errors import (
    AuthenticationError,
    DpdpcaError,
    UnavailableError,
    UsageError,
)
from dpdpca_protocol.wire.fields import time_text
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http import exchange
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.connection import trusted_authorities
from dpdpca_runtime.http.retry import Patience
from dpdpca_user.service_client import ServiceClient

KEY = IdentityKey.generate()
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"
Ask = Callable[[str], DpdpcaError]


@pytest.fixture
def ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Issued:
    authority = issue(tmp_path, "Our CA", is_authority=True)
    monkeypatch.setenv("DPDPCA_CA_FILE", str(authority.certificate_file))
    return authority


@pytest.fixture
def slept() -> list[float]:
    return []


@pytest.fixture(params=["proxy", "service"])
def ask(request: pytest.FixtureRequest, slept: list[float]) -> Ask:
    """The error that a client of each kind ends with when it asks something at this address."""

    def ask_proxy(url: str) -> DpdpcaError:
        patience = Patience(4.0, sleep=slept.append, clock=lambda: sum(slept), jitter=lambda limit: limit)
        with ProxyClient(url, KEY, patience=patience) as client, pytest.raises(DpdpcaError) as caught:
            client.card()
        return caught.value

    def ask_service(url: str) -> DpdpcaError:
        with ServiceClient(url, "token") as client, pytest.raises(DpdpcaError) as caught:
            client.studies()
        return caught.value

    return ask_proxy if request.param == "proxy" else ask_service


def name_of(ask: Ask) -> str:
    return "the proxy" if ask.__name__ == "ask_proxy" else "the data user's service"


def with_tls(issued: Issued) -> Callable[[socket.socket], None]:
    context = issued.server_context()

    def act(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True) as encrypted:
            encrypted.recv(65536)
            encrypted.sendall(OK)

    return act


def refused_certificate(ask: Ask, slept: list[float], issued: Issued, host: str = "localhost") -> str:
    """What is said of this certificate, which ends the asking at once."""
    with answering(with_tls(issued)) as server:
        error = ask(f"https://{host}:{server.port}")
        assert server.connections == 2  # one to ask, one to look
    assert isinstance(error, AuthenticationError), error
    assert error.slug == "untrusted-certificate"
    assert str(error).isprintable()
    assert slept == []
    begin = f"the TLS certificate of {name_of(ask)} at https://{host}:{server.port} "
    assert error.problem.startswith(begin)
    return str(error).removeprefix(begin)


def test_an_expired_certificate_names_its_end_and_this_clock(
    ask: Ask, slept: list[float], ca: Issued, tmp_path: Path
) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) - DAY
    issued = issue(tmp_path, "old", issuer=ca, begins=ends - DAY, ends=ends)
    said = refused_certificate(ask, slept, issued)
    today = datetime.now(UTC)
    assert said.startswith(f"expired at {time_text(ends)}, and this machine's clock says {today:%Y-%m-%dT%H}")
    assert said.endswith(
        "(OpenSSL: certificate has expired); the operator must renew the certificate;"
        " if the clock of this machine is wrong, correct the clock"
    )


def test_a_certificate_from_the_future_names_its_beginning_and_this_clock(
    ask: Ask, slept: list[float], ca: Issued, tmp_path: Path
) -> None:
    begins = datetime.now(UTC).replace(microsecond=0) + DAY
    issued = issue(tmp_path, "new", issuer=ca, begins=begins, ends=begins + DAY)
    said = refused_certificate(ask, slept, issued)
    assert said.startswith(f"is valid from {time_text(begins)}, and this machine's clock says 2")
    assert said.endswith(
        "(OpenSSL: certificate is not yet valid); correct this machine's clock if it is wrong;"
        " otherwise ask the operator"
    )


def test_an_expired_authority_is_told_from_an_expired_certificate(
    ask: Ask, slept: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    old = issue(tmp_path, "Old CA", is_authority=True, begins=now - 2 * DAY, ends=now - DAY)
    monkeypatch.setenv("DPDPCA_CA_FILE", str(old.certificate_file))
    said = refused_certificate(ask, slept, issue(tmp_path, "fine", issuer=old))
    assert said.startswith(
        "comes from a CA whose own certificate has expired, and this machine's clock says 2"
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_certificate_for_other_hosts_names_them(
    ask: Ask, slept: list[float], ca: Issued, tmp_path: Path, host: str
) -> None:
    names = ("relay.example", "192.0.2.7", "x\x1b[31m.example")
    said = refused_certificate(ask, slept, issue(tmp_path, "other", names, issuer=ca), host)
    assert said.startswith(
        f"is valid for relay.example, x [31m.example, 192.0.2.7, not for {host} (OpenSSL: "
    )
    assert "ismatch, certificate is not valid for" in said
    assert said.endswith(
        f"use an address for which the certificate is valid, or ask the operator for a certificate for {host}"
    )


def test_a_self_signed_certificate(ask: Ask, slept: list[float], ca: Issued, tmp_path: Path) -> None:
    said = refused_certificate(ask, slept, issue(tmp_path, "self"))
    assert said.startswith("is self-signed, so no authority confirms it (OpenSSL: self-signed certificate)")
    assert "DPDPCA_CA_FILE" in said
    assert ("--ca-file" in said) == (name_of(ask) == "the proxy")


def test_an_unknown_authority_is_named(ask: Ask, slept: list[float], ca: Issued, tmp_path: Path) -> None:
    other = issue(tmp_path, "Other CA", is_authority=True)
    said = refused_certificate(ask, slept, issue(tmp_path, "foreign", issuer=other))
    assert said.startswith(
        "comes from an authority that this machine does not trust: CN=Other CA"
        " (OpenSSL: unable to get local issuer certificate); name the CA with "
    )


def test_a_ca_file_that_is_none(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (None, b"", b"no certificate"):
        path = tmp_path / f"{len(content or b'')}.pem"
        if content is not None:
            path.write_bytes(content)
        monkeypatch.setenv("DPDPCA_CA_FILE", str(path))
        with pytest.raises(UsageError, match="does not contain certificates in PEM format"):
            ask("https://localhost:1")


def test_the_right_certificate_is_accepted(ca: Issued, tmp_path: Path) -> None:
    trusted_authorities.cache_clear()
    with answering(with_tls(issue(tmp_path, "good", issuer=ca))) as server:
        url = f"https://localhost:{server.port}"
        with ServiceClient(url, "token") as client, pytest.raises(KeyError):
            client.studies()  # an empty object came: the connection stood
        assert server.connections == 1


# Another protocol than the one that was expected


def plain_400(link: socket.socket) -> None:
    link.recv(65536)
    link.sendall(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")


def test_tls_to_a_port_without(ask: Ask, slept: list[float]) -> None:
    with answering(plain_400) as server:
        error = ask(f"https://localhost:{server.port}")
    assert (type(error), error.slug, slept) == (AuthenticationError, "no-tls", [])
    assert str(error) == (
        f"{name_of(ask)} at https://localhost:{server.port} does not use TLS: it answers in plain text;"
        f" check the port, or give http://localhost:{server.port}"
    )


@pytest.mark.parametrize("as_web_servers_do", [False, True])
def test_plain_http_to_a_port_with_tls(
    ask: Ask, slept: list[float], ca: Issued, tmp_path: Path, as_web_servers_do: bool
) -> None:
    """Either the handshake fails, or an answer in HTML says so."""
    tls = with_tls(issue(tmp_path, "good", issuer=ca))

    def act(link: socket.socket) -> None:
        if as_web_servers_do and link.recv(1, socket.MSG_PEEK) != b"\x16":
            plain_400(link)
        else:
            tls(link)

    with answering(act) as server:
        error = ask(f"http://localhost:{server.port}")
    assert (type(error), error.slug, slept) == (AuthenticationError, "tls-expected", [])
    assert str(error) == (
        f"{name_of(ask)} at http://localhost:{server.port} requires TLS, but plain http was used;"
        f" give https://localhost:{server.port}"
    )


def test_something_else_than_http(ask: Ask, slept: list[float]) -> None:
    def act(link: socket.socket) -> None:
        link.recv(65536)
        link.sendall(b"* OK IMAP4rev1 ready\r\n\r\n")

    with answering(act) as server:
        error = ask(f"http://localhost:{server.port}")
    assert (type(error), error.slug, slept) == (AuthenticationError, "not-http", [])
    assert "does not answer with HTTP; check the port" in str(error)


# Nobody there, or not for long


def unavailable(ask: Ask, slept: list[float], url: str) -> str:
    """What is said of an address that another try may reach; a proxy's client has tried again."""
    error = ask(url)
    assert isinstance(error, UnavailableError), error
    assert bool(slept) == (name_of(ask) == "the proxy")
    begin = f"{name_of(ask)} at {url} "
    assert error.problem.startswith(begin), error
    return str(error).removeprefix(begin)


def test_nobody_listens(ask: Ask, slept: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    said = unavailable(ask, slept, f"http://127.0.0.1:{port}")
    assert said.startswith("cannot be reached: no program listens there (connection refused); ")
    remedies = {"the proxy": "check that the service is running, and check the port"}
    assert said.endswith(remedies.get(name_of(ask), "start the service with: dpdpca user serve"))


def test_an_unknown_name(ask: Ask, slept: list[float]) -> None:
    host = "no-such-machine.invalid"
    with pytest.raises(socket.gaierror) as looked_up:
        socket.getaddrinfo(host, 443)
    said = unavailable(ask, slept, f"https://{host}")
    if looked_up.value.errno == socket.EAI_AGAIN:  # on a machine without DNS
        assert said.startswith(f"cannot be reached: the name {host} cannot be resolved now; check this")
    else:
        assert said.startswith(f"cannot be reached: the host name {host} is unknown; check the")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_TIMEOUT", 0.3)


@pytest.mark.usefixtures("hasty")
def test_silence(ask: Ask, slept: list[float]) -> None:
    silent = threading.Event()
    with answering(lambda _link: silent.wait(30)) as server:
        said = unavailable(ask, slept, f"http://127.0.0.1:{server.port}")
        assert said == "accepted the connection, but does not answer in time; try again later"
        slept.clear()
        said = unavailable(ask, slept, f"https://localhost:{server.port}")
        assert said.startswith(
            "does not answer: no connection within 10 s; check the address, and look for a fire"
        )
        silent.set()


def test_an_answer_that_breaks_off(ask: Ask, slept: list[float]) -> None:
    def half(link: socket.socket) -> None:
        link.recv(65536)
        link.sendall(OK[:-1])

    for act in (half, lambda link: link.recv(65536)):
        slept.clear()
        with answering(act) as server:
            said = unavailable(ask, slept, f"http://127.0.0.1:{server.port}")
        assert said == "closed the connection before its answer was complete; try again"


def test_a_handshake_that_breaks_off(ask: Ask, slept: list[float]) -> None:
    with answering(lambda link: link.recv(65536)) as server:
        said = unavailable(ask, slept, f"https://localhost:{server.port}")
    assert re.match(r"(closed the connection|cannot be reached: )", said), said


def test_a_handshake_without_a_common_version(ask: Ask, slept: list[float], tmp_path: Path) -> None:
    context = issue(tmp_path, "good").server_context()
    context.set_ciphers("ECDHE-RSA-AES256-GCM-SHA384")  # not with this kind of key
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def act(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True):
            pass

    with answering(act) as server:
        said = unavailable(ask, slept, f"https://localhost:{server.port}")
    assert said.startswith("cannot be reached: the TLS handshake failed (")
    assert "handshake failure" in said
