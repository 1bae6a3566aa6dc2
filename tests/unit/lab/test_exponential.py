"""PPCA: the sampler's parts, and the loss of the exact draw by quadrature."""

from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import hyp1f1

from dpdpca_lab.central.bingham import Envelope, sample_bingham
from dpdpca_lab.central.coordinates import from_betas, from_gammas, from_normals
from dpdpca_lab.central.entropy import RealDraws
from dpdpca_lab.central.exponential import exponential_components
from dpdpca_lab.central.gibbs import (
    Step,
    burn_in_of,
    frame_draws,
    gibbs_chain,
    gibbs_chains,
    gibbs_components,
    leading_frame,
    uniform_frame,
)
from dpdpca_lab.central.result import captured_share
from dpdpca_lab.mechanisms import NoGuarantee
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Guarantee

K = 2**20


def moment_of(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    z = np.rint(np.asarray(rows) * 2**10)
    return z.T @ z


def test_uniforms_and_normals_come_from_the_bytes(draws: RealDraws) -> None:
    uniforms = draws.uniforms(2000)
    assert (uniforms > 0).all()
    assert (uniforms < 1).all()
    assert len(set(uniforms.tolist())) == 2000
    assert draws.normals(3, 4).shape == (3, 4)

    class Ends:
        def bytes(self, count: int) -> bytes:
            return b"\x00" * 8 + b"\xff" * (count - 8)

        def below(self, bound: int) -> int:
            raise NotImplementedError  # the sampler asks for bytes only

    low, high = RealDraws(Ends()).uniforms(2)
    assert low == 2**-53
    assert high == 1 - 2**-53
    assert np.isfinite(RealDraws(Ends()).normals(2)).all()


@pytest.mark.parametrize("levels", [[0.0, 0.0, 0.0], [0.0, 1.0], [0.0, 5.0, 50.0, 1e6], [0.0]])
def test_the_envelope_lies_above_the_density(levels: list[float], draws: RealDraws) -> None:
    envelope = Envelope.of(np.array(levels))
    assert (1 / (envelope.shift + 2 * envelope.subspace.levels)).sum() == pytest.approx(1, abs=2e-3)
    directions = draws.normals(4000, len(levels))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    directions[0] = np.eye(len(levels))[0]
    assert (envelope.log_acceptance(directions) <= 1e-12).all()


def test_draws_are_unit_vectors_in_the_basis_of_the_matrix(draws: RealDraws) -> None:
    matrix = np.diag([0.0, 60.0, 3.0])
    vectors, proposals = sample_bingham(matrix, draws, 300)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert proposals >= 300
    assert (vectors[:, 1] ** 2).mean() > 0.9
    assert sample_bingham(np.array([[3.0]]), draws)[0].tolist() in ([[1.0]], [[-1.0]])


def log_normaliser_of_the_circle(matrix: NDArray[np.float64]) -> float:
    """log of the mean of exp(uᵀCu) over the circle."""
    top = np.linalg.eigvalsh(matrix)[-1]

    def density(angle: float) -> float:
        u = np.array([np.cos(angle), np.sin(angle)])
        return float(np.exp(u @ matrix @ u - top))

    return float(top + np.log(quad(density, 0, np.pi, epsabs=1e-12)[0] / np.pi))


@pytest.mark.parametrize("epsilon", [0.133, 0.5, 1.0])
def test_the_exact_draw_loses_no_more_than_its_epsilon(epsilon: float) -> None:
    """Log density ratio of one replaced record, all directions of the circle, pairs with tied eigenvalues."""
    worst = 0.0
    for own, other in ((1.0, 1.0), (5.0, 4.0), (60.0, 59.0), (60.0, 60.0)):
        before = np.diag([own + 1.0, other])
        after = np.diag([own, other + 1.0])
        change = epsilon / 2 * (before - after)
        constant = log_normaliser_of_the_circle(epsilon / 2 * after) - log_normaliser_of_the_circle(
            epsilon / 2 * before
        )
        worst = max(worst, *np.abs(np.linalg.eigvalsh(change) + constant))
    assert epsilon / 2 <= worst <= epsilon


@pytest.mark.parametrize("d", [4, 8, 30, 64])
def test_the_exact_draw_keeps_its_promise_in_higher_dimensions(d: int) -> None:
    """One record e₁ more or less along an axis of symmetry: normalisers by Kummer's function, ε = 1."""
    for weight in (1.0, 10.0, 60.0, 500.0):
        constant = np.log(hyp1f1(0.5, d / 2, weight / 2)) - np.log(hyp1f1(0.5, d / 2, (weight + 1) / 2))
        # Replaced by the zero record: density at e₁ changes by ½ + constant, far from it by the constant.
        assert max(abs(0.5 + constant), abs(constant)) <= 0.5


def test_directions_are_orthonormal_and_the_promise_is_stated(draws: RealDraws) -> None:
    rng_rows = np.array([[0.9, 0.1, 0.0, 0.1], [0.8, -0.2, 0.1, 0.0], [-0.9, 0.1, 0.1, 0.2]] * 200)
    moment = moment_of(rng_rows)
    result = exponential_components(moment, K, Fraction(30), 3, draws)
    assert np.allclose(result.vectors @ result.vectors.T, np.eye(3))
    assert captured_share(result.vectors[:1], moment) > 0.9
    assert isinstance(result.guarantee, Guarantee)
    assert result.guarantee.is_pure
    assert result.guarantee.epsilon == 30
    assert any("idealised arithmetic" in text for text in result.guarantee.assumptions)
    assert result.steps >= 3


def test_all_directions_can_be_drawn(draws: RealDraws) -> None:
    result = exponential_components(moment_of(np.eye(3) / 2), K, Fraction(1), 3, draws)
    assert np.allclose(result.vectors @ result.vectors.T, np.eye(3))


@pytest.mark.parametrize("others", ["random", "leading", "nearly leading"])
@pytest.mark.parametrize(("d", "m"), [(2, 1), (5, 3), (9, 8), (12, 4)])
def test_the_proposal_in_a_subspace(others: str, d: int, m: int, draws: RealDraws) -> None:
    """Its covariance is the inverse of D on the subspace, even where D is not positive on the whole."""
    levels = np.sort(draws.uniforms(d)) * 500
    levels -= levels[0]
    start = draws.normals(d, d) * {"random": 1, "leading": 0, "nearly leading": 1e-3}[others]
    given = np.linalg.qr(np.eye(d) * (others != "random") + start)[0][:, :m].T
    envelope = Envelope.of(levels, given)
    full, _ = np.linalg.qr(given.T, mode="complete")
    basis = full[:, m:]
    inverse = np.linalg.inv(basis.T @ np.diag(envelope.shift + 2 * levels) @ basis)
    parts = envelope.covariance
    conditioned = np.diag(parts.variances) - np.diag(parts.variances) @ given.T @ parts.corrections
    assert np.allclose(conditioned + parts.factor @ parts.factor.T, basis @ inverse @ basis.T, atol=1e-9)
    assert np.trace(inverse) == pytest.approx(1, abs=2e-3)
    directions = envelope.propose(draws, 50)
    assert np.abs(directions @ given.T).max() < 1e-12
    assert (envelope.log_acceptance(directions) <= 1e-12).all()


@pytest.mark.parametrize("step", Step)
def test_gibbs_prints_no_epsilon(draws: RealDraws, step: Step) -> None:
    moment = moment_of(np.eye(3) / 2)
    result = gibbs_components(moment, K, Fraction(1), 2, sweeps=3, draws=draws, step=step)
    assert isinstance(result.guarantee, NoGuarantee)
    assert result.sampling == f"approximate: Gibbs over columns, {step}"
    assert result.claim.epsilon == 1
    assert np.allclose(result.vectors @ result.vectors.T, np.eye(2))
    single = next(gibbs_chain(np.ones(1), np.ones((1, 1)), draws, step))
    assert single.tolist() in ([[1.0]], [[-1.0]])
    full = next(gibbs_chain(np.array([1.0, 2.0]), uniform_frame(2, 2, draws), draws, step))
    assert np.allclose(full @ full.T, np.eye(2))


def test_a_chain_turns_back_into_the_basis_of_the_moment(draws: RealDraws) -> None:
    rows = np.array([[0.9, 0.1, 0.0, 0.1], [0.1, -0.2, 0.9, 0.0], [-0.9, 0.1, 0.1, 0.2]] * 4000)
    result = gibbs_components(moment_of(rows), K, Fraction(30), 2, sweeps=5, draws=draws)
    assert captured_share(result.vectors, moment_of(rows)) > 0.99


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("start", ["uniform", "leading"])
def test_the_papers_statistic_only_sees_signs(start: str, step: Step, draws: RealDraws) -> None:
    """E F(T)² = 1/T from any start. The subspace, which F is taken to judge, barely moves here."""
    values = np.array([900.0, 700.0, *np.linspace(5, 0, 8)])
    first = leading_frame(values, 2) if start == "leading" else uniform_frame(2, 10, draws)
    sweeps = 80
    traces = [
        burn_in_of(islice(gibbs_chain(values, first, draws, step), sweeps), values / 1600) for _ in range(3)
    ]
    scaled = np.mean([trace.sign_statistic[-1] ** 2 * sweeps for trace in traces])
    assert 0.1 < scaled < 4  # it would be about 80 if the signs stayed
    assert all(trace.captured[-20:].mean() > 0.98 for trace in traces)
    for trace in traces:
        assert trace.sign_statistic.shape == trace.captured.shape == (sweeps,)
        assert trace.sign_statistic[0] == pytest.approx(1)


def test_draws_of_frames_follow_their_arguments(draws: RealDraws) -> None:
    values = np.array([0.0, 40.0, 3.0, 900.0])
    frames = list(islice(frame_draws(values, 2, draws, burn_in=2, every=2), 20))
    assert all(np.allclose(frame @ frame.T, np.eye(2)) for frame in frames)
    assert np.mean([(frame[:, 3] ** 2).sum() for frame in frames]) > 0.98
    assert leading_frame(values, 2).tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    singles = np.array(list(islice(frame_draws(values, 1, draws), 120)))
    assert singles.shape == (120, 1, 4)
    assert len(np.unique(singles[:, 0, 0])) == 120


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"second_moment": np.ones((2, 3))}, "square"),
        ({"second_moment": np.array([[1.0, 2.0], [3.0, 1.0]])}, "symmetric"),
        ({"second_moment": np.array([[np.nan, 0.0], [0.0, 1.0]])}, "finite"),
        ({"record_bound": 0}, "record_bound"),
        ({"epsilon": Fraction(0)}, "epsilon"),
        ({"k": 0}, "components"),
        ({"k": 3}, "components"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], what: str) -> None:
    terms: dict[str, Any] = {
        "second_moment": np.eye(2),
        "record_bound": 1,
        "epsilon": Fraction(1),
        "k": 1,
    } | change
    with pytest.raises(UsageError, match=what):
        exponential_components(**terms)


def test_no_sweeps_are_refused() -> None:
    with pytest.raises(UsageError, match="sweeps"):
        gibbs_components(np.eye(2), 1, Fraction(1), 1, sweeps=0)


@pytest.mark.parametrize("step", Step)
def test_several_chains_at_once_are_frames_and_independent(step: Step, draws: RealDraws) -> None:
    values = np.array([300.0, 200.0, 5.0, 5.0, 0.0, 0.0])
    starts = np.array([leading_frame(values, 2)] * 40)
    frames = next(islice(gibbs_chains(values, starts, draws, step), 2, None))
    assert frames.shape == starts.shape
    assert np.allclose(frames @ frames.swapaxes(1, 2), np.eye(2), atol=1e-9)
    assert len(np.unique(frames[:, 0, 0])) == 40
    assert ((frames[:, :, :2] ** 2).sum(axis=(1, 2)) > 1.8).all()
    assert set(np.sign(frames[:, 0, 0])) == {-1.0, 1.0}
    assert (starts == leading_frame(values, 2)).all()
    alike = next(gibbs_chains(np.ones(3), uniform_frame(2, 3, draws)[None], draws, step))
    assert np.allclose(alike[0] @ alike[0].T, np.eye(2))


@pytest.mark.parametrize("power", [-0.5, 0.0, 3.0, 60.0])
def test_proposals_of_a_share_are_never_accepted_with_more_than_certainty(
    power: float, draws: RealDraws
) -> None:
    for slope in (-500.0, -1.0, 0.0, 0.5, 5.0, 20.0, 100.0, 900.0):
        slopes = np.full(500, slope)
        proposals = [from_betas(slopes, power, draws)]
        if slope >= 4 * (power + 1):
            proposals.append(from_gammas(slopes, power, draws))
        if power >= 0 and slope < power:
            proposals.append(from_normals(slopes, power, draws))
        for thetas, log_ratios in proposals:
            assert (log_ratios <= 1e-9).all()
            assert np.isfinite(log_ratios[(thetas > 0) & (thetas < 1)]).all()
            assert (log_ratios[(thetas <= 0) | (thetas >= 1)] == -np.inf).all()
