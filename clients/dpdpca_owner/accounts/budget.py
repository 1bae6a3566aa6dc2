"""The cost of releases and the budget of an owner, as exact ρ of zero-concentrated differential privacy.

Costs add up. A budget that is set as (ε, δ) is converted to one ρ, once. Sums are then compared as exact
rationals and never as rounded ε: ten costs of a tenth of the budget fit, and no further cost does.
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
"""Costs of studies are multiples of 1/_GRID, so that a sum of thousands of costs needs no more digits than a
single cost."""
OUTSIDE_SHARE = Fraction(1, 1024)
"""Part of a budget's δ that is reserved for what ρ does not cover: tails, re-randomisation, masks."""

_RATIONAL = re.compile(r"(0|[1-9][0-9]{0,1999})/([1-9][0-9]{0,1999})")


@dataclass(frozen=True, slots=True)
class Cost:
    """What some releases of the same records cost together.

    Attributes:
        rho: exact ρ.
        outside_delta: the total δ that ρ does not cover: masks and tails of the noise.
        releases: the number of releases.
        unproved: the number of releases whose ρ is not known, so `rho` and its guarantee leave them out. This
            version never joins a study without a known ρ. Two kinds of entries are counted here: studies
            without proved privacy in ledgers of the first versions, and studies whose terms a recovery could
            not read.
    """

    rho: Fraction
    outside_delta: Fraction
    releases: int
    unproved: int = 0

    @classmethod
    def of(cls, figures: Figures) -> Self:
        """The cost of one study's release, rounded up to the grid of the ledger."""
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
NOT_KNOWN = Cost(Fraction(0), Fraction(0), 1, unproved=1)
"""The cost of one study whose ρ is not known."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What all releases of the same records may cost together.

    Attributes:
        rho: the limit for the sum of costs.
        delta: the δ at which amounts are stated as ε.
        epsilon: the ε with which the budget was set; None if the budget was set as ρ.

    Guarantee: as long as the total cost does not exceed a budget set as (ε, δ), all releases together are
        (ε, δ)-DP for one replaced record, except those without proved privacy. ρ adds up under adaptive
        composition (Bun, Steinke 2016). The part of δ that ρ does not use covers (2 + e^ε)·2⁻⁸⁰ for each
        release, at the ε of the whole budget, and everything else that ρ does not cover.
    Tested: tests/unit/test_budget.py.
    """

    rho: Fraction
    delta: Fraction
    epsilon: Fraction | None = None

    @classmethod
    def of_epsilon(cls, epsilon: Fraction, delta: Fraction) -> Self:
        """A budget set as (ε, δ).

        Raises:
            UsageError: ε or δ is out of range, or ε is so large that the cut tails alone exceed δ.
        """
        _check_delta(delta)
        if epsilon <= 0:
            raise UsageError(
                "bad-budget", f"the ε of a budget must be above 0, but it is {float(epsilon):.6g}"
            )
        if delta_of_tails(epsilon) > delta * OUTSIDE_SHARE:
            raise UsageError(
                "bad-budget",
                f"ε = {float(epsilon):.6g} of the budget is too large: its δ does not cover the cut tails of"
                " the noise",
                "set a smaller ε (at most about 30), or set rho instead",
            )
        return cls(zcdp_rho(epsilon, delta * (1 - OUTSIDE_SHARE)), delta, epsilon)

    @classmethod
    def of_rho(cls, rho: Fraction, delta: Fraction) -> Self:
        """A budget set as ρ. Raises UsageError if ρ or δ is out of range."""
        _check_delta(delta)
        if rho <= 0:
            raise UsageError("bad-budget", f"the ρ of a budget must be above 0, but it is {float(rho):.6g}")
        return cls(rho, delta)

    def is_exceeded_by(self, cost: Cost) -> bool:
        if cost.rho > self.rho:
            return True
        if self.epsilon is None:
            return False
        outside = cost.outside_delta + cost.releases * delta_of_tails(self.epsilon)
        return outside > self.delta * OUTSIDE_SHARE

    def epsilon_of(self, rho: Fraction) -> Fraction:
        """The ε of a cost of `rho` at this budget's δ, rounded up; for display, never for comparison."""
        return epsilon_of_rho(rho, self.delta * (1 - OUTSIDE_SHARE)) if rho else Fraction(0)


def _up(value: Fraction) -> Fraction:
    return Fraction(ceil(value * _GRID), _GRID)


def rational_text(value: Fraction) -> str:
    """`value` ≥ 0 in its only text form: numerator/denominator in lowest terms."""
    return f"{value.numerator}/{value.denominator}"


def read_rational(untrusted: Any, where: str) -> Fraction:
    """Read a value ≥ 0 that `rational_text` wrote. Raises MessageError for anything else."""
    match = _RATIONAL.fullmatch(untrusted) if isinstance(untrusted, str) else None
    if match is None:
        malformed(where, "a fraction such as 1/3")
    value = Fraction(int(match[1]), int(match[2]))
    if rational_text(value) != untrusted:
        malformed(where, "a fraction in lowest terms")
    return value


def _check_delta(delta: Fraction) -> None:
    if not 0 < delta < 1:
        raise UsageError(
            "bad-budget", f"the δ of a budget must be between 0 and 1, but it is {float(delta):.6g}"
        )
