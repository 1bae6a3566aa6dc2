"""The public terms on which the encoding of records and a study's figures depend."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Protocol

from dpdpca_protocol.layout.blocks import CLIPPING, TOLD, BlockName
from dpdpca_protocol.study import ReleaseKind, SummedOver
from dpdpca_protocol.terms.features import Feature, longest_norm_squared
from dpdpca_protocol.terms.release_rules import ReleaseRules, rules_of

_CLIP_BITS, _CLIP_SUM_BITS = 40, 61
LIFT_BOUND = 2**20
"""B, the bound on Σ a² in a lift."""
_PROJECTED = frozenset({ReleaseKind.SKETCH, ReleaseKind.SCORES})


class NoiseBy(StrEnum):
    """Who draws the noise: the proxy alone, or every owner one part of the noise."""

    PROXY = "proxy"
    OWNERS = "owners"


class SuiteName(StrEnum):
    """How owners hide their values: encrypted under Paillier, or with pads."""

    PAILLIER = "paillier"
    PADS = "pads"


class Blinding(StrEnum):
    """Whether owners add masks that vanish in the sum over all of them."""

    NONE = "none"
    PAIRWISE = "pairwise"


class EncodingTerms(Protocol):
    """The terms for encoding records, from a manifest or for a table without one.

    Attributes:
        features: in the order of their columns.
        missing: "reject" drops a record with a missing value, "midpoint" replaces the value by the centre.
        scaling: "range" or "common".
        clip_norm: r.
        fraction_bits: f; the grid has q = 2^f units.
        nonnegative: no record may have a coordinate below 0.
        rules: of the release. Pairs and pre-studies clip what they add up; the others clip their records.
    """

    @property
    def features(self) -> tuple[Feature, ...]: ...

    @property
    def missing(self) -> str: ...

    @property
    def scaling(self) -> str: ...

    @property
    def clip_norm(self) -> Fraction: ...

    @property
    def fraction_bits(self) -> int: ...

    @property
    def nonnegative(self) -> bool: ...

    @property
    def rules(self) -> ReleaseRules: ...


def may_shorten(terms: EncodingTerms) -> bool:
    """Whether bounds and centres allow a row that is longer than the clip norm."""
    return terms.clip_norm**2 < longest_norm_squared(terms.features, terms.scaling, terms.rules.of_pairs)


def record_bound(clip_norm: Fraction, fraction_bits: int) -> int:
    """K = ⌊(r q)²⌋, the bound on Σ z² of a record, in grid units²."""
    return int((clip_norm * 2**fraction_bits) ** 2)


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which the figures depend. All these terms are public.

    Attributes:
        release: what is released.
        encoded_features: d, columns after one-hot encoding.
        clip_norm: r, the bound on the 2-norm of a scaled record (in a study of pairs, of a difference), above
            √d/(2q). The features limit it from above (`features.check_clip_norm`).
        fraction_bits: f; the grid has q = 2^f units.
        epsilon: ε > 0.
        delta: the total δ, below 1/max_records.
        sum_weight: a/K in (0, 2] for joint, 0 for masked.
        max_records: N̄.
        modulus_bits: bits of the Paillier modulus; 0 under pads.
        mechanism: the name of one of `dpdpca_protocol.privacy.mechanisms`.
        noise_by: who draws the noise.
        assured_shares: m = min_owners − max_colluding, if the owners draw the noise: this many parts of it
            are assured.
        max_owners: the most owners that may draw noise.
        nonnegative: no record has a coordinate below 0 (masked studies).
        rho_share: the fraction of the ρ of (ε, δ) that this study spends; below 1 in a chain of studies.
        blocks: the blocks of a pre-study, each with its fraction of what the study spends.
        suite: how owners hide their values.
        clip_share: s, the fraction of ρ that each number about clipping and gaps spends; 0 without them.
        clip_cap_squared: the square of the largest length that counts in the second number.
        of: what a wide release adds up; None for every other release.
        columns: into how many numbers a wide release turns a record: m of a sketch, k of a lift or of scores;
            0 for every other release.
        missing: "reject" or "midpoint", as in `EncodingTerms`.
        score_norm: r′, the bound on the 2-norm of a record's scores in scaled units; 0 except for scores.
    """

    release: ReleaseKind
    encoded_features: int
    clip_norm: Fraction
    fraction_bits: int
    epsilon: Fraction
    delta: Fraction
    sum_weight: Fraction
    max_records: int
    modulus_bits: int
    mechanism: str = "gaussian"
    noise_by: NoiseBy = NoiseBy.PROXY
    assured_shares: int = 1
    max_owners: int = 1
    nonnegative: bool = False
    rho_share: Fraction = Fraction(1)
    blocks: tuple[tuple[BlockName, Fraction], ...] = ()
    suite: SuiteName = SuiteName.PAILLIER
    clip_share: Fraction = Fraction(0)
    clip_cap_squared: Fraction = Fraction(0)
    of: SummedOver | None = None
    columns: int = 0
    missing: str = "reject"
    score_norm: Fraction = Fraction(0)

    @property
    def rules(self) -> ReleaseRules:
        return rules_of(self.release, self.of)

    @property
    def summed_features(self) -> int:
        """The number of coordinates of what is summed: d, or m of a sketch, or k of scores."""
        return self.columns if self.release in _PROJECTED else self.encoded_features

    @property
    def summed_bound(self) -> int:
        """The bound on the squared length of what is summed: K, or 2K for a sketch, or K′ for scores."""
        if self.release is ReleaseKind.SCORES:
            return record_bound(self.score_norm, self.fraction_bits)
        return 2 * self.record_bound if self.release is ReleaseKind.SKETCH else self.record_bound

    @property
    def score_bound(self) -> int:
        """B in a lift, else 0."""
        return LIFT_BOUND if self.release is ReleaseKind.LIFT else 0

    @property
    def block_names(self) -> tuple[BlockName, ...]:
        """The names of the released blocks, in the order of sending; empty for a masked release."""
        told = TOLD if self.tells_gaps else CLIPPING
        named = (*self.rules.blocks, *(name for name, _ in self.blocks))
        return (*named, *told) if self.clip_share else named

    @property
    def tells_gaps(self) -> bool:
        """Whether the study tells how many values are missing. Without the rule `midpoint`, none is."""
        return self.clip_share > 0 and self.missing == "midpoint"

    @property
    def grid(self) -> int:
        return 1 << self.fraction_bits

    @property
    def record_bound(self) -> int:
        return record_bound(self.clip_norm, self.fraction_bits)

    @property
    def clip_bound(self) -> int:
        """C = ⌊(clip_cap·q)²/2^e⌋; 0 unless the study tells what clipping did."""
        return int(self.clip_cap_squared * self.grid**2) >> self.clip_shift if self.clip_share else 0

    @property
    def clip_shift(self) -> int:
        """e, the least for which C has at most 40 bits, and C and N̄ together at most 61.

        Squared lengths are added up in units of 2^e. A clip norm so small that it scales all rows to one
        length needs a fine grid, and without this unit the sums of squares would leave 64 bits.
        """
        bits = min(_CLIP_BITS, _CLIP_SUM_BITS - self.max_records.bit_length())
        return max(0, int(self.clip_cap_squared * self.grid**2).bit_length() - bits)
