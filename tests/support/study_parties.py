"""Everyone in the small study that the fixtures of `tests/conftest.py` make."""

from collections.abc import Callable
from dataclasses import dataclass

from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.paillier.proof import KeyProof
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import Participant, Party, ProxyParty
from dpdpca_protocol.wire.signing import IdentityKey

MakeManifest = Callable[..., Manifest]
"""Takes changes of the draft; None takes a member out."""

PADS_SECRET = PadsSecret.from_bytes(bytes(range(128)))
"""The data user's secret of the small study under pads."""


@dataclass(frozen=True)
class Parties:
    """Everyone in the small study, with private keys."""

    user: IdentityKey
    proxy: IdentityKey
    owners: tuple[IdentityKey, ...]
    secret: SecretKey
    proof: KeyProof

    @property
    def user_party(self) -> Party:
        return Party("Institute", self.user.public.ed25519)

    @property
    def proxy_party(self) -> ProxyParty:
        return ProxyParty(
            "Relay", "http://127.0.0.1:8080", self.proxy.public.ed25519, self.proxy.public.sealing_key
        )

    @property
    def participants(self) -> tuple[Participant, ...]:
        return tuple(
            Participant(f"Hospital {letter}", owner.public.ed25519)
            for letter, owner in zip("ABC", self.owners, strict=True)
        )
