"""TLS handshakes that never end are cut off, and file handles are there for a crowd."""

import asyncio
import contextlib
import datetime
import ipaddress
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from promises import Promise

from dpdpca_runtime.asgi import loop as edge
from dpdpca_runtime.asgi.loop import EdgeLoop, raise_file_limit

SECONDS = 0.5


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


@pytest.fixture
def port(context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A TLS server on an edge loop that greets whoever ends the handshake."""
    monkeypatch.setattr(edge, "HANDSHAKE_SECONDS", SECONDS)
    ports: list[int] = []
    started, stopping = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"welcome")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()
        async with server:
            await stopping.wait()

    runner = asyncio.Runner(loop_factory=EdgeLoop)
    thread = threading.Thread(target=lambda: runner.run(serve()))
    thread.start()
    assert started.wait(10)
    yield ports[0]
    runner.get_loop().call_soon_threadsafe(stopping.set)
    thread.join(10)
    runner.close()


def test_handshakes_that_do_not_end_are_cut_off(port: int, promise: Promise) -> None:
    beginnings = [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
    for beginning in beginnings:
        with socket.create_connection(("127.0.0.1", port), timeout=120) as link:
            link.sendall(beginning)
            begin = time.monotonic()
            with contextlib.suppress(ConnectionError):
                while link.recv(4096):
                    pass
            assert time.monotonic() - begin < 10 * SECONDS
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=120) as link, trust.wrap_socket(link) as tls:
        assert tls.recv(100) == b"welcome"
    promise("P29", counted=f"{len(beginnings)} TLS handshakes that never end", result="all cut off in time")


def test_file_handles_are_raised_to_what_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        hard = before[1] if before[1] != resource.RLIM_INFINITY else edge._MOST_FILES
        assert raise_file_limit() == min(edge._MOST_FILES, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
