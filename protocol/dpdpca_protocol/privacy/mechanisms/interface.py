"""What a mechanism of symmetric integer noise is, and what may be said about it.

A mechanism adds independent integers to a sum that is already there, so a proxy can run it on ciphertexts.
It states what is proved for its noise. Pure: no I/O; the samplers import OpenDP when they draw.

Units are the grid's: K bounds Σ z² of a record, scales of noise on a second moment are in grid² units.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import ClassVar, Self

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import OF_PAIRS, BlockName
from dpdpca_protocol.privacy.accounting import ceil_sqrt, zcdp_rho
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.privacy.sensitivity import NeighbouringRelation


class Quantity(StrEnum):
    """What the noise is added to.

    `SECOND_MOMENT`: R = Σ z zᵀ about a public centre. `SCATTER`: N·S = N·R − v vᵀ, the masked release.
    `JOINT`: (N, v, R), the joint release; N stays exact. `PAIRS`: Σ y yᵀ over differences of pairs and their
    number, which stays exact. `PRE_STUDY`: blocks of counts and sums, and N.
    """

    SECOND_MOMENT = "second-moment"
    SCATTER = "scatter"
    JOINT = "joint"
    PAIRS = "pairs"
    PRE_STUDY = "pre-study"


MATRICES = frozenset({Quantity.SECOND_MOMENT, Quantity.SCATTER, Quantity.JOINT})
"""What mechanisms without blocks or pairs are made for."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A promise about one record.

    Attributes:
        epsilon: ε, rounded up.
        delta: δ; 0 if the promise is pure ε.
        basis: the proof in a line.
        assumptions: what must be true of the world for it to hold.
        relation: who counts as neighbours.
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
        rho: ρ of zero-concentrated differential privacy; for pure ε it is ε²/2 (Bun, Steinke 2016).
        pure_epsilon: ε where the mechanism is pure, else None.
        extra_delta: δ that ρ does not cover: redrawn tails.
    """

    rho: Fraction
    pure_epsilon: Fraction | None
    extra_delta: Fraction


@dataclass(frozen=True, slots=True)
class NoiseLaw:
    """Exact variances of noise of mean 0: what tells signal from noise, and how wide a slot must be.

    Attributes:
        diagonal, off_diagonal: variances of the entries.
        sum_: variance on each coordinate of v; 0 unless joint.
        triangle_bound, sum_bound: passed by one draw in 2⁸⁰ over 2⁴⁰ draws at most.
    """

    diagonal: Fraction
    off_diagonal: Fraction
    sum_: Fraction
    triangle_bound: int
    sum_bound: int

    def times(self, draws: int) -> "NoiseLaw":
        """The law of a sum of independent draws."""
        return NoiseLaw(
            self.diagonal * draws,
            self.off_diagonal * draws,
            self.sum_ * draws,
            self.triangle_bound * draws,
            self.sum_bound * draws,
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """Public terms that a mechanism depends on.

    Attributes:
        quantity: what the noise is added to.
        encoded_features: d.
        record_bound: K ≥ Σ z² of every record, grid units².
        epsilon: ε > 0.
        delta: δ in (0, 1) for the noise alone, without what tails and mask spend. Pure mechanisms spend none.
        alpha_squared: a in (0, 2K], weight of v beside R in a joint release, grid units²; 0 elsewhere.
        shares: m, of how many independent draws the noise is assured to be the sum; 1 where one party draws.
        nonnegative: no record has a coordinate below 0; it matters to a scatter alone.
        rho_share: part of the ρ of (ε, δ) that this release may spend; others spend the rest.
        blocks: of a pre-study, each with its part of what the release spends; they add up to 1.
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

    @property
    def rho(self) -> Fraction:
        """ρ that this release may spend."""
        return self.rho_share * zcdp_rho(self.epsilon, self.delta)

    @property
    def has_pairs(self) -> bool:
        """Whether owners pair their records."""
        return self.quantity is Quantity.PAIRS or any(name in OF_PAIRS for name, _ in self.blocks)

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
            raise UsageError("bad-argument", "alpha_squared must be 0 where v is not released")
        if self.nonnegative and self.quantity is not Quantity.SCATTER:
            raise UsageError("bad-argument", "records without negative coordinates matter to a scatter alone")
        if not 0 < self.rho_share <= 1:
            raise UsageError("bad-argument", "rho_share must be above 0 and at most 1")
        if (self.quantity is Quantity.PRE_STUDY) != bool(self.blocks):
            raise UsageError("bad-argument", "a pre-study has blocks, and nothing else has")
        shares = [share for _, share in self.blocks]
        if shares and (min(shares) <= 0 or sum(shares) != 1):
            raise UsageError("bad-argument", "the shares of blocks must be above 0 and add up to 1")
        if self.shares < 1:
            raise UsageError("bad-argument", "the noise must consist of at least one share")


HONEST_RECORDS = "every owner checks Σ z² ≤ K of its records in integers"
PAIRED_BLINDLY = "every owner pairs its records in an order that their values have no part in"
NOT_NEGATIVE = "every owner checks z ≥ 0 of its records in integers"
PUBLIC_COUNT = "N is public"
MASK_APART = "a masked release adds the mask's 2√(dK)/B and 2·2⁻⁸⁰ for re-randomisation to δ"


@dataclass(frozen=True)
class Mechanism(ABC):
    """One mechanism with its parameters; `calibrated` makes one from a setting.

    Attributes:
        setting: the public terms.
        scale: the one figure that noise is drawn from, grid² units; each class says what it is. A manifest
            may state it a little above the least one, never below.
    """

    name: ClassVar[str]
    quantities: ClassVar[frozenset[Quantity]]
    in_shares: ClassVar[bool] = False

    setting: Setting
    scale: Fraction

    def __post_init__(self) -> None:
        self.check_quantity(self.setting.quantity)
        if self.setting.shares != 1 and not self.in_shares:
            raise UsageError("bad-argument", f"{self.name} is not made to be drawn in shares")
        if self.scale < self.least_scale(self.setting):
            raise UsageError("bad-argument", "the noise scale is below what the terms ask for")

    @classmethod
    def calibrated(cls, setting: Setting) -> Self:
        """The mechanism with the least noise that its formula gives for `setting`.

        Raises:
            UsageError: the mechanism is not made for this quantity.
        """
        cls.check_quantity(setting.quantity)
        return cls(setting, cls.least_scale(setting))

    @classmethod
    def check_quantity(cls, quantity: Quantity) -> None:
        if quantity not in cls.quantities:
            offered = ", ".join(sorted(map(_words, cls.quantities)))
            raise UsageError(
                "bad-argument",
                f"mechanism {cls.name} is made for {offered}, not for {_words(quantity)}",
            )

    @classmethod
    @abstractmethod
    def least_scale(cls, setting: Setting) -> Fraction:
        """The scale that the formula gives, rounded up by less than 2⁻⁶⁰ of itself."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What is proved for noise of this scale."""

    @property
    def real_epsilon(self) -> float | None:
        """ε of continuous noise of this strength, where that is known exactly; shown, never promised."""
        return None

    @property
    def analytic_scale(self) -> float | None:
        """The least scale of continuous noise for the ε and δ that are asked for, in units of `scale`; shown
        beside it, never used. None where there is no such figure."""
        return None

    @property
    @abstractmethod
    def event(self) -> PrivacyEvent:
        """What a ledger books."""

    @abstractmethod
    def law(self, count: int) -> NoiseLaw:
        """Moments and bounds of the noise for N = `count` records (it matters to a scatter alone)."""

    @abstractmethod
    def draw_triangle(self, count: int, sample: Samplers = EXACT) -> list[int]:
        """Noise for the symmetric matrix: upper triangle by rows, d(d+1)/2 integers."""

    def draw_sum(self, sample: Samplers = EXACT) -> list[int]:
        """Noise for v: d integers. Only mechanisms that are made for a joint release have it."""
        raise UsageError("bad-argument", f"{self.name} puts no noise on a sum")

    def draw(self, count: int, sample: Samplers = EXACT) -> list[int]:
        """All noise of one release, in its order, from the operating system's randomness.

        Args:
            count: N, for a scatter; any number ≥ 1 elsewhere.
            sample: where the integers come from.

        Returns:
            The upper triangle by rows; in front of it, but for a scatter, 0 for the count, and if joint d
            values for v.
        """
        if count < 1:
            raise UsageError("bad-argument", "there must be at least one record")
        if self.setting.quantity is Quantity.JOINT:
            return [0, *self.draw_sum(sample), *self.draw_triangle(count, sample)]
        if self.setting.quantity is Quantity.PAIRS:
            return [0, *self.draw_triangle(count, sample)]
        return self.draw_triangle(count, sample)

    def lift(self, count: int) -> int:
        """What the noise of a scatter is multiplied by: N where the release is N·S, else 1."""
        return count if self.setting.quantity is Quantity.SCATTER else 1

    def factor(self, count: int) -> int:
        """What a release is divided by to give a scatter: N if masked, 2 for pairs (E y yᵀ = 2Σ), else 1."""
        return 2 if self.setting.quantity is Quantity.PAIRS else self.lift(count)

    @property
    def assumptions(self) -> tuple[str, ...]:
        masked = self.setting.quantity is Quantity.SCATTER
        return (
            HONEST_RECORDS,
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
    """Diagonal and off-diagonal entries as an upper triangle by rows."""
    rest = iter(others)
    return [diagonal[i] if i == j else next(rest) for i in range(d) for j in range(i, d)]
