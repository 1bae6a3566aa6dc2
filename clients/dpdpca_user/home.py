"""The data user's home folder: identity key, the service's bearer token, and the proxies it is enrolled at.

    identity.pem   the Ed25519 key, mode 0600, encrypted if a passphrase was given
    token          bearer token of the service, mode 0600
    profile.json   the name that owners see
    proxies.json   address, name and pinned keys of each proxy

Replaced keys are in files beside `identity.pem`. Every file is written completely or not at all.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dpdpca_protocol.errors import IntegrityError, MessageError, NotFoundError, PolicyError
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.terms.parties import Party, ProxyParty
from dpdpca_protocol.wire.address import normal_address
from dpdpca_protocol.wire.fields import read_text
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.kem import PREVIEW_KEM
from dpdpca_protocol.wire.signing import Identity, IdentityKey, Statement
from dpdpca_runtime.evidence import kept_manifests
from dpdpca_runtime.files import private_dir, read_private, write_private
from dpdpca_runtime.home_folder import home_folder
from dpdpca_runtime.identity_files import IdentityFiles, IdentityKeys
from dpdpca_runtime.passphrase import unlock
from dpdpca_runtime.pins import ProxyPins
from dpdpca_runtime.words import fingerprint_words

if TYPE_CHECKING:
    from dpdpca_runtime.database import Place  # most commands do not load SQLAlchemy

PASSPHRASE_VARIABLE = "DPDPCA_USER_PASSPHRASE_FILE"  # noqa: S105  # the name of a variable, not a secret
DATABASE_FILE = "user.sqlite3"
"""The database of the service."""
_TOKEN_BYTES = 32
_SHORTEST_TOKEN = 8
"""Minimum length of a token that somebody wrote by hand; ours have 43 characters."""


@dataclass(frozen=True, slots=True)
class EnrolledProxy:
    """A proxy with its pinned keys: those from enrolment, or those to which rotations have led since.

    Attributes:
        kem: the key to which owners seal their shares. None if an earlier version pinned the proxy, and the
            proxy has not been followed to newer keys since.
        former: replaced Ed25519 keys. A study keeps the key that it began with.
    """

    url: str
    name: str
    ed25519: str
    kem: str | None = None
    former: tuple[str, ...] = ()

    @property
    def identity(self) -> Identity:
        return Identity(bytes.fromhex(self.ed25519), bytes.fromhex(self.kem) if self.kem else None)

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All its Ed25519 keys, the current one first."""
        return tuple(bytes.fromhex(key) for key in (self.ed25519, *self.former))

    @property
    def party(self) -> ProxyParty:
        """The proxy as a manifest names it. Raises CryptographicError if the pin has no `kem`."""
        return ProxyParty(self.name, self.url, self.identity.ed25519, self.identity.sealing_key)

    @property
    def provisional_party(self) -> ProxyParty:
        """Like `party`, for a manifest that is checked but not sent: a stand-in replaces a missing `kem`."""
        return ProxyParty(self.name, self.url, self.identity.ed25519, self.identity.kem or PREVIEW_KEM)


@dataclass(frozen=True, slots=True)
class UserHome:
    """Paths and contents of one data user's home folder.

    Attributes:
        database: where the database of the service is, if it is not in the folder.
    """

    folder: Path
    database: "Place | None" = None

    @classmethod
    def find(cls, option: Path | None, environment: Mapping[str, str] = os.environ) -> Self:
        return cls(home_folder("user", option, environment))

    def create(self, name: str, passphrase: bytes | None) -> IdentityKey:
        """Create keys, token and profile.

        Raises:
            ConflictError: the folder already has keys; they are kept.
        """
        read_text(name, "the name", 200)
        self.key_files.check_unused()
        private_dir(self.folder)
        write_private(self.folder / "token", secrets.token_urlsafe(_TOKEN_BYTES).encode() + b"\n")
        write_private(self.folder / "profile.json", json.dumps({"name": name}).encode())
        # The keys are written last, so that an interrupted init never looks finished.
        return self.key_files.create(passphrase)

    @property
    def key_files(self) -> IdentityFiles:
        return IdentityFiles(self.folder, self._signers, role="user")

    def _signers(self) -> frozenset[PartyId]:
        manifests = kept_manifests(self.database or self.folder / DATABASE_FILE)
        return frozenset(PartyId.of(manifest.signer) for manifest in manifests)

    def identity(self, passphrase: bytes | None) -> IdentityKey:
        """The private keys in use. Raises like `keys`."""
        return self.keys(passphrase).current

    def keys(self, passphrase: bytes | None) -> IdentityKeys:
        """All private keys.

        Raises:
            NotFoundError: `dpdpca user init` was not run here.
            AuthenticationError: the passphrase is wrong or missing.
        """
        self._check_made()
        return self.key_files.load(passphrase)

    def rotate(
        self, passphrase: bytes | None, now: datetime, announce: Callable[[Statement], None]
    ) -> IdentityKeys:
        """Replace the keys by new ones; see `IdentityFiles.rotate`."""
        self._check_made()
        return self.key_files.rotate(passphrase, now, announce)

    def token(self) -> str:
        with _as_written(self.folder / "token"):
            token = self._read("token").decode().strip()
            if len(token) < _SHORTEST_TOKEN:
                raise ValueError
        return token

    def name(self) -> str:
        with _as_written(self.folder / "profile.json"):
            return read_text(self._json("profile.json")["name"], "the name", 200)

    def party(self, key: IdentityKey) -> Party:
        return Party(self.name(), key.public.ed25519)

    def proxies(self) -> tuple[EnrolledProxy, ...]:
        """The proxies, each once, even if it was enrolled under several spellings of its address.

        Raises:
            AuthenticationError: `proxy-pinned-twice`, two spellings of an address have different keys.
        """
        return tuple(self.proxy(address) for address in self._pins.addresses())

    def proxy(self, url: str | None) -> EnrolledProxy:
        """The proxy at `url`, or the only one if `url` is None.

        Raises:
            NotFoundError: this data user is not enrolled at this proxy.
            PolicyError: there are several proxies and none was named.
            AuthenticationError: `proxy-pinned-twice`, several keys are pinned for one address.
        """
        known = self._pins.addresses()
        if url is None and len(known) > 1:
            raise PolicyError(
                "several-proxies",
                f"this data user is enrolled at {len(known)} proxies",
                "choose one with --proxy URL",
            )
        address = next(iter(known), None) if url is None else url
        pinned = None if address is None else self.find_proxy(address)
        if pinned is None:
            raise NotFoundError(
                "not-enrolled", "this data user is not enrolled at that proxy", "run: dpdpca user enrol URL"
            )
        return pinned

    def find_proxy(self, url: str) -> EnrolledProxy | None:
        """The proxy at `url`, if it is pinned. Raises AuthenticationError as `proxy` does."""
        return self._pins.find(url)

    def first_key(self, ed25519: bytes) -> bytes:
        """See `ProxyPins.first_key`."""
        return self._pins.first_key(ed25519)

    def pin_proxy(self, proxy: EnrolledProxy) -> None:
        """Pin a proxy under its canonical address.

        Raises:
            AuthenticationError: another key is pinned for this address.
        """
        proxy = replace(proxy, url=normal_address(proxy.url))
        self._pins.check(proxy.url, proxy.identity)
        self._pins.save(proxy)

    def follow_proxy(
        self, proxy: EnrolledProxy, card: ProxyCard, rotations: Sequence[bytes]
    ) -> EnrolledProxy:
        """Pin the key in `card` if rotation statements lead to it from the pinned key, and return the proxy.

        Raises:
            AuthenticationError: no statements lead to the key in `card`, or this key was replaced before.
        """
        given_up = self._pins.given_up(proxy, card.identity, rotations)
        if not given_up:
            return proxy
        former = (*(key.ed25519.hex() for key in given_up), *proxy.former)
        shown = card.identity
        followed = EnrolledProxy(proxy.url, card.name, shown.ed25519.hex(), shown.sealing_key.hex(), former)
        self._pins.save(followed)
        return followed

    @property
    def _pins(self) -> "_ProxyFile":
        return _ProxyFile(self.folder / "proxies.json")

    def _check_made(self) -> None:
        if not self.key_files.exist:
            raise self._not_made()

    def _not_made(self) -> NotFoundError:
        return NotFoundError(
            "not-initialised",
            "this home folder does not contain a data user's keys",
            "run: dpdpca user init --name NAME",
            place=str(self.folder),
        )

    def _read(self, name: str) -> bytes:
        try:
            return read_private(self.folder / name)
        except NotFoundError as error:
            raise self._not_made() from error

    def _json(self, name: str) -> Any:
        return json.loads(self._read(name))


class _ProxyFile(ProxyPins[EnrolledProxy]):
    """One file for all proxies."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> Sequence[EnrolledProxy]:
        if not self._path.exists():
            return ()
        with _as_written(self._path):
            return [_enrolled(entry) for entry in json.loads(read_private(self._path))["proxies"]]

    def save(self, proxy: EnrolledProxy) -> None:
        """Save this entry in place of all entries for its address."""
        others = [known for known in self.entries() if known.url != proxy.url]
        body = {"proxies": [asdict(known) for known in (*others, proxy)]}
        write_private(self._path, json.dumps(body, indent=1).encode())

    def _named(self, pin: EnrolledProxy) -> str:
        return fingerprint_words(pin.identity.ed25519)

    def _removal(self, pin: EnrolledProxy) -> str:
        return f"remove the entry of {pin.url} from {self._path}"

    def _removal_of_others(self) -> str:
        return f"remove the other entry from {self._path}"


def _enrolled(entry: Mapping[str, Any]) -> EnrolledProxy:
    # An entry from an earlier version also has an X25519 key, which nothing uses any more.
    members = {name: value for name, value in entry.items() if name != "x25519"}
    former = tuple(entry.get("former", ()))
    pin = EnrolledProxy(**{**members, "former": former, "url": normal_address(entry["url"])})
    _ = pin.identity, pin.keys  # raises if a key is not valid hex
    return pin


@contextmanager
def _as_written(path: Path) -> Iterator[None]:
    """Turns the errors of parsing a damaged file into IntegrityError."""
    try:
        yield
    except (AttributeError, KeyError, MessageError, TypeError, ValueError) as error:
        raise IntegrityError(
            "state-corrupt",
            "a file of the home is damaged, or was not written by this program",
            "restore the file from a backup",
            place=str(path),
        ) from error


def passphrase_of(home: UserHome, file: Path | None) -> bytes | None:
    """The passphrase of the keys in `home`; a person is asked if one is needed and no file is named."""
    return unlock(home.key_files, file, PASSPHRASE_VARIABLE)
