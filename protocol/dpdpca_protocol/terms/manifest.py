"""The manifest: the immutable terms of one study.

A study's id is the SHA-256 of the manifest's canonical bytes, so nobody can show different versions of a
study to two parties. `signed_manifest` reads manifests. A manifest that was read has passed every rule of the
protocol.
"""

from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from functools import cached_property
from typing import Any

from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.sensitivity import NeighbouringRelation
from dpdpca_protocol.study import ReleaseKind, SummedOver
from dpdpca_protocol.terms.feature_list import FeatureListRef
from dpdpca_protocol.terms.features import Feature, encoded_names, feature_units, longest_norm_squared
from dpdpca_protocol.terms.figures import Figures, figures_of
from dpdpca_protocol.terms.members import LEAST_COHORT_DISTANCE, MEMBERS
from dpdpca_protocol.terms.parties import Participant, Party, ProxyParty, StudyKey
from dpdpca_protocol.terms.release_rules import ReleaseRules, rules_of
from dpdpca_protocol.terms.terms import Blinding, NoiseBy, SuiteName, Terms
from dpdpca_protocol.terms.wide import LiftTerms, ScoresTerms, SketchTerms
from dpdpca_protocol.wire.canonical import canonical_json
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import FORMAT


@dataclass(frozen=True)
class Manifest:
    """The terms of one study.

    The fields have the names of the protocol, reals are exact rationals, and times are in UTC. `members` says
    what each field means, how a message writes it, and which default it has. `features` are there also if
    the message names them by `feature_list`.
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
    calibration: str
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
    suite: SuiteName
    key: StudyKey
    blinding: Blinding = Blinding.NONE
    slot_bits: int = 0
    nonnegative: bool = False
    cohort_distance: int = LEAST_COHORT_DISTANCE
    rho_share: Fraction = Fraction(1)
    pre_studies: tuple[StudyId, ...] = ()
    blocks: tuple[tuple[BlockName, Fraction], ...] = ()
    clip_share: Fraction = Fraction(0)
    clip_cap: Fraction = Fraction(0)
    extends: StudyId | None = None
    feature_list: FeatureListRef | None = None
    of: SummedOver | None = None
    sketch: SketchTerms | None = None
    lift: LiftTerms | None = None
    scores: ScoresTerms | None = None

    @property
    def terms(self) -> Terms:
        """The terms that the figures depend on."""
        return Terms(
            encoded_features=self.encoded_features,
            modulus_bits=self.key.bits,
            assured_shares=self.min_owners - self.max_colluding,
            clip_cap_squared=self._clip_cap_squared,
            columns=self._summed_columns,
            score_norm=self.scores.norm if self.scores else Fraction(0),
            **{member.name: getattr(self, member.name) for member in MEMBERS if member.in_terms},
        )

    @cached_property
    def encoded_features(self) -> int:
        """d, the number of encoded columns."""
        return sum(feature.width for feature in self.features)

    @property
    def columns(self) -> int:
        """k of a lift or of scores; 0 in every other study."""
        wide = self.lift or self.scores
        return wide.columns if wide else 0

    @property
    def _summed_columns(self) -> int:
        """m of a sketch, k of a lift or of scores; 0 in every other study."""
        if self.sketch is not None and self.release is ReleaseKind.SKETCH:
            return self.sketch.rows
        return self.columns

    @property
    def _clip_cap_squared(self) -> Fraction:
        """The square of `clip_cap`, at most that of the largest length that bounds and centres allow."""
        if not self.clip_share:
            return Fraction(0)
        longest = longest_norm_squared(self.features, self.scaling, self.rules.of_pairs)
        most = max(longest, self.clip_norm**2)
        return min(self.clip_cap**2, most) if self.clip_cap else most

    @property
    def is_blinded(self) -> bool:
        """Whether owners add masks to their shares, so that only the sum over all of them can be opened."""
        return self.blinding is not Blinding.NONE

    @property
    def needs_second_noise(self) -> bool:
        """Whether owners may get the components only with a second draw of noise, by the data user.

        If nobody is named, any owner that the proxy enrols gets the components, and could tell them to the
        proxy. If the proxy drew the noise, it could then subtract its noise.
        """
        by_proxy = self.noise_by is NoiseBy.PROXY
        return self.release.has_components and by_proxy and not self.participants

    @property
    def rules(self) -> ReleaseRules:
        """The rules of the manifest's kind of release."""
        return rules_of(self.release, self.of)

    @cached_property
    def figures(self) -> Figures:
        """The figures that follow from the terms, with the manifest's own t."""
        return figures_of(self.terms, self.noise_scale)

    @cached_property
    def study_id(self) -> StudyId:
        return StudyId.of(canonical_json(self.to_body()))

    @cached_property
    def encoded_names(self) -> tuple[str, ...]:
        """Names of the d encoded columns, in order."""
        return encoded_names(self.features)

    @cached_property
    def feature_units(self) -> tuple[tuple[Fraction, Fraction], ...]:
        """(subtracted value, divisor) for each of the d encoded columns, in the feature's own units."""
        return feature_units(self.features, self.scaling)

    def to_body(self) -> dict[str, Any]:
        """The signed members, ready for canonical JSON. Features that a list has are left out."""
        body: dict[str, Any] = {"format": FORMAT}
        for member in MEMBERS:
            if member.name == "features" and self.feature_list is not None:
                continue
            value = getattr(self, member.name)
            if member.is_required or value != member.default:
                body[member.name] = member.form.write(value)
        return body
