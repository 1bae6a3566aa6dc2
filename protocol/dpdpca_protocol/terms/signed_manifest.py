"""Signed manifests: the data user signs them, and every other role opens them.

All roles read manifests with this module only. Every manifest that this module returns obeys all rules.
`open_manifest` also checks the manifest's modulus.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gmpy2 import mpz

from dpdpca_protocol.errors import (
    AuthenticationError,
    CryptographicError,
    MessageError,
    UsageError,
    printable,
)
from dpdpca_protocol.paillier.keys import PRODUCT_KEYS, KeyRules, PublicKey
from dpdpca_protocol.paillier.proof import KeyProof, check_public_key
from dpdpca_protocol.release.suite import PadsSuite, PaillierSuite, Suite
from dpdpca_protocol.terms.feature_list import FeatureListRef, FeatureLists, listed_features, no_lists
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.members import MEMBERS
from dpdpca_protocol.terms.parties import KeyTerms, PadsKeyTerms
from dpdpca_protocol.terms.rules import check_rules
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.fields import check_members, refused
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import (
    FORMAT,
    IdentityKey,
    Statement,
    both_programs,
    sign_statement,
    verify_statement,
)

KIND = "manifest"


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest whose signature, figures and key were checked."""

    manifest: Manifest
    statement: Statement
    study_id: StudyId

    @property
    def public_key(self) -> PublicKey:
        """The Paillier key. Raises UsageError in a study under pads."""
        return paillier_key(self.manifest)

    @property
    def suite(self) -> Suite:
        return suite_of(self.manifest)


def parse_manifest(untrusted: Mapping[str, Any], feature_lists: FeatureLists = no_lists) -> Manifest:
    """The manifest in a body, if it keeps every rule and its figures equal the recomputed ones.

    Args:
        untrusted: parsed canonical JSON.
        feature_lists: gives the list of features that the manifest may name in place of `features`.

    Raises:
        MessageError: a wrong shape, an unknown or missing member, or a number that is not in its canonical
            form; `feature-list-differs`.
        NotFoundError: `feature-list-missing`.
        PolicyError: `manifest-refused`, a rule is broken or a derived figure differs.
        CryptographicError: `unfit-blinding-key`, two owners would share nothing secret.
    """
    manifest = parse_terms(untrusted, feature_lists)
    if manifest.figures.slot_bits != manifest.slot_bits:
        refused(f"slot_bits is {manifest.slot_bits}, but the terms give {manifest.figures.slot_bits}")
    return manifest


def parse_terms(untrusted: Mapping[str, Any], feature_lists: FeatureLists = no_lists) -> Manifest:
    """Like `parse_manifest`, for a draft.

    This function does not compare noise_scale and slot_bits, which are set later.
    """
    stated = untrusted.get("format", FORMAT)
    if stated != FORMAT or isinstance(stated, bool):
        raise MessageError(
            "unsupported-version",
            f"the manifest has message format {printable(str(stated), 20)}{both_programs(stated)}",
            "run the study again with a new manifest, or use the version that made this one",
        )
    required = ["format", *(member.name for member in MEMBERS if member.is_required)]
    lists_features = "feature_list" in untrusted
    left_out = "features" if lists_features else "feature_list"
    check_members(
        untrusted,
        "the manifest",
        [name for name in required if name != left_out],
        [member.name for member in MEMBERS if member.name != left_out],
    )
    read = {member.name: member.read(untrusted) for member in MEMBERS if member.name != left_out}
    if lists_features:
        read["features"] = listed_features(read["feature_list"], feature_lists)
    manifest = Manifest(**read)
    check_rules(manifest)
    return manifest


def named_list(untrusted: Mapping[str, Any]) -> FeatureListRef | None:
    """The list of features that a body names, so that a party can get it before it reads the manifest.

    Raises:
        MessageError, PolicyError: the member is malformed.
    """
    if "feature_list" not in untrusted:
        return None
    return FeatureListRef.parse(untrusted["feature_list"], "feature_list")


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
    known_keys: Collection[Digest] = (),
    *,
    key_rules: KeyRules = PRODUCT_KEYS,
    feature_lists: FeatureLists = no_lists,
) -> SignedManifest:
    """The manifest in a signed statement, after all checks that one party can make alone.

    Args:
        untrusted: statement bytes as received.
        known_keys: digests of the keys of other studies; a repeated key is refused.
        key_rules: which moduli may be used.
        feature_lists: as for `parse_manifest`.

    Raises:
        MessageError: not a canonical statement of a manifest; `feature-list-differs`.
        NotFoundError: `feature-list-missing`.
        AuthenticationError: the data user that the manifest names did not sign it.
        PolicyError: a rule is broken or a derived figure differs.
        CryptographicError: `unfit-modulus`, `unfit-sealing-key`, `unfit-blinding-key`.

    The caller must still check the proxy, the pinned key of the user and its own policy. This function does
    not know the proxy, the pinned key or the policy.
    """
    statement = verify_statement(KIND, untrusted)
    manifest = parse_manifest(statement.body, feature_lists)
    if isinstance(manifest.key, KeyTerms) and manifest.key.bits < key_rules.least_bits:
        refused(f"key.modulus has {manifest.key.bits} bits, fewer than the minimum of {key_rules.least_bits}")
    if manifest.user.ed25519 != statement.signer:
        raise AuthenticationError("bad-signature", "the user that the manifest names did not sign it")
    if canonical_json(manifest.to_body()) != statement.body_bytes:
        raise MessageError("not-canonical", "the manifest is not in its canonical form")
    if isinstance(manifest.key, KeyTerms):
        check_public_key(
            manifest.key.modulus,
            KeyProof(tuple(mpz(root) for root in manifest.key.proof)),
            manifest.user.ed25519,
            known_moduli=known_keys,
            rules=key_rules,
        )
    elif manifest.key.digest in known_keys:
        raise CryptographicError(
            "unfit-sealing-key",
            "the study's key was used in another study",
            "ask the data user for a study with a new key",
        )
    return SignedManifest(manifest, statement, StudyId(statement.digest))


def paillier_key(manifest: Manifest) -> PublicKey:
    """The Paillier key of a checked manifest. Raises UsageError in a study under pads."""
    if not isinstance(manifest.key, KeyTerms):
        raise UsageError("wrong-key", "a study under pads has no Paillier key")
    return PublicKey(mpz(manifest.key.modulus))


def suite_of(manifest: Manifest) -> Suite:
    """The suite of a study, from its checked manifest.

    In a masked study it only checks and adds up chunks of shares.
    """
    values = manifest.figures.value_count
    if isinstance(manifest.key, PadsKeyTerms):
        return PadsSuite(manifest.key.kem, manifest.study_id, values)
    count = manifest.figures.ciphertext_count
    return PaillierSuite(paillier_key(manifest), manifest.slot_bits, values, count)
