"""Both pipelines: scikit-learn's own checks, what they say about privacy, the attack on what they release.

`NoiselessSVM` takes the noise out inside this file only, so that checks which compare two fits can run.
"""

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.utils.estimator_checks import estimator_checks_generator

from dpdpca_lab.mechanisms import NoGuarantee
from dpdpca_lab.pipelines import DPPCASVM, PCADPSVM, ClassScores, class_scores
from dpdpca_lab.pipelines.pca_dpsvm import noisy_normal_epsilon, published_output_scale
from dpdpca_protocol.privacy.accounting import delta_of_tails
from dpdpca_protocol.privacy.mechanisms.interface import Mechanism
from dpdpca_user.estimator import ParameterError

_NOISE = "two fits of a private estimator differ: the noise is fresh and cannot be seeded"
EXPECTED_TO_FAIL = dict.fromkeys(
    (
        "check_fit_idempotent",
        "check_classifiers_classes",
        "check_classifiers_train",
        "check_supervised_y_2d",
    ),
    _NOISE,
)
DO_NOT_APPLY = ("array_api", "dataframe", "pandas", "data_not_an_array")
"""Other array libraries and data frames: neither is promised, and the checks would skip in part."""


def cases(*estimators: DPPCASVM | PCADPSVM, expected: dict[str, str] | None = None) -> list[Any]:
    """Scikit-learn's checks of the estimators, without those that do not apply."""
    found = [
        case
        for estimator in estimators
        for case in estimator_checks_generator(estimator, expected_failed_checks=expected, mark="xfail")
    ]
    return [case for case in found if not any(word in repr(case) for word in DO_NOT_APPLY)]


def case_name(value: Any) -> str:
    return str(value.func.__name__ if hasattr(value, "func") else type(value).__name__)


class NoiselessSVM(DPPCASVM):
    def _noise(self, mechanism: Mechanism) -> NDArray[np.float64]:
        return np.zeros_like(super()._noise(mechanism))


class NoiselessDPSVM(PCADPSVM):
    def _laplace(self, count: int) -> NDArray[np.float64]:
        return np.zeros(count)


@pytest.mark.parametrize(("estimator", "check"), cases(NoiselessSVM(bounds=(-10.0, 10.0)), NoiselessDPSVM()))
def test_scikit_learns_checks_without_noise(
    estimator: NoiselessSVM | NoiselessDPSVM, check: partial[None]
) -> None:
    check(estimator)


@pytest.mark.parametrize(
    ("estimator", "check"),
    cases(DPPCASVM(bounds=(-10.0, 10.0)), PCADPSVM(epsilon=10.0), expected=EXPECTED_TO_FAIL),
    ids=case_name,
)
def test_scikit_learns_checks_with_noise(estimator: DPPCASVM | PCADPSVM, check: partial[None]) -> None:
    check(estimator)


Tumours = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]
"""Rows, labels, bounds."""


@pytest.fixture(scope="module")
def tumours() -> Tumours:
    data = load_breast_cancer()
    rows = data.data[:, :6]
    bounds = np.array([[0.0, 40.0], [0.0, 60.0], [0.0, 250.0], [0.0, 3000.0], [0.0, 0.3], [0.0, 0.5]])
    return rows, data.target, bounds


def test_the_components_carry_the_promise_and_the_classifier_none(tumours: Tumours) -> None:
    rows, labels, bounds = tumours
    fitted = DPPCASVM(2, epsilon=50.0, bounds=bounds, clip_norm=1.0).fit(rows, labels)
    assert fitted.guarantee_.delta == delta_of_tails(Fraction(50))
    assert fitted.guarantee_.epsilon == 50
    assert isinstance(fitted.classifier_guarantee_, NoGuarantee)
    assert "raw projections" in str(fitted.classifier_guarantee_)
    assert fitted.components_.shape == (2, 6)
    assert np.allclose(fitted.components_ @ fitted.components_.T, np.eye(2))
    assert fitted.scores(rows).shape == (len(rows), 2)
    again = DPPCASVM(2, epsilon=50.0, bounds=bounds, clip_norm=1.0).fit(rows, labels)
    assert not np.array_equal(fitted.components_, again.components_)


def test_the_published_constant_says_what_it_gives(tumours: Tumours) -> None:
    rows, labels, bounds = tumours
    fitted = DPPCASVM(2, epsilon=5.0, bounds=bounds, calibration="as-published").fit(rows, labels)
    # √(d(d+3)/2)/(2d) of the claim on a second moment, d = 6.
    assert float(fitted.guarantee_.epsilon) == pytest.approx(5 * 27**0.5 / 12)


@pytest.mark.parametrize(
    ("mechanism", "calibration", "real"),
    [("gaussian", "proved", 1.0), ("gaussian", "as-published", 1.214), ("mod-sulq", "as-published", 0.136)],
)
def test_other_noise_on_the_moment(tumours: Tumours, mechanism: str, calibration: str, real: float) -> None:
    """AG-SVM and MOD-SULQ-SVM, at δ = 1/n² unless another one is given."""
    rows, labels, bounds = tumours
    terms: dict[str, Any] = {"bounds": bounds, "mechanism": mechanism, "calibration": calibration}
    fitted = DPPCASVM(2, **terms).fit(rows, labels)
    assert isinstance(fitted.classifier_guarantee_, NoGuarantee)
    delta = Fraction(1, len(rows) ** 2)
    assert float(fitted.guarantee_.epsilon) == pytest.approx(real, rel=0.01)
    assert 0 <= fitted.guarantee_.delta - delta < delta / 1000
    given = DPPCASVM(2, delta=0.01, **terms).fit(rows, labels)
    assert float(given.guarantee_.delta) == pytest.approx(0.01)
    exact = DPPCASVM(2, epsilon=1e5, **terms).fit(rows, labels).score(rows, labels)
    assert exact > 0.85


def test_the_published_scale_of_the_output() -> None:
    assert published_output_scale(3500, 166, 1.5) == pytest.approx(774_667, rel=1e-6)
    assert published_output_scale(3500, 20, 1.5) == pytest.approx(93_333.3, rel=1e-6)
    assert published_output_scale(3500, 20, 1.5, 2.0) == pytest.approx(2 * 93_333.3, rel=1e-6)
    assert noisy_normal_epsilon(20, 166, 1.5) == pytest.approx(1.5 * math.sqrt(20) / 166)
    # θ of theorem 3 compares this scale with that on a covariance matrix, 2d/(nε): 1/(Cn²), whatever d and ε.
    for d, epsilon in ((166, 1.5), (20, 0.1)):
        theta = 2 * d / (3500 * epsilon) / published_output_scale(3500, d, epsilon)
        assert theta == pytest.approx(8.16327e-8, rel=1e-6)


def test_which_scale_pca_dpsvm_takes(tumours: Tumours) -> None:
    rows, labels = tumours[0] / tumours[2][:, 1], tumours[1]

    class UnitNoise(PCADPSVM):
        def _laplace(self, count: int) -> NDArray[np.float64]:
            return np.ones(count)

    def scale(**terms: Any) -> float:
        noisy, plain = (
            kind(2, epsilon=0.5, **terms).fit(rows, labels) for kind in (UnitNoise, NoiselessDPSVM)
        )
        return float((noisy.coef_ - plain.coef_)[0, 0])

    assert scale() == pytest.approx(published_output_scale(len(rows), 6, 0.5))
    assert scale(dimension="k") == pytest.approx(published_output_scale(len(rows), 2, 0.5))
    fitted = NoiselessDPSVM(2).fit(rows, labels)
    reach = np.linalg.norm(fitted.scores(rows), axis=1).max()
    assert scale(calibration="rubinstein-2012", C=0.5) == pytest.approx(4 * 0.5 * reach * 2**0.5 / 0.5)


def test_precision_recall_and_f1() -> None:
    scores = class_scores([0, 0, 1, 1, 2], [0, 1, 1, 1, 0])
    assert scores.precision == pytest.approx(0.3889, abs=6e-5)
    assert scores.recall == pytest.approx(0.5)
    assert scores.f1 == pytest.approx(0.4333, abs=6e-5)
    assert class_scores(["a", "b"], ["a", "b"]) == ClassScores(1, 1, 1)


def test_without_noise_it_is_a_support_vector_machine_on_components(tumours: Tumours) -> None:
    rows, labels, bounds = tumours
    fitted = NoiselessSVM(3, bounds=bounds).fit(rows, labels)
    scaled = (rows - bounds.mean(axis=1)) / (bounds[:, 1] - bounds[:, 0]) * 2
    _, reference = np.linalg.eigh(scaled.T @ scaled)
    assert np.allclose(np.abs(fitted.components_ @ reference[:, ::-1][:, :3]), np.eye(3), atol=1e-2)
    assert fitted.score(rows, labels) > 0.85


def test_one_changed_row_changes_the_released_classifier_for_certain(tumours: Tumours) -> None:
    """Same V_k, one row: (w, b) is another one. A claim of any ε for it is refuted by a single output."""
    rows, labels, bounds = tumours

    class FixedComponents(DPPCASVM):
        def _noise(self, mechanism: Mechanism) -> NDArray[np.float64]:
            return np.diag(np.arange(6.0)) * 2.0**80

    other = rows.copy()
    other[0] = rows[labels == 1].mean(axis=0)
    outputs = []
    for data in (rows, rows, other):
        fitted = FixedComponents(2, bounds=bounds).fit(data, labels)
        outputs.append(np.append(fitted.classifier_.coef_.ravel(), fitted.classifier_.intercept_))
    assert np.array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - outputs[2]).max() > 1e-3


def test_one_changed_row_changes_what_pca_dpsvm_releases_for_certain(tumours: Tumours) -> None:
    rows, labels, _ = tumours
    other = rows.copy()
    other[0] *= 2
    first, second, third = (PCADPSVM(2, epsilon=0.1).fit(data, labels) for data in (rows, rows, other))
    assert isinstance(first.guarantee_, NoGuarantee)
    assert not np.array_equal(first.coef_, second.coef_)
    # The noise on w hides nothing: b and V_k are the same to the last bit for the same rows, and only then.
    assert np.array_equal(first.intercept_, second.intercept_)
    assert np.array_equal(first.components_, second.components_)
    assert not np.allclose(first.intercept_, third.intercept_, rtol=1e-9, atol=0)
    assert not np.array_equal(first.components_, third.components_)


@pytest.mark.parametrize(
    ("estimator", "what"),
    [
        (DPPCASVM(2), "bounds"),
        (DPPCASVM(2, bounds=(1, 1)), "bounds"),
        (DPPCASVM(2, bounds=[(0, 1)] * 3), "bounds"),
        (DPPCASVM(7, bounds=(0, 1)), "n_components"),
        (DPPCASVM(True, bounds=(0, 1)), "n_components"),
        (DPPCASVM(2, bounds=(0, 1), epsilon=0), "epsilon"),
        (DPPCASVM(2, bounds=(0, 1), epsilon=float("nan")), "epsilon"),
        (DPPCASVM(2, bounds=(0, 1), epsilon="1"), "epsilon"),  # type: ignore[arg-type] # refused
        (DPPCASVM(2, bounds=(0, 1), clip_norm=3), "clip_norm"),
        (DPPCASVM(2, bounds=(0, 1), clip_norm=float("nan")), "clip_norm"),
        (DPPCASVM(2, bounds=(0, 1), calibration="best"), "calibration"),
        (DPPCASVM(2, bounds=(0, 1), mechanism="wishart"), "mechanism"),
        (DPPCASVM(2, bounds=(0, 1), mechanism="mod-sulq"), "calibration"),
        (DPPCASVM(2, bounds=(0, 1), delta=1.0), "delta"),
        (DPPCASVM(2, bounds=(0, 1), delta=0.0), "delta"),
        (PCADPSVM(calibration="proved"), "calibration"),
        (PCADPSVM(dimension="n"), "dimension"),
        (PCADPSVM(0), "n_components"),
        (PCADPSVM(epsilon=-1), "epsilon"),
    ],
)
def test_parameters_out_of_range_are_value_errors(
    tumours: Tumours, estimator: DPPCASVM | PCADPSVM, what: str
) -> None:
    rows, labels, _ = tumours
    with pytest.raises(ValueError, match=what) as refusal:
        estimator.fit(rows, labels)
    assert isinstance(refusal.value, ParameterError)


def test_a_fraction_is_a_fine_epsilon(tumours: Tumours) -> None:
    rows, labels, bounds = tumours
    exact: Any = Fraction(1, 3)
    assert DPPCASVM(1, bounds=bounds, epsilon=exact).fit(rows, labels).guarantee_.epsilon == exact


def test_more_than_two_classes_are_not_for_pca_dpsvm(tumours: Tumours) -> None:
    rows, _, _ = tumours
    with pytest.raises(ValueError, match="binary"):
        PCADPSVM().fit(rows, np.arange(len(rows)) % 3)
