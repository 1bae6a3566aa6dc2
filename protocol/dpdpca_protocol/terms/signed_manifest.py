"""Signed manifests: the data user signs them, and every other role opens them.

All roles read manifests with this module only. Every manifest that this module returns obeys all rules.
`open_manifest` also checks the manifest's modulus.
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
    """A manifest whose signature, figures and modulus were checked."""

    manifest: Manifest
    statement: Statement
    study_id: StudyId
    public_key: PublicKey


def parse_manifest(untrusted: Mapping[str, Any]) -> Manifest:
    """The manifest in a body, if it keeps every rule and its figures equal the recomputed ones.

    Args:
        untrusted: parsed canonical JSON.

    Raises:
        MessageError: a wrong shape, an unknown or missing member, or a number that is not in its canonical
            form.
        PolicyError: `manifest-refused`, a rule is broken or a derived figure differs.
    """
    manifest = parse_terms(untrusted)
    if manifest.figures.slot_bits != manifest.slot_bits:
        refused(f"slot_bits is {manifest.slot_bits}, but the terms give {manifest.figures.slot_bits}")
    return manifest


def parse_terms(untrusted: Mapping[str, Any]) -> Manifest:
    """Like `parse_manifest`, for a draft.

    This function does not compare noise_scale and slot_bits, which are set later.
    """
    stated = untrusted.get("format", FORMAT)
    if stated != FORMAT or isinstance(stated, bool):
        raise MessageError(
            "unsupported-version",
            f"the manifest is not of message format {FORMAT}, the only one that this version reads",
            "run the study again with a new manifest, or use the version that made this one",
        )
    required = ["format", *(member.name for member in MEMBERS if member.is_required)]
    check_members(untrusted, "the manifest", required, [member.name for member in MEMBERS])
    manifest = Manifest(**{member.name: member.read(untrusted) for member in MEMBERS})
    check_rules(manifest)
    return manifest


def sign_manifest(manifest: Manifest, key: IdentityKey) -> Statement:
    """The manifest, signed by the data user that it names.

    Raises:
        UsageError: the key belongs to another party.
    """
    if key.public.ed25519 != manifest.user.ed25519:
        raise UsageError("wrong-key", "the manifest names a data user with a different key")
    return sign_statement(KIND, manifest.to_body(), key)


def open_manifest(
    untrusted: bytes,
    known_moduli: Collection[Digest] = (),
    *,
    key_rules: KeyRules = PRODUCT_KEYS,
) -> SignedManifest:
    """The manifest in a signed statement, after all checks that one party can make alone.

    Args:
        untrusted: statement bytes as received.
        known_moduli: digests of the moduli of other studies; a repeated modulus is refused.
        key_rules: which moduli may be used.

    Raises:
        MessageError: not a canonical statement of a manifest.
        AuthenticationError: the data user that the manifest names did not sign it.
        PolicyError: a rule is broken or a derived figure differs.
        CryptographicError: `unfit-modulus`.

    The caller must still check the proxy, the pinned key of the user and its own policy. This function does
    not know the proxy, the pinned key or the policy.
    """
    statement = verify_statement(KIND, untrusted)
    manifest = parse_manifest(statement.body)
    if manifest.key.bits < key_rules.least_bits:
        refused(f"key.modulus has {manifest.key.bits} bits, fewer than the minimum of {key_rules.least_bits}")
    if manifest.user.ed25519 != statement.signer:
        raise AuthenticationError("bad-signature", "the user that the manifest names did not sign it")
    if canonical_json(manifest.to_body()) != statement.body_bytes:
        raise MessageError("not-canonical", "the manifest is not in its canonical form")
    public_key = check_public_key(
        manifest.key.modulus,
        KeyProof(tuple(mpz(root) for root in manifest.key.proof)),
        manifest.user.ed25519,
        known_moduli=known_moduli,
        rules=key_rules,
    )
    return SignedManifest(manifest, statement, StudyId(statement.digest), public_key)
