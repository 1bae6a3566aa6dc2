"""The checks of a study that an owner's commands make before they show it, and again before they send
anything."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from dpdpca_owner.blinding import check_blinding_keys
from dpdpca_owner.home import Owner, OwnerHome
from dpdpca_protocol.errors import (
    AuthenticationError,
    DpdpcaError,
    MessageError,
    NotAllowedError,
    NotFoundError,
    PolicyError,
    UnavailableError,
)
from dpdpca_protocol.messages.software import Software
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules
from dpdpca_protocol.terms.feature_list import FeatureLists
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import SignedManifest, open_manifest, parse_manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import Identity, verify_statement
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.words import fingerprint_words


class RefusedTermsError(PolicyError):
    """A signed manifest has a format or terms that this version refuses; some old studies have such terms."""


@dataclass(frozen=True, slots=True)
class OpenedStudy:
    """A study whose manifest this owner has verified.

    Attributes:
        signed: the manifest, with its signature, figures and modulus checked.
        proxy: the pinned proxy. The manifest names this proxy, possibly with an earlier or a later key.
        user_since: when this owner first saw the data user's key; None at first contact.
        owners_since: for each raw Ed25519 key of a named owner, when this owner first joined a study with it.
        compared: the raw Ed25519 keys of the named owners whose words this owner has compared.
        software: what the proxy's newest card names; None if it names nothing, or nobody has asked.
        feature_list_path: where this owner keeps the list of features; None if the manifest names no list.
    """

    signed: SignedManifest
    proxy: ProxyCard
    user_since: str | None
    owners_since: Mapping[bytes, str] = field(default_factory=dict)
    compared: frozenset[bytes] = frozenset()
    software: Software | None = None
    feature_list_path: Path | None = None

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

    The list of features that the manifest may name is fetched before.

    1. The data user that the manifest names has signed it, and its figures equal those computed again here.
    2. The manifest's modulus is suitable and proved, and no other study of this owner used it (attacks A5 and
    A10). 3. The manifest's hash is the study id that the owner was given (attack A11). 4. The proxy that the
    manifest names is the one that this owner has pinned for this address. 5. The data user has the same key
    as at first contact, or one to which rotation statements lead.

    `say` receives a note if the proxy has replaced the key that this owner had pinned.

    Raises:
        NotFoundError: there is no such study, or this owner is not enrolled at this proxy.
        AuthenticationError, MessageError, PolicyError, CryptographicError: one of the checks above fails.
    """
    proxy = home.pins.proxy(address.proxy)
    signed = open_manifest(
        with_list(client.manifest(address.study), home, client),
        home.known_moduli(besides=address.study),
        key_rules=key_rules,
        feature_lists=home.feature_lists,
    )
    if signed.study_id != address.study:
        raise AuthenticationError(
            "wrong-study",
            "the manifest that the proxy sent does not belong to this study id",
            "do not join; tell the data user and the proxy's operator",
        )
    named = Identity(signed.manifest.proxy.ed25519, signed.manifest.proxy.kem)
    if named not in home.pins.proxy_identities(address.proxy):
        proxy = follow_proxy(address.proxy, home, client, say)
    if named not in home.pins.proxy_identities(address.proxy):
        raise AuthenticationError(
            "wrong-proxy",
            "the manifest names a different proxy from the one that is pinned for this address",
            "ask the data user which proxy the study is meant for",
        )
    pinned = home.pins.check_user(
        proxy.identity.ed25519,
        signed.manifest.user,
        client.rotations,
        may_be_former=_is_joined(home, signed.study_id),
    )
    listed = signed.manifest.feature_list
    path = home.feature_lists.path(listed.sha256) if listed else None
    return OpenedStudy(signed, proxy, pinned.met if pinned else None, feature_list_path=path)


def with_list(encoded: bytes, home: OwnerHome, client: ProxyClient) -> bytes:
    """The same signed manifest, after its list of features, if it names one, was fetched and kept.

    Raises:
        MessageError, AuthenticationError: it is no signed manifest, or `feature-list-differs`.
        NotFoundError: `feature-list-missing`.
    """
    home.feature_lists.fetch(verify_statement("manifest", encoded).body, client.feature_list)
    return encoded


def follow_proxy(url: str, home: OwnerHome, client: ProxyClient, say: Callable[[str], None]) -> ProxyCard:
    """The present card of the proxy at `url`. If its key has changed, pins the new key that the old key
    announces.

    Raises:
        AuthenticationError: the key is different, and no statement signed with the pinned key announces it.
    """
    card, statement = client.card(of_any_key=True)
    is_same = card.identity == home.pins.proxy(url).identity
    if home.pins.follow_proxy(url, statement, () if is_same else client.proxy_rotations()):
        say(
            f"{card.name} has a new key, announced by a statement signed with the pinned key; compare these"
            f" words with those of the operator: {fingerprint_words(card.identity.ed25519)}"
        )
    return card


def ask_software(
    opened: OpenedStudy,
    url: str,
    home: OwnerHome,
    client: ProxyClient,
    say: Callable[[str], None] = lambda text: None,
) -> OpenedStudy:
    """The study, with the software that its proxy says it runs now. Raises like `follow_proxy`."""
    return replace(opened, software=follow_proxy(url, home, client, say).software)


def read_terms(encoded: bytes, address: StudyAddress, home: OwnerHome) -> Manifest:
    """The manifest of a study, after a check of its signature and id. The proxy in the manifest must be
    pinned here.

    The figures and the modulus are not checked again, because nothing will be sent.

    Raises:
        AuthenticationError: the manifest belongs to another study or to another proxy.
        RefusedTermsError: it is signed, and this version refuses its format or its terms.
    """
    wrong = AuthenticationError(
        "wrong-study",
        "the manifest that the proxy sent does not belong to this study id, or names another proxy",
        "if the proxy has new keys, run: dpdpca owner review; otherwise tell the proxy's operator and the"
        " data user",
    )
    statement = verify_statement("manifest", encoded)
    if statement.digest != address.study:
        raise wrong
    try:
        manifest = parse_manifest(statement.body, home.feature_lists)
    except (MessageError, NotFoundError, PolicyError) as error:
        raise RefusedTermsError(
            "manifest-refused",
            f"this version refuses the terms of the study: {error.problem}",
            "use the version with which you joined it",
        ) from error
    keys = {identity.ed25519 for identity in home.pins.proxy_identities(address.proxy)}
    if manifest.proxy.ed25519 not in keys:
        raise wrong
    return manifest


def look_at(client: ProxyClient, home: OwnerHome, study: StudyId) -> Manifest | None:
    """The manifest of somebody's study, like `read_manifest`, with the list of features that it may name.
    None if there is no such list: a bad study must not hold up the others."""
    encoded = client.manifest(study)
    try:
        with_list(encoded, home, client)
    except UnavailableError:
        raise
    except DpdpcaError:
        return None
    return read_manifest(encoded, study, home.feature_lists)


def read_manifest(encoded: bytes, study: StudyId, feature_lists: FeatureLists) -> Manifest | None:
    """A manifest that its data user signed and whose digest is `study`, else None. It decides only whether a
    study is looked at: `open_study` verifies the rest."""
    signed = read_signed(encoded, study, feature_lists)
    return None if signed is None else signed.manifest


@lru_cache(maxsize=16)
def read_signed(encoded: bytes, study: StudyId, feature_lists: FeatureLists) -> SignedManifest | None:
    """Like `read_manifest`, with the statement."""
    with suppress(DpdpcaError):
        statement = verify_statement("manifest", encoded)
        manifest = parse_manifest(statement.body, feature_lists)
        if statement.digest == study and statement.signer == manifest.user.ed25519:
            return SignedManifest(manifest, statement, study)
    return None


def check_names(opened: OpenedStudy, home: OwnerHome, owner: Owner, client: ProxyClient) -> OpenedStudy:
    """Compare the names in a manifest with those enrolled at the proxy and with this owner's pins.

    The data user writes the manifest, so it could give a key of its own the name of a hospital.

    Args:
        opened: the verified study.
        home: holds the pins.
        owner: this owner; it needs no pin for itself.
        client: asks the proxy for its enrolled parties.

    Raises:
        AuthenticationError: a key is not enrolled, or is enrolled under another name, or this owner has
            pinned another key for the name.
        AuthenticationError, PolicyError: like `check_blinding_keys`, in a blinded study.
    """
    manifest = opened.manifest
    listed = client.parties(with_statements=manifest.is_blinded)
    enrolled = {(party.role, party.name, party.ed25519) for party in listed}
    named = [("user", manifest.user.name, manifest.user.ed25519)]
    named += [("owner", participant.name, participant.ed25519) for participant in manifest.participants]
    for role, name, ed25519 in named:
        if (role, name, ed25519) not in enrolled:
            what = "data user" if role == "user" else "owner"
            raise AuthenticationError(
                "wrong-name",
                f"the manifest names the {what} '{name}', but the proxy has enrolled nobody with this name"
                " and this key",
                "do not join; ask the proxy's operator and the data user whose key it is",
            )
    if manifest.is_blinded:
        check_blinding_keys(manifest, listed, client)
    since, compared = {}, set[bytes]()
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
            if pinned is not None and pinned.compared is not None:
                compared.add(participant.ed25519)
    return replace(opened, owners_since=since, compared=frozenset(compared))


def pin_names(opened: OpenedStudy, home: OwnerHome, owner: Owner, now: str) -> None:
    """Pin the keys of the data user and the named owners. Raises AuthenticationError if one of these keys has
    changed."""
    proxy = opened.proxy.identity.ed25519
    home.pins.pin_user(proxy, opened.manifest.user, now)
    for participant in opened.manifest.participants:
        if participant.ed25519 != owner.key.public.ed25519:
            home.pins.pin_participant(proxy, participant, now)


def is_participant(manifest: Manifest, owner: Owner) -> bool:
    """Whether this owner may join: the study is open to all, or names this owner's key."""
    named = {participant.ed25519 for participant in manifest.participants}
    return not named or owner.key.public.ed25519 in named


def check_participant(manifest: Manifest, owner: Owner) -> None:
    """Raises NotAllowedError if the study names its owners and this owner is not among them."""
    if not is_participant(manifest, owner):
        raise NotAllowedError(
            "not-a-participant",
            "the study names its owners, and this owner is not among them",
            f"ask the data user to add this owner; its key is {owner.key.public.ed25519.hex()}",
        )


def _is_joined(home: OwnerHome, study: StudyId) -> bool:
    return home.study(study).is_joined
