"""Both estimators: scikit-learn's own checks, and what they promise beyond those.

`NoiselessPCA` takes the noise out of `DPPCA` inside this file only, so that checks which compare two fits can
run; `DPPCA` itself runs all checks, and those that its noise must fail are listed with the reason.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import SILENCE
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpdpca_user import DPPCA, FederatedPCA
from dpdpca_user.estimator import ParameterError
from dpdpca_user.results.model import Model

_NOISE = "two fits of a private estimator differ: the noise is fresh and cannot be seeded"
EXPECTED_TO_FAIL = {
    "check_transformer_general": _NOISE,
    "check_transformer_data_not_an_array": _NOISE,
    "check_fit_idempotent": _NOISE,
    "check_pipeline_consistency": _NOISE,
}


class NoiselessPCA(DPPCA):
    _noise = SILENCE


@parametrize_with_checks([NoiselessPCA(bounds=(-10.0, 10.0))])  # type: ignore[untyped-decorator]  # scikit-learn is untyped
def test_scikit_learns_checks_without_noise(estimator: Any, check: Any) -> None:
    check(estimator)


@parametrize_with_checks(  # type: ignore[untyped-decorator]  # scikit-learn is untyped
    [DPPCA(bounds=(-10.0, 10.0), epsilon=4.0)],
    expected_failed_checks=lambda estimator: EXPECTED_TO_FAIL,
)
def test_scikit_learns_checks_with_noise(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_estimator_repr,
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_mixin_order,
        estimator_checks.check_estimator_tags_renamed,
        estimator_checks.check_valid_tag_types,
    ],
)
def test_scikit_learns_checks_that_need_no_rows_of_their_own(check: Any) -> None:
    """`fit` of `FederatedPCA` fetches a model: the checks that fit made-up rows do not apply to it."""
    check("FederatedPCA", FederatedPCA("http://127.0.0.1:9", token="t", study="ab", n_components=2))


def correlated_rows(n: int) -> Any:
    import random

    source = random.Random(2)
    rows = []
    for _ in range(n):
        shared = source.gauss(0, 0.5)
        rows.append([3 + shared + source.gauss(0, 0.1), -shared, source.gauss(0, 0.1), shared / 2 + 1])
    return np.array(rows)


@pytest.mark.parametrize("scaling", ["range", "common"])
def test_without_noise_and_clipping_it_is_pca_up_to_the_grid(scaling: str) -> None:
    from sklearn.decomposition import PCA

    rows = correlated_rows(500)
    bounds = np.array([[0.0, 6.0], [-4.0, 4.0], [-2.0, 3.0], [-1.0, 3.0]])
    fitted = NoiselessPCA(bounds=bounds, clip_norm=2.0, scaling=scaling).fit(rows)
    half = (bounds[:, 1] - bounds[:, 0]) / 2 if scaling == "range" else 1.0
    reference = PCA().fit(rows / half)
    assert np.allclose(fitted.noisy_eigenvalues_, reference.explained_variance_, atol=3e-4)
    assert np.allclose(np.abs(fitted.components_[0]), np.abs(reference.components_[0]), atol=1e-3)
    assert np.allclose(fitted.mean_, rows.mean(axis=0), atol=1e-3)
    assert np.allclose(fitted.inverse_transform(fitted.transform(rows)), rows, atol=1e-9)
    assert np.allclose(
        np.abs(fitted.transform(rows)[:, 0]), np.abs(reference.transform(rows / half)[:, 0]), atol=1e-2
    )


def test_two_private_fits_differ_and_say_what_they_cost() -> None:
    rows = correlated_rows(3000)
    first, second = (DPPCA(2, bounds=(-5, 7), epsilon=3.0).fit(rows) for _ in range(2))
    assert not np.array_equal(first.noisy_eigenvalues_, second.noisy_eigenvalues_)
    assert first.privacy_["epsilon"] == 3.0
    assert first.privacy_["delta"] < 1e-6
    assert first.privacy_["relation"] == "replace-one"
    assert first.noise_edge_ > 0
    assert 0 <= first.n_trusted_components_ <= 2
    assert (first.explained_variance_ <= np.clip(first.noisy_eigenvalues_, 0, None)).all()


@pytest.mark.parametrize(
    "parameters",
    [
        {"bounds": None},
        {"bounds": (1, 1)},
        {"bounds": (2, 1)},
        {"bounds": [(0, 1)] * 3},
        {"bounds": "wide"},
        {"bounds": (0, float("inf"))},
        {"epsilon": 0},
        {"epsilon": float("nan")},
        {"epsilon": "1"},
        {"delta": 0.5},
        {"clip_norm": 100.0},
        {"clip_norm": -1},
        {"scaling": "standard"},
        {"sum_weight": 3},
        {"centres": [0.0, 0.0, 0.0]},
        {"centres": [99.0, 0.0, 0.0, 0.0]},
        {"n_components": 5},
        {"n_components": 0},
        {"n_components": 1.5},
    ],
)
def test_parameters_out_of_range_are_value_errors(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        DPPCA(**({"bounds": (-5, 7)} | parameters)).fit(correlated_rows(30))
    assert isinstance(refusal.value, ParameterError)


def test_dppca_works_in_a_pipeline() -> None:
    rows = correlated_rows(400)
    pipeline = make_pipeline(DPPCA(2, bounds=(-5, 7), epsilon=5.0), StandardScaler())
    assert pipeline.fit_transform(rows).shape == (400, 2)
    assert list(pipeline[:-1].get_feature_names_out()) == ["dppca0", "dppca1"]


@pytest.fixture
def model_file(joint_model: Model, tmp_path: Path) -> Path:
    path = tmp_path / "model.npz"
    path.write_bytes(joint_model.to_bytes())
    return path


def test_a_model_file_gives_a_fitted_estimator(
    model_file: Path, joint_model: Model, people: dict[str, list[Any]], encoded_people: Any
) -> None:
    pca = FederatedPCA.from_model(model_file, n_components=2)
    table = {name: values[:50] for name, values in people.items()}
    scores = pca.transform(encoded_people)
    assert scores.shape == (50, 2)
    assert np.array_equal(pca.transform(table), scores)
    assert np.allclose(scores, joint_model.components.scores(encoded_people)[:, :2])
    full = FederatedPCA.from_model(model_file)
    assert np.allclose(full.inverse_transform(full.transform(encoded_people)), encoded_people)
    assert list(pca.get_feature_names_out()) == ["federatedpca0", "federatedpca1"]
    assert pca.study_ == joint_model.study.hex()
    assert pca.privacy_["study"] == pca.study_
    assert pca.mean_.shape == (5,)
    assert pca.noise_edge_ > 0
    assert pca.explained_variance_ratio_.sum() <= 1
    assert pca.n_features_in_ == 5


def test_a_masked_model_has_no_mean(masked_model: Model, tmp_path: Path, encoded_people: Any) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(masked_model.to_bytes())
    pca = FederatedPCA.from_model(path)
    assert not hasattr(pca, "mean_")
    assert np.array_equal(pca.center_, [160.0, 75.0, 0.0, 0.0, 55.0])
    assert pca.transform(encoded_people).shape == (50, 5)


def test_it_clones_and_prints_as_scikit_learn_expects(model_file: Path) -> None:
    pca = FederatedPCA("http://127.0.0.1:1", token="t", study="ab", n_components=2)
    twin = clone(pca)
    assert twin.get_params() == pca.get_params()
    with pytest.raises(NotFittedError):
        twin.transform([[0.0] * 5])
    with pytest.raises(ParameterError, match="study"):
        FederatedPCA().fit()
    with pytest.raises(ParameterError):
        FederatedPCA.from_model(model_file, n_components=6)
    with pytest.raises(ValueError, match="features"):
        FederatedPCA.from_model(model_file).transform([[0.0] * 4])


def test_it_fits_from_the_service_and_inside_a_pipeline(
    monkeypatch: pytest.MonkeyPatch, joint_model: Model, encoded_people: Any
) -> None:
    from dpdpca_user import service_client

    def model_file(self: Any, study: str) -> bytes:
        assert study == joint_model.study.hex()
        return joint_model.to_bytes()

    monkeypatch.setattr(service_client.ServiceClient, "model_file", model_file)
    pca = FederatedPCA("http://127.0.0.1:9", token="t", study=joint_model.study.hex(), n_components=3)
    pipeline = make_pipeline(pca, StandardScaler())
    assert pipeline.fit_transform(encoded_people).shape == (50, 3)


def test_correlation_is_another_metric_of_the_same_release(joint_model: Model, model_file: Path) -> None:
    study = FederatedPCA.from_model(model_file)
    standardised = FederatedPCA.from_model(model_file, metric="correlation")
    found = joint_model.correlation
    assert found is not None
    np.testing.assert_array_equal(standardised.scale_, found.scale)
    np.testing.assert_allclose(
        standardised.components_ @ standardised.components_.T, np.eye(len(found.vectors)), atol=1e-9
    )
    assert not np.allclose(standardised.components_, study.components_)
    assert 0 < standardised.explained_variance_ratio_.sum() <= 1
    np.testing.assert_array_equal(standardised.noise_edges_, study.noise_edges_)
    assert study.reliability_ is not None
    assert len(study.captured_share_) == len(study.components_)
    with pytest.raises(ParameterError, match="metric"):
        FederatedPCA.from_model(model_file, metric="cosine")
    with pytest.raises(ParameterError, match="metric"):
        DPPCA(bounds=(-5, 5), metric="cosine").fit(correlated_rows(50))


@pytest.mark.parametrize("d", [1, 2, 5, 19, 20, 25])
@pytest.mark.parametrize("value", [0.0, 0.9])
def test_data_that_do_not_vary_are_never_standardised(d: int, value: float) -> None:
    """One release in a hundred passes its noise edge by chance: the edge alone would let some through."""
    for _ in range(5):
        with pytest.raises(ParameterError, match="no component is certain to be above the noise"):
            DPPCA(bounds=(-1, 1), metric="correlation").fit(np.full((200, d), value))


def test_outlier_scores_are_those_of_the_components(joint_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(joint_model.to_bytes())
    pca = FederatedPCA.from_model(path)
    outliers = pca.outlier_scores_
    rows = np.vstack([pca.center_, pca.center_ + 3 * pca.scale_])
    assert pca.score_t2(rows) == pytest.approx(outliers.t2(rows))
    assert pca.score_spe(rows) == pytest.approx(outliers.spe(rows))
    assert pca.score_t2(rows)[0] == pytest.approx(0)
    assert FederatedPCA.from_model(path, n_components=1).outlier_scores_.k == 1
    with pytest.raises(ParameterError, match="too large"):
        pca.score_t2(np.full((1, 5), 1e200))


def test_outlier_scores_say_that_variances_are_those_of_shortened_records(model_file: Path) -> None:
    def is_said(pca: Any) -> bool:
        return any("those of shortened records" in said for said in pca.outlier_scores_.warnings())

    assert is_said(FederatedPCA.from_model(model_file))
    rows = correlated_rows(4000)
    short, longest = (DPPCA(bounds=(-5, 7), epsilon=20.0, clip_norm=norm).fit(rows) for norm in (0.9, 2.0))
    assert is_said(short)
    assert not is_said(longest)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-100, 1.0, 1e100])
def test_squares_of_variances_never_overflow(size: float) -> None:
    source = np.random.default_rng(4)  # noqa: TID251 - made-up records, not noise, masks or keys
    rows = source.normal(0, 0.3, (2000, 3)) * size
    pca = DPPCA(bounds=(-size, size), scaling="common", epsilon=8.0, clip_norm=1.0).fit(rows)
    assert pca.get_covariance() / size**2 == pytest.approx(np.cov(rows.T / size), abs=0.03)
    assert (pca.get_covariance_std() / size**2 < 0.02).all()
    assert (np.abs(pca.get_correlation()) <= 1).all()
    assert np.isfinite(pca.get_correlation_std()).all()
    assert (pca.loadings_std_ < 0.5 * size).all()
    outliers = pca.outlier_scores_
    assert 5 < outliers.t2_limit(0.95) < 9 or outliers.k < 3
    assert (pca.score_spe(rows[:5]) < size**2).all()
    limit = outliers.spe_limit(0.95)
    assert limit is None or 0 < limit < size**2
