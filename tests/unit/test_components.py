"""Components against NumPy and scikit-learn on exact data; the noise figures are in tests/statistical."""

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpdpca_protocol.errors import CryptographicError, UsageError
from dpdpca_protocol.privacy.mechanisms import Gaussian, NoiseLaw
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import (
    EncodedSpace,
    check_scatter,
    fit_components,
    scatter_matrix,
    settle_signs,
)
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures, figures_of
from dpdpca_protocol.terms.terms import Terms


def make_figures(d: int, release: ReleaseKind = ReleaseKind.JOINT, max_records: int = 100_000) -> Figures:
    return figures_of(
        Terms(
            release=release,
            encoded_features=d,
            clip_norm=Fraction(1),
            fraction_bits=12,
            epsilon=Fraction(1),
            delta=Fraction(1, 10**7),
            sum_weight=Fraction(43, 100) if release is ReleaseKind.JOINT else Fraction(0),
            max_records=max_records,
            modulus_bits=3072,
        )
    )


class Silent(Gaussian):
    """No noise at all."""

    def law(self, count: int) -> NoiseLaw:
        nothing = Fraction(0)
        return NoiseLaw(nothing, nothing, nothing, 0, 0)


def noiseless(figures: Figures) -> Figures:
    return replace(figures, mechanism=Silent.calibrated(figures.mechanism.setting))


def make_space(d: int, common: bool = False) -> EncodedSpace:
    half_range = np.full(d, 250.0) if common else np.linspace(0.5, 40.0, d)
    return EncodedSpace(tuple(f"x{j}" for j in range(d)), np.linspace(-3.0, 9.0, d), half_range, common)


def grid_records(n: int, d: int, seed: int) -> np.ndarray:
    source = random.Random(seed)
    factors = [[source.gauss(0, 1) for _ in range(d)] for _ in range(3)]
    rows = []
    for _ in range(n):
        weights = [source.gauss(0.4, 1), source.gauss(0, 0.6), source.gauss(0, 0.3)]
        row = [
            sum(w * f[j] for w, f in zip(weights, factors, strict=True)) + source.gauss(0, 0.1)
            for j in range(d)
        ]
        rows.append([round(300 * value) for value in row])
    return np.array(rows, dtype=object)


def exact_scatter(z: np.ndarray, with_sum: bool) -> NoisyScatter:
    n = len(z)
    total = z.sum(axis=0)
    scaled = n * z.T.dot(z) - np.outer(total, total)
    return NoisyScatter(
        n,
        tuple(tuple(int(entry) for entry in row) for row in scaled),
        tuple(int(entry) for entry in total) if with_sum else None,
    )


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("with_sum", [False, True])
def test_noiseless_components_equal_scikit_learn_on_the_encoded_rows(common: bool, with_sum: bool) -> None:
    from sklearn.decomposition import PCA

    d = 7
    z, space = grid_records(200, d, 1), make_space(d, common)
    figures = noiseless(make_figures(d, ReleaseKind.JOINT if with_sum else ReleaseKind.MASKED))
    encoded = z.astype(float) / figures.grid * (space.half_range if common else 1.0)
    original = space.centre + z.astype(float) / figures.grid * space.half_range
    fitted = fit_components(exact_scatter(z, with_sum), figures, space)
    reference = PCA().fit(encoded)

    assert np.allclose(fitted.vectors, settle_signs(reference.components_), atol=1e-9)
    assert np.allclose(fitted.eigenvalues, reference.explained_variance_, rtol=1e-9)
    assert np.allclose(fitted.captured, reference.explained_variance_, rtol=1e-9)
    assert fitted.total_variance == pytest.approx(reference.explained_variance_.sum(), rel=1e-9)
    assert fitted.trusted_count == d
    assert fitted.noise_edge == 0
    if with_sum:
        assert fitted.mean is not None
        assert np.allclose(fitted.mean, original.mean(axis=0), rtol=1e-12)
        expected = reference.transform(encoded) * np.sign(
            (fitted.vectors * reference.components_).sum(axis=1)
        )
        assert np.allclose(fitted.scores(original), expected, atol=1e-9)
    else:
        assert fitted.mean is None
    rows = (fitted.scores(original) @ fitted.vectors) * space.scale + fitted.origin
    assert np.allclose(rows, original, atol=1e-9)


def test_common_scaling_gives_variances_in_original_units() -> None:
    z, space = grid_records(150, 5, 3), make_space(5, common=True)
    figures = noiseless(make_figures(5))
    original = space.centre + z.astype(float) / figures.grid * space.half_range
    fitted = fit_components(exact_scatter(z, True), figures, space, 2)
    assert np.allclose(fitted.eigenvalues, np.linalg.eigvalsh(np.cov(original.T))[::-1][:2], rtol=1e-9)
    assert np.allclose(fitted.scores(original).var(axis=0, ddof=1), fitted.eigenvalues, rtol=1e-9)


def test_the_leading_few_of_many_are_the_same_by_either_solver() -> None:
    d = 140
    z = grid_records(60, d, 5)
    figures, space = noiseless(make_figures(d)), make_space(d)
    few, all_of_them = (fit_components(exact_scatter(z, True), figures, space, k) for k in (3, None))
    assert all_of_them.component_count == d
    assert np.allclose(few.vectors, all_of_them.vectors[:3], atol=1e-9)
    assert np.allclose(few.eigenvalues, all_of_them.eigenvalues[:3], rtol=1e-9)


def test_one_feature_and_one_record() -> None:
    figures = noiseless(make_figures(1))
    fitted = fit_components(exact_scatter(np.array([[5]], dtype=object), True), figures, make_space(1))
    assert fitted.vectors.tolist() == [[1.0]]
    assert fitted.eigenvalues.tolist() == [0.0]
    assert np.isfinite(fitted.overlaps).all()


def test_the_figures_of_components_follow_the_law_of_the_mechanism() -> None:
    d = 5
    terms = Terms(
        ReleaseKind.JOINT,
        d,
        Fraction(1),
        12,
        Fraction(1),
        Fraction(1, 10**7),
        Fraction(43, 100),
        100_000,
        3072,
        "laplace",
    )
    figures = figures_of(terms)
    fitted = fit_components(exact_scatter(grid_records(80, d, 4), True), figures, make_space(d))
    unit = 1 / figures.grid**2 / 79
    assert fitted.noise_scale == pytest.approx(float(figures.noise_scale) * 2**0.5 * unit)
    assert fitted.noise_edge == pytest.approx(2 * fitted.noise_scale * d**0.5 * (1 + d ** (-2 / 3)))


def test_entries_are_rounded_once_from_integers_beyond_double_precision() -> None:
    big = 3 * (2**80) + 1
    matrix = scatter_matrix(NoisyScatter(3, ((big, -big), (-big, big)), None))
    assert matrix[0, 0] == 2.0**80
    assert matrix[0, 1] == -(2.0**80)


def test_signs_are_settled_by_the_largest_loading_and_by_the_first_of_equals() -> None:
    root = 0.5**0.5
    rows = np.array([[0.6, -0.8], [-root, root * (1 + 1e-15)], [-1.0, 0.0]])
    assert np.allclose(settle_signs(rows), [[-0.6, 0.8], [root, -root], [1.0, 0.0]])


def test_asking_for_components_that_do_not_exist_is_refused() -> None:
    noisy, figures = exact_scatter(grid_records(20, 4, 7), True), make_figures(4)
    for count in (0, 5):
        with pytest.raises(UsageError):
            fit_components(noisy, figures, make_space(4), count)
    with pytest.raises(UsageError):
        fit_components(noisy, figures, make_space(5))


def test_a_release_that_honest_records_cannot_make_is_refused() -> None:
    figures = make_figures(3, ReleaseKind.MASKED, max_records=10_000)
    bound = figures.record_bound
    n = 10_000
    top = n * n * bound
    implausible = {
        "records": NoisyScatter(10_001, ((0,) * 3,) * 3, None),
        "trace": NoisyScatter(n, ((top, 0, 0), (0, top, 0), (0, 0, top)), None),
        "negative": NoisyScatter(n, ((-top, 0, 0), (0, top // 9, 0), (0, 0, 0)), None),
        "covariance": NoisyScatter(n, ((top // 9, top // 2, 0), (top // 2, top // 9, 0), (0, 0, 0)), None),
    }
    for word, noisy in implausible.items():
        with pytest.raises(CryptographicError, match=word):
            check_scatter(noisy, figures)
