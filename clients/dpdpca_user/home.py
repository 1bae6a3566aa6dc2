"""The data user's home folder: identity keys, the service's bearer token, and the proxies it is enrolled at.

    identity.pem   Ed25519 and X25519 keys, 0600, under a passphrase if one was given
    token          bearer token of the service, 0600
    profile.json   the name that owners see
    proxies.json   address, name and pinned keys of each proxy

Every file is written whole or not at all.
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from dpdpca_disk.home import home_folder
from dpdpca_disk.private import private_dir, read_private, write_private
from dpdpca_protocol.errors import IntegrityError, NotFoundError, PolicyError
from dpdpca_protocol.fields import read_text
from dpdpca_protocol.parties import Party, ProxyParty
from dpdpca_protocol.signing import Identity, IdentityKey

PASSPHRASE_VARIABLE = "DPDPCA_USER_PASSPHRASE_FILE"  # noqa: S105  # the name of a variable, not a secret
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class EnrolledProxy:
    """A proxy with the keys that were pinned when the data user enrolled."""

    url: str
    name: str
    ed25519: str
    x25519: str

    @property
    def identity(self) -> Identity:
        return Identity(bytes.fromhex(self.ed25519), bytes.fromhex(self.x25519))

    @property
    def party(self) -> ProxyParty:
        return ProxyParty(self.name, self.url, self.identity.ed25519, self.identity.x25519)


@dataclass(frozen=True, slots=True)
class UserHome:
    """Paths and contents of one data user's home folder."""

    folder: Path

    @classmethod
    def find(cls, option: Path | None, environment: Mapping[str, str] = os.environ) -> Self:
        return cls(home_folder("user", option, environment))

    def create(self, name: str, passphrase: bytes | None) -> IdentityKey:
        """Make keys, token and profile.

        Raises:
            ConflictError: there are keys already; they are kept.
        """
        read_text(name, "the name", 200)
        private_dir(self.folder)
        key = IdentityKey.generate()
        write_private(self.folder / "identity.pem", key.to_pem(passphrase), replace=False)
        write_private(self.folder / "token", secrets.token_urlsafe(_TOKEN_BYTES).encode() + b"\n")
        write_private(self.folder / "profile.json", json.dumps({"name": name}).encode())
        return key

    def identity(self, passphrase: bytes | None) -> IdentityKey:
        """The private keys.

        Raises:
            NotFoundError: `dpdpca user init` was not run here.
            AuthenticationError: the passphrase is wrong or missing.
        """
        return IdentityKey.from_pem(self._read("identity.pem"), passphrase)

    def token(self) -> str:
        return self._read("token").decode().strip()

    def name(self) -> str:
        return str(self._json("profile.json")["name"])

    def party(self, key: IdentityKey) -> Party:
        return Party(self.name(), key.public.ed25519, key.public.x25519)

    def proxies(self) -> tuple[EnrolledProxy, ...]:
        if not (self.folder / "proxies.json").exists():
            return ()
        return tuple(EnrolledProxy(**proxy) for proxy in self._json("proxies.json")["proxies"])

    def proxy(self, url: str | None) -> EnrolledProxy:
        """The proxy at `url`, or the only one.

        Raises:
            NotFoundError: none is enrolled there.
            PolicyError: there are several and none was named.
        """
        known = self.proxies()
        chosen = [proxy for proxy in known if url is None or proxy.url == url.rstrip("/")]
        if not chosen:
            raise NotFoundError(
                "not-enrolled", "this data user is not enrolled at that proxy", "run: dpdpca user enrol URL"
            )
        if len(chosen) > 1:
            raise PolicyError(
                "several-proxies", f"{len(known)} proxies are known", "name one with --proxy URL"
            )
        return chosen[0]

    def pin_proxy(self, proxy: EnrolledProxy) -> None:
        """Remember a proxy.

        Raises:
            PolicyError: another key is pinned for this address.
        """
        others = [known for known in self.proxies() if known.url != proxy.url]
        for known in self.proxies():
            if known.url == proxy.url and known.ed25519 != proxy.ed25519:
                raise PolicyError(
                    "proxy-key-changed",
                    "another key is pinned for this address",
                    f"ask the operator; if it is right, remove the entry from {self.folder / 'proxies.json'}",
                )
        body = {"proxies": [asdict(known) for known in (*others, proxy)]}
        write_private(self.folder / "proxies.json", json.dumps(body, indent=1).encode())

    def _read(self, name: str) -> bytes:
        try:
            return read_private(self.folder / name)
        except NotFoundError as error:
            raise NotFoundError(
                "not-initialised",
                f"there is no data user in {self.folder}",
                "run: dpdpca user init --name NAME",
            ) from error

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self._read(name))
        except ValueError as error:
            raise IntegrityError(
                "state-corrupt", f"{name} in {self.folder} is not JSON", "restore it from a backup"
            ) from error
        assert isinstance(value, dict)
        return value


def read_passphrase(file: Path | None, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """The passphrase in `file`, else in the file that the environment names, else None; stripped."""
    named = file or (Path(environment[PASSPHRASE_VARIABLE]) if environment.get(PASSPHRASE_VARIABLE) else None)
    if named is None:
        return None
    passphrase = named.read_bytes().strip()
    if not passphrase:
        raise PolicyError(
            "empty-passphrase", f"the passphrase file {named} is empty", "write one line into it"
        )
    return passphrase
