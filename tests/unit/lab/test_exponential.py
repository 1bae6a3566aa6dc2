"""PPCA: the sampler's parts, and the loss of the exact draw by quadrature."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import hyp1f1

from dpdpca_lab.central.bingham import Envelope, sample_bingham
from dpdpca_lab.central.entropy import RealDraws
from dpdpca_lab.central.exponential import exponential_components, orthogonal_complement
from dpdpca_lab.central.gibbs import gibbs_chain, gibbs_components
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
    assert (1 / (envelope.b + 2 * envelope.levels)).sum() == pytest.approx(1)
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


def test_the_complement_is_orthonormal() -> None:
    vectors = np.linalg.qr(np.arange(12.0).reshape(4, 3) ** 2 + np.eye(4)[:, :3])[0].T
    complement = orthogonal_complement(vectors[:2])
    assert complement.shape == (4, 2)
    assert np.allclose(vectors[:2] @ complement, 0)
    assert np.array_equal(orthogonal_complement(np.zeros((0, 4))), np.eye(4))


def test_gibbs_prints_no_epsilon(draws: RealDraws) -> None:
    result = gibbs_components(moment_of(np.eye(3) / 2), K, Fraction(1), 2, sweeps=3, draws=draws)
    assert isinstance(result.guarantee, NoGuarantee)
    assert result.claim.epsilon == 1
    assert np.allclose(result.vectors @ result.vectors.T, np.eye(2))
    assert gibbs_chain(np.eye(1), 1, 2, draws).tolist() in ([[1.0]], [[-1.0]])
    full = gibbs_chain(np.diag([1.0, 2.0]), 2, 2, draws)
    assert np.allclose(full @ full.T, np.eye(2))


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
