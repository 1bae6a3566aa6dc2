"""The interface of mechanisms of symmetric integer noise, and what is proved for them.

A mechanism adds independent integers to an existing sum, so a proxy can apply it to ciphertexts. A mechanism
states what is proved for its noise. This module does no I/O; the samplers import OpenDP when they draw. Units
are those of the grid: K bounds Σ z² of a record, and noise scales on a second moment are in grid² units.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import ClassVar, Self

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import CLIPPING, OF_PAIRS, TOLD, BlockName
from dpdpca_protocol.privacy.accounting import ceil_sqrt, zcdp_rho
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.privacy.sensitivity import NeighbouringRelation


class Quantity(StrEnum):
    """What the noise is added to.

    `SECOND_MOMENT`: R = Σ z zᵀ about a public centre. `SCATTER`: N·S = N·R − v vᵀ, the masked release.
    `JOINT`: (N, v, R), the joint release; N has no noise. `PAIRS`: Σ y yᵀ over differences of pairs and the
    number of pairs, which has no noise. `PRE_STUDY`: blocks of counts and sums, and N. `LIFT`: (N, L, G) with
    L = Σ z aᵀ and G = Σ a aᵀ; N has no noise.
    """

    SECOND_MOMENT = "second-moment"
    SCATTER = "scatter"
    JOINT = "joint"
    PAIRS = "pairs"
    PRE_STUDY = "pre-study"
    LIFT = "lift"


_NOISY_BLOCKS = {
    Quantity.JOINT: (BlockName.SUM, BlockName.SECOND_MOMENT),
    Quantity.PAIRS: (BlockName.PAIR_MOMENT,),
    Quantity.LIFT: (BlockName.LIFTED, BlockName.GRAM),
}
MATRICES = frozenset({Quantity.SECOND_MOMENT, Quantity.SCATTER, Quantity.JOINT})
"""The quantities that mechanisms without blocks or pairs support."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A promise about one record.

    Attributes:
        epsilon: ε, rounded up.
        delta: δ; 0 if the promise is pure ε.
        basis: the proof in one line.
        assumptions: the conditions under which the promise holds.
        relation: which data sets are neighbours.
    """

    epsilon: Fraction
    delta: Fraction
    basis: str
    assumptions: tuple[str, ...] = ()
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE_ONE

    @property
    def is_pure(self) -> bool:
        return self.delta == 0

    def __str__(self) -> str:
        if self.is_pure:
            return f"pure ε = {float(self.epsilon):.6g}, {self.relation}"
        return f"(ε, δ) = ({float(self.epsilon):.6g}, {float(self.delta):.6g}), {self.relation}"


@dataclass(frozen=True, slots=True)
class PrivacyEvent:
    """What one release costs a ledger that adds ρ.

    Attributes:
        rho: ρ of zero-concentrated differential privacy; of pure ε it is ε²/2 (Bun, Steinke 2016).
        pure_epsilon: ε if the mechanism would be pure but for `extra_delta`, else None.
        extra_delta: the δ that ρ does not cover: tails that are redrawn or cut.
    """

    rho: Fraction
    pure_epsilon: Fraction | None
    extra_delta: Fraction


@dataclass(frozen=True, slots=True)
class NoiseLaw:
    """The exact variances of noise with mean 0. These variances separate signal from noise and determine the
    slot width.

    Attributes:
        diagonal, off_diagonal: the variances of the entries.
        sum_: the variance on each coordinate of v; 0 unless joint.
        triangle_bound, sum_bound: bounds that any of 2⁴⁰ draws exceeds with a probability of at most 2⁻⁸⁰.
    """

    diagonal: Fraction
    off_diagonal: Fraction
    sum_: Fraction
    triangle_bound: int
    sum_bound: int

    def times(self, draws: int) -> "NoiseLaw":
        """The law of the sum of `draws` independent draws from this law."""
        return NoiseLaw(
            self.diagonal * draws,
            self.off_diagonal * draws,
            self.sum_ * draws,
            self.triangle_bound * draws,
            self.sum_bound * draws,
        )

    def plus(self, other: "NoiseLaw") -> "NoiseLaw":
        """The law of the sum of a draw from this law and an independent one from the other."""
        return NoiseLaw(
            self.diagonal + other.diagonal,
            self.off_diagonal + other.off_diagonal,
            self.sum_ + other.sum_,
            self.triangle_bound + other.triangle_bound,
            self.sum_bound + other.sum_bound,
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """The public terms on which a mechanism depends.

    Attributes:
        quantity: what the noise is added to.
        encoded_features: d, the coordinates of what is summed.
        record_bound: K ≥ Σ z² of every record, grid units².
        epsilon: ε > 0.
        delta: δ in (0, 1) for the noise alone, without the parts for tails and mask. The Laplace
            mechanism spends no part of this δ.
        alpha_squared: a in (0, 2K], the weight of v relative to R in a joint release, grid units²; 0
            otherwise.
        shares: m. The noise is assured to be the sum of at least m independent draws; 1 if one party draws.
        nonnegative: no record has a coordinate below 0. This only matters for a scatter.
        rho_share: the fraction of the ρ of (ε, δ) that this release may spend; others spend the rest.
        blocks: the blocks of a pre-study, each with its fraction of what the release spends. The fractions
            add up to 1.
        clip_share: s, the fraction of ρ that each number about clipping and gaps spends; 0 without them.
        clip_bound: C, the most that a row can add to the second number; 0 without it.
        tells_gaps: whether a third number says how many values are missing. It spends s too.
        columns: k of a lift, else 0.
        score_bound: B ≥ Σ a² in a lift, else 0.
        lifts_pairs: whether a lift adds up differences instead of records.
    """

    quantity: Quantity
    encoded_features: int
    record_bound: int
    epsilon: Fraction
    delta: Fraction
    alpha_squared: Fraction = Fraction(0)
    shares: int = 1
    nonnegative: bool = False
    rho_share: Fraction = Fraction(1)
    blocks: tuple[tuple[BlockName, Fraction], ...] = ()
    clip_share: Fraction = Fraction(0)
    clip_bound: int = 0
    tells_gaps: bool = False
    columns: int = 0
    score_bound: int = 0
    lifts_pairs: bool = False

    @property
    def rho(self) -> Fraction:
        """The ρ that this release may spend."""
        return self.rho_share * zcdp_rho(self.epsilon, self.delta)

    @property
    def has_pairs(self) -> bool:
        """Whether owners pair their records."""
        named = any(name in OF_PAIRS for name, _ in self.blocks)
        return self.quantity is Quantity.PAIRS or self.lifts_pairs or named

    @property
    def noisy_blocks(self) -> tuple[BlockName, ...]:
        """The blocks of a flat release that have noise, in their order; empty for every other quantity."""
        named = _NOISY_BLOCKS.get(self.quantity, tuple(name for name, _ in self.blocks))
        return (*named, *self.told)

    @property
    def told(self) -> tuple[BlockName, ...]:
        """The single numbers that are told beside a matrix, each for the fraction s of ρ, in their order."""
        if not self.clip_share:
            return ()
        return TOLD if self.tells_gaps else CLIPPING

    def __post_init__(self) -> None:
        if self.encoded_features < 1 or self.record_bound < 1:
            raise UsageError("bad-argument", "encoded_features and record_bound must be 1 or more")
        if self.epsilon <= 0:
            raise UsageError("bad-argument", "epsilon must be above 0")
        if not 0 < self.delta < 1:
            raise UsageError("bad-argument", "delta must lie between 0 and 1")
        joint = self.quantity is Quantity.JOINT
        if joint and not 0 < self.alpha_squared <= 2 * self.record_bound:
            raise UsageError("bad-argument", "alpha_squared must lie in (0, 2K] for a joint release")
        if not joint and self.alpha_squared != 0:
            raise UsageError("bad-argument", "alpha_squared must be 0 if v is not released")
        if self.nonnegative and self.quantity is not Quantity.SCATTER:
            raise UsageError("bad-argument", "nonnegative is only possible for a scatter")
        if not 0 < self.rho_share <= 1:
            raise UsageError("bad-argument", "rho_share must be above 0 and at most 1")
        if (self.quantity is Quantity.PRE_STUDY) != bool(self.blocks):
            raise UsageError(
                "bad-argument", "a pre-study must have blocks, and no other release may have any"
            )
        shares = [share for _, share in self.blocks]
        if shares and (min(shares) <= 0 or sum(shares) != 1):
            raise UsageError("bad-argument", "the shares of the blocks must be above 0 and add up to 1")
        if self.clip_share and self.quantity not in (Quantity.JOINT, Quantity.PAIRS):
            raise UsageError("bad-argument", "only a joint release and pairs can tell what clipping did")
        if self.tells_gaps and not self.clip_share:
            raise UsageError("bad-argument", "only a release that tells what clipping did can tell of gaps")
        if not 0 <= self.clip_share < Fraction(1, 3) or bool(self.clip_share) != (self.clip_bound > 0):
            raise UsageError(
                "bad-argument", "clip_share must be below 1/3, and clip_bound above 0 if clip_share is"
            )
        if self.shares < 1:
            raise UsageError("bad-argument", "the noise must consist of at least one share")
        lifts = self.quantity is Quantity.LIFT
        if lifts != (self.columns > 0) or lifts != (self.score_bound > 0):
            raise UsageError("bad-argument", "a lift must have columns and a score_bound, nothing else may")


BOUNDED_SCORES = "every owner checks with integers that Σ a² ≤ B holds for the numbers that it multiplies"
HONEST_RECORDS = "every owner checks with integers that Σ z² ≤ K holds for its records"
PAIRED_BLINDLY = "every owner pairs its records independently of their values"
NOT_NEGATIVE = "every owner checks with integers that z ≥ 0 holds for its records"
PUBLIC_COUNT = "N is public"
MASK_APART = "a masked release adds 2√(dK)/B for the mask and 2·2⁻⁸⁰ for re-randomisation to δ"


@dataclass(frozen=True)
class Mechanism(ABC):
    """A mechanism with its parameters. The method `calibrated` makes a mechanism from a setting.

    Attributes:
        setting: the public terms.
        scale: the scale of all noise, in grid² units. Each class defines what the scale means. A manifest may
            state a scale slightly above the least one, never below it.
    """

    name: ClassVar[str]
    quantities: ClassVar[frozenset[Quantity]]
    in_shares: ClassVar[bool] = False

    setting: Setting
    scale: Fraction

    def __post_init__(self) -> None:
        self.check_quantity(self.setting.quantity)
        if self.setting.shares != 1 and not self.in_shares:
            raise UsageError("bad-argument", f"the noise of {self.name} cannot be drawn in shares")
        if self.scale < self.least_scale(self.setting):
            raise UsageError("bad-argument", "the noise scale is below the one that the terms require")

    @classmethod
    def calibrated(cls, setting: Setting) -> Self:
        """The mechanism with the least noise that its formula gives for `setting`.

        Raises:
            UsageError: the mechanism does not support this quantity.
        """
        cls.check_quantity(setting.quantity)
        return cls(setting, cls.least_scale(setting))

    @classmethod
    def check_quantity(cls, quantity: Quantity) -> None:
        if quantity not in cls.quantities:
            offered = ", ".join(sorted(map(_words, cls.quantities)))
            raise UsageError(
                "bad-argument",
                f"mechanism {cls.name} supports {offered}, not {_words(quantity)}",
            )

    @classmethod
    @abstractmethod
    def least_scale(cls, setting: Setting) -> Fraction:
        """The scale from the formula, rounded up by less than 2⁻⁶⁰ of itself."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What is proved for noise of this scale."""

    @property
    def real_epsilon(self) -> float | None:
        """The ε of continuous noise of this strength, if known exactly; for display only, never promised."""
        return None

    @property
    def analytic_scale(self) -> float | None:
        """The least scale of continuous noise for the proved ε and δ, in units of `scale`.

        This figure is for display only; None if there is no such figure.
        """
        return None

    @property
    @abstractmethod
    def event(self) -> PrivacyEvent:
        """What a ledger books."""

    @abstractmethod
    def law(self, count: int) -> NoiseLaw:
        """Moments and bounds of the noise for N = `count` records. N only matters for a scatter."""

    @abstractmethod
    def draw_triangle(self, count: int, sample: Samplers = EXACT) -> list[int]:
        """Noise for the symmetric matrix: upper triangle by rows, d(d+1)/2 integers."""

    def draw_sum(self, sample: Samplers = EXACT) -> list[int]:
        """Noise for v: d integers. Only mechanisms that support a joint release have this noise."""
        raise UsageError("bad-argument", f"{self.name} defines no noise for the sum v")

    def draw(self, count: int, sample: Samplers = EXACT) -> list[int]:
        """All noise of one release, in its order, from the operating system's randomness.

        Args:
            count: N for a scatter; otherwise any number ≥ 1.
            sample: the source of the integers.

        Returns:
            The upper triangle by rows. Except for a scatter, 0 for the count comes first, followed in a joint
                release by d values for v. What is told beside comes last.
        """
        if count < 1:
            raise UsageError("bad-argument", "there must be at least one record")
        if self.setting.quantity is Quantity.SCATTER:
            return self.draw_triangle(count, sample)
        sums = self.draw_sum(sample) if self.setting.quantity is Quantity.JOINT else []
        return [0, *sums, *self.draw_triangle(count, sample), *self.draw_told(sample)]

    def draw_told(self, sample: Samplers = EXACT) -> list[int]:
        """Noise for what clipping did, and for the number of missing values, if the release tells them."""
        if self.setting.clip_share:
            raise UsageError("bad-argument", f"{self.name} defines no noise for what clipping did")
        return []

    def lift(self, count: int) -> int:
        """The factor of the noise of a scatter: N if the release is N·S, else 1."""
        return count if self.setting.quantity is Quantity.SCATTER else 1

    def factor(self, count: int) -> int:
        """The divisor of a release that gives a scatter: N if masked, 2 for pairs (E y yᵀ = 2Σ), else 1."""
        return 2 if self.setting.quantity is Quantity.PAIRS else self.lift(count)

    @property
    def assumptions(self) -> tuple[str, ...]:
        masked = self.setting.quantity is Quantity.SCATTER
        return (
            HONEST_RECORDS,
            *((BOUNDED_SCORES,) if self.setting.quantity is Quantity.LIFT else ()),
            *((PAIRED_BLINDLY,) if self.setting.has_pairs else ()),
            *((NOT_NEGATIVE,) if self.setting.nonnegative else ()),
            PUBLIC_COUNT,
            *((MASK_APART,) if masked else ()),
        )


def _words(quantity: Quantity) -> str:
    named = {Quantity.SECOND_MOMENT: "the second moment alone", Quantity.SCATTER: "the masked release"}
    return named.get(quantity, f"the {quantity} release")


def sqrt_up(value: Fraction) -> Fraction:
    """√value for value > 0, rounded up by less than 2⁻⁶⁰ of itself."""
    shift = 64 + max(0, value.denominator.bit_length() - value.numerator.bit_length())
    return Fraction(ceil_sqrt(value * 4**shift), 2**shift)


def upper_triangle(d: int, diagonal: list[int], others: list[int]) -> list[int]:
    """Merges diagonal and off-diagonal entries into an upper triangle by rows."""
    rest = iter(others)
    return [diagonal[i] if i == j else next(rest) for i in range(d) for j in range(i, d)]
