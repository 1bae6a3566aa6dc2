"""Small experiments: each shows one statement of docs/mechanisms.md as a table, in seconds.

Numbers are either computed exactly, and then they are always the same, or simulated with the operating
system's randomness. Simulated numbers are printed with their expected value and their standard error.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np

from dpdpca_lab.central.asymptotic import ADVISORY, Spectrum, privacy_sigma, utility
from dpdpca_lab.central.bingham import sample_bingham
from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.comparison import captured_variance
from dpdpca_lab.mechanisms import ModSulq, PublishedDiscretizer, PublishedGaussian, Wishart
from dpdpca_lab.mechanisms.wishart import impossible_probability
from dpdpca_lab.spectra import bundled_spectra, reference_spectra
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Quantity, Setting
from dpdpca_protocol.privacy.mechanisms.laplace import l1_sensitivity

Cell = str | int | float | None
_GRID_BOUND = 2**40
"""K of experiments that have no data: so large that the grid has no visible effect."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A table with one row for each case, and a note on how to read it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """A named experiment. The argument of `run` is the folder with the reference data sets, or None."""

    name: str
    shows: str
    run: Callable[[Path | None], Outcome]


def published_calibration(data: Path | None = None) -> Outcome:
    """The real ε of noise with sensitivity 1 and the classical τ."""
    delta = Fraction(1, 10**5)
    rows: list[tuple[Cell, ...]] = []
    for claimed in ("0.1", "0.3", "0.5", "1", "3"):
        fitted = [
            PublishedGaussian.calibrated(_setting(quantity, 10, claimed, delta))
            for quantity in (Quantity.SECOND_MOMENT, Quantity.SCATTER)
        ]
        real = [mechanism.real_epsilon for mechanism in fitted]
        proved = [float(mechanism.guarantee.epsilon) for mechanism in fitted]
        rows.append((float(claimed), *real, *proved))
    columns = (
        "claimed ε",
        "real ε, R",
        "real ε, centred S",
        "proved for integers, R",
        "proved for integers, S",
    )
    return Outcome(
        columns,
        tuple(rows),
        "δ = 10⁻⁵; first the exact figures for continuous noise, then what is proved for integer noise",
    )


def discretizer(data: Path | None = None) -> Outcome:
    """The paper's whole pipeline: features mapped to 0 … 2^e − 1, then noise that ignores this range."""
    claimed, delta, rows = Fraction(1), Fraction(1, 10**5), []
    for d, bits in product((2, 10, 64), (1, 4, 8, 16)):
        discretize = PublishedDiscretizer(np.zeros(d), np.ones(d), 2**bits - 1)
        rescaled = PublishedGaussian.calibrated(_setting(Quantity.SCATTER, d, "1", delta)).real_epsilon
        rows.append((d, bits, discretize.top, discretize.real_epsilon(claimed, delta), rescaled))
    columns = ("d", "e", "2^e − 1", "real ε as published", "real ε with τ rescaled")
    note = "claimed ε = 1, δ = 10⁻⁵; the ends of the features are public: ends taken from the data would leak"
    return Outcome(columns, tuple(rows), note)


def modsulq_looseness(data: Path | None = None) -> Outcome:
    """How much more noise MOD-SULQ adds than its claim needs."""
    delta, rows = Fraction(1, 10**6), []
    for d in (10, 64, 300):
        fitted = ModSulq.calibrated(_setting(Quantity.SECOND_MOMENT, d, "1", delta))
        scale = float(fitted.scale) / _GRID_BOUND
        needed = math.sqrt(2) * 4.2247
        rows.append((d, scale, scale / needed, fitted.real_epsilon))
    columns = ("d", "nβ", "times the exact Gaussian", "real ε")
    return Outcome(columns, tuple(rows), "claimed ε = 1, δ = 10⁻⁶, rows of norm 1")


def sn_support(data: Path | None = None) -> Outcome:
    """How often SN's output is impossible with one more record: 1 − exp(−ε), for any d."""
    count, rows = 1000, []
    for d in (2, 5):
        record = np.zeros((d, d))
        record[0, 0] = _GRID_BOUND
        for claimed in ("0.1", "0.5", "1", "3"):
            fitted = Wishart.calibrated(_setting(Quantity.SECOND_MOMENT, d, claimed))
            seen = sum(
                np.linalg.eigvalsh(_square(fitted.draw_triangle(1), d) - record)[0] < 0 for _ in range(count)
            )
            stated = impossible_probability(Fraction(claimed), Fraction(1))
            spread = math.sqrt(stated * (1 - stated) / count)
            rows.append((d, float(claimed), float(seen / count), stated, spread))
    columns = ("d", "claimed pure ε", "impossible, measured", "impossible, proved", "standard error")
    return Outcome(columns, tuple(rows), f"{count} outputs each; for any δ below this, no ε holds")


def laplace_sensitivity(data: Path | None = None) -> Outcome:
    """ℓ₁ distance that one replaced record moves the triangle: exact, proved bound, and other constants."""
    rows: list[tuple[Cell, ...]] = []
    for d in (2, 3, 4, 8, 16, 64):
        if d <= 4:
            reached = max(
                _spread(np.array(signs), d) for signs in product((1.0, -1.0), repeat=d * (d + 1) // 2)
            )
        else:
            block = np.where(np.arange(d) < d // 2, 1.0, -1.0)
            signs = np.where(block[:, None] == block[None, :], block[:, None], 1.0)
            reached = _spread(signs[np.triu_indices(d)], d)
        bound = float(l1_sensitivity(_setting(Quantity.SECOND_MOMENT, d, "1"))) / _GRID_BOUND
        rows.append((d, reached, bound, d + 1, 2 * d))
    columns = ("d", "reached", "proved bound", "by norms, d + 1", "published, 2d")
    return Outcome(
        columns,
        tuple(rows),
        "second moment, rows of norm 1; the value reached is the largest over all patterns of signs up to"
        " d = 4, and that of one pattern with two blocks for larger d",
    )


def exact_bingham(data: Path | None = None) -> Outcome:
    """Mean of u₁² of exact draws, compared with Kummer's function, and the share of accepted proposals."""
    from scipy.special import hyp1f1

    count, rows = 4000, []
    for d, concentration in ((2, 1.0), (5, 3.0), (30, 40.0), (64, 50.0), (100, 200.0)):
        matrix = np.zeros((d, d))
        matrix[0, 0] = concentration
        drawn, proposals = sample_bingham(matrix, RealDraws(), count)
        squares = drawn[:, 0] ** 2
        expected = hyp1f1(1.5, d / 2 + 1, concentration) / hyp1f1(0.5, d / 2, concentration) / d
        error = float(squares.std() / count**0.5)
        rows.append((d, concentration, float(squares.mean()), float(expected), error, count / proposals))
    columns = ("d", "κ", "mean u₁²", "expected", "standard error", "accepted")
    return Outcome(columns, tuple(rows), f"{count} draws each, with density ∝ exp(κ u₁²)")


def phase_transition(data: Path | None = None) -> Outcome:
    """Where a direction becomes visible: 1 − overlap² of exact draws around β = H, and the privacy there."""
    p, n, count = 100, 2000, 300
    levels = np.concatenate([[3.0, 2.0], np.linspace(0.895, 1.495, p - 2)])
    spectrum, theta = Spectrum.of(levels, 1), n / p**1.5
    rows: list[tuple[Cell, ...]] = []
    for ratio in (0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0):
        beta = ratio * spectrum.last
        drawn, _ = sample_bingham(p * beta / 2 * np.diag(levels), RealDraws(), count)
        lost = 1 - drawn[:, 0] ** 2
        limit = utility(spectrum, beta).operator_squared
        sigma = privacy_sigma(spectrum, beta, theta) if ratio > 1 else None
        rows.append((ratio, beta, float(lost.mean()), limit, float(lost.std() / count**0.5), sigma))
    columns = ("β/H", "β", "1 − overlap², measured", "in the limit", "standard error", "σ, replace-one")
    return Outcome(columns, tuple(rows), f"p = {p}, n = {n}, {count} draws each; σ: {ADVISORY}")


def spectra(data: Path | None = None) -> Outcome:
    """Spectra of real data: small sets of scikit-learn, and the reference sets if a folder is given."""
    rows = [*bundled_spectra(), *(reference_spectra(data) if data is not None else ())]
    columns = ("set", "quantity", "computed", "reference")
    note = (
        "references to 3 to 6 digits" if data is not None else "--data FOLDER adds the larger reference sets"
    )
    return Outcome(columns, tuple(rows), note)


def captured(data: Path | None = None) -> Outcome:
    """Share of the variance that five released directions capture on one real table, at equal ε."""
    return Outcome(
        ("mechanism", "guarantee", "ε = 0.5", "ε = 1", "ε = 3"),
        tuple(captured_variance((Fraction(1, 2), Fraction(1), Fraction(3)), repeats=5)),
        "breast cancer, d = 30, k = 5, δ = 1/n², replace-one, means of 5; a random subspace captures 0.19",
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment("as-published", "the real ε of the published Gaussian calibration", published_calibration),
    Experiment("discretizer", "how the paper's discretizer changes the effect of its noise", discretizer),
    Experiment("modsulq-looseness", "how much more noise MOD-SULQ adds than it needs", modsulq_looseness),
    Experiment("sn-support", "that SN's Wishart noise is not differentially private", sn_support),
    Experiment("laplace-sensitivity", "which ℓ₁ constant Laplace noise needs", laplace_sensitivity),
    Experiment("exact-bingham", "that the exact sampler draws from the right distribution", exact_bingham),
    Experiment(
        "phase-transition",
        "where a direction becomes visible in the asymptotic calibration",
        phase_transition,
    ),
    Experiment("spectra", "spectra of real data, compared with reference values", spectra),
    Experiment("captured-variance", "how useful mechanisms are on real data at equal ε", captured),
)


def find_experiment(name: str) -> Experiment:
    """The experiment with this name.

    Raises:
        UsageError: there is no such experiment; the message lists those that exist.
    """
    for experiment in EXPERIMENTS:
        if experiment.name == name:
            return experiment
    offered = ", ".join(experiment.name for experiment in EXPERIMENTS)
    raise UsageError(
        "unknown-experiment", f"there is no experiment with this name; the experiments are {offered}"
    )


def _setting(quantity: Quantity, d: int, epsilon: str, delta: Fraction = Fraction(1, 10**6)) -> Setting:
    return Setting(quantity, d, _GRID_BOUND, Fraction(epsilon), delta)


def _square(triangle: Sequence[int], d: int) -> Floats:
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = [float(value) for value in triangle]
    return matrix + np.triu(matrix, 1).T


def _spread(signs: Floats, d: int) -> float:
    """max zᵀWz − xᵀWx over the unit ball, where W is 1 on its diagonal and ½ elsewhere, with these signs."""
    weights = np.zeros((d, d))
    weights[np.triu_indices(d)] = signs
    values = np.linalg.eigvalsh((weights + weights.T) / 2)
    return float(max(values[-1], 0.0) - min(values[0], 0.0))
