"""PCA-DPSVM: exact components, a support vector machine, and noise on its normal vector. Nothing is private.

The components V_k and the offset b are exact functions of the data and are released with the classifier. One
changed row is certain to change V_k and b, whatever the noise on w.
"""

import math
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.svm import SVC
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from dpdpca_lab.central.entropy import Floats, RealDraws
from dpdpca_lab.mechanisms import Calibration, NoGuarantee
from dpdpca_lab.pipelines.dppca_svm import component_count, leading_directions
from dpdpca_user.estimator import ParameterError, check_numbers, positive_parameter

RUBINSTEIN = "rubinstein-2012"


class PCADPSVM(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Principal components without noise, and a linear support vector machine with Laplace noise on its w.

    Args:
        n_components: k; None for all d.
        epsilon: the ε that the paper claims.
        C: penalty of the support vector machine.
        calibration: "as-published" for the paper's noise (`published_output_scale`), or "rubinstein-2012".
            The latter is the noise of Rubinstein et al. 2012 for w alone, of scale 4Cκ√k/ε, where κ is the
            largest norm of a projected row, read from the data.
        dimension: which dimension the paper's scale has: "d", as in its algorithm 2, or "k", since its lemma
            2 is about rows that are already projected.

    Whatever the scale, nothing is private, because the released V_k and b are exact.

    Attributes:
        components_: (k, d) exact principal directions. Not private.
        coef_: (1, k) noisy normal vector.
        intercept_: (1,) exact offset. Not private.
        guarantee_: none, and why.
        classes_: the two labels.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        epsilon: float = 1.0,
        C: float = 1.0,
        calibration: str = "as-published",
        dimension: str = "d",
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.C = C
        self.calibration = calibration
        self.dimension = dimension

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Fit on raw rows.

        Raises:
            ValueError: a parameter is out of range, a row has a value that is not a finite number, or there
                are not exactly two classes.
        """
        check_numbers(X)
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        kind = type_of_target(labels, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ParameterError(
                "bad-argument", f"Only binary classification is supported. The type of the target is {kind}"
            )
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ParameterError("bad-argument", "the classifier cannot be trained on only one class")
        k = component_count(self.n_components, rows.shape[1])
        self._check_scale()
        self.mean_ = rows.mean(axis=0)
        centred = rows - self.mean_
        self.components_ = leading_directions(centred.T @ centred / len(rows), k)
        scores = centred @ self.components_.T
        machine = SVC(kernel="linear", C=self.C).fit(scores, labels)
        self.coef_ = (
            np.asarray(machine.coef_) + self._scale(scores, rows.shape[1]) * self._laplace(k)[None, :]
        )
        self.intercept_ = np.asarray(machine.intercept_)
        self.guarantee_ = NoGuarantee("the components and the offset are exact functions of the data")
        return self

    def scores(self, X: Any) -> Floats:
        """(n, k) scores."""
        check_is_fitted(self)
        check_numbers(X)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray((rows - self.mean_) @ self.components_.T)

    def decision_function(self, X: Any) -> Floats:
        scores = self.scores(X)
        return np.asarray((scores @ self.coef_.T + self.intercept_).ravel())

    def predict(self, X: Any) -> Any:
        above = (self.decision_function(X) > 0).astype(int)
        return self.classes_[above]

    def _check_scale(self) -> None:
        if self.calibration not in (Calibration.AS_PUBLISHED, RUBINSTEIN):
            raise ParameterError(
                "bad-argument", f"calibration must be {Calibration.AS_PUBLISHED} or {RUBINSTEIN}"
            )
        if self.dimension not in ("d", "k"):
            raise ParameterError("bad-argument", "dimension must be d or k")
        positive_parameter(self.epsilon, "epsilon")

    def _scale(self, scores: Floats, d: int) -> float:
        count, k = scores.shape
        if self.calibration == RUBINSTEIN:
            reach = float(np.linalg.norm(scores, axis=1).max())
            return 4 * float(self.C) * reach * math.sqrt(k) / float(self.epsilon)
        return published_output_scale(count, d if self.dimension == "d" else k, self.epsilon, self.C)

    def _laplace(self, count: int) -> Floats:
        """Laplace draws of scale 1.

        This noise protects nothing, so it is drawn with no more care than in the paper.
        """
        return RealDraws().laplaces(count)


def published_output_scale(records: int, dimension: int, epsilon: float, penalty: float = 1.0) -> float:
    """2Cnd/ε, the scale of the Laplace noise on each coordinate of w.

    From w = Σ α_i y_i x_i with 0 ≤ α_i ≤ C, the paper counts |w|₁ ≤ nCd, and twice that for two data sets.

    Args:
        records: n.
        dimension: d, or k for rows that are already projected.
        epsilon: ε.
        penalty: C.

    Source: Huang et al. 2021, algorithm 2 and lemma 2.
    """
    return 2 * penalty * records * dimension / float(epsilon)


def noisy_normal_epsilon(k: int, dimension: int, epsilon: float) -> float:
    """Pure ε of w alone at that scale: ε√k/d, less than claimed. With V_k and b, there is none.

    Projected rows of norm at most 1 give |w|₁ ≤ √k·|w|₂ ≤ nC√k.
    """
    return float(epsilon) * math.sqrt(k) / dimension
