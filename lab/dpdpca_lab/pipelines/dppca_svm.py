"""DPPCA-SVM, AG-SVM and MOD-SULQ-SVM: private components, then a classifier that is published without noise.

They differ in the noise on the second moment. The classifier is a support vector machine on projected rows.

The components are private. The classifier is not private: it is trained on Y = X V_k, which is raw data in
other coordinates, and is released without noise. With the same V_k, one changed row is certain to change (w,
b). Only V_k is safe to use. A model that is trained on projected rows needs a private mechanism and a budget
of its own.
"""

from fractions import Fraction
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.svm import SVC
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dpdpca_lab.mechanisms import (
    Calibration,
    ModSulq,
    NoGuarantee,
    PublishedGaussian,
    PublishedLaplace,
    noise_matrix,
)
from dpdpca_lab.tables import EncodedTable, Floats, encode_table
from dpdpca_protocol.privacy.mechanisms import Gaussian, Laplace, Mechanism, Quantity, Setting
from dpdpca_protocol.result.components import settle_signs
from dpdpca_user.estimator import ParameterError, check_numbers, positive_parameter

_MECHANISMS: dict[tuple[str, str], type[Mechanism]] = {
    ("laplace", Calibration.PROVED): Laplace,
    ("laplace", Calibration.AS_PUBLISHED): PublishedLaplace,
    ("gaussian", Calibration.PROVED): Gaussian,
    ("gaussian", Calibration.AS_PUBLISHED): PublishedGaussian,
    ("mod-sulq", Calibration.AS_PUBLISHED): ModSulq,
}


class DPPCASVM(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Components by noise on the second moment, then a linear support vector machine on the scores.

    Args:
        n_components: k; None for all d.
        epsilon: ε of the components.
        bounds: public (lower, upper) for all features, or one such pair for each feature. Required.
        clip_norm: r in half-ranges; None means √d. Noise grows with r².
        mechanism: "laplace" (DPPCA-SVM), "gaussian" (AG-SVM) or "mod-sulq" (MOD-SULQ-SVM).
        calibration: "proved" for noise with the proved sensitivity, "as-published" for that of the paper.
            MOD-SULQ is only as published.
        delta: δ of the components; None means 1/n². Laplace noise spends none of it.
        C: penalty of the support vector machine.

    The second moment is relative to the middle of the bounds and not to the mean of the data, because that
    mean would have to be private too. The noise is an exact discrete Laplace or Gaussian from the operating
    system's randomness. There is no `random_state`, and two fits differ.

    Attributes:
        components_: (k, d) private directions in half-ranges.
        guarantee_: the guarantee for `components_` alone.
        classifier_guarantee_: the guarantee for everything else that is fitted: none.
        classifier_: the support vector machine, trained on raw projections. Do not release this classifier.
        classes_: the labels.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        bounds: Any = None,
        clip_norm: float | None = None,
        mechanism: str = "laplace",
        calibration: str = "proved",
        delta: float | None = None,
        C: float = 1.0,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.bounds = bounds
        self.clip_norm = clip_norm
        self.mechanism = mechanism
        self.calibration = calibration
        self.delta = delta
        self.C = C

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the components at a cost of ε and δ, and the classifier without any privacy.

        Args:
            X: (n, d) finite numbers in original units.
            y: (n,) labels.

        Raises:
            ValueError: a parameter is out of range, bounds are missing, or a row has a value that is not a
                finite number.
        """
        check_numbers(X)
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        k = component_count(self.n_components, rows.shape[1])
        table = encode_table(rows, self.bounds, self.clip_norm)
        mechanism = self._mechanism(table)
        self.components_ = leading_directions(table.second_moment + self._noise(mechanism), k)
        self.guarantee_ = mechanism.guarantee
        self.classifier_guarantee_ = NoGuarantee(
            "the classifier is trained on raw projections and released without noise"
        )
        self._centre, self._half_range = table.centre, table.half_range
        self.classifier_ = SVC(kernel="linear", C=self.C).fit(self._project(rows), labels)
        return self

    def scores(self, X: Any) -> Floats:
        """(n, k) scores of rows, for the holder of the rows. Scores are not private."""
        check_is_fitted(self)
        check_numbers(X)
        return self._project(validate_data(self, X, dtype=np.float64, reset=False))

    def decision_function(self, X: Any) -> Floats:
        scores = self.scores(X)
        return np.asarray(self.classifier_.decision_function(scores))

    def predict(self, X: Any) -> Any:
        scores = self.scores(X)
        return self.classifier_.predict(scores)

    def _project(self, rows: Floats) -> Floats:
        return np.asarray(((rows - self._centre) / self._half_range) @ self.components_.T)

    def _mechanism(self, table: EncodedTable) -> Mechanism:
        rows, d = table.z.shape
        chosen = _MECHANISMS.get((self.mechanism, self.calibration))
        if chosen is None:
            offered = ", ".join(f"{name} {calibration}" for name, calibration in _MECHANISMS)
            raise ParameterError(
                "bad-argument", f"mechanism and calibration must be one of these pairs: {offered}"
            )
        epsilon = positive_parameter(self.epsilon, "epsilon")
        delta = (
            Fraction(1, max(rows, 2) ** 2) if self.delta is None else positive_parameter(self.delta, "delta")
        )
        if delta >= 1:
            raise ParameterError("bad-argument", "delta must be below 1")
        return chosen.calibrated(Setting(Quantity.SECOND_MOMENT, d, table.record_bound, epsilon, delta))

    def _noise(self, mechanism: Mechanism) -> Floats:
        return noise_matrix(mechanism)


def leading_directions(matrix: Floats, k: int) -> Floats:
    """(k, d) eigenvectors of the k largest eigenvalues, with a fixed choice of signs."""
    _, columns = np.linalg.eigh(matrix)
    return settle_signs(np.ascontiguousarray(columns[:, ::-1][:, :k].T))


def component_count(wanted: Any, d: int) -> int:
    """k from a parameter that may be None.

    Raises:
        ParameterError: the parameter is not a whole number from 1 to d.
    """
    if wanted is None:
        return d
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or not 1 <= wanted <= d:
        raise ParameterError("bad-argument", f"n_components must be None or a whole number from 1 to {d}")
    return int(wanted)
