"""Storage of study keys: sealed under the service's passphrase if set; the database has mode 0600."""

from dpdpca_protocol.errors import AuthenticationError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.sealing import open_with_passphrase, seal_with_passphrase

_PLAIN, _SEALED = b"\x00", b"\x01"


class Keyring:
    """Converts secret keys to their stored form and back. Its repr shows nothing."""

    def __init__(self, passphrase: bytes | None) -> None:
        self._passphrase = passphrase

    def __repr__(self) -> str:
        return "Keyring(…)"

    def close(self, secret: bytes, study: StudyId) -> bytes:
        """The stored form of `secret`."""
        if self._passphrase is None:
            return _PLAIN + secret
        return _SEALED + seal_with_passphrase(secret, self._passphrase, _context(study), OS_RANDOMNESS)

    def open(self, stored: bytes, study: StudyId) -> bytes:
        """The secret key of `study` from its stored form.

        Raises:
            AuthenticationError: the passphrase is wrong or missing.
        """
        if stored[:1] == _PLAIN:
            return stored[1:]
        if self._passphrase is None:
            raise AuthenticationError(
                "wrong-passphrase",
                "the key of this study is sealed under a passphrase",
                "start the service with the passphrase's file in DPDPCA_USER_PASSPHRASE_FILE",
            )
        return open_with_passphrase(stored[1:], self._passphrase, _context(study))


def _context(study: StudyId) -> bytes:
    return b"dpdpca/study-key/v1" + study
