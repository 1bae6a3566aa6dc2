"""Certificates as good and as bad as a test wants them, and servers that show them."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = timedelta(days=1)
LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Issued:
    """A certificate with its key, and the files that hold them."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    certificate_file: Path
    key_file: Path

    @property
    def serial(self) -> int:
        return self.certificate.serial_number

    def replace(self, other: "Issued", *, key: bool = True) -> None:
        """Puts the other certificate into this one's files, as a renewal does."""
        self.certificate_file.write_bytes(other.certificate_file.read_bytes())
        if key:
            self.key_file.write_bytes(other.key_file.read_bytes())

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_file, self.key_file)
        return context


def issue(
    folder: Path,
    name: str,
    hosts: tuple[str, ...] = LOCAL,
    *,
    issuer: Issued | None = None,
    begins: datetime | None = None,
    ends: datetime | None = None,
    is_authority: bool = False,
) -> Issued:
    """A certificate in `folder`; self-signed without an issuer, for a day unless dates are given."""
    now = datetime.now(UTC).replace(microsecond=0)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer = issuer.key if issuer else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins or now - DAY)
        .not_valid_after(ends or now + DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .add_extension(_usage(is_authority), critical=True)
    )
    if not is_authority:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    made = builder.sign(signer, hashes.SHA256())
    certificate_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    certificate_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return Issued(made, key, certificate_file, key_file)


def _usage(is_authority: bool) -> x509.KeyUsage:
    none = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    none |= dict.fromkeys(("encipher_only", "decipher_only"), False)
    return x509.KeyUsage(
        digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority, **none
    )


def _general_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ip_address(host))
    return x509.DNSName(host)


@dataclass
class OneAnswer:
    """A server on this machine that does the same with every connection."""

    port: int
    connections: int = 0


@contextlib.contextmanager
def answering(act: Callable[[socket.socket], object]) -> Iterator[OneAnswer]:
    """`act` gets each connection in a thread of its own; what goes wrong in it is the client's to see."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = OneAnswer(listener.getsockname()[1])

        def attend(link: socket.socket) -> None:
            with contextlib.suppress(OSError), link:
                act(link)

        def accept() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                server.connections += 1
                threading.Thread(target=attend, args=(link,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)


def shown_serial(port: int, ca: Issued, host: str = "127.0.0.1", name: str = "localhost") -> int:
    """The serial number of the certificate that a server shows; it must be one of this authority."""
    context = ssl.create_default_context(cafile=str(ca.certificate_file))
    with (
        socket.create_connection((host, port), 20) as link,
        context.wrap_socket(link, server_hostname=name) as encrypted,
    ):
        encoded = encrypted.getpeercert(binary_form=True)
    assert encoded is not None
    return x509.load_der_x509_certificate(encoded).serial_number
