"""Manifests as they travel: read strictly, signed by the data user, opened by everybody else.

All roles read manifests here and nowhere else. A manifest that was read keeps every rule. `open_manifest`
also checks that its modulus is fit.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gmpy2 import mpz

from dpdpca_protocol.errors import AuthenticationError, MessageError, UsageError
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules, PublicKey
from dpdpca_protocol.paillier.proof import KeyProof, check_public_key
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import MEMBERS
from dpdpca_protocol.terms.rules import check_rules
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.fields import check_members, refused
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import FORMAT, IdentityKey, Statement, sign_statement, verify_statement

KIND = "manifest"


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest whose signature, figures and modulus hold."""

    manifest: Manifest
    statement: Statement
    study_id: StudyId
    public_key: PublicKey


def parse_manifest(untrusted: Mapping[str, Any]) -> Manifest:
    """The manifest that a body describes, if it keeps every rule and its figures are the recomputed ones.

    Args:
        untrusted: parsed canonical JSON.

    Raises:
        MessageError: wrong shape, unknown or missing members, a number not in its one form.
        PolicyError: `manifest-refused`, a rule broken or a derived figure that differs.
    """
    manifest = parse_terms(untrusted)
    if manifest.figures.slot_bits != manifest.slot_bits:
        refused(f"slot_bits is {manifest.slot_bits}, and the terms give {manifest.figures.slot_bits}")
    return manifest


def parse_terms(untrusted: Mapping[str, Any]) -> Manifest:
    """As `parse_manifest`, for a draft: noise_scale and slot_bits, which it gets next, are not compared."""
    required = ["format", *(member.name for member in MEMBERS if member.is_required)]
    check_members(untrusted, "the manifest", required, [member.name for member in MEMBERS])
    if untrusted["format"] != FORMAT or isinstance(untrusted["format"], bool):
        raise MessageError("unsupported-version", f"this version reads manifests of format {FORMAT} only")
    manifest = Manifest(**{member.name: member.read(untrusted) for member in MEMBERS})
    check_rules(manifest)
    return manifest


def sign_manifest(manifest: Manifest, key: IdentityKey) -> Statement:
    """The manifest signed by the data user that it names.

    Raises:
        UsageError: the key is another party's.
    """
    if (key.public.ed25519, key.public.x25519) != (manifest.user.ed25519, manifest.user.x25519):
        raise UsageError("wrong-key", "the manifest names another data user than this key")
    return sign_statement(KIND, manifest.to_body(), key)


def open_manifest(
    untrusted: bytes,
    known_moduli: Collection[Digest] = (),
    *,
    key_rules: KeyRules = PRODUCT_KEYS,
) -> SignedManifest:
    """The manifest in a signed statement, with everything checked that one party can check alone.

    Args:
        untrusted: statement bytes as received.
        known_moduli: digests of moduli seen in other studies; a repeat is refused.
        key_rules: which moduli may be used.

    Raises:
        MessageError: not a canonical statement of a manifest.
        AuthenticationError: not signed by the data user that it names.
        PolicyError: a rule broken or a derived figure that differs.
        CryptographicError: `unfit-modulus`.

    The caller compares the proxy, the pinned user key and its own policy; this function knows neither.
    """
    statement = verify_statement(KIND, untrusted)
    manifest = parse_manifest(statement.body)
    if manifest.key.bits < key_rules.least_bits:
        refused(f"key.modulus has {manifest.key.bits} bits; {key_rules.least_bits} are the least")
    if manifest.user.ed25519 != statement.signer:
        raise AuthenticationError("bad-signature", "the manifest is not signed by the user that it names")
    if canonical_json(manifest.to_body()) != statement.body_bytes:
        raise MessageError("not-canonical", "the manifest says something in another form than its own")
    public_key = check_public_key(
        manifest.key.modulus,
        KeyProof(tuple(mpz(root) for root in manifest.key.proof)),
        manifest.user.ed25519,
        known_moduli=known_moduli,
        rules=key_rules,
    )
    return SignedManifest(manifest, statement, StudyId(statement.digest), public_key)
