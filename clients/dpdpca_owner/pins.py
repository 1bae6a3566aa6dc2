"""Pins: the keys of other parties, as this owner first saw them.

If a party changes its key and a statement signed with both the old and the new key proves this, the pin
follows. A pin never returns to an old key. Any other change is refused until a person resolves it by hand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpdpca_protocol.errors import AuthenticationError, NotFoundError
from dpdpca_protocol.messages.rotation import follow_rotations
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.terms.parties import Participant, Party
from dpdpca_protocol.wire.address import normal_address
from dpdpca_protocol.wire.canonical import canonical_json, parse_canonical
from dpdpca_protocol.wire.fields import read_text, read_time
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.kem import KEM_KEY_BYTES
from dpdpca_protocol.wire.signing import Identity, Statement, hex_bytes, verify_statement
from dpdpca_runtime.files import remove_private
from dpdpca_runtime.own_files import load, own_file, save
from dpdpca_runtime.pins import ProxyPins, rolled_back
from dpdpca_runtime.words import fingerprint_words

_NAME_LIMIT = 200

Rotations = Callable[[], Sequence[bytes]]
"""Asks the proxy for rotation statements when they are needed. They are untrusted."""


@dataclass(frozen=True, slots=True)
class PinnedParty:
    """A data user or another owner, as first seen on one proxy, and its replaced keys in `former`."""

    name: str
    ed25519: bytes
    since: str
    former: tuple[bytes, ...] = ()
    x25519: bytes | None = None
    """Another owner's key for blinding, if a blinded study named it."""
    compared: str | None = None
    """When this owner compared the words of the key with the other owner; None if it did not."""

    @property
    def met(self) -> str:
        """When this party was first met, and whether it has changed its key since then, in words."""
        return (
            f"{self.since}; it has changed its key since, with a statement signed by both keys"
            if self.former
            else self.since
        )


class Pins:
    """Pinned proxies by address, and pinned data users and other owners by proxy and name.

    Args:
        path: the folder; created with the first pin.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._proxies = _ProxyFiles(path / "proxies")

    def proxy(self, url: str) -> ProxyCard:
        """The proxy at `url`.

        Raises:
            NotFoundError: this owner is not enrolled at this proxy.
            AuthenticationError: `proxy-pinned-twice`, two spellings of the address have different keys.
        """
        return self._need_proxy(url).card

    def proxy_identities(self, url: str) -> tuple[Identity, ...]:
        """The pinned proxy's keys, the current ones first. A study keeps the keys that it began with."""
        pinned = self._need_proxy(url)
        return pinned.identity, *pinned.former

    def proxy_urls(self) -> list[str]:
        """The addresses of the proxies where this owner is enrolled, in canonical form."""
        return self._proxies.addresses()

    def follow_proxy(self, url: str, card: Statement, rotations: Sequence[bytes]) -> bool:
        """Pin the key in `card` if rotation statements lead to it from the pinned key.

        Returns:
            Whether the key changed.

        Raises:
            AuthenticationError: no statements lead to the key in `card`, or this key was replaced before.
        """
        pinned = self._need_proxy(url)
        given_up = self._proxies.given_up(pinned, ProxyCard.parse(card).identity, rotations)
        if given_up:
            self._proxies.save(url, card, (*given_up, *pinned.former))
        return bool(given_up)

    def check_proxy(self, url: str, card: ProxyCard) -> bool:
        """Whether `url` is pinned already, with the key of `card`.

        Raises:
            AuthenticationError: `url` is pinned with another key.
        """
        return self._proxies.check(url, card.identity)

    def pin_proxy(self, url: str, card: Statement) -> None:
        """Pin the proxy at `url` and keep its newest card. Raises like `check_proxy`."""
        self.check_proxy(url, ProxyCard.parse(card))
        pinned = self._proxies.find(url)
        self._proxies.save(url, card, pinned.former if pinned else ())

    def first_key(self, proxy: bytes) -> bytes:
        """See `ProxyPins.first_key`."""
        return self._proxies.first_key(proxy)

    def check_user(
        self, proxy: bytes, user: Party, rotations: Rotations | None = None, *, may_be_former: bool = False
    ) -> PinnedParty | None:
        """The pin of this data user on the proxy with this Ed25519 key, or None at first contact.

        Args:
            proxy: any key of the proxy.
            user: the data user as the manifest names it.
            rotations: asked if the key differs; if the statements lead to the new key, the pin follows.
            may_be_former: accept a replaced key too; right for a study that this owner has already joined.

        Raises:
            AuthenticationError: another key is pinned for this name.
        """
        path = self._party_path("users", proxy, user.name)
        return _check(path, "user", user.name, user.ed25519, rotations, may_be_former=may_be_former)

    def pin_user(self, proxy: bytes, user: Party, now: str) -> None:
        """Pin a data user at first contact; an existing pin stays. Raises like `check_user`."""
        if self.check_user(proxy, user, may_be_former=True) is None:
            path = self._party_path("users", proxy, user.name)
            _save(path, PinnedParty(user.name, user.ed25519, now))

    def check_participant(
        self,
        proxy: bytes,
        participant: Participant,
        rotations: Rotations | None = None,
        *,
        may_be_former: bool = False,
    ) -> PinnedParty | None:
        """The pin of an owner that a study names. None if no study joined before named that owner.

        Arguments and errors are those of `check_user`.
        """
        path = self._party_path("participants", proxy, participant.name)
        name, key = participant.name, participant.ed25519
        pinned = _check(path, "participant", name, key, rotations, may_be_former=may_be_former)
        if pinned is not None and pinned.ed25519 == key and _differ(pinned.x25519, participant.x25519):
            raise AuthenticationError(
                "participant-key-changed",
                f"the owner '{name}' is known here with another key for blinding",
                f"do not join; ask that owner, and only after it has confirmed its keys, delete {path}",
            )
        return pinned

    def pin_participant(self, proxy: bytes, participant: Participant, now: str) -> None:
        """Pin an owner that a joined study names; an existing pin stays. Raises like `check_participant`."""
        path = self._party_path("participants", proxy, participant.name)
        pinned = self.check_participant(proxy, participant, may_be_former=True)
        if pinned is None:
            _save(path, PinnedParty(participant.name, participant.ed25519, now, x25519=participant.x25519))
        elif pinned.ed25519 == participant.ed25519 and pinned.x25519 is None and participant.x25519:
            _save(path, replace(pinned, x25519=participant.x25519))

    def trust_participant(self, proxy: bytes, participant: Participant, now: str) -> None:
        """Note that this owner has compared an owner's words. Raises like `pin_participant`."""
        self.pin_participant(proxy, participant, now)
        path = self._party_path("participants", proxy, participant.name)
        if (pinned := self.check_participant(proxy, participant)) is not None:
            _save(path, replace(pinned, compared=now))

    def _need_proxy(self, url: str) -> "_PinnedProxy":
        pinned = self._proxies.find(url)
        if pinned is None:
            raise NotFoundError(
                "not-enrolled", f"this owner is not enrolled at {url}", f"run: dpdpca owner enrol {url}"
            )
        return pinned

    def _party_path(self, kind: str, proxy: bytes, name: str) -> Path:
        return self._path / kind / f"{Digest.of(self.first_key(proxy) + name.encode()).hex()[:32]}.json"


@dataclass(frozen=True, slots=True)
class _PinnedProxy:
    """A pin as it is in its file; `former` holds the replaced keys, the newest first."""

    path: Path
    url: str
    card: ProxyCard
    former: tuple[Identity, ...]

    @property
    def identity(self) -> Identity:
        return self.card.identity

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(key.ed25519 for key in (self.identity, *self.former))


class _ProxyFiles(ProxyPins[_PinnedProxy]):
    """The pinned proxies. Each address has one file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def entries(self) -> Sequence[_PinnedProxy]:
        return [_pinned_proxy(path) for path in sorted(self._folder.glob("*.json"))]

    def save(self, url: str, card: Statement, former: Sequence[Identity]) -> None:
        """Write one file under the canonical address, and delete those under other spellings."""
        address = normal_address(url)
        path = self._folder / f"{Digest.of(address.encode()).hex()[:32]}.json"
        keys = [{"ed25519": key.ed25519.hex(), "kem": key.kem.hex() if key.kem else None} for key in former]
        save(path, {"card": parse_canonical(card.encoded), "former": keys, "url": address})
        for pin in self.entries():
            if pin.url == address and pin.path != path:
                remove_private(pin.path)

    def _named(self, pin: _PinnedProxy) -> str:
        return f"{fingerprint_words(pin.identity.ed25519)} ({pin.path})"

    def _removal(self, pin: _PinnedProxy) -> str:
        return f"delete {pin.path}"

    def _removal_of_others(self) -> str:
        return "delete the other file"


_WHAT = {"participant": "owner", "user": "data user"}


def _pinned_proxy(path: Path) -> _PinnedProxy:
    body = load(path, "card", "url", optional=("former",))
    with own_file(path):
        card = ProxyCard.parse(verify_statement("proxy", canonical_json(body["card"])))
        former = tuple(_former_keys(key.get("ed25519"), key.get("kem")) for key in body.get("former", []))
    return _PinnedProxy(path, normal_address(body["url"]), card, former)


def _former_keys(ed25519: Any, kem: Any) -> Identity:
    """Reads replaced keys of a proxy. Keys from an earlier version have no `kem`."""
    sealing = None if kem is None else hex_bytes(kem, KEM_KEY_BYTES, "former")
    return Identity(hex_bytes(ed25519, 32, "former"), sealing)


def _check(
    path: Path, kind: str, name: str, ed25519: bytes, rotations: Rotations | None, *, may_be_former: bool
) -> PinnedParty | None:
    """The pin at `path`, after following rotations. Raises AuthenticationError if the pin has a different
    key."""
    if not path.exists():
        return None
    body = load(path, "ed25519", "name", "since", optional=("compared", "former", "x25519"))
    with own_file(path):
        read_time(body["since"], "since")
        if (compared := body.get("compared")) is not None:
            read_time(compared, "compared")
        pinned = PinnedParty(
            read_text(body["name"], "name", _NAME_LIMIT),
            hex_bytes(body["ed25519"], 32, "ed25519"),
            body["since"],
            tuple(hex_bytes(key, 32, "former") for key in body.get("former", [])),
            hex_bytes(body["x25519"], 32, "x25519") if "x25519" in body else None,
            compared,
        )
    if pinned.ed25519 == ed25519 or (may_be_former and ed25519 in pinned.former):
        return pinned
    what = f"the {_WHAT[kind]} '{name}'"
    if ed25519 in pinned.former:
        raise rolled_back(kind, what)
    role = "user" if kind == "user" else "owner"
    chain = follow_rotations(rotations(), role, pinned.ed25519) if rotations is not None else ()
    if ed25519 in {link.identity.ed25519 for link in chain[:-1]}:
        raise rolled_back(kind, what)
    if not chain or chain[-1].identity.ed25519 != ed25519:
        raise AuthenticationError(
            f"{kind}-key-changed",
            f"{what} has been known here since {pinned.since} under another key"
            f" (then: {fingerprint_words(pinned.ed25519)}; now: {fingerprint_words(ed25519)})",
            f"ask that party; only after it has confirmed the new words, delete {path}",
        )
    former = (*pinned.former, pinned.ed25519, *(link.identity.ed25519 for link in chain[:-1]))
    # The old key has signed the new ones, so what was compared stays compared.
    keys = chain[-1].identity
    followed = PinnedParty(pinned.name, ed25519, pinned.since, former, keys.x25519, pinned.compared)
    _save(path, followed)
    return followed


def _save(path: Path, pinned: PinnedParty) -> None:
    former = [key.hex() for key in pinned.former]
    body: dict[str, Any] = {"ed25519": pinned.ed25519.hex(), "former": former, "name": pinned.name}
    body["since"] = pinned.since
    if pinned.x25519 is not None:
        body["x25519"] = pinned.x25519.hex()
    if pinned.compared is not None:
        body["compared"] = pinned.compared
    save(path, body)


def _differ(one: bytes | None, other: bytes | None) -> bool:
    """Whether both are known and different."""
    return one is not None and other is not None and one != other
