"""What releases cost and what an owner allows in all: ρ of zero-concentrated differential privacy, exact.

Costs add up. A budget that is set as (ε, δ) becomes one ρ, once, so that sums are compared as rationals and
never as rounded ε: ten costs of a tenth of it fit, and an eleventh of any size does not.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Self

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import delta_of_tails, epsilon_of_rho, zcdp_rho
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.wire.fields import malformed

_GRID = 2**160
"""Costs of studies are multiples of its inverse, so that a sum of thousands of them is no longer than one."""
OUTSIDE_SHARE = Fraction(1, 1024)
"""Part of a budget's δ that is kept for what ρ does not cover: redrawn tails, re-randomisation, masks."""

_RATIONAL = re.compile(r"(0|[1-9][0-9]{0,1999})/([1-9][0-9]{0,1999})")


@dataclass(frozen=True, slots=True)
class Cost:
    """What some releases of the same records spend together.

    Attributes:
        rho: ρ, exact.
        outside_delta: δ that ρ does not cover, in all: masks, redrawn tails.
        releases: how many releases there are.
        unproved: how many of them have no privacy that can be proved: an earlier version let such studies in.
            No amount is right for these: ρ leaves them out, and what a sum of ρ promises, it promises but for
            them.
    """

    rho: Fraction
    outside_delta: Fraction
    releases: int
    unproved: int = 0

    @classmethod
    def of(cls, figures: Figures) -> Self:
        """The cost of one study's release, rounded up to the grid of the books."""
        event = figures.event
        return cls(_up(event.rho), _up(figures.delta_mask + event.extra_delta), 1)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.rho + other.rho,
            self.outside_delta + other.outside_delta,
            self.releases + other.releases,
            self.unproved + other.unproved,
        )

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(
            self.rho - other.rho,
            self.outside_delta - other.outside_delta,
            self.releases - other.releases,
            self.unproved - other.unproved,
        )


NO_COST = Cost(Fraction(0), Fraction(0), 0)


@dataclass(frozen=True, slots=True)
class Budget:
    """What all releases of the same records may spend together.

    Attributes:
        rho: the most that costs may add up to.
        delta: δ at which the whole is stated, as ε of it or of a part.
        epsilon: ε that the budget was set as; None where it was set as ρ.

    Guarantee: as long as no cost `exceeds` it, a budget set as (ε, δ) makes all releases together (ε, δ)-DP
        for one replaced record, those without a proved privacy left out. ρ adds up under adaptive composition
        (Bun, Steinke 2016); (2 + e^ε)·2⁻⁸⁰ a release, at the ε of the whole, and what is outside of ρ come
        out of the part of δ that ρ was not given.
    Tested: tests/unit/test_budget.py.
    """

    rho: Fraction
    delta: Fraction
    epsilon: Fraction | None = None

    @classmethod
    def of_epsilon(cls, epsilon: Fraction, delta: Fraction) -> Self:
        """Raises UsageError: ε or δ out of range, or ε so large that cut tails alone would pass δ."""
        _check_delta(delta)
        if epsilon <= 0:
            raise UsageError("bad-budget", "ε of a budget must be above 0")
        if delta_of_tails(epsilon) > delta * OUTSIDE_SHARE:
            raise UsageError(
                "bad-budget",
                "ε of the budget is so large that its δ does not cover the cut tails of the noise",
                "set a smaller ε (some 30 at most), or set rho instead",
            )
        return cls(zcdp_rho(epsilon, delta * (1 - OUTSIDE_SHARE)), delta, epsilon)

    @classmethod
    def of_rho(cls, rho: Fraction, delta: Fraction) -> Self:
        """Raises UsageError: ρ or δ out of range."""
        _check_delta(delta)
        if rho <= 0:
            raise UsageError("bad-budget", "ρ of a budget must be above 0")
        return cls(rho, delta)

    def is_exceeded_by(self, cost: Cost) -> bool:
        if cost.rho > self.rho:
            return True
        if self.epsilon is None:
            return False
        outside = cost.outside_delta + cost.releases * delta_of_tails(self.epsilon)
        return outside > self.delta * OUTSIDE_SHARE

    def epsilon_of(self, rho: Fraction) -> Fraction:
        """ε that a cost of `rho` comes to at this budget's δ, rounded up; to be shown, never compared."""
        return epsilon_of_rho(rho, self.delta * (1 - OUTSIDE_SHARE)) if rho else Fraction(0)


def _up(value: Fraction) -> Fraction:
    return Fraction(ceil(value * _GRID), _GRID)


def rational_text(value: Fraction) -> str:
    """`value` ≥ 0 in its one text form, numerator/denominator in lowest terms."""
    return f"{value.numerator}/{value.denominator}"


def read_rational(untrusted: Any, where: str) -> Fraction:
    """The value ≥ 0 that `rational_text` wrote. Raises MessageError for anything else."""
    match = _RATIONAL.fullmatch(untrusted) if isinstance(untrusted, str) else None
    if match is None:
        malformed(where, "a fraction such as 1/3")
    value = Fraction(int(match[1]), int(match[2]))
    if rational_text(value) != untrusted:
        malformed(where, "a fraction in lowest terms")
    return value


def _check_delta(delta: Fraction) -> None:
    if not 0 < delta < 1:
        raise UsageError("bad-budget", "δ of a budget must lie between 0 and 1")
