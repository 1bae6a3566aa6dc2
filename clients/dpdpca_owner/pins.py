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
from dpdpca_protocol.parties import Participant, Party
from dpdpca_protocol.signing import Statement, hex_bytes, verify_statement

_NAME_LIMIT = 200


@dataclass(frozen=True, slots=True)
class PinnedParty:
    """A data user or another owner as first met on one proxy."""

    name: str
    ed25519: bytes
    since: str


class Pins:
    """Pinned proxies by address, pinned data users and other owners by proxy and name.

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

    def check_user(self, proxy: bytes, user: Party) -> PinnedParty | None:
        """The pin of this data user on the proxy with this Ed25519 key, or None at first contact.

        Raises:
            AuthenticationError: the name is known there under another key.
        """
        return _check(
            self._party_path("users", proxy, user.name), "user", "data user", user.name, user.ed25519
        )

    def pin_user(self, proxy: bytes, user: Party, now: str) -> None:
        """Remember a data user at first contact; a known one stays as it is. Raises like `check_user`."""
        if self.check_user(proxy, user) is None:
            _save(self._party_path("users", proxy, user.name), user.name, user.ed25519, now)

    def check_participant(self, proxy: bytes, participant: Participant) -> PinnedParty | None:
        """The pin of an owner that a study names, or None where this owner has joined none with it before.

        Raises:
            AuthenticationError: the name is known there under another key.
        """
        path = self._party_path("participants", proxy, participant.name)
        return _check(path, "participant", "owner", participant.name, participant.ed25519)

    def pin_participant(self, proxy: bytes, participant: Participant, now: str) -> None:
        """Remember an owner at the first study with it. Raises like `check_participant`."""
        if self.check_participant(proxy, participant) is None:
            path = self._party_path("participants", proxy, participant.name)
            _save(path, participant.name, participant.ed25519, now)

    def _proxy_path(self, url: str) -> Path:
        return self._path / "proxies" / f"{Digest.of(url.encode()).hex()[:32]}.json"

    def _party_path(self, kind: str, proxy: bytes, name: str) -> Path:
        return self._path / kind / f"{Digest.of(proxy + name.encode()).hex()[:32]}.json"


def _check(path: Path, slug: str, what: str, name: str, ed25519: bytes) -> PinnedParty | None:
    """The pin at `path`; AuthenticationError where it is of another key."""
    if not path.exists():
        return None
    body = load(path, "ed25519", "name", "since")
    with own_file(path):
        read_time(body["since"], "since")
        pinned = PinnedParty(
            read_text(body["name"], "name", _NAME_LIMIT),
            hex_bytes(body["ed25519"], 32, "ed25519"),
            body["since"],
        )
    if pinned.ed25519 != ed25519:
        raise AuthenticationError(
            f"{slug}-key-changed",
            f"the {what} '{name}' is known here since {pinned.since} under another key"
            f" (then: {fingerprint_words(pinned.ed25519)}; now: {fingerprint_words(ed25519)})",
            f"ask them; only when the new words are confirmed, delete {path}",
        )
    return pinned


def _save(path: Path, name: str, ed25519: bytes, now: str) -> None:
    save(path, {"ed25519": ed25519.hex(), "name": name, "since": now})
