"""Proxies as a client first met them: one pin for each address, however the address is spelled.

A changed key is followed where statements under the old key and the new one lead to it, and never back again.
Any other change is refused until a person settles it by hand.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from dpdpca_protocol.errors import AuthenticationError
from dpdpca_protocol.messages.rotation import follow_rotations
from dpdpca_protocol.wire.address import normal_address
from dpdpca_protocol.wire.signing import Identity


class PinnedProxy(Protocol):
    """A proxy at its canonical address, with the keys that it has shown."""

    @property
    def url(self) -> str:
        """The canonical address."""

    @property
    def identity(self) -> Identity:
        """Its present keys."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All its Ed25519 keys, the present one first."""


Pin = TypeVar("Pin", bound=PinnedProxy)


class ProxyPins(ABC, Generic[Pin]):
    """The rules for pinned proxies. Each role says how its files look."""

    @abstractmethod
    def entries(self) -> Sequence[Pin]:
        """The pins as the files have them: earlier versions made one for each spelling of an address."""

    @abstractmethod
    def _named(self, pin: Pin) -> str:
        """The words of its key, and what else a person needs to choose between several pins."""

    @abstractmethod
    def _removal(self, pin: Pin) -> str:
        """What a person does to remove this pin, as in "delete FILE"."""

    @abstractmethod
    def _removal_of_others(self) -> str:
        """What a person does to remove the pins that are wrong."""

    def addresses(self) -> list[str]:
        """The canonical addresses at which a proxy is pinned."""
        return sorted({pin.url for pin in self.entries()})

    def find(self, url: str) -> Pin | None:
        """The pin of the proxy at `url`, whichever spelling of the address it was made under.

        Raises:
            AuthenticationError: `proxy-pinned-twice`, it was pinned under two spellings with different keys.
        """
        address = normal_address(url)
        pins = [pin for pin in self.entries() if pin.url == address]
        known = {pin.identity.ed25519 for pin in pins}
        newest = [pin for pin in pins if known <= set(pin.keys)]
        if pins and not newest:
            words = ", ".join(self._named(pin) for pin in pins)
            raise AuthenticationError(
                "proxy-pinned-twice",
                f"{address} was pinned under several spellings with different keys: {words}",
                f"ask the proxy's operator which words are right, and {self._removal_of_others()}",
            )
        return max(newest, key=lambda pin: len(pin.keys), default=None)

    def first_key(self, ed25519: bytes) -> bytes:
        """The key under which the proxy with this key was met: what was pinned under it stays pinned."""
        found = [pin.keys for pin in self.entries() if ed25519 in pin.keys]
        return max(found, key=len)[-1] if found else ed25519

    def check(self, url: str, shown: Identity) -> bool:
        """Whether a proxy is pinned at `url` already, with the key in `shown`.

        Raises:
            AuthenticationError: `proxy-key-changed`, it is pinned with another key; or it has given up the
                key in `shown`: `proxy-key-rolled-back`.
        """
        pinned = self.find(url)
        if pinned is None:
            return False
        present, *former = pinned.keys
        if shown.ed25519 in former:
            raise rolled_back("proxy", f"the proxy at {url}")
        if shown.ed25519 != present:
            raise AuthenticationError(
                "proxy-key-changed",
                f"the proxy at {url} shows another key than the one that was pinned",
                "ask its operator; only when the new words are confirmed,"
                f" {self._removal(pinned)} and enrol again",
            )
        return True

    def given_up(self, pinned: Pin, shown: Identity, rotations: Sequence[bytes]) -> tuple[Identity, ...]:
        """The keys from the pinned one up to those in `shown`, the newest first; empty if nothing changed.

        Raises:
            AuthenticationError: nothing leads to the keys in `shown`, or they were given up before.
        """
        if shown == pinned.identity:
            return ()
        if shown.ed25519 in pinned.keys[1:]:
            raise rolled_back("proxy", f"the proxy at {pinned.url}")
        chain = follow_rotations(rotations, "proxy", pinned.identity.ed25519)
        if not chain or chain[-1].identity != shown:
            self.check(pinned.url, shown)
            raise AuthenticationError(
                "proxy-key-changed", f"the proxy at {pinned.url} shows another sealing key"
            )
        return (*reversed([link.identity for link in chain[:-1]]), pinned.identity)


def rolled_back(kind: str, what: str) -> AuthenticationError:
    """The refusal of a key that was given up."""
    return AuthenticationError(
        f"{kind}-key-rolled-back",
        f"{what} is shown with a key that it has given up",
        "do not go on: somebody may have the old key, or an old backup was restored; ask them",
    )
