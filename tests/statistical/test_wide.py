"""What is said of sketches, lifts and scores against simulated noise, and whole chains against the truth.

Seeded runs; bounds are set so that a fresh seed would fail with a probability below 10⁻⁶ in all. Records are
whole numbers; noise is continuous.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import sqrt
from statistics import NormalDist

import numpy as np
import pytest
from reference_data import Seeded
from wide_play import NormalPlay, Silence, WidePlay

from dpdpca_lab.reference_data import reference_folder
from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.privacy.accounting import zcdp_rho
from dpdpca_protocol.result.components import Floats, leading_pairs
from dpdpca_user.planning.wide import SketchNoise, forecast, parts, sketch_rows
from dpdpca_user.results.wide.choice import (
    Budget,
    Choice,
    Visibility,
    choose_release,
    length_of,
    visibility,
)
from dpdpca_user.results.wide.estimates import WideComponents, wide_components
from dpdpca_user.results.wide.lift import LiftReading, read_lift
from dpdpca_user.results.wide.redrawing import ScoresNoise, redraw
from dpdpca_user.results.wide.rule import lift_rule, scores_norm
from dpdpca_user.results.wide.scores import read_scores
from dpdpca_user.results.wide.sketch import SketchReading, read_sketch

from .alpha import level


def source_of(seed: int) -> np.random.Generator:  # noqa: TID251 - the type alone
    return np.random.default_rng(seed)  # noqa: TID251 - made-up records and noise, not those of a study


def binomial_most(trials: int, probability: float, tail: float) -> int:
    """The least number that a binomial count exceeds with a probability below `tail`."""
    mass = (1 - probability) ** trials
    total, count = mass, 0
    while 1 - total > tail:
        mass *= (trials - count) / (count + 1) * probability / (1 - probability)
        count += 1
        total += mass
    return count


def test_noise_alone_passes_the_edge_of_a_lift_in_at_most_one_of_100_releases() -> None:
    source, draws, d, k = source_of(1), 400, 150, 4
    reads = [read_lift(7.0 * source.standard_normal((d, k)), np.eye(k), 7.0) for _ in range(draws)]
    assert sum(read.trusted_count > 0 for read in reads) <= binomial_most(draws, 0.01, level())
    largest = np.mean([read.singular_values[0] for read in reads])
    assert reads[0].edge < 1.3 * largest  # no higher than it must be


@pytest.mark.parametrize("strength", [1.4, 2.0, 4.0])
def test_signals_and_cosines_of_a_lift_are_those_of_simulations(strength: float) -> None:
    """Means of 150 lifts of three signals, one of them with this many times the edge."""
    source, draws, d, k, t = source_of(2), 150, 400, 4, 3.0
    edge = t * (sqrt(d) + sqrt(k) + 3.04)
    sizes = np.array([6.0, strength, 0.0, 0.0]) * edge
    axes = np.linalg.qr(source.standard_normal((d, k)))[0]
    turn = np.linalg.qr(source.standard_normal((k, k)))[0]
    truth = (axes * sizes) @ turn
    errors = np.zeros((draws, 2))
    for index in range(draws):
        read = read_lift(truth + t * source.standard_normal((d, k)), np.eye(k), t)
        assert read.trusted_count >= 2
        found = float(read.vectors[1] @ axes[:, 1]) ** 2
        errors[index] = read.signals[1] / sizes[1] - 1, read.overlaps[1] - found
    bound = NormalDist().inv_cdf(1 - level() / 4)
    spread = errors.std(axis=0) / sqrt(draws)
    assert (np.abs(errors.mean(axis=0)) < bound * spread + 0.004).all()


def flat_play(seed: int, spikes: Floats, d: int = 320, count: int = 3000) -> NormalPlay:
    """Records of normal components: these shares, and the rest spread evenly."""
    shares = np.full(d, (1 - spikes.sum()) / (d - len(spikes)))
    shares[: len(spikes)] = spikes
    variances = shares * d * 500.0**2
    return NormalPlay(
        batches=lambda: iter(()),
        repeats=1,
        d=d,
        record_bound=int(variances.sum()),
        source=source_of(seed),
        seed=bytes([seed % 256]) * 32,
        variances=variances,
        count=count,
    )


def test_a_sketch_of_records_without_components_shows_none() -> None:
    """Noise and mixed features together, with only four features for each row and little noise."""
    seen = []
    for seed in range(16):
        play = flat_play(seed, np.zeros(0), d=400, count=4000)
        play.is_turned = False
        seen.append(read_sketch(*play.sketch(96, 2.0)).seen_count)
    assert sum(count > 0 for count in seen) <= binomial_most(16, 0.1, level())


@dataclass(frozen=True)
class Played:
    """A chain of one play, read."""

    sketch: SketchReading
    seen: Visibility
    lift: LiftReading
    components: WideComponents
    noise: ScoresNoise


def played(play: WidePlay, m: int, columns: int, rho: tuple[float, float, float], clip: float) -> Played:
    """A chain of sketch, lift and scores with these ρ; `clip` is the clip norm in grid units."""
    sketch = read_sketch(*play.sketch(m, rho[0]))
    seen = visibility(sketch)
    lift = read_lift(*play.lift(lift_rule(sketch, columns), rho[1]))
    noisy, law = play.scores(lift.vectors, scores_norm(sketch, columns, clip, 1, play.d), rho[2])
    scores = read_scores(noisy, law, lift.trusted_count)
    noise = ScoresNoise.of(law, noisy.degrees, noisy.of_pairs)
    return Played(sketch, seen, lift, wide_components(sketch, seen, lift, scores), noise)


def normal_records(d: int, shares: Floats, count: int, seed: int, mean: Floats | None = None) -> Floats:
    """(n, d) whole numbers with these shares of a variance of 500² for each feature on average."""
    source = source_of(seed)
    full = np.full(d, (1 - shares.sum()) / (d - len(shares)))
    full[: len(shares)] = shares
    turn = np.linalg.qr(source.standard_normal((d, d)))[0]
    rows = (source.standard_normal((count, d)) * np.sqrt(full * d) * 500) @ turn
    return np.asarray(np.rint(rows if mean is None else rows + mean))


def play_of(rows: Floats, bound: float, seed: int, of_pairs: bool = False) -> WidePlay:
    def batches() -> Iterator[Floats]:
        return iter([rows])

    return WidePlay(batches, 1, rows.shape[1], int(bound), source_of(seed), of_pairs)


def share_held(vectors: Floats, scatter: Floats) -> float:
    """What these directions hold, as a share of what as many best ones hold."""
    best = leading_pairs(scatter, len(vectors))[0].sum()
    return float(np.einsum("ki,ij,kj->", vectors, scatter, vectors) / best)


@pytest.mark.parametrize("of_pairs", [False, True])
def test_a_chain_without_noise_finds_records_of_low_rank_exactly(of_pairs: bool) -> None:
    """Whole numbers of rank 4: the span is that of numpy's decomposition, and scores give its variances."""
    source = source_of(3)
    rows = (source.integers(-3, 4, (600, 4)) @ source.integers(-9, 10, (4, 90))).astype(np.float64)
    bound = float((rows**2).sum(axis=1).max())
    play = play_of(rows, bound + 90 * sqrt(bound), 4, of_pairs)
    play.source = Silence()
    found = played(play, 32, 4, (1.0, 1.0, 1.0), 3 * sqrt(bound))
    centred = rows if of_pairs else rows - rows.mean(axis=0)
    scatter = centred.T @ centred
    values, _ = leading_pairs(scatter, 4)
    span = np.linalg.svd(rows, full_matrices=False)[2][:4]
    vectors = found.components.vectors
    assert np.abs(vectors.T @ vectors - span.T @ span).max() < 1e-9
    assert found.components.variances is not None
    true = values / (2 * 600 if of_pairs else 599)
    assert found.components.variances == pytest.approx(true, rel=0.01)
    assert share_held(vectors, scatter) == pytest.approx(1, abs=1e-9)


SHARES = np.array([0.12, 0.07, 0.04])


def test_a_noisy_chain_says_what_it_found() -> None:
    """Records about their mean and far from it, and pairs: directions, variances, shares and intervals."""
    d, count = 200, 6000
    mean = 500.0 * np.ones(d)
    for seed, offset, of_pairs in ((1, None, False), (2, mean, False), (3, None, True)):
        rows = normal_records(d, SHARES, count, seed, offset)
        if of_pairs:
            rows = rows[::2] - rows[1::2]
        bound = 1.6 * float((rows**2).sum(axis=1).mean())
        found = played(play_of(rows, bound, seed, of_pairs), 48, 3, (1.0, 1.0, 0.5), sqrt(bound))
        shown = found.components
        assert found.sketch.seen_count >= 3
        assert shown.trusted_count == 3
        assert shown.variances is not None
        assert shown.deviations is not None
        scatter = np.cov(rows.T) if not of_pairs else rows.T @ rows / len(rows) / 2
        truth = np.einsum("ki,ij,kj->k", shown.vectors, scatter, shown.vectors)
        assert shown.variances == pytest.approx(truth, rel=0.05)  # scores are cut too
        assert (shown.variances < truth + 6 * shown.deviations).all()
        bounds = wide_components(found.sketch, found.seen, found.lift).variances
        held = np.einsum("ki,ij,kj->k", found.lift.vectors, scatter, found.lift.vectors)
        assert bounds is not None
        assert (bounds < 1.02 * held).all()
        assert (bounds > 0.45 * held).all()
        share = shown.captured_share(3)
        assert share is not None
        assert share[1]
        assert share[0] == pytest.approx(share_held(shown.vectors, scatter), abs=0.04)
        assert shown.total_variance == pytest.approx(np.trace(scatter), rel=0.1)
        around = redraw(shown, found.seen, found.lift, found.noise, Seeded(seed))
        assert (around.share_low - 0.04 < share[0]).all()
        assert share[0] < around.share_high[-1] + 0.04


def test_scores_far_from_the_centre_are_not_cut_away() -> None:
    """The mean lies along the first component, twice as far as its deviation: r′ has room for it."""
    d = 150
    rows = normal_records(d, SHARES, 4000, 5)
    axis = leading_pairs(rows.T @ rows, 1)[1][0]
    rows = np.rint(rows + 8000 * axis)
    bound = 1.6 * float((rows**2).sum(axis=1).mean())
    found = played(play_of(rows, bound, 5), 32, 3, (5.0, 5.0, 5.0), sqrt(bound))
    first = found.components
    assert first.variances is not None
    truth = np.einsum("ki,ij,kj->k", first.vectors, np.cov(rows.T), first.vectors)
    assert first.variances == pytest.approx(truth, rel=0.06)
    assert first.mean is not None
    assert first.mean == pytest.approx(first.vectors @ rows.mean(axis=0), abs=0.06 * 8000)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Of lifts drawn from one truth, cosines lie within 5 % and 95 % points in some 90 % of them."""
    source, draws, d, k, t = source_of(6), 40, 300, 3, 2.0
    axes = np.linalg.qr(source.standard_normal((d, k)))[0]
    sizes = np.array([400.0, 250.0, 130.0])
    shares = np.array([0.3, 0.2, 0.1])
    seen = Visibility(shares, np.ones(3), np.zeros(3), 3)
    sketch = read_sketch(*flat_play(9, shares, d=64, count=2000).sketch(16, 50.0))
    inside = np.zeros((draws, k), dtype=bool)
    for index in range(draws):
        lift = read_lift(axes * sizes + t * source.standard_normal((d, k)), np.eye(k), t)
        shown = wide_components(sketch, seen, lift)
        around = redraw(shown, seen, lift, None, Seeded(index), 40)
        truth = np.einsum("ki,ik->k", lift.vectors, axes) ** 2
        inside[index] = (around.overlap_low <= truth) & (truth <= around.overlap_high)
    assert binomial_most(draws, 0.8, level()) >= inside.sum(axis=0).min()
    assert (inside.mean(axis=0) > 0.5).all()


# Nightly: the simulations of whole chains.


def rho_of(records: int, epsilon: str) -> float:
    return float(zcdp_rho(Fraction(epsilon), min(Fraction(1, 10**6), Fraction(1, records**2))))


@dataclass(frozen=True)
class Genotypes:
    """The 1000 Genomes forty times, about 2p.

    Attributes:
        rows: (n, d) grid units.
        centred: (n, d) about the mean.
        best: (n,) variances of all components, as sums over rows.
        clip: the median norm.
    """

    rows: np.ndarray
    centred: np.ndarray
    best: Floats
    clip: float

    def share(self, vectors: Floats, k: int) -> float:
        """What these directions hold of the variance of the best k."""
        return float(((self.centred @ vectors.T.astype(np.float32)) ** 2).sum() / self.best[:k].sum())


GRID, REPEATS = 2048, 40


@cache
def genotypes() -> Genotypes:
    folder = reference_folder()
    file = None if folder is None else folder / "thousand_genomes_2504x23770.npz"
    if file is None or not file.is_file():
        pytest.skip("DPDPCA_REFERENCE_DATA names the folder that has the genotypes")
    calls = np.load(file)["G"]
    calls = calls[:, (calls != calls[0]).any(axis=0)]
    rows = np.ascontiguousarray(calls * np.int16(GRID) - np.rint(calls.mean(axis=0) * GRID).astype(np.int16))
    centred = rows.astype(np.float32)
    centred -= centred.mean(axis=0, dtype=np.float64).astype(np.float32)
    kernel = (centred @ centred.T).astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", centred, centred))
    best = np.linalg.eigvalsh(kernel)[::-1].astype(np.float64)
    return Genotypes(rows, centred, best, float(np.median(norms)))


def genotype_chain(seed: int, epsilon: str) -> tuple[Choice, Played]:
    """Norms, sketch, lift and scores of the genotypes; all of them paid for."""
    people = genotypes()
    n, d = people.rows.shape
    records, shares = n * REPEATS, parts(with_means=False)
    rho = rho_of(records, epsilon)
    spent = [float(part) * rho for part in (shares.sketch, shares.lift, shares.scores)]

    def batches() -> Iterator[Floats]:
        return (people.rows[start : start + 626].astype(np.float64) for start in range(0, n, 626))

    play = WidePlay(batches, REPEATS, d, int(people.clip**2), source_of(seed), seed=bytes([seed]) * 32)
    sketch = read_sketch(*play.sketch(sketch_rows(d, SketchNoise(records, spent[0])), spent[0]))
    seen = visibility(sketch)
    budget = Budget(d, records, False, spent[1], float(shares.after_sketch) * rho, length=length_of(sketch))
    choice = choose_release(seen, 10, budget, full_is_possible=False)
    lift = read_lift(*play.lift(lift_rule(sketch, choice.columns), spent[1]))
    norm = scores_norm(sketch, choice.columns, people.clip / GRID, GRID, d) * GRID
    noisy, law = play.scores(lift.vectors, norm, spent[2])
    scores = read_scores(noisy, law, lift.trusted_count)
    shown = wide_components(sketch, seen, lift, scores)
    return choice, Played(sketch, seen, lift, shown, ScoresNoise.of(law, noisy.degrees, False))


@pytest.mark.nightly
@pytest.mark.parametrize(("epsilon", "least"), [("1", 0.85), ("0.3", 0.6), ("3", 0.92)])
@pytest.mark.parametrize("seed", range(5))
def test_genotypes_keep_most_of_the_variance_of_the_best_ten(seed: int, epsilon: str, least: float) -> None:
    choice, found = genotype_chain(seed, epsilon)
    shown, people = found.components, genotypes()
    captured = people.share(shown.vectors, 10)
    print(f"ε {epsilon}, seed {seed}: {choice.columns} columns, {captured:.4f}, forecast {choice.lift:.3f}")
    assert captured >= least
    total = people.best.sum() / people.best[:10].sum()
    assert choice.lift * total == pytest.approx(captured, abs=0.15)
    assert shown.variances is not None
    n = len(people.rows)
    held = ((people.centred @ shown.vectors.T.astype(np.float32)) ** 2).sum(axis=0) / n
    trusted = shown.trusted_count
    assert shown.variances[:trusted] == pytest.approx(held[:trusted], rel=0.05, abs=4 * GRID**2)
    assert shown.total_variance == pytest.approx(people.best.sum() / n, rel=0.1)
    for k in range(1, trusted + 1):
        share = shown.captured_share(k)
        assert share is not None
        truth = people.share(shown.vectors[:k], k)
        assert share[0] == pytest.approx(truth, abs=0.06)
    bound = shown.captured_share(len(shown.vectors))
    assert bound is not None
    assert bound[0] <= people.share(shown.vectors, len(shown.vectors)) + 0.02


SPECTRA = {
    "geometric": 0.25 * 0.6 ** np.arange(10),
    "ten weak": 0.01 * np.linspace(1.3, 0.7, 10),
    "power": 0.6 / np.arange(1, 41) / (1 / np.arange(1, 41)).sum(),
    "three": np.array([0.1, 0.05, 0.03]),
}


@dataclass(frozen=True)
class Compared:
    """What a lift and a full matrix captured of one table, and what was expected of the lift."""

    choice: Choice
    lift: float
    full: float
    planned: float

    @property
    def loss(self) -> float:
        return max(self.lift, self.full) - (self.lift if self.choice.is_lift else self.full)


def compared(name: str, d: int, records: int, seed: int) -> Compared | None:
    """None if the sketch shows nothing, so that there is no choice."""
    shares, rho = parts(with_means=False), rho_of(records, "1")
    spent = [float(part) * rho for part in (shares.sketch, shares.lift, shares.after_sketch)]
    play = flat_play(seed, SPECTRA[name], d, records)
    true = play.variances / play.variances.sum()
    noise = SketchNoise(records, spent[0])
    sketch = read_sketch(*play.sketch(sketch_rows(d, noise), spent[0]))
    full = leading_pairs(play.full(spent[2]), 10)[1]
    try:
        seen = visibility(sketch)
    except ConflictError:
        return None
    budget = Budget(d, records, False, spent[1], spent[2], length=length_of(sketch))
    choice = choose_release(seen, 10, budget)
    lift = read_lift(*play.lift(lift_rule(sketch, choice.columns), spent[1]))
    planned = forecast(SPECTRA[name].tolist(), d, noise, 10, rho, shares).choice.lift
    return Compared(choice, float((lift.vectors**2 @ true).sum()), float((full**2 @ true).sum()), planned)


@pytest.mark.nightly
def test_the_choice_after_a_sketch_is_right_or_costs_little() -> None:
    """24 tables: four spectra, d from 600 to 2,000, 20,000 and 100,000 records."""
    cases = [
        (name, d, records, compared(name, d, records, 3 * index + 1))
        for index, name in enumerate(SPECTRA)
        for d in (600, 1000, 2000)
        for records in (20_000, 100_000)
    ]
    for name, d, records, case in cases:
        print(name, d, records, "nothing" if case is None else case)
    chosen = [case for *_, case in cases if case is not None]
    assert len(chosen) >= 20
    losses = [case.loss for case in chosen]
    assert max(losses) < 0.03
    assert np.mean(losses) < 0.004
    assert sum(loss > 0.002 for loss in losses) <= 6
    assert max(case.choice.lift - case.lift for case in chosen) < 0.1
