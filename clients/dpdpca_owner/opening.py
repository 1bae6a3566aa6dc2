"""What must hold before an owner looks at a study, and again before it sends anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpdpca_http.address import StudyAddress
from dpdpca_http.answers import PartyFacts
from dpdpca_http.client import ProxyClient
from dpdpca_owner.home import Owner, OwnerHome
from dpdpca_owner.pins import PinnedParty
from dpdpca_protocol.errors import AuthenticationError, NotAllowedError
from dpdpca_protocol.manifest import LEAST_MODULUS_BITS, Manifest, SignedManifest, open_manifest
from dpdpca_protocol.messages import ProxyCard
from dpdpca_protocol.parties import Party


@dataclass(frozen=True, slots=True)
class OpenedStudy:
    """A study whose manifest an owner has verified.

    Attributes:
        signed: the manifest, its signature, figures and modulus checked.
        proxy: the pinned proxy, which is the manifest's.
        user_since: when this owner first met the data user's key; None at first contact.
        owners_since: by raw Ed25519 key, when this owner first joined a study with a named owner.
    """

    signed: SignedManifest
    proxy: ProxyCard
    user_since: str | None
    owners_since: Mapping[bytes, str] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest


def open_study(
    address: StudyAddress,
    home: OwnerHome,
    client: ProxyClient,
    *,
    least_modulus_bits: int = LEAST_MODULUS_BITS,
) -> OpenedStudy:
    """Fetch a study's manifest and verify everything about it that this owner can.

    1. the manifest is signed by the data user that it names, its figures are the recomputed ones;
    2. its modulus is fit, proved, and was in no other study of this owner (A5, A10);
    3. its hash is the study id that the owner was given (A11);
    4. the proxy that it names is the one that this owner has pinned at this address;
    5. its data user has no other key than at first contact.

    Raises:
        NotFoundError: no such study, or not enrolled at this proxy.
        AuthenticationError, MessageError, PolicyError, CryptographicError: one of the above does not hold.
    """
    proxy = home.pins.proxy(address.proxy)
    signed = open_manifest(
        client.manifest(address.study),
        home.known_moduli(besides=address.study),
        least_modulus_bits=least_modulus_bits,
    )
    if signed.study_id != address.study:
        raise AuthenticationError(
            "wrong-study",
            "the proxy shows another manifest than the one that this study id stands for",
            "do not join; tell the data user and the proxy's operator",
        )
    named = signed.manifest.proxy
    if (named.ed25519, named.x25519) != (proxy.identity.ed25519, proxy.identity.x25519):
        raise AuthenticationError(
            "wrong-proxy",
            "the manifest names another proxy than the one that is pinned for this address",
            "ask the data user which proxy the study is meant for",
        )
    pinned = _check_user(home, proxy, signed.manifest.user)
    return OpenedStudy(signed, proxy, pinned.since if pinned else None)


def check_names(
    opened: OpenedStudy, home: OwnerHome, owner: Owner, parties: Sequence[PartyFacts]
) -> OpenedStudy:
    """Hold the names in a manifest against those that the proxy's operator gave, and against the pins.

    The data user writes the manifest, so it could call a key of its own by the name of a hospital.

    Args:
        opened: verified.
        home: with the pins.
        owner: this owner, which needs no pin of itself.
        parties: the proxy's enrolled parties.

    Raises:
        AuthenticationError: a key stands under another name than it is enrolled under, or is not enrolled;
            or the name of an owner was known here under another key.
    """
    manifest = opened.manifest
    enrolled = {(party.role, party.name, party.identity.ed25519) for party in parties}
    named = [("user", manifest.user.name, manifest.user.ed25519)]
    named += [("owner", participant.name, participant.ed25519) for participant in manifest.participants]
    for role, name, ed25519 in named:
        if (role, name, ed25519) not in enrolled:
            what = "data user" if role == "user" else "owner"
            raise AuthenticationError(
                "wrong-name",
                f"the manifest names the {what} '{name}', and the proxy has enrolled none of this name with"
                " this key",
                "do not join; ask the proxy's operator and the data user whose key it is",
            )
    since = {}
    for participant in manifest.participants:
        if participant.ed25519 != owner.key.public.ed25519:
            pinned = home.pins.check_participant(opened.proxy.identity.ed25519, participant)
            if pinned is not None:
                since[participant.ed25519] = pinned.since
    return replace(opened, owners_since=since)


def pin_names(opened: OpenedStudy, home: OwnerHome, owner: Owner, now: str) -> None:
    """Remember the keys of the data user and the named owners. Raises AuthenticationError on a change."""
    proxy = opened.proxy.identity.ed25519
    home.pins.pin_user(proxy, opened.manifest.user, now)
    for participant in opened.manifest.participants:
        if participant.ed25519 != owner.key.public.ed25519:
            home.pins.pin_participant(proxy, participant, now)


def is_participant(manifest: Manifest, owner: Owner) -> bool:
    """Whether a study is open to all, or names this owner's key."""
    named = {participant.ed25519 for participant in manifest.participants}
    return not named or owner.key.public.ed25519 in named


def check_participant(manifest: Manifest, owner: Owner) -> None:
    """Raises NotAllowedError where the study names its owners and this one is not among them."""
    if not is_participant(manifest, owner):
        raise NotAllowedError(
            "not-a-participant",
            "the study names its owners, and this one is not among them",
            f"ask the data user; this owner's key is {owner.key.public.ed25519.hex()}",
        )


def _check_user(home: OwnerHome, proxy: ProxyCard, user: Party) -> PinnedParty | None:
    return home.pins.check_user(proxy.identity.ed25519, user)
