"""`dpdpca owner rotate`: replaces this owner's keys by new ones."""

from dpdpca_owner.actions import Desk
from dpdpca_owner.home import Owner
from dpdpca_protocol.wire.signing import Statement

_SENDING_SECONDS = 20.0


def rotate_keys(desk: Desk, passphrase: bytes | None) -> Owner:
    """Announce new keys to every proxy where this owner is enrolled, then use them.

    An interrupted rotation continues where it stopped.

    Args:
        desk: this owner, with the keys in use.
        passphrase: protects the keys in use, and then the new ones.

    Returns:
        The owner with the new keys.

    Raises:
        UnavailableError: a proxy cannot be reached. The old keys stay in use until all proxies know the new
            ones.
    """

    def announce(statement: Statement) -> None:
        for url in desk.home.pins.proxy_urls():
            with desk.client(url, _SENDING_SECONDS) as client:
                client.rotate(statement)

    return desk.home.rotate(passphrase, desk.now(), announce)
