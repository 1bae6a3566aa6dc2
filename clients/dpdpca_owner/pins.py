"""Keys of others, as this owner first met them. A change is refused until a person settles it by hand."""

from dataclasses import dataclass
from pathlib import Path

from dpdpca_disk.words import fingerprint_words
from dpdpca_owner.local_files import load, own_file, save
from dpdpca_protocol.canonical import canonical_json, parse_canonical
from dpdpca_protocol.errors import AuthenticationError, NotFoundError
from dpdpca_protocol.fields import read_text, read_time
from dpdpca_protocol.identifiers import Digest
from dpdpca_protocol.messages import ProxyCard
from dpdpca_protocol.parties import Party
from dpdpca_protocol.signing import Statement, hex_bytes, verify_statement

_NAME_LIMIT = 200


@dataclass(frozen=True, slots=True)
class PinnedUser:
    """A data user as first met on one proxy."""

    name: str
    ed25519: bytes
    since: str


class Pins:
    """Pinned proxies by address, pinned data users by proxy and name.

    Args:
        path: the folder; made on the first pin.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def proxy(self, url: str) -> ProxyCard:
        """The proxy at `url`. Raises NotFoundError before enrolment."""
        path = self._proxy_path(url)
        if not path.exists():
            raise NotFoundError(
                "not-enrolled", f"this owner is not enrolled at {url}", f"run: dpdpca owner enrol {url}"
            )
        body = load(path, "card", "url")
        with own_file(path):
            return ProxyCard.parse(verify_statement("proxy", canonical_json(body["card"])))

    def check_proxy(self, url: str, card: ProxyCard) -> bool:
        """Whether `url` is pinned already, with the key of `card`.

        Raises:
            AuthenticationError: it is pinned with another key.
        """
        path = self._proxy_path(url)
        if not path.exists():
            return False
        if self.proxy(url).identity.ed25519 != card.identity.ed25519:
            raise AuthenticationError(
                "proxy-key-changed",
                f"the proxy at {url} shows another key than the one that was pinned",
                f"ask its operator; only when the new words are confirmed, delete {path} and enrol again",
            )
        return True

    def pin_proxy(self, url: str, card: Statement) -> None:
        """Remember the proxy at `url`, and its newest card. Raises like `check_proxy`."""
        self.check_proxy(url, ProxyCard.parse(card))
        save(self._proxy_path(url), {"card": parse_canonical(card.encoded), "url": url})

    def check_user(self, proxy: bytes, user: Party) -> PinnedUser | None:
        """The pin of this data user on the proxy with this Ed25519 key, or None at first contact.

        Raises:
            AuthenticationError: the name is known there under another key.
        """
        path = self._user_path(proxy, user.name)
        if not path.exists():
            return None
        body = load(path, "ed25519", "name", "since")
        with own_file(path):
            read_time(body["since"], "since")
            name = read_text(body["name"], "name", _NAME_LIMIT)
            pinned = PinnedUser(name, hex_bytes(body["ed25519"], 32, "ed25519"), body["since"])
        if pinned.ed25519 != user.ed25519:
            raise AuthenticationError(
                "user-key-changed",
                f"the data user '{user.name}' is known here since {pinned.since} under another key"
                f" (then: {fingerprint_words(pinned.ed25519)}; now: {fingerprint_words(user.ed25519)})",
                f"ask them; only when the new words are confirmed, delete {path}",
            )
        return pinned

    def pin_user(self, proxy: bytes, user: Party, now: str) -> None:
        """Remember a data user at first contact; a known one stays as it is. Raises like `check_user`."""
        if self.check_user(proxy, user) is None:
            body = {"ed25519": user.ed25519.hex(), "name": user.name, "since": now}
            save(self._user_path(proxy, user.name), body)

    def _proxy_path(self, url: str) -> Path:
        return self._path / "proxies" / f"{Digest.of(url.encode()).hex()[:32]}.json"

    def _user_path(self, proxy: bytes, name: str) -> Path:
        return self._path / "users" / f"{Digest.of(proxy + name.encode()).hex()[:32]}.json"
