"""Plans a chain for many features: norms, sketch, lift and scores, and what they are expected to show.

A full matrix of d features has d(d+1)/2 values. From a few thousand features on, a sketch and a lift capture
more variance from far fewer values. Below that, the sketch decides: see `results.wide.choice`.

Shares of ρ and the rule for the rows of a sketch were fitted to simulations. They are flat: a sketch with 10
to 30 % of ρ does as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import sqrt

from dpdpca_protocol.errors import PolicyError
from dpdpca_user.planning.noise import GOOD_CENTRE_WEIGHT, shares_of
from dpdpca_user.results.wide.choice import (
    Budget,
    Choice,
    choose_release,
    forecast_visibility,
    full_share,
    records_needed,
)

FULL_UP_TO = 1_000
"""Up to this number of features a full matrix is always the better choice."""
COMPARED_UP_TO = 5_000
"""Up to this number of features the sketch decides; above it, a lift is always the better choice."""
FULL_AT_MOST = 10_000
"""The largest number of features of a full matrix, which only a draft can ask for above `COMPARED_UP_TO`."""

NORMS_PART, MEAN_PART = Fraction(1, 20), Fraction(1, 10)
SKETCH_PART, SCORES_PART = Fraction(1, 5), Fraction(1, 20)

LEAST_ROWS, MOST_ROWS = 128, 1_024
_ROWS_STEP = 16
FEATURES_A_ROW = 4
_EDGE = 0.01025
_FAINT = 0.5
_MARGIN = 0.02
_WEIGHT = 1 + GOOD_CENTRE_WEIGHT / 2
_MEANS = 2


class Route(StrEnum):
    """What a chain does about the number of its features."""

    FULL = "full"
    COMPARE = "compare"
    LIFT = "lift"


def route(d: int) -> Route:
    """What a chain with d encoded features does."""
    if d <= FULL_UP_TO:
        return Route.FULL
    return Route.COMPARE if d <= COMPARED_UP_TO else Route.LIFT


@dataclass(frozen=True, slots=True)
class Parts:
    """The shares of ρ that the rounds of a chain take.

    Attributes:
        norms: of the norm study.
        mean: of each mean study; there are two of them or none.
        sketch, lift, scores: of these rounds; scores may be 0.
    """

    norms: Fraction
    mean: Fraction
    sketch: Fraction
    lift: Fraction
    scores: Fraction

    @property
    def after_sketch(self) -> Fraction:
        """What a full matrix gets in place of lift and scores."""
        return self.lift + self.scores

    @property
    def without_sketch(self) -> Fraction:
        """What a full matrix gets if there is no sketch either."""
        return self.after_sketch + self.sketch


def parts(with_means: bool, with_scores: bool = True) -> Parts:
    """The shares of ρ of a chain; they add up to 1 exactly."""
    mean = MEAN_PART if with_means else Fraction(0)
    scores = SCORES_PART if with_scores else Fraction(0)
    lift = 1 - NORMS_PART - _MEANS * mean - SKETCH_PART - scores
    return Parts(NORMS_PART, mean, SKETCH_PART, lift, scores)


@dataclass(frozen=True, slots=True)
class SketchNoise:
    """The noise of an expected sketch, before anything is spent.

    Attributes:
        records: expected number of records in all.
        rho: ρ of the sketch.
        of_pairs: whether differences of pairs are summed.
        draws: variance of all its noise in units of one draw: 2 if the proxy draws, since the data user adds
            its own; if owners draw, the size of the cohort divided by the assured shares.
    """

    records: int
    rho: float
    of_pairs: bool = False
    draws: float = 2.0

    @property
    def entry(self) -> float:
        """The deviation of an entry off the diagonal, as a share of the trace of records of length r."""
        if self.of_pairs:
            return sqrt(self.draws / (2 * self.rho)) / max(self.records // 2, 1)
        return _WEIGHT * sqrt(self.draws / (2 * self.rho)) / self.records

    def edge(self, rows: int) -> float:
        """The noise edge as a share of all variance: 2.05√(m/ρ)/N for records and two draws."""
        return 2 * self.entry * sqrt(rows)


def sketch_rows(d: int, noise: SketchNoise) -> int:
    """m, the number of rows of a sketch: its noise edge is then one per cent of all variance.

    More rows cost owners values, and the sketch its weak components. Fewer rows mix features more.
    """
    wanted = int((_EDGE / noise.edge(1)) ** 2)
    most = min(MOST_ROWS, d // FEATURES_A_ROW)
    rows = min(max(wanted, LEAST_ROWS), most)
    return max(rows // _ROWS_STEP * _ROWS_STEP, _ROWS_STEP)


def check_sketch(rows: int, noise: SketchNoise) -> None:
    """Refuses a sketch that would show nothing even at best.

    Raises:
        PolicyError: `too-few-records`, its noise edge is above half of all variance.
    """
    if noise.edge(rows) > _FAINT:
        raise PolicyError(
            "too-few-records",
            f"{noise.records:,} records are too few: the noise of the sketch would hide every component with"
            f" less than {noise.edge(rows):.0%} of all variance",
            "use more records or a larger ε; --anyway plans it nevertheless",
        )


@dataclass(frozen=True, slots=True)
class WideForecast:
    """What a chain for many features is expected to do, from a spectrum and before anything is spent.

    Attributes:
        rows: m of its sketch.
        noise_edge: of the sketch, as a share of all variance.
        choice: between a lift and a full matrix after the sketch.
        full_at_once: what a full matrix without a sketch is expected to capture.
        records_needed: for each component, the records from which the lift finds it with cos² 0.9.
    """

    rows: int
    noise_edge: float
    choice: Choice
    full_at_once: float
    records_needed: tuple[int, ...]

    @property
    def needs_sketch(self) -> bool:
        """Whether a sketch is worth its cost; else a full matrix follows the norm study at once."""
        return not self.choice.is_possible or self.full_at_once < self.choice.lift + _MARGIN


def forecast(
    spectrum: Sequence[float],
    d: int,
    noise: SketchNoise,
    asked: int,
    rho_total: float,
    shares: Parts,
    draws: float = 1.0,
    length: float = 1.0,
) -> WideForecast:
    """What a chain is expected to do if components have these variances or shares.

    Args:
        spectrum: variances or shares; if they add up to at most 1, they are shares of the total.
        d: number of encoded features.
        noise: of the sketch.
        asked: k, the number of components that are asked for.
        rho_total: ρ of the whole chain.
        shares: of ρ.
        draws: as `Budget.draws`, for the rounds after the sketch.
        length: as `Budget.length`; `Placement.kappa` gives it.
    """
    rows = sketch_rows(d, noise)
    known = [share for share in shares_of(spectrum) if share > 0]
    seen = forecast_visibility(known, d, rows, rows * (length * noise.entry) ** 2)
    counted = max(noise.records // 2, 1) if noise.of_pairs else noise.records
    budget = Budget(
        features=d,
        rows=counted,
        of_pairs=noise.of_pairs,
        rho_lift=float(shares.lift) * rho_total,
        rho_full=float(shares.after_sketch) * rho_total,
        draws=draws,
        length=length,
    )
    at_once = Budget(
        d, counted, noise.of_pairs, budget.rho_lift, float(shares.without_sketch) * rho_total, draws, length
    )
    choice = choose_release(seen, asked, budget, d <= COMPARED_UP_TO)
    per_record = 2 if noise.of_pairs else 1
    return WideForecast(
        rows=rows,
        noise_edge=noise.edge(rows),
        choice=choice,
        full_at_once=full_share(seen.shares[:asked], at_once),
        records_needed=tuple(
            per_record * records_needed(share, choice.columns, budget) for share in known[:asked]
        ),
    )
