"""Everyone in the small study that the fixtures of `tests/conftest.py` make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpdpca_protocol.pads.keys import PadsSecret
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.paillier.proof import KeyProof
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.parties import KeyTerms, PadsKeyTerms, Participant, Party, ProxyParty, StudyKey
from dpdpca_protocol.terms.terms import SuiteName
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_user.planning.draft import suite_of_draft

MakeManifest = Callable[..., Manifest]
"""Takes changes of the draft; None takes a member out."""

PADS_SECRET = PadsSecret.from_bytes(bytes(range(128)))
"""The data user's secret of the small study under pads."""


def under_paillier(draft: Mapping[str, Any]) -> dict[str, Any]:
    """The draft, with Paillier if it is joint and names no suite, as most tests of joint studies expect.

    The rounds of a chain have one suite, which is pads.
    """
    is_single = draft.get("release") == "joint" and not {"pre_studies", "blinding"} & draft.keys()
    suite = {"suite": "paillier"} if is_single else {}
    return suite | dict(draft)


def key_for(
    draft: Mapping[str, Any], secret: SecretKey, proof: KeyProof, pads: PadsSecret = PADS_SECRET
) -> StudyKey:
    """The key of the suite that a draft asks for."""
    if suite_of_draft(draft) is SuiteName.PADS:
        return PadsKeyTerms(pads.public)
    return KeyTerms.of(secret.public, proof)


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

    @property
    def blinding_participants(self) -> tuple[Participant, ...]:
        """The participants with their keys for blinding."""
        return tuple(
            replace(party, x25519=owner.public.x25519)
            for party, owner in zip(self.participants, self.owners, strict=True)
        )
