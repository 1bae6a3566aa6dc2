"""PPCA by Gibbs sampling, as published: an approximation that carries no guarantee.

The distribution of a finite chain differs from its limit. If their total variation distance were TV, the draw
would be (ε, (1 + e^ε)·TV)-DP. But TV is not known for any number of sweeps, as the authors say. Therefore no
ε may be printed for such a draw.

The limit has density ∝ exp(tr V B Vᵀ) on frames of k orthonormal rows. Given the others, a row is a Bingham
vector of their complement. A sweep redraws all rows, one after another: the sweep of Hoff 2009 redraws one
squared coordinate after another, ours draws the row exactly. Both work in the eigenbasis of B, and give every
row a fresh random sign.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import islice

import numpy as np

from dpdpca_lab.central.bingham import sample_eigenbasis
from dpdpca_lab.central.coordinates import redraw_coordinates
from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.central.result import CentralResult, check_input
from dpdpca_lab.mechanisms import NoGuarantee
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Guarantee

REFERENCE = "Chaudhuri, Sarwate, Sinha 2013; sampler Hoff 2009"
_AT_ONCE = 50


class Step(StrEnum):
    """How a row is redrawn, given the others."""

    EXACT = "exact conditionals"
    COORDINATES = "coordinates"


def gibbs_components(
    second_moment: Floats,
    record_bound: int,
    epsilon: Fraction,
    k: int,
    sweeps: int = 50,
    draws: RealDraws | None = None,
    step: Step = Step.EXACT,
) -> CentralResult:
    """A frame from a chain whose limit has density ∝ exp((ε/2)·tr V R Vᵀ/K).

    Args:
        second_moment: R about a public centre, (d, d), grid² units.
        record_bound: K.
        epsilon: the ε of the limit.
        k: from 1 to d.
        sweeps: how often each row is redrawn, from a uniform start.
        draws: for tests; by default those of the operating system.
        step: how a row is redrawn.

    Raises:
        UsageError: a shape or a term is out of range.
    """
    check_input(second_moment, record_bound, epsilon, k)
    if sweeps < 1:
        raise UsageError("bad-argument", "sweeps must be 1 or more")
    source = RealDraws() if draws is None else draws
    levels, basis = np.linalg.eigh(second_moment * (float(epsilon) / (2 * record_bound)))
    chain = gibbs_chain(levels, uniform_frame(k, len(levels), source), source, step)
    frame = next(islice(chain, sweeps - 1, None))
    guarantee = NoGuarantee(
        f"{sweeps} sweeps of a Gibbs sampler; the distance of its distribution from the limit is not known"
    )
    claim = Guarantee(epsilon, Fraction(0), "as published, for the limit of the chain")
    sampling = f"approximate: Gibbs over columns, {step}"
    return CentralResult("ppca-gibbs", frame @ basis.T, guarantee, claim, sampling, REFERENCE, sweeps)


def gibbs_chain(levels: Floats, start: Floats, draws: RealDraws, step: Step = Step.EXACT) -> Iterator[Floats]:
    """The frames after 1, 2, … sweeps, without end, in the eigenbasis of B.

    Args:
        levels: (d,) eigenvalues of B, in any order.
        start: (k, d) orthonormal rows.
        draws: source of uniform and normal values.
        step: how a row is redrawn.

    Yields:
        (k, d) orthonormal rows.
    """
    for frames in gibbs_chains(levels, start[None], draws, step):
        yield frames[0]


def gibbs_chains(
    levels: Floats, starts: Floats, draws: RealDraws, step: Step = Step.EXACT
) -> Iterator[Floats]:
    """`gibbs_chain` for several independent chains at once, (chains, k, d) frames.

    Many chains of coordinates hardly take longer than one, but for an eigendecomposition of each.
    """
    redraw, frames = _REDRAW[step], starts.copy()
    while True:
        for row in range(frames.shape[1]):
            frames[:, row] = redraw(levels, frames[:, row], np.delete(frames, row, axis=1), draws)
        yield frames.copy()


def frame_draws(
    levels: Floats, k: int, draws: RealDraws, burn_in: int = 30, every: int = 5
) -> Iterator[Floats]:
    """Draws of density ∝ exp(tr V B Vᵀ), without end, in the eigenbasis of B.

    For k = 1, they are exact and independent. For k > 1, they are taken from one chain that starts at the
    leading directions, after `burn_in` sweeps and then after every `every` sweeps. Such draws are neither
    exact nor independent.

    Args:
        levels: (d,) eigenvalues of B, in any order.
        k: from 1 to d.
        draws: source of uniform and normal values.
        burn_in, every: numbers of sweeps.

    Yields:
        (k, d) orthonormal rows.
    """
    if k > 1:
        chain = gibbs_chain(levels, leading_frame(levels, k), draws)
        yield from islice(chain, burn_in, None, every)
    while True:
        drawn, _ = sample_eigenbasis(levels, draws, count=_AT_ONCE)
        yield from drawn[:, None, :]


def uniform_frame(k: int, d: int, draws: RealDraws) -> Floats:
    """(k, d) orthonormal rows, uniform."""
    start, _ = np.linalg.qr(draws.normals(d, k))
    return np.asarray(start.T * draws.signs(k, 1))


def leading_frame(levels: Floats, k: int) -> Floats:
    """(k, d) the directions of the k largest eigenvalues, in the eigenbasis."""
    return np.asarray(np.eye(len(levels))[np.argsort(levels)[::-1][:k]])


@dataclass(frozen=True, slots=True)
class BurnIn:
    """Two traces of a chain.

    Attributes:
        sign_statistic: (T, …) F_k(T) = ‖mean of the first T frames‖_F/√k, which the paper takes as a test of
            convergence. Every frame has fresh random signs, so that E F_k(T)² is exactly 1/T, even if the
            subspace never moves.
        captured: (T, …) q_F = tr V A Vᵀ of each frame, whose course does show convergence.
    """

    sign_statistic: Floats
    captured: Floats


def burn_in_of(frames: Iterable[Floats], eigenvalues: Floats) -> BurnIn:
    """The traces of (…, k, d) frames in the eigenbasis of A, one entry for each frame.

    Source: Chaudhuri, Sarwate, Sinha 2013, section 4.2.
    """
    total, statistic, captured = np.zeros(1), list[Floats](), list[Floats]()
    for count, frame in enumerate(frames, start=1):
        total = total + frame
        statistic.append(np.linalg.norm(total, axis=(-2, -1)) / count / math.sqrt(frame.shape[-2]))
        captured.append((frame**2 @ eigenvalues).sum(axis=-1))
    return BurnIn(np.array(statistic), np.array(captured))


def _exactly(levels: Floats, rows: Floats, others: Floats, draws: RealDraws) -> Floats:
    return np.concatenate([sample_eigenbasis(levels, draws, given)[0] for given in others])


def _by_coordinates(levels: Floats, rows: Floats, others: Floats, draws: RealDraws) -> Floats:
    """One sweep over the coordinates in the eigenbasis of B on the complement of the others.

    With P the projector onto it and B raised above 0, the others are the null space of P B P.
    """
    chains, m, d = others.shape
    raised = levels - levels.min() + (np.ptp(levels) or 1.0)
    projectors = np.eye(d) - others.swapaxes(1, 2) @ others
    values, bases = np.linalg.eigh((projectors * raised) @ projectors)
    values, axes = values[:, m:], bases[:, :, m:]
    coordinates = (rows[:, None, :] @ axes).reshape(chains, d - m)
    directions = (axes @ redraw_coordinates(coordinates, values, draws)[:, :, None]).reshape(chains, d)
    return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True))


_REDRAW: dict[Step, Callable[[Floats, Floats, Floats, RealDraws], Floats]] = {
    Step.EXACT: _exactly,
    Step.COORDINATES: _by_coordinates,
}
