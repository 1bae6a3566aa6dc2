"""The public terms that the encoding of records and a study's figures depend on."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Protocol

from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.release_rules import ReleaseRules, rules_of


class NoiseBy(StrEnum):
    """Who draws the noise: the proxy, or each owner a part of it."""

    PROXY = "proxy"
    OWNERS = "owners"


class EncodingTerms(Protocol):
    """What the encoding of records depends on: these members of a manifest, or of a table without one.

    Attributes:
        features: in the order of their columns.
        missing: "reject" drops a record with a gap, "midpoint" puts the centre in.
        scaling: "range" or "common".
        clip_norm: r.
        fraction_bits: f; the grid has q = 2^f units.
        release: what is released; pairs and pre-studies cut what they add up, the others their records.
        nonnegative: no record may have a coordinate below 0.
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
    def release(self) -> ReleaseKind: ...

    @property
    def nonnegative(self) -> bool: ...


def record_bound(clip_norm: Fraction, fraction_bits: int) -> int:
    """K = ⌊(r q)²⌋, the bound on Σ z² of a record, in grid units²."""
    return int((clip_norm * 2**fraction_bits) ** 2)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the figures depend on. All of it is public.

    Attributes:
        release: what is released.
        encoded_features: d, columns after one-hot encoding.
        clip_norm: r, bound on the 2-norm of a scaled record, above √d/(2q); of a difference in a study of
            pairs. How far up it may go is the features' business (`features.check_clip_norm`).
        fraction_bits: f; the grid has q = 2^f units.
        epsilon: ε > 0.
        delta: δ in all, below 1/max_records.
        sum_weight: a/K in (0, 2] for joint, 0 for masked.
        max_records: N̄.
        modulus_bits: bits of the Paillier modulus.
        mechanism: the name of one of `dpdpca_protocol.privacy.mechanisms`.
        noise_by: who draws.
        assured_shares: m where owners draw: min_owners − max_colluding of them are assured.
        max_owners: how many owners may draw.
        nonnegative: no record has a coordinate below 0 (masked).
        rho_share: part of the ρ of (ε, δ) that this study spends; below 1 in a chain of studies.
        blocks: of a pre-study, each with its part of what the study spends.
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

    @property
    def rules(self) -> ReleaseRules:
        return rules_of(self.release)

    @property
    def block_names(self) -> tuple[BlockName, ...]:
        """Of what is released flat, in the order in which it travels; empty for a masked release."""
        return (*self.rules.blocks, *(name for name, _ in self.blocks))

    @property
    def grid(self) -> int:
        return 1 << self.fraction_bits

    @property
    def record_bound(self) -> int:
        return record_bound(self.clip_norm, self.fraction_bits)
