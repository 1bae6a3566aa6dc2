"""Chooses the columns of a lift, and whether a full matrix would be better, from a sketch or an assumption.

Everything here depends on released numbers and public terms only, so it costs no privacy. Shares are shares
of the total variance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.result.components import Floats, finite_size_factor
from dpdpca_user.results.wide.sketch import SketchReading, bulk_end, check_seen

_LEAST_KEPT = 0.1
_LEAST_HEIGHT = 0.75
_SUM_PRICE = 1.05
"""(1 + ½·0.05)²: what the sums of a joint release add to the noise of its matrix."""
_OVERLAP = 0.9


@dataclass(frozen=True, slots=True)
class Visibility:
    """What a sketch shows, or would show, of the leading components.

    Attributes:
        shares: (w,) sⱼ of the total variance; half an edge for components that the sketch does not show.
        kept: (w,) ηⱼ, the squared cosine of each direction of the sketch with its component.
        mixed: (w,) κⱼ, the energy of other features in the lift's column, in units of its component's.
        seen_count: k₊.
    """

    shares: Floats
    kept: Floats
    mixed: Floats
    seen_count: int

    @property
    def overlaps(self) -> Floats:
        """(w,) the squared cosine with its component that a column has in a lift without noise."""
        return np.asarray(1 / (1 + self.mixed / self.kept))


def visibility(reading: SketchReading) -> Visibility:
    """What a sketch shows.

    Raises:
        ConflictError: `nothing-in-the-sketch`.
    """
    check_seen(reading)
    theta = reading.strength(len(reading.directions))
    floor = np.maximum(theta, _LEAST_HEIGHT * reading.edge)
    mixed = max(reading.half_width**2 / 4 - reading.noise_energy, 0.0)
    return Visibility(
        shares=theta / reading.trace,
        kept=np.maximum(1 - (reading.widths / floor) ** 2 / 4, _LEAST_KEPT),
        mixed=mixed / theta**2,
        seen_count=reading.seen_count,
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """What the rounds after a sketch have to work with.

    Attributes:
        features: d.
        rows: N, or the number of pairs.
        of_pairs: whether rows are differences of pairs.
        rho_lift: ρ of the lift.
        rho_full: ρ of a full matrix in its place, which also gets what the scores would have spent.
        draws: variance of all noise that the result contains, in units of one draw: 1, or 2 with a second
            draw for a result in clear; if owners draw, the size of the cohort divided by the assured shares.
        length: the bound K on a squared row, divided by the mean square of rows about their mean; 1 if all
            rows have the length of the clip norm, and the centre is the mean.
    """

    features: int
    rows: int
    of_pairs: bool
    rho_lift: float
    rho_full: float
    draws: float = 1.0
    length: float = 1.0


def length_of(reading: SketchReading) -> float:
    """`Budget.length`: the mean square of rows about the centre, divided by that about their mean.

    The bound itself is no measure of it, since a sketch cuts the rows that it stretches, and its trace is up
    to a fifth too small. Both mean squares are cut alike.
    """
    return 1 + reading.count * reading.mean_square / reading.trace


def lift_share(seen: Visibility, columns: int, budget: Budget) -> float:
    """The share of all variance that a lift of this many columns is expected to capture."""
    shares, kept, mixed = (values[:columns] for values in (seen.shares, seen.kept, seen.mixed))
    price = 2 * budget.features * columns * budget.draws * budget.length
    noise = price / (budget.rho_lift * budget.rows**2 * shares)
    return float((shares / (1 + (noise + mixed) / kept)).sum())


def full_share(shares: Floats, budget: Budget) -> float:
    """The share of all variance that these components of a full matrix are expected to capture."""
    price = budget.features * budget.draws * budget.length**2 * (1.0 if budget.of_pairs else _SUM_PRICE)
    lost = price / (2 * budget.rho_full * budget.rows**2 * shares**2)
    return float((shares * np.maximum(1 - lost, 0)).sum())


@dataclass(frozen=True, slots=True)
class Choice:
    """Which release follows a sketch, and what is expected of it.

    Attributes:
        asked: the number of components that were asked for.
        columns: the number of columns with which a lift captures the most, at most `asked`.
        lift: what this lift is expected to capture, as a share of all variance.
        full: the same for a full matrix and the components asked for.
        seen_count: how many of these components the sketch shows.
        is_possible: whether a full matrix can be chosen at all.
    """

    asked: int
    columns: int
    lift: float
    full: float
    seen_count: int
    is_possible: bool

    @property
    def is_lift(self) -> bool:
        """Whether the lift is the better choice."""
        return not self.is_possible or self.lift >= self.full

    @property
    def sentences(self) -> tuple[str, ...]:
        """The choice and its reasons, for people."""
        seen = min(self.seen_count, self.asked)
        said = [
            f"the sketch shows {seen} of the {self.asked} components",
            f"a lift of {self.columns} columns would capture about {self.lift:.0%} of all variance, a full"
            f" matrix about {self.full:.0%}",
        ]
        if not self.is_lift:
            return (*said, "so a full matrix comes next")
        said.append(
            "so a lift comes next" if self.is_possible else "the features are too many for a full matrix"
        )
        if self.columns < self.asked:
            said.append(
                f"{self.columns} columns are lifted instead of {self.asked}, because more would only"
                " share out the same budget among weaker components"
            )
        return tuple(said)


def choose_release(seen: Visibility, asked: int, budget: Budget, full_is_possible: bool = True) -> Choice:
    """The number of columns of the lift, and whether a full matrix would capture more.

    Args:
        seen: what the sketch shows, or would show.
        asked: k, the number of components that were asked for.
        budget: of the rounds that follow.
        full_is_possible: whether there are few enough features for a full matrix.

    Raises:
        UsageError: k is below 1.
    """
    if asked < 1:
        raise UsageError("bad-argument", f"{asked} components were requested", "request at least one")
    most = min(asked, len(seen.shares))
    lifts = [lift_share(seen, columns, budget) for columns in range(1, most + 1)]
    best = int(np.argmax(lifts))
    return Choice(
        asked=asked,
        columns=best + 1,
        lift=lifts[best],
        full=full_share(seen.shares[:most], budget),
        seen_count=seen.seen_count,
        is_possible=full_is_possible,
    )


def records_needed(share: float, columns: int, budget: Budget) -> int:
    """The rows from which a lift finds a component of this share with cos² of at least 0.9.

    Source: cos² = 1/(1 + 2dk/(ρN²s)), without what the sketch loses, so 2dk/(ρN²s) ≤ 1/9.
    """
    factor = _OVERLAP / (1 - _OVERLAP) * 2 * budget.draws * budget.length
    return ceil(sqrt(factor * budget.features * columns / (budget.rho_lift * share)))


def forecast_visibility(spectrum: Sequence[float], d: int, rows: int, noise_energy: float) -> Visibility:
    """What a sketch would show of components with these shares.

    Args:
        spectrum: shares of the components, largest first; they add up to at most 1. What is left is spread
            evenly over all other directions.
        d: number of encoded features.
        rows: m of the sketch.
        noise_energy: m·v of the expected sketch, in units of its squared trace.

    Source: mixed features add Σφ²/m to R²/4, summed over the components that are not seen.
    """
    shares = np.array(spectrum, dtype=np.float64)
    rest = max(1 - float(shares.sum()), 0.0) ** 2 / max(d - len(shares), 1)
    seen = 0
    while True:
        mixed = (float((shares[seen:] ** 2).sum()) + rest) / rows
        half_width = 2 * sqrt(mixed + noise_energy)
        bulk = max(1 - float(shares[:seen].sum()), 0.0) / rows
        edge = bulk_end(bulk, half_width, noise_energy) * finite_size_factor(rows)
        heights = shares + half_width**2 / 4 / shares
        above = int(np.argmin(np.append((heights > edge) & (shares > half_width / 2), False)))
        if above <= seen:
            break
        seen = above
    floor = np.maximum(shares, _LEAST_HEIGHT * edge)
    return Visibility(
        shares=shares,
        kept=np.maximum(1 - (half_width / floor) ** 2 / 4, _LEAST_KEPT),
        mixed=mixed / shares**2,
        seen_count=seen,
    )
