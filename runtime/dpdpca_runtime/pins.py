"""Pinned proxies: the keys with which a client first met each proxy.

There is one pin for each address, however the address is spelled. A new key is accepted if statements signed
by both the old and the new key lead to it. A pin never goes back to an old key. Any other change is refused
until a person resolves it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from dpdpca_protocol.errors import AuthenticationError
from dpdpca_protocol.messages.rotation import follow_rotations
from dpdpca_protocol.wire.address import normal_address
from dpdpca_protocol.wire.signing import Identity


class PinnedProxy(Protocol):
    """A pinned proxy: its canonical address and its known keys."""

    @property
    def url(self) -> str:
        """The canonical address."""

    @property
    def identity(self) -> Identity:
        """The proxy's present keys."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All Ed25519 keys of the proxy, the present one first."""


Pin = TypeVar("Pin", bound=PinnedProxy)


class ProxyPins(ABC, Generic[Pin]):
    """The rules for pinned proxies. Each role defines its own files."""

    @abstractmethod
    def entries(self) -> Sequence[Pin]:
        """The pins in the files. Earlier versions made a separate pin for each spelling of an address."""

    @abstractmethod
    def _named(self, pin: Pin) -> str:
        """The words of a pin's key, and other facts that a person needs to choose between several pins."""

    @abstractmethod
    def _removal(self, pin: Pin) -> str:
        """How a person removes this pin, as in "delete FILE"."""

    @abstractmethod
    def _removal_of_others(self) -> str:
        """How a person removes the wrong pins."""

    def addresses(self) -> list[str]:
        """The canonical addresses of all pinned proxies."""
        return sorted({pin.url for pin in self.entries()})

    def find(self, url: str) -> Pin | None:
        """The pin of the proxy at `url`, whatever spelling of the address was used for it.

        Raises:
            AuthenticationError: `proxy-pinned-twice`, two spellings were pinned with different keys.
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
        """The first known key of the proxy that now has this key.

        Data that are stored under the first key stay valid.
        """
        found = [pin.keys for pin in self.entries() if ed25519 in pin.keys]
        return max(found, key=len)[-1] if found else ed25519

    def check(self, url: str, shown: Identity) -> bool:
        """Whether a proxy is already pinned at `url` with the key in `shown`.

        Raises:
            AuthenticationError: `proxy-key-changed`, the proxy is pinned with another key;
                `proxy-key-rolled-back`, the key in `shown` was replaced.
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
                f"the proxy at {url} shows another key than the pinned one",
                f"ask the proxy's operator; only after confirming the new words, {self._removal(pinned)} and "
                "enrol again",
            )
        return True

    def given_up(self, pinned: Pin, shown: Identity, rotations: Sequence[bytes]) -> tuple[Identity, ...]:
        """The keys between the pinned one and those in `shown`, newest first; empty if nothing changed.

        Raises:
            AuthenticationError: no statements lead to the keys in `shown`, or they were replaced before.
        """
        if shown == pinned.identity:
            return ()
        if shown.ed25519 in pinned.keys[1:]:
            raise rolled_back("proxy", f"the proxy at {pinned.url}")
        chain = follow_rotations(rotations, "proxy", pinned.identity.ed25519)
        if not chain or chain[-1].identity != shown:
            self.check(pinned.url, shown)
            raise AuthenticationError(
                "proxy-key-changed",
                f"the proxy at {pinned.url} shows a sealing key that is not the pinned one",
            )
        return (*reversed([link.identity for link in chain[:-1]]), pinned.identity)


def rolled_back(kind: str, what: str) -> AuthenticationError:
    """The refusal of a key that was replaced."""
    return AuthenticationError(
        f"{kind}-key-rolled-back",
        f"{what} shows a key that was already replaced",
        "do not continue: somebody else may have the old key, or an old backup was restored; ask whoever "
        "holds the key",
    )
