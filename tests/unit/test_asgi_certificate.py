"""A certificate that is served: what does not load, what expires, and the new one at the next handshake."""

import logging
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from certificates import DAY, Issued, answering, issue, shown_serial
from cryptography.hazmat.primitives import serialization

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.wire.fields import time_text
from dpdpca_runtime.asgi.certificate import ServedCertificate

NOW = datetime(2026, 11, 27, 22, 0, 0, tzinfo=UTC)


@pytest.fixture
def ca(tmp_path: Path) -> Issued:
    return issue(tmp_path, "CA", is_authority=True)


def encrypted(issued: Issued) -> bytes:
    sealed = serialization.BestAvailableEncryption(b"secret")
    return issued.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)


BREAKS: dict[str, tuple[Callable[[Issued, Issued], object], str]] = {
    "no certificate": (
        lambda issued, _: issued.certificate_file.unlink(),
        r"the TLS certificate \(tls_cert\) cannot be read: No such file or directory",
    ),
    "no key": (
        lambda issued, _: issued.key_file.unlink(),
        r"the TLS key \(tls_key\) cannot be read: No such file or directory",
    ),
    "an empty certificate": (
        lambda issued, _: issued.certificate_file.write_bytes(b""),
        r"the TLS certificate \(tls_cert\) is not in PEM form",
    ),
    "half a certificate": (
        lambda issued, _: issued.certificate_file.write_bytes(issued.certificate_file.read_bytes()[:200]),
        r"the TLS certificate \(tls_cert\) is not in PEM form",
    ),
    "an empty key": (
        lambda issued, _: issued.key_file.write_bytes(b""),
        r"the TLS key \(tls_key\) is not a private key in PEM format without a passphrase",
    ),
    "a key under a passphrase": (
        lambda issued, _: issued.key_file.write_bytes(encrypted(issued)),
        r"the TLS key \(tls_key\) is not a private key in PEM format without a passphrase",
    ),
    "another key": (
        lambda issued, other: issued.key_file.write_bytes(other.key_file.read_bytes()),
        r"the TLS key \(tls_key\) does not belong to the certificate",
    ),
}


@pytest.mark.parametrize(("break_it", "reason"), BREAKS.values(), ids=BREAKS.keys())
def test_a_pair_that_does_not_load_says_why_and_changes_nothing(
    ca: Issued, tmp_path: Path, break_it: Callable[[Issued, Issued], object], reason: str
) -> None:
    issued, other = issue(tmp_path, "first", issuer=ca), issue(tmp_path, "other", issuer=ca)
    served = ServedCertificate(issued.certificate_file, issued.key_file)
    break_it(issued, other)
    with pytest.raises(UsageError, match=reason) as refused:
        ServedCertificate(issued.certificate_file, issued.key_file)
    assert refused.value.slug == "bad-certificate"
    assert str(tmp_path) not in str(refused.value)  # it goes into the log
    with pytest.raises(UsageError, match=reason):
        served.reload()
    assert serials(served, ca) == [issued.serial]


def serials(served: ServedCertificate, ca: Issued, times: int = 1) -> list[int]:
    """What it shows to clients that ask by a name and by an address."""

    def act(link: socket.socket) -> None:
        with served.context.wrap_socket(link, server_side=True) as encrypted:
            encrypted.recv(1)

    with answering(act) as server:
        names = ("localhost", "127.0.0.1")
        return [shown_serial(server.port, ca, name=names[number % 2]) for number in range(times)]


def test_handshakes_take_what_was_loaded_last(ca: Issued, tmp_path: Path) -> None:
    issued, other = issue(tmp_path, "first", issuer=ca), issue(tmp_path, "other", issuer=ca)
    served = ServedCertificate(issued.certificate_file, issued.key_file)
    first = issued.serial
    assert serials(served, ca, 2) == [first, first]
    issued.replace(other, key=False)
    with pytest.raises(UsageError):
        served.reload()
    assert serials(served, ca, 2) == [first, first]
    issued.replace(other)
    served.reload()
    assert serials(served, ca, 2) == [other.serial, other.serial]


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [
        (-80, 14.1, []),
        (-80, 13.9, ["certificate expires soon; replace it and send SIGHUP"]),
        (-80, 0.001, ["certificate expires soon; replace it and send SIGHUP"]),
        (-80, -0.001, ["certificate has expired; clients refuse it"]),
        (-3.9, 2.1, []),  # of six days
        (-4.1, 1.9, ["certificate expires soon; replace it and send SIGHUP"]),
        (0.1, 90, ["certificate is not valid yet; correct the clock, or wait"]),
    ],
)
def test_the_end_is_told_in_time(
    tmp_path: Path, begins: float, ends: float, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    begin, end = NOW + timedelta(days=begins), NOW + timedelta(days=ends)
    issued = issue(tmp_path, "self", begins=begin, ends=end)
    served = ServedCertificate(issued.certificate_file, issued.key_file, lambda: NOW)
    with caplog.at_level(logging.WARNING):
        served.warn()
    assert [record.msg for record in caplog.records] == said
    assert {record.expires_at for record in caplog.records} <= {time_text(end)}  # type: ignore[attr-defined] # from `extra`
    assert served.seconds_left == pytest.approx(ends * 86400, abs=1)


def test_the_end_of_a_chain_is_that_of_its_first_certificate_to_expire(tmp_path: Path) -> None:
    middle = issue(tmp_path, "middle", is_authority=True, begins=NOW - 9 * DAY, ends=NOW + 3 * DAY)
    leaf = issue(tmp_path, "leaf", issuer=middle, begins=NOW - DAY, ends=NOW + 30 * DAY)
    with leaf.certificate_file.open("ab") as chain:
        chain.write(middle.certificate_file.read_bytes())
    served = ServedCertificate(leaf.certificate_file, leaf.key_file, lambda: NOW)
    assert served.seconds_left == 3 * 86400
