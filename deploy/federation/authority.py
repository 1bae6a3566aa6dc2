"""A throw-away certificate authority: signs once for the names given, then its key is gone.

Usage: authority.py PUBLIC_FOLDER NAME=FOLDER...

Writes PUBLIC_FOLDER/ca.pem, and tls.pem and tls.key into the folder of each NAME, a host of the federation.
For trying things out; a real federation has certificates of an authority that its parties trust already.
"""

import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpdpca_runtime.files import write_private

LIFETIME = timedelta(days=90)
CLOCK_SKEW = timedelta(minutes=10)
USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""Members of a Dask cluster show their certificates in both directions."""
UNUSED = (
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "encipher_only",
    "decipher_only",
)


def distinguished_name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def certificate(
    subject: str, public: EllipticCurvePrivateKey, issuer: str, issuer_key: EllipticCurvePrivateKey
) -> x509.Certificate:
    """One certificate; its own issuer if the names are the same, else a server's."""
    now = datetime.now(UTC)
    is_authority = subject == issuer
    usage = dict.fromkeys(UNUSED, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(distinguished_name(subject))
        .issuer_name(distinguished_name(issuer))
        .public_key(public.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority, **usage
            ),
            True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False)
    )
    if not is_authority:
        names = [
            x509.DNSName(subject),
            x509.DNSName("localhost"),
            x509.IPAddress(ip_address("127.0.0.1")),
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False).add_extension(
            x509.ExtendedKeyUsage(USAGES), False
        )
    return builder.sign(issuer_key, SHA256())


def main(public_folder: Path, hosts: dict[str, Path]) -> None:
    authority = "DPDPCA throw-away authority"
    authority_key = generate_private_key(SECP256R1())
    own = certificate(authority, authority_key, authority, authority_key)
    for host, folder in hosts.items():
        key = generate_private_key(SECP256R1())
        issued = certificate(host, key, authority, authority_key)
        encoded = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(folder / "tls.key", encoded)
        write_private(folder / "tls.pem", issued.public_bytes(Encoding.PEM))
    (public_folder / "ca.pem").write_bytes(own.public_bytes(Encoding.PEM))


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in word for word in sys.argv[2:]):
        sys.exit(__doc__)
    main(
        Path(sys.argv[1]),
        {host: Path(folder) for host, _, folder in (w.partition("=") for w in sys.argv[2:])},
    )
