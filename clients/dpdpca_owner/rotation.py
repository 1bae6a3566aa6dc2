"""`dpdpca owner rotate`: new keys in the place of this owner's own."""

from dpdpca_owner.actions import Desk
from dpdpca_owner.home import Owner
from dpdpca_protocol.wire.signing import Statement

_SENDING_SECONDS = 20.0


def rotate_keys(desk: Desk, passphrase: bytes | None) -> Owner:
    """Tell every proxy that this owner is enrolled at, then use the new keys. Goes on where it stopped.

    Args:
        desk: this owner with the keys in use.
        passphrase: of these; seals the new ones too.

    Returns:
        The owner with the new keys.

    Raises:
        UnavailableError: a proxy cannot be reached: the old keys stay in use until all know the new ones.
    """

    def announce(statement: Statement) -> None:
        for url in desk.home.pins.proxy_urls():
            with desk.client(url, _SENDING_SECONDS) as client:
                client.rotate(statement)

    return desk.home.rotate(passphrase, desk.now(), announce)
