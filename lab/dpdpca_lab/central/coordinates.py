"""One coordinate of a Bingham vector after another, given the ratios of the others (Hoff 2009, section 3).

In the eigenbasis of C, the vector has density ∝ exp(Σ l_i u_i²). Given the ratios of the other squares, the
share θ = u_i² has density ∝ θ^(−1/2)(1 − θ)^power·exp(slope·θ), with power = (q − 3)/2 and with the slope l_i
less the mean of the other levels. It is drawn by rejection, from one of three proposals. All signs are fresh.
"""

import numpy as np
from scipy.special import betaincinv, expit, gammainc, gammaincinv, gammaln

from dpdpca_lab.central.entropy import Floats, RealDraws


def redraw_coordinates(points: Floats, levels: Floats, draws: RealDraws) -> Floats:
    """Unit vectors after one sweep over their coordinates.

    One coordinate comes after another, and each at once for all vectors. The first proposals of the whole
    sweep are drawn at once. Most are accepted.

    Args:
        points: (chains, q) unit vectors.
        levels: (chains, q) eigenvalues of the matrix of each.
        draws: source of uniform and normal values.
    """
    chains, q = points.shape
    squares, power = points**2, (q - 3) / 2
    normals, tosses = draws.normals(q, chains), np.log(draws.uniforms(q, chains))
    for i in range(q if q > 1 else 0):
        squares[:, i] = 0
        rest = squares.sum(axis=1)
        if not rest.all():  # no ratios are given: all others are alike
            squares[rest == 0] = np.arange(q) != i
            rest = squares.sum(axis=1)
        slopes = levels[:, i] - (squares * levels).sum(axis=1) / rest
        thetas = redrawn_shares(slopes, power, normals[i], tosses[i], draws)
        squares *= ((1 - thetas) / rest)[:, None]
        squares[:, i] = thetas
    return np.sqrt(squares) * draws.signs(chains, q)


def redrawn_shares(slopes: Floats, power: float, normals: Floats, tosses: Floats, draws: RealDraws) -> Floats:
    """θ of density ∝ θ^(−1/2)(1 − θ)^power·exp(slope·θ) on (0, 1), for each slope, by rejection.

    Args:
        slopes: (chains,).
        power: −1/2 or more.
        normals, tosses: (chains,) normal draws, and logarithms of uniform draws, for the first proposals.
        draws: for all others.
    """
    falls = (slopes <= power - max(1.0, power / 2)) & (power >= 0)
    rises = slopes >= 4 * (power + 1)
    thetas, log_ratios = _of_normals(np.where(falls, slopes, power - 1), power, normals)
    taken = falls & (tosses < log_ratios)
    if taken.all():
        return thetas
    for kind, propose in ((falls, from_normals), (rises, from_gammas), (~(falls | rises), from_betas)):
        waiting = np.flatnonzero(kind & ~taken)
        while len(waiting):
            proposed, log_ratios = propose(slopes[waiting], power, draws)
            accepted = np.log(draws.uniforms(len(waiting))) < log_ratios
            thetas[waiting[accepted]] = proposed[accepted]
            waiting = waiting[~accepted]
    return thetas


def _of_normals(slopes: Floats, power: float, normals: Floats) -> tuple[Floats, Floats]:
    """θ = z²/(2(power − slope)), and the logarithms of the probabilities of acceptance.

    The density of θ is ∝ θ^(−1/2)·exp((slope − power)·θ), and (1 − θ)^power·exp(power·θ) is at most 1 where
    0 ≤ power. So this is for slopes below power.
    """
    thetas = normals**2 / (2 * (power - slopes))
    inside = (thetas > 0) & (thetas < 1)
    kept = np.where(inside, thetas, 0.5)
    return thetas, np.where(inside, power * (np.log1p(-kept) + kept), -np.inf)


def from_normals(slopes: Floats, power: float, draws: RealDraws) -> tuple[Floats, Floats]:
    return _of_normals(slopes, power, draws.normals(len(slopes)))


def from_gammas(slopes: Floats, power: float, draws: RealDraws) -> tuple[Floats, Floats]:
    """Proposals for slopes far above power, where φ = 1 − θ is small.

    The density of φ is ∝ φ^power·exp(−slope·φ)·(1 − φ)^(−1/2). Below ½, the last factor is at most √2, which
    leaves a gamma density. Above ½, the first two are largest at ½, which leaves θ^(−1/2). The proposal is
    the mixture of both.
    """
    count, shape = len(slopes), power + 1
    below = gammainc(shape, slopes / 2)
    log_odds = shape * np.log(slopes) - slopes / 2 - power * np.log(2) - gammaln(shape) - np.log(below)
    far = draws.uniforms(count) < expit(log_odds)
    uniforms = draws.uniforms(count)
    near = gammaincinv(shape, uniforms * below) / slopes
    others = np.where(far, 1 - uniforms**2 / 2, np.clip(near, 0, 0.5))
    ratios = np.where(
        far,
        power * np.log(2 * others) - slopes * (others - 0.5),
        -np.log1p(-others) / 2 - np.log(2) / 2,
    )
    thetas = 1 - others
    return thetas, np.where(thetas < 1, ratios, -np.inf)


def from_betas(slopes: Floats, power: float, draws: RealDraws) -> tuple[Floats, Floats]:
    """Proposals from Beta(½, 1 + tilt), for all slopes.

    The ratio of the two densities is (1 − θ)^excess·exp(slope·θ) with 0 ≤ excess ≤ slope where slope > 0; its
    largest value is at 1 − excess/slope.
    """
    rising = np.maximum(slopes, 0.0)
    tilts = np.maximum(power - rising, np.minimum(power, -1 + 1 / (1 + np.log(2 + rising))))
    excesses = power - tilts
    has_peak = slopes > excesses
    peaks = np.where(has_peak, 1 - excesses / np.where(has_peak, slopes, 1.0), 0.0)
    thetas = betaincinv(0.5, 1 + tilts, draws.uniforms(len(slopes)))
    inside = (thetas > 0) & (thetas < 1)
    kept = np.where(inside, thetas, 0.5)
    # If the excess is 0, the peak is at 1, where the other logarithm is not finite.
    falling = np.where(excesses > 0, np.log1p(-kept) - np.log1p(-np.where(excesses > 0, peaks, 0.0)), 0.0)
    return thetas, np.where(inside, slopes * (kept - peaks) + excesses * falling, -np.inf)
