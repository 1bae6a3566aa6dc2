"""The manifest: the immutable, signed terms of one study.

A `Manifest` that exists has passed every rule of the protocol but one: that its modulus is fit, which
`open_manifest` checks too. Its id is the SHA-256 of its canonical bytes, so nobody can show two parties two
versions. All roles parse manifests here and nowhere else.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

from gmpy2 import mpz

from dpdpca_protocol.errors import AuthenticationError, MessageError, UsageError
from dpdpca_protocol.layout.blocks import PRE_STUDY_BLOCKS, BlockName
from dpdpca_protocol.paillier.keys import LEAST_BITS, PublicKey
from dpdpca_protocol.paillier.proof import KeyProof, check_public_key
from dpdpca_protocol.privacy.mechanisms import MECHANISMS, Calibration
from dpdpca_protocol.privacy.sensitivity import NeighbouringRelation
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import Feature, feature_units
from dpdpca_protocol.terms.figures import MAX_FRACTION_BITS, MAX_ROUNDS, Figures, NoiseBy, Terms, figures_of
from dpdpca_protocol.terms.parties import KeyTerms, Participant, Party, ProxyParty
from dpdpca_protocol.terms.rules import MAX_ENCODED_FEATURES, check_rules
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.fields import (
    check_members,
    decimal_text,
    malformed,
    read_choice,
    read_decimal,
    read_integer,
    read_list,
    read_text,
    read_time,
    refused,
    time_text,
)
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_protocol.wire.signing import FORMAT, IdentityKey, Statement, sign_statement, verify_statement

__all__ = [
    "KIND",
    "LEAST_MODULUS_BITS",
    "MAX_ENCODED_FEATURES",
    "Feature",
    "Figures",
    "KeyTerms",
    "Manifest",
    "Participant",
    "Party",
    "ProxyParty",
    "SignedManifest",
    "open_manifest",
    "sign_manifest",
]

KIND = "manifest"
LEAST_MODULUS_BITS = LEAST_BITS
MAX_OWNERS = 100_000
MAX_PARTICIPANTS = 10_000
LEAST_COHORT_DISTANCE = 2
"""Owners by which a cohort differs at least from each earlier one with a feature in common, or not at all."""

_TITLE = 200
_PURPOSE = 4000
# fmt: off
_REQUIRED = (
    "format", "title", "purpose", "user", "proxy", "participants", "features", "missing", "scaling",
    "clip_norm", "fraction_bits", "mechanism", "release", "relation", "epsilon", "delta", "noise_by",
    "max_colluding", "sum_weight", "noise_scale", "min_owners", "min_records", "max_records",
    "max_owners", "closing", "closes_at", "key", "slot_bits",
)
# fmt: on
_OPTIONAL = ("blocks", "calibration", "cohort_distance", "nonnegative", "pre_studies", "rho_share")


@dataclass(frozen=True)
class Manifest:
    """The terms of one study; fields as the protocol names them, reals as exact rationals, times in UTC.

    `sum_weight` is 0 but in a joint study and `max_colluding` 0 where the proxy draws the noise. In a body
    `calibration` is left out where it is proved, `cohort_distance` where it is the least, `nonnegative`
    where it is false, `rho_share` where it is 1, `pre_studies` where there are none, and `blocks` but in a
    pre-study.
    """

    title: str
    purpose: str
    user: Party
    proxy: ProxyParty
    participants: tuple[Participant, ...]
    features: tuple[Feature, ...]
    missing: str
    scaling: str
    clip_norm: Fraction
    fraction_bits: int
    mechanism: str
    calibration: Calibration
    release: ReleaseKind
    relation: NeighbouringRelation
    epsilon: Fraction
    delta: Fraction
    noise_by: NoiseBy
    max_colluding: int
    sum_weight: Fraction
    noise_scale: Fraction
    min_owners: int
    min_records: int
    max_records: int
    max_owners: int
    closing: str
    closes_at: datetime
    key: KeyTerms
    slot_bits: int
    nonnegative: bool = False
    cohort_distance: int = LEAST_COHORT_DISTANCE
    rho_share: Fraction = Fraction(1)
    pre_studies: tuple[StudyId, ...] = ()
    blocks: tuple[tuple[BlockName, Fraction], ...] = ()

    @property
    def terms(self) -> Terms:
        return Terms(
            release=self.release,
            encoded_features=sum(feature.width for feature in self.features),
            clip_norm=self.clip_norm,
            fraction_bits=self.fraction_bits,
            epsilon=self.epsilon,
            delta=self.delta,
            sum_weight=self.sum_weight,
            max_records=self.max_records,
            modulus_bits=self.key.bits,
            mechanism=self.mechanism,
            calibration=self.calibration,
            noise_by=self.noise_by,
            assured_shares=self.min_owners - self.max_colluding,
            max_owners=self.max_owners,
            nonnegative=self.nonnegative,
            rho_share=self.rho_share,
            blocks=self.blocks,
        )

    @cached_property
    def figures(self) -> Figures:
        """What follows from the terms, with the manifest's own t."""
        return figures_of(self.terms, self.noise_scale)

    @cached_property
    def study_id(self) -> StudyId:
        return StudyId.of(canonical_json(self.to_body()))

    @property
    def encoded_names(self) -> tuple[str, ...]:
        """Names of the d encoded columns, in order."""
        return tuple(name for feature in self.features for name in feature.encoded_names)

    @property
    def feature_units(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """(what is subtracted, what it is divided by) for each of the d encoded columns, in own units."""
        return feature_units(self.features, self.scaling)

    @classmethod
    def parse(cls, untrusted: Mapping[str, Any], *, least_modulus_bits: int = LEAST_MODULUS_BITS) -> Self:
        """The manifest that a body describes, if it keeps every rule and its figures are the recomputed ones.

        Args:
            untrusted: parsed canonical JSON.
            least_modulus_bits: lower only in tests.

        Raises:
            MessageError: wrong shape, unknown or missing members, a number not in its one form.
            PolicyError: `manifest-refused`, a rule broken or a derived figure that differs.
        """
        manifest = cls.parse_terms(untrusted, least_modulus_bits=least_modulus_bits)
        manifest.check_figures()
        return manifest

    @classmethod
    def parse_terms(
        cls, untrusted: Mapping[str, Any], *, least_modulus_bits: int = LEAST_MODULUS_BITS
    ) -> Self:
        """As `parse`, but noise_scale and slot_bits are not compared: for a draft, which gets them next."""
        check_members(untrusted, "the manifest", _REQUIRED, _OPTIONAL)
        if untrusted["format"] != FORMAT or isinstance(untrusted["format"], bool):
            raise MessageError("unsupported-version", f"this version reads manifests of format {FORMAT} only")
        features = read_list(untrusted["features"], "features", MAX_ENCODED_FEATURES)
        participants = read_list(untrusted["participants"], "participants", MAX_PARTICIPANTS)
        manifest = cls(
            title=read_text(untrusted["title"], "title", _TITLE),
            purpose=read_text(untrusted["purpose"], "purpose", _PURPOSE),
            user=Party.parse(untrusted["user"], "user"),
            proxy=ProxyParty.parse(untrusted["proxy"], "proxy"),
            participants=tuple(
                Participant.parse(party, f"participants[{i}]") for i, party in enumerate(participants)
            ),
            features=tuple(Feature.parse(feature, f"features[{i}]") for i, feature in enumerate(features)),
            missing=read_choice(untrusted["missing"], "missing", ("reject", "midpoint")),
            scaling=read_choice(untrusted["scaling"], "scaling", ("range", "common")),
            clip_norm=read_decimal(untrusted["clip_norm"], "clip_norm"),
            fraction_bits=read_integer(untrusted["fraction_bits"], "fraction_bits", 0, MAX_FRACTION_BITS),
            mechanism=read_choice(untrusted["mechanism"], "mechanism", sorted({m.name for m in MECHANISMS})),
            calibration=_read_calibration(untrusted),
            release=ReleaseKind(read_choice(untrusted["release"], "release", [*ReleaseKind])),
            relation=_read_relation(untrusted["relation"]),
            epsilon=read_decimal(untrusted["epsilon"], "epsilon"),
            delta=read_decimal(untrusted["delta"], "delta"),
            noise_by=NoiseBy(read_choice(untrusted["noise_by"], "noise_by", [*NoiseBy])),
            max_colluding=read_integer(untrusted["max_colluding"], "max_colluding", 0, MAX_OWNERS),
            sum_weight=read_decimal(untrusted["sum_weight"], "sum_weight"),
            noise_scale=read_decimal(untrusted["noise_scale"], "noise_scale"),
            min_owners=read_integer(untrusted["min_owners"], "min_owners", 1, MAX_OWNERS),
            min_records=read_integer(untrusted["min_records"], "min_records", 1),
            max_records=read_integer(untrusted["max_records"], "max_records", 1),
            max_owners=read_integer(untrusted["max_owners"], "max_owners", 1, MAX_OWNERS),
            closing=read_choice(untrusted["closing"], "closing", ("at-time", "when-complete")),
            closes_at=read_time(untrusted["closes_at"], "closes_at"),
            key=KeyTerms.parse(untrusted["key"], "key", least_modulus_bits),
            slot_bits=read_integer(untrusted["slot_bits"], "slot_bits", 1),
            nonnegative=_read_nonnegative(untrusted),
            cohort_distance=_read_distance(untrusted),
            rho_share=_read_rho_share(untrusted),
            pre_studies=_read_pre_studies(untrusted),
            blocks=_read_blocks(untrusted),
        )
        manifest.check_terms()
        return manifest

    def check_terms(self) -> None:
        """That the terms are within their limits and fit each other; PolicyError if not."""
        check_rules(self)

    def check_figures(self) -> None:
        """That noise_scale and slot_bits are the recomputed ones; PolicyError names both values if not."""
        if self.figures.slot_bits != self.slot_bits:
            refused(f"slot_bits is {self.slot_bits}, and the terms give {self.figures.slot_bits}")

    def to_body(self) -> dict[str, Any]:
        """The members that are signed, ready for canonical JSON."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "user": self.user.to_body(),
            "proxy": self.proxy.to_body(),
            "participants": [party.to_body() for party in self.participants],
            "features": [feature.to_body() for feature in self.features],
            "closes_at": time_text(self.closes_at),
            "key": self.key.to_body(),
        }
        for member in ("clip_norm", "epsilon", "delta", "sum_weight", "noise_scale"):
            body[member] = decimal_text(getattr(self, member))
        if self.calibration is not Calibration.PROVED:
            body["calibration"] = str(self.calibration)
        if self.nonnegative:
            body["nonnegative"] = True
        if self.cohort_distance != LEAST_COHORT_DISTANCE:
            body["cohort_distance"] = self.cohort_distance
        if self.rho_share != 1:
            body["rho_share"] = decimal_text(self.rho_share)
        if self.pre_studies:
            body["pre_studies"] = [study.hex() for study in self.pre_studies]
        if self.blocks:
            body["blocks"] = {str(name): decimal_text(share) for name, share in self.blocks}
        for member in _REQUIRED:
            if member not in body:
                value = getattr(self, member)
                body[member] = str(value) if isinstance(value, str) else value
        return body


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest whose signature, figures and modulus hold."""

    manifest: Manifest
    statement: Statement
    study_id: StudyId
    public_key: PublicKey


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
    least_modulus_bits: int = LEAST_MODULUS_BITS,
) -> SignedManifest:
    """The manifest in a signed statement, with everything checked that one party can check alone.

    Args:
        untrusted: statement bytes as received.
        known_moduli: digests of moduli seen in other studies; a repeat is refused.
        least_modulus_bits: lower only in tests.

    Raises:
        MessageError: not a canonical statement of a manifest.
        AuthenticationError: not signed by the data user that it names.
        PolicyError: a rule broken or a derived figure that differs.
        CryptographicError: `unfit-modulus`.

    The caller compares the proxy, the pinned user key and its own policy; this function knows neither.
    """
    statement = verify_statement(KIND, untrusted)
    manifest = Manifest.parse(statement.body, least_modulus_bits=least_modulus_bits)
    if manifest.user.ed25519 != statement.signer:
        raise AuthenticationError("bad-signature", "the manifest is not signed by the user that it names")
    if canonical_json(manifest.to_body()) != statement.body_bytes:
        raise MessageError("not-canonical", "the manifest says something in another form than its own")
    public_key = check_public_key(
        manifest.key.modulus,
        KeyProof(tuple(mpz(root) for root in manifest.key.proof)),
        manifest.user.ed25519,
        known_moduli=known_moduli,
        least_bits=least_modulus_bits,
    )
    return SignedManifest(manifest, statement, StudyId(statement.digest), public_key)


def _read_relation(untrusted: Any) -> NeighbouringRelation:
    if untrusted in ("add-or-remove", "add-or-remove-one", "add-remove"):
        refused(
            "relation add-or-remove cannot be promised: the number of records is exact in both releases",
            "use replace-one",
        )
    return NeighbouringRelation(read_choice(untrusted, "relation", [*NeighbouringRelation]))


def _read_calibration(untrusted: Mapping[str, Any]) -> Calibration:
    if "calibration" not in untrusted:
        return Calibration.PROVED
    # One form of each manifest: what is proved goes without saying.
    return Calibration(read_choice(untrusted["calibration"], "calibration", (Calibration.AS_PUBLISHED,)))


def _read_nonnegative(untrusted: Mapping[str, Any]) -> bool:
    if "nonnegative" in untrusted and untrusted["nonnegative"] is not True:
        malformed("nonnegative", "true, or left out")
    return "nonnegative" in untrusted


def _read_rho_share(untrusted: Mapping[str, Any]) -> Fraction:
    if "rho_share" not in untrusted:
        return Fraction(1)
    share = read_decimal(untrusted["rho_share"], "rho_share")
    if not 0 < share < 1:
        refused("rho_share is not between 0 and 1", "leave it out where one study spends everything")
    return share


def _read_pre_studies(untrusted: Mapping[str, Any]) -> tuple[StudyId, ...]:
    if "pre_studies" not in untrusted:
        return ()
    listed = read_list(untrusted["pre_studies"], "pre_studies", MAX_ROUNDS - 1)
    if not listed:
        malformed("pre_studies", "a list of study ids, or left out")
    return tuple(StudyId.parse(study) for study in listed)


def _read_blocks(untrusted: Mapping[str, Any]) -> tuple[tuple[BlockName, Fraction], ...]:
    if "blocks" not in untrusted:
        return ()
    given = untrusted["blocks"]
    check_members(given, "blocks", (), PRE_STUDY_BLOCKS)
    if not given:
        malformed("blocks", "an object with a share for each block, or left out")
    return tuple(
        (name, read_decimal(given[name], f"blocks.{name}")) for name in PRE_STUDY_BLOCKS if name in given
    )


def _read_distance(untrusted: Mapping[str, Any]) -> int:
    if "cohort_distance" not in untrusted:
        return LEAST_COHORT_DISTANCE
    # One form of each manifest again: the least goes without saying.
    least = LEAST_COHORT_DISTANCE + 1
    return read_integer(untrusted["cohort_distance"], "cohort_distance", least, MAX_OWNERS)
