"""What must hold before an owner looks at a study, and again before it sends anything."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dpdpca_owner.home import Owner, OwnerHome
from dpdpca_protocol.errors import AuthenticationError, NotAllowedError
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest, parse_manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import Identity, verify_statement
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.words import fingerprint_words


@dataclass(frozen=True, slots=True)
class OpenedStudy:
    """A study whose manifest an owner has verified.

    Attributes:
        signed: the manifest, its signature, figures and modulus checked.
        proxy: the pinned proxy, which is the manifest's, if perhaps under another of its keys.
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
    key_rules: KeyRules = PRODUCT_KEYS,
    say: Callable[[str], None] = lambda text: None,
) -> OpenedStudy:
    """Fetch a study's manifest and verify everything about it that this owner can.

    1. the manifest is signed by the data user that it names, its figures are the recomputed ones;
    2. its modulus is fit, proved, and was in no other study of this owner (A5, A10);
    3. its hash is the study id that the owner was given (A11);
    4. the proxy that it names is the one that this owner has pinned at this address;
    5. its data user has no other key than at first contact, but for those that rotations lead to.

    `say` is told where the proxy's pinned key gave way to another one.

    Raises:
        NotFoundError: no such study, or not enrolled at this proxy.
        AuthenticationError, MessageError, PolicyError, CryptographicError: one of the above does not hold.
    """
    proxy = home.pins.proxy(address.proxy)
    signed = open_manifest(
        client.manifest(address.study),
        home.known_moduli(besides=address.study),
        key_rules=key_rules,
    )
    if signed.study_id != address.study:
        raise AuthenticationError(
            "wrong-study",
            "the proxy shows another manifest than the one that this study id stands for",
            "do not join; tell the data user and the proxy's operator",
        )
    named = Identity(signed.manifest.proxy.ed25519, signed.manifest.proxy.x25519)
    if named not in home.pins.proxy_identities(address.proxy):
        proxy = follow_proxy(address.proxy, home, client, say)
    if named not in home.pins.proxy_identities(address.proxy):
        raise AuthenticationError(
            "wrong-proxy",
            "the manifest names another proxy than the one that is pinned for this address",
            "ask the data user which proxy the study is meant for",
        )
    pinned = home.pins.check_user(
        proxy.identity.ed25519,
        signed.manifest.user,
        client.rotations,
        may_be_former=_is_joined(home, signed.study_id),
    )
    return OpenedStudy(signed, proxy, pinned.met if pinned else None)


def follow_proxy(url: str, home: OwnerHome, client: ProxyClient, say: Callable[[str], None]) -> ProxyCard:
    """The card of the proxy at `url`, whose key may have given way to another since it was pinned.

    Raises:
        AuthenticationError: its key is another one, and no statement under the pinned key says so.
    """
    card, statement = client.card(of_any_key=True)
    if home.pins.follow_proxy(url, statement, client.proxy_rotations()):
        say(
            f"{card.name} has a new key, by a statement under the pinned one; compare its words with the"
            f" operator's: {fingerprint_words(card.identity.ed25519)}"
        )
    return home.pins.proxy(url)


def read_terms(encoded: bytes, address: StudyAddress, home: OwnerHome) -> Manifest:
    """What the manifest of a study says, signed and by its id the right one, of a proxy that is pinned here.

    Figures and modulus are not checked again: nothing is to be sent.

    Raises:
        AuthenticationError: another study's manifest, or of another proxy.
    """
    statement = verify_statement("manifest", encoded)
    manifest = parse_manifest(statement.body)
    keys = {identity.ed25519 for identity in home.pins.proxy_identities(address.proxy)}
    if statement.digest != address.study or manifest.proxy.ed25519 not in keys:
        raise AuthenticationError(
            "wrong-study",
            "the proxy shows another manifest than the one that this study id stands for, or another proxy's",
            "if the proxy has new keys, run: dpdpca owner review; else tell its operator and the data user",
        )
    return manifest


def check_names(opened: OpenedStudy, home: OwnerHome, owner: Owner, client: ProxyClient) -> OpenedStudy:
    """Hold the names in a manifest against those that the proxy's operator gave, and against the pins.

    The data user writes the manifest, so it could call a key of its own by the name of a hospital.

    Args:
        opened: verified.
        home: with the pins.
        owner: this owner, which needs no pin of itself.
        client: of the proxy, whose enrolled parties it asks for.

    Raises:
        AuthenticationError: a key stands under another name than it is enrolled under, or is not enrolled;
            or the name of an owner was known here under another key.
    """
    manifest = opened.manifest
    enrolled = {(party.role, party.name, party.identity.ed25519) for party in client.parties()}
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
            pinned = home.pins.check_participant(
                opened.proxy.identity.ed25519,
                participant,
                client.rotations,
                may_be_former=_is_joined(home, opened.signed.study_id),
            )
            if pinned is not None:
                since[participant.ed25519] = pinned.met
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


def _is_joined(home: OwnerHome, study: StudyId) -> bool:
    return home.study(study).plan() is not None
