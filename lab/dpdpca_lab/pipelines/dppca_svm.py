"""DPPCA-SVM: private components, then a support vector machine on the projected rows, published without
noise.

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

from dpdpca_lab.mechanisms import Calibration, NoGuarantee, PublishedLaplace
from dpdpca_lab.tables import EncodedTable, Floats, encode_table
from dpdpca_protocol.privacy.mechanisms import Laplace, Quantity, Setting
from dpdpca_protocol.result.components import settle_signs
from dpdpca_user.estimator import ParameterError, check_numbers, positive_parameter

_UNUSED_DELTA = Fraction(1, 2**40)
"""Laplace noise spends none of it, but a setting must have one."""


class DPPCASVM(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Components by Laplace noise on the second moment, then a linear support vector machine on the scores.

    Args:
        n_components: k; None for all d.
        epsilon: ε of the components.
        bounds: public (lower, upper) for all features, or one such pair for each feature. Required.
        clip_norm: r in half-ranges; None means √d. Noise grows with r².
        calibration: "proved" for noise with the proved ℓ₁ sensitivity, "as-published" for the paper's 2d.
        C: penalty of the support vector machine.

    The second moment is relative to the middle of the bounds and not to the mean of the data, because that
    mean would have to be private too. The noise is an exact discrete Laplace from the operating system's
    randomness. There is no `random_state`, and two fits differ.

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
        calibration: str = "proved",
        C: float = 1.0,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.bounds = bounds
        self.clip_norm = clip_norm
        self.calibration = calibration
        self.C = C

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the components at a cost of ε, and the classifier without any privacy.

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
        self.components_ = leading_directions(self._noisy_moment(table, mechanism), k)
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

    def _mechanism(self, table: EncodedTable) -> Laplace:
        try:
            calibration = Calibration(self.calibration)
        except ValueError as error:
            offered = " or ".join(Calibration)
            raise ParameterError("bad-argument", f"calibration must be {offered}") from error
        setting = Setting(
            Quantity.SECOND_MOMENT,
            table.z.shape[1],
            table.record_bound,
            positive_parameter(self.epsilon, "epsilon"),
            _UNUSED_DELTA,
        )
        chosen = Laplace if calibration is Calibration.PROVED else PublishedLaplace
        return chosen.calibrated(setting)

    def _noisy_moment(self, table: EncodedTable, mechanism: Laplace) -> Floats:
        d = table.z.shape[1]
        upper = np.triu_indices(d)
        noisy = np.zeros((d, d))
        drawn = self._draw(mechanism)
        noisy[upper] = [
            int(value) + noise for value, noise in zip(table.moments.second_moment[upper], drawn, strict=True)
        ]
        return noisy + np.triu(noisy, 1).T

    def _draw(self, mechanism: Laplace) -> list[int]:
        return mechanism.draw_triangle(1)


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
