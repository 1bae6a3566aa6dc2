"""The TLS certificate of a service. The files of the certificate may be replaced while the service runs."""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.wire.fields import time_text

_WARNING_TIME = timedelta(days=14)
"""How long before expiry warnings begin; for short-lived certificates, a third of their lifetime."""

_logger = logging.getLogger("dpdpca.certificate")


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A certificate chain with its key, and the time when its first certificate expires."""

    context: ssl.SSLContext
    begins: datetime
    ends: datetime


class ServedCertificate:
    """A certificate and its key, for servers that share `context`.

    Args:
        certificate_file, key_file: PEM; the key without a passphrase.
        now: the clock.

    Raises:
        UsageError: `bad-certificate`.
    """

    def __init__(
        self, certificate_file: Path, key_file: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._certificate_file, self._key_file, self._now = certificate_file, key_file, now
        self._loaded = _load(certificate_file, key_file)
        self.context = self._loaded.context
        # A handshake uses the context that is loaded at that time. No file is loaded into a context in use,
        # because a wrong key would leave it with half of the new pair.
        self.context.sni_callback = self._choose

    @property
    def seconds_left(self) -> float:
        """The seconds until the certificate expires; negative afterwards."""
        return (self._loaded.ends - self._now()).total_seconds()

    def reload(self) -> None:
        """Reads the certificate and the key file again. New connections use them.

        On failure this method raises UsageError and keeps the old pair.
        """
        self._loaded = _load(self._certificate_file, self._key_file)
        _logger.info("certificate reloaded", extra={"expires_at": time_text(self._loaded.ends)})

    def warn(self) -> None:
        """Logs a warning if the certificate expires soon, has expired, or is not valid yet."""
        now, loaded = self._now(), self._loaded
        ends = {"expires_at": time_text(loaded.ends)}
        if now >= loaded.ends:
            _logger.error("certificate has expired; clients refuse it", extra=ends)
        elif loaded.ends - now < min(_WARNING_TIME, (loaded.ends - loaded.begins) / 3):
            _logger.warning("certificate expires soon; replace it and send SIGHUP", extra=ends)
        if now < loaded.begins:
            _logger.error("certificate is not valid yet; correct the clock, or wait", extra=ends)

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        connection.context = self._loaded.context


def _load(certificate_file: Path, key_file: Path) -> _Loaded:
    """Messages name the settings but no paths, because they also go into the log."""
    encoded = _read(certificate_file, "the TLS certificate (tls_cert)")
    _read(key_file, "the TLS key (tls_key)")
    try:
        chain = x509.load_pem_x509_certificates(encoded)
    except ValueError as error:
        raise _bad("the TLS certificate (tls_cert) is not in PEM format") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password argument OpenSSL would ask for one at the terminal and wait.
        context.load_cert_chain(certificate_file, key_file, password="")
    except (OSError, ssl.SSLError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            raise _bad("the TLS key (tls_key) does not belong to the certificate (tls_cert)") from error
        raise _bad("the TLS key (tls_key) is not a private key in PEM format without a passphrase") from error
    first = min(chain, key=lambda certificate: certificate.not_valid_after_utc)
    return _Loaded(context, first.not_valid_before_utc, first.not_valid_after_utc)


def _read(file: Path, what: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _bad(f"{what} cannot be read: {error.strerror}") from error


def _bad(problem: str) -> UsageError:
    return UsageError("bad-certificate", problem, "check both files and their modes")
