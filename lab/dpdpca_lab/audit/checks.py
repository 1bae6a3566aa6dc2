"""Checks whether what was seen agrees with the stated distribution of noise and mask, and with its other
rules.

A check gives a p-value: the probability of a result at least as unusual if the mechanism is as stated. The
game compares the p-value with its false-alarm rate. A failed check refutes the stated mechanism. Only the
bound refutes ε.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpdpca_lab.audit.observe import Floats, Lens, Observed, own_coordinates
from dpdpca_lab.audit.releases import Integers, Law

_LEAST_SCALE = 3  # from here on a discrete Gaussian has the variance of the real one within 10⁻⁹
_LEAST_RUNS = 100
_MOST_CORRELATED = 24
_LEAST_IN_CELL = 10


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of the mechanism.

    Attributes:
        name: what was checked, in words.
        p_value: probability of a result at least as unusual if all is as stated; 0 if it is impossible.
        measured: what was measured, in words.
    """

    name: str
    p_value: float
    measured: str


def pair_checks(lens: Lens, first: Observed, second: Observed) -> list[Check]:
    """All checks on the releases of one pair, with both sides together."""
    own = own_coordinates(lens.coordinates)
    noise = [lens.noise(observed, side)[:, own] for side, observed in enumerate((first, second))]
    scales = lens.scales[own]
    checks = [
        noise_present(first.zeros[own] + second.zeros[own], 2 * first.runs, scales),
        noise_granular(np.gcd(first.divisors, second.divisors)[own], scales),
        noise_fresh([observed.seen[:, own] for observed in (first, second)], scales),
    ]
    if lens.law is Law.GAUSSIAN:
        checks += [
            noise_scale(np.vstack(noise), scales),
            noise_mean(np.vstack(noise)),
            noise_independent(noise),
        ]
    if lens.granularity:
        cells = first.residue_cells[own] + second.residue_cells[own]
        checks.append(_uniform("noise covers all residues", cells, lens.granularity))
    if len(first.veil_cells):
        masks = first.veiled_cells + second.veiled_cells
        checks.append(_uniform("mask covers all residues", masks, lens.count))
        checks.append(mask_range(first.veil_cells + second.veil_cells, lens.veil))
    if len(own) < len(lens.coordinates):
        checks.append(copies_equal(first.asymmetric + second.asymmetric, 2 * first.runs))
    return checks


def noise_scale(noise: Floats, scales: Floats) -> Check:
    """Check that the deviation of each coordinate's noise is the stated one, neither smaller nor larger.

    Args:
        noise: (runs, m) in units of the stated scale.
        scales: (m,) stated scales in grid units.
    """
    name = "noise has the stated deviation"
    if scales.min() < _LEAST_SCALE:
        return Check(name, 1.0, "not tested: the noise is coarser than its grid")
    runs, m = noise.shape
    totals = (noise**2).sum(axis=0)
    ratios = np.sqrt(totals / runs)
    each = _two_sided(totals, runs).min() * m
    together = float(_two_sided(np.array([totals.sum()]), runs * m)[0])
    text = f"{ratios.min():.3f} to {ratios.max():.3f} of it, over {m} coordinates with {runs} draws each"
    return Check(name, _at_most_one(2 * min(float(each), together)), text)


def noise_mean(noise: Floats) -> Check:
    """Check that the mean of the noise is 0."""
    runs, m = noise.shape
    z = np.abs(noise.mean(axis=0)) * math.sqrt(runs)
    return Check(
        "noise is centred",
        _at_most_one(m * 2 * stats.norm.sf(z.max())),
        f"at most {z.max():.1f} standard errors off",
    )


def noise_present(zeros: NDArray[np.int64], runs: int, scales: Floats) -> Check:
    """Check that no coordinate shows its true value more often than by chance.

    Args:
        zeros: (m,) runs in which a coordinate's noise was 0.
        runs: releases.
        scales: (m,) stated scales.
    """
    chance = np.minimum(1.0, 1 / scales)  # an upper bound on the probability of 0 of any noise in the audit
    rates = stats.binom.sf(zeros - 1, runs, chance)
    bare = int(np.count_nonzero(zeros == runs))
    text = f"{bare} of {len(zeros)} coordinates have none" if bare else f"on all {len(zeros)} coordinates"
    return Check("every number has noise", _at_most_one(len(zeros) * float(rates.min())), text)


def noise_granular(divisors: Integers, scales: Floats) -> Check:
    """Check that the noise has steps of 1: with larger steps, a residue of the true value would be visible.

    Args:
        divisors: (m,) greatest common divisor of each coordinate's draws, of which there are at least 100.
        scales: (m,) stated scales.
    """
    name = "noise moves in steps of 1"
    if scales.min() < _LEAST_SCALE:
        return Check(name, 1.0, "not tested: the noise is coarser than its grid")
    largest = max(int(divisor) for divisor in divisors)
    # 200 draws that are all even have a chance of 2⁻²⁰⁰
    return Check(name, 0.0 if largest > 1 else 1.0, f"in steps of {largest}")


def noise_independent(sides: Sequence[Floats]) -> Check:
    """Check that the coordinates of a release, and successive releases, are uncorrelated."""
    runs, m = sides[0].shape
    name = "noise is independent"
    if runs < _LEAST_RUNS or m > _MOST_CORRELATED:
        return Check(name, 1.0, "not tested: too few releases for so many coordinates")
    draws = np.vstack(sides)
    between = np.abs(draws.T @ draws)[np.triu_indices(m, 1)] / math.sqrt(len(draws))
    pairs = 2 * (runs - 1)
    after = sum(np.abs((side[1:] * side[:-1]).sum(axis=0)) for side in sides) / math.sqrt(pairs)
    z = np.concatenate([between, np.atleast_1d(after)])
    worst = float(z.max())
    return Check(
        name,
        _at_most_one(len(z) * 2 * stats.norm.sf(worst)),
        f"the largest correlation is {worst:.1f} standard errors",
    )


def noise_fresh(sides: Sequence[Floats], scales: Floats) -> Check:
    """Check that no two releases of a data set agree on all coordinates more often than by chance."""
    repeats = sum(len(side) - len(np.unique(side, axis=0)) for side in sides)
    meeting = float(np.exp(-np.log(np.maximum(1.0, scales)).sum()))
    expected = sum(len(side) ** 2 / 2 for side in sides) * meeting
    rate = float(stats.poisson.sf(repeats - 1, expected)) if repeats else 1.0
    return Check(
        "noise is drawn anew for each release", rate, f"{repeats} releases have the noise of another release"
    )


def noise_distinct(noise: Integers, scales: Floats) -> Check:
    """Check that no two coordinates have the same noise, up to its sign, in all runs more often than by
    chance.

    Args:
        noise: (runs, m) in grid units.
        scales: (m,) stated scales.
    """
    seen: set[tuple[int, ...]] = set()
    repeats = 0
    for column in noise.T:
        draws = tuple(column)
        key = max(draws, tuple(-x for x in draws))
        repeats += key in seen
        seen.add(key)
    runs, m = noise.shape
    meeting = min(1.0, 1 / float(scales.min()))
    rate = float(stats.poisson.sf(repeats - 1, m**2 * meeting**runs)) if repeats else 1.0
    return Check(
        "noise is drawn anew for each number",
        rate,
        f"{repeats} of {m} coordinates have the noise of another coordinate",
    )


def mask_range(counts: NDArray[np.int64], veil: int) -> Check:
    """Check that the mask is roughly uniform over its range, and never outside it.

    Args:
        counts: (k, cells + 1); the last column counts values outside the range.
        veil: B.
    """
    name = f"mask covers its {veil.bit_length() - 1} bits"
    if strays := int(counts[:, -1].sum()):
        return Check(name, 0.0, f"{strays} draws outside them")
    return _uniform(name, counts[:, :-1], veil)


def copies_equal(asymmetric: int, runs: int) -> Check:
    """Check that every copy of an entry is equal to it, including the noise."""
    return Check(
        "copies of an entry carry the same noise",
        0.0 if asymmetric else 1.0,
        f"{asymmetric} of {runs} releases are not symmetric",
    )


def records_bounded(z: NDArray[np.int64], record_bound: int) -> Check:
    """Check that encoded records satisfy Σ z² ≤ K, computed with integers of any size."""
    longest = max((sum(int(x) ** 2 for x in row) for row in z), default=0)
    return Check(
        "encoded records obey the norm bound",
        1.0 if longest <= record_bound else 0.0,
        f"{len(z)} records, the longest {longest / record_bound:.6f} of K",
    )


def pair_distance(found: float, claimed: float) -> Check:
    """Check that the two data sets are no further apart than ρ allows. This is exact; nothing is sampled.

    Args:
        found: μ, ‖difference‖ in units of the noise that the mechanism states.
        claimed: √(2ρ) of the claim.
    """
    return Check(
        "stated noise covers the distance",
        1.0 if found <= claimed * (1 + 1e-9) else 0.0,
        f"{found:.4f} deviations, {claimed:.4f} claimed",
    )


def measured_shift(estimate: float, error: float, claimed: float) -> Check:
    """Check that the likelihood ratio shifts by no more standard deviations than ρ allows.

    Args:
        estimate, error: μ̂ and its standard error.
        claimed: √(2ρ) of the claim.
    """
    if error > 0:
        rate = float(stats.norm.sf((estimate - claimed) / error))
    else:
        rate = 1.0 if estimate <= claimed else 0.0
    return Check("measured shift", rate, f"{estimate:.4f} ± {error:.4f} deviations, {claimed:.4f} claimed")


def _uniform(name: str, counts: NDArray[np.int64], modulus: int) -> Check:
    """Chi-square test of (m, cells) counts of residues modulo `modulus` against the uniform distribution."""
    cells = counts.shape[1]
    edges = np.array([-(-cell * modulus // cells) for cell in range(cells + 1)], dtype=object)
    shares = np.diff(edges).astype(np.float64) / modulus
    total = int(counts[0].sum())
    if cells < 2 or total < _LEAST_IN_CELL * cells:
        return Check(name, 1.0, "not tested: too few releases or records")
    rates = [stats.chisquare(row, shares * total).pvalue for row in counts]
    fullest = float((counts / total / shares).max())
    return Check(
        name,
        _at_most_one(len(rates) * float(min(rates))),
        f"{fullest:.2f} times its share in the fullest of {cells} cells",
    )


def _two_sided(totals: Floats, freedom: int) -> Floats:
    low, high = stats.chi2.cdf(totals, freedom), stats.chi2.sf(totals, freedom)
    return np.asarray(2 * np.minimum(low, high))


def _at_most_one(rate: float) -> float:
    return float(min(1.0, rate))
