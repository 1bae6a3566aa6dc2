"""`FederatedPCA`: a finished study as a scikit-learn transformer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, time, timedelta
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from dpdpca_protocol.errors import InputError, UsageError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.columns import kind_of, wrong_kind
from dpdpca_protocol.result.components import Components, Floats
from dpdpca_protocol.result.outliers import OutlierScores
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.terms import EncodingTerms, may_shorten
from dpdpca_user.results.combined import Combination, combine
from dpdpca_user.results.correlation import CorrelationComponents, correlation_components
from dpdpca_user.results.model import Model
from dpdpca_user.results.moments import Moments
from dpdpca_user.results.reliability import Reliability
from dpdpca_user.results.tables import is_table, numeric_matrix, rows_of_table
from dpdpca_user.results.wide.notes import no_matrix

_NO_NUMBERS = (str, bytes, date, time, timedelta, np.datetime64, np.timedelta64)
"""Types that NumPy would convert to numbers silently, or refuse with a message of its own."""


class ParameterError(UsageError, ValueError):
    """A parameter is out of range. This error is also a `ValueError`, as users of scikit-learn expect."""


class NoisyPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """What both estimators share: fitted attributes, projection and its inverse.

    Attributes:
        components_: (k, d) orthonormal rows in the metric of the study, largest component first.
        explained_variance_: (k,) estimate of the variance that each released component really captures; 0
            for a component below the noise. The noise is removed; `noisy_eigenvalues_` has the released
            values.
        explained_variance_kind_: "variance", or "lower bound" for a lift without scores.
        explained_variance_deviation_: (k,) standard deviations of the noise in variances that scores show;
            None for all other releases.
        explained_variance_ratio_: `explained_variance_` divided by the released total variance.
        mean_: (d,) private mean in original units. This attribute is absent for a masked release, which has
            no mean. In a study with many features it is the centre of the manifest.
        center_: (d,) what is subtracted from a row: `mean_`, or the public centre of the features; with
            scores, the centre moved by the mean of the scores.
        scale_: (d,) what a row is divided by: half-ranges with `range` scaling, ones with `common`.
        noisy_eigenvalues_: (k,) eigenvalues as released, with noise, in the units of `explained_variance_`.
        noise_scale_: standard deviation of the noise of a variance, in the same units.
        noise_edge_: noisy eigenvalue below which a component cannot be distinguished from noise. In a study
            with many features: the same for the singular values of the lift.
        noise_edges_: (k,) the same for the direction of each component; in a joint release it is higher along
            the mean.
        n_trusted_components_: how many leading components are above their edge. All components are kept.
        predicted_overlap_: (k,) expected squared cosine with the true component; too high where eigenvalues
            are close.
        captured_share_: (k,) variance that the first i components capture, as a share of what the best i
            capture. An estimate up to `n_trusted_components_`, and a lower bound beyond.
        reliability_: 5 % and 95 % points from drawing the noise again, and the deviation of the total
            variance (`dpdpca_user.results.reliability.Reliability`); None for older model
            files, which lack it.
        clipped_share_, clipped_share_deviation_: estimate of the share of records (in a study of pairs, of
            differences) that the clip norm shortened, and the deviation of its noise. None, like the four
            attributes that follow, if the study, or one of several combined studies, does not tell.
        unclipped_variance_, unclipped_variance_deviation_: the variance before clipping that each component
            above its noise edge captures. Empty if noise hides the total. If the study tells how many values
            are missing, variances and total are as they would be without gaps.
        unclipped_total_variance_, unclipped_total_variance_deviation_: the total before clipping.
        missing_share_, missing_share_deviation_: estimate of the share of missing values in all records, and
            the deviation of its noise; None if the study does not tell.
        total_variance_: total over all features, as released: unbiased, and possibly negative if noise
            dominates.
        loadings_, loadings_std_: (k̂, d) loadings of the components above their noise edges, in the study's
            metric, and the standard deviations of their noise; absent for older model files.
        moments_: the tables behind `get_covariance` and `get_correlation`. `moments_.covariance().in_noise`
            marks the figures that cannot be told from noise. None for older model files.
        mean_std_: (d,) standard deviations of the noise in `mean_`; absent where `mean_` is.
        privacy_: ε, δ, relation, mechanism and study.
        n_samples_: N, the number of records; in a study of pairs, the number of pairs.
        n_components_, n_features_in_: k, and d.

    With `metric="correlation"` the release is standardised afterwards, at no privacy cost. With this
    metric, `components_`, `explained_variance_` (out of a total of d) and `scale_` are those of
    standardised features. From 20 features on, the noise is removed before standardising. Figures about
    noise, overlap and share remain those of the study's metric. If noise alone could have produced the
    release, as when the data do not vary, a `ParameterError` is raised.

    In each component, the loading with the largest absolute value (the first of equals) is positive. This
    rule is our own, so another version of a library does not flip signs. With `set_output`, `transform` gives
    a pandas or Polars frame.
    """

    components_: Floats
    explained_variance_: Floats
    explained_variance_kind_: str
    explained_variance_deviation_: Floats | None
    explained_variance_ratio_: Floats
    mean_: Floats
    center_: Floats
    scale_: Floats
    noisy_eigenvalues_: Floats
    noise_scale_: float
    noise_edge_: float
    noise_edges_: Floats
    n_trusted_components_: int
    n_components_: int
    predicted_overlap_: Floats
    captured_share_: Floats
    reliability_: Reliability | None
    clipped_share_: float | None
    clipped_share_deviation_: float | None
    unclipped_variance_: Floats | None
    unclipped_variance_deviation_: Floats | None
    unclipped_total_variance_: float | None
    unclipped_total_variance_deviation_: float | None
    missing_share_: float | None
    missing_share_deviation_: float | None
    total_variance_: float
    loadings_: Floats
    loadings_std_: Floats
    mean_std_: Floats
    moments_: Moments | None
    privacy_: dict[str, Any]
    n_samples_: int
    n_features_in_: int
    _released: Components
    _are_shortened: bool

    def _adopt(
        self,
        components: Components,
        k: int | None,
        privacy: dict[str, Any],
        reliability: Reliability | None,
        moments: Moments | None,
        metric: str,
        terms: EncodingTerms,
    ) -> None:
        found = _standardised(components, reliability, metric)
        available = components.component_count if found is None else len(found.vectors)
        k = available if k is None else k
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= available:
            raise ParameterError(
                "bad-argument",
                f"n_components must be a whole number from 1 to {available}",
                "leave it out to use all components",
            )
        if found is None:
            captured = components.captured[:k]
            total = max(components.total_variance, float(components.captured.sum()))
            self.components_, self.scale_ = components.vectors[:k], components.space.scale
        else:
            captured = found.explained[:k]
            total = max(float(len(found.scale)), float(found.explained.sum()))
            self.components_, self.scale_ = found.vectors[:k], found.scale
        lifted = components.lifted
        self.explained_variance_ = captured
        self.explained_variance_kind_ = components.variance_kind
        self.explained_variance_deviation_ = (
            None if lifted is None or lifted.deviations is None else lifted.deviations[:k]
        )
        self.explained_variance_ratio_ = captured / total if total > 0 else np.zeros(k)
        self.noisy_eigenvalues_ = components.eigenvalues[:k]
        self.noise_scale_ = components.noise_scale
        self.noise_edge_ = components.noise_edge
        self.noise_edges_ = components.noise_edges[:k]
        self.predicted_overlap_ = components.overlaps[:k]
        self.captured_share_ = np.array([components.captured_share(i)[0] for i in range(1, k + 1)])
        self.reliability_ = reliability
        self.total_variance_ = components.total_variance
        clipping = None if reliability is None else reliability.clipping
        self.clipped_share_ = None if clipping is None else clipping.share
        self.clipped_share_deviation_ = None if clipping is None else clipping.share_deviation
        self.unclipped_variance_ = None if clipping is None else clipping.variances[:k]
        self.unclipped_variance_deviation_ = None if clipping is None else clipping.deviations[:k]
        self.unclipped_total_variance_ = None if clipping is None else clipping.total_variance
        self.unclipped_total_variance_deviation_ = (
            None if clipping is None else clipping.total_variance_deviation
        )
        gaps = None if clipping is None else clipping.gaps
        self.missing_share_ = None if gaps is None else gaps.share
        self.missing_share_deviation_ = None if gaps is None else gaps.share_deviation
        self.n_trusted_components_ = min(components.trusted_count, k)
        self.n_components_ = k
        self.n_samples_ = components.count
        self.center_ = components.origin
        if lifted is not None:
            self.mean_ = components.space.centre
        elif components.mean is not None:
            self.mean_ = components.mean
        self._released, self.moments_ = components, moments
        self._are_shortened = may_shorten(terms)
        if moments is not None:
            self.loadings_, self.loadings_std_ = moments.loadings()
            if components.mean is not None:
                self.mean_std_ = moments.means().deviations
        self.privacy_ = privacy

    def get_covariance(self, remove_noise: bool = True, positive: bool = False) -> Floats:
        """(d, d) covariances of the encoded features, in products of original units.

        Args:
            remove_noise: whether the noise is removed as far as possible; variances stay as released.
            positive: whether the table is made positive semidefinite.

        Raises:
            ConflictError: `components-missing`, the noise is to stay, but not all components are known;
                `no-correlation`, a study with many features released no matrix of them.
        """
        return self._known_moments().covariance(remove_noise, positive).values

    def get_covariance_std(self, remove_noise: bool = True, positive: bool = False) -> Floats:
        """(d, d) standard deviations of the noise in the released covariances; arguments as for
        `get_covariance`."""
        return self._known_moments().covariance(remove_noise, positive).deviations

    def get_correlation(self, remove_noise: bool = True, positive: bool = False) -> Floats:
        """(d, d) correlations of the encoded features; NaN where noise hides a variance. Arguments as for
        `get_covariance`."""
        return self._known_moments().correlation(remove_noise, positive).values

    def get_correlation_std(self, remove_noise: bool = True, positive: bool = False) -> Floats:
        """(d, d) standard deviations of the noise in the correlations; arguments as for `get_covariance`."""
        return self._known_moments().correlation(remove_noise, positive).deviations

    def _known_moments(self) -> Moments:
        check_is_fitted(self)
        if self._released.lifted is not None:
            raise no_matrix()
        if self.moments_ is None:
            raise ParameterError(
                "bad-argument",
                "this model file is too old for tables: it lacks the reliability figures",
                "fetch the model again",
            )
        return self.moments_

    def transform(self, X: Any) -> Floats:
        """Project (n, d) rows in original units to (n, k) scores.

        Raises:
            ValueError: a row has a value that is not a finite number, or is so large that a score overflows.
        """
        check_is_fitted(self)
        with np.errstate(over="ignore", invalid="ignore"):
            return _finite(((self._rows(X) - self.center_) / self.scale_) @ self.components_.T)

    def score_t2(self, X: Any) -> Floats:
        """(n,) Hotelling's T² of each row: how unusual it is within the components.

        A row has the same score alone as in a table. `outlier_scores_` has the limits and the contributions
        of the features.

        Raises:
            ConflictError: `no-mean` or `nothing-above-noise`, the release allows no outlier scores.
            ValueError: as for `transform`.
        """
        return self._outlier_score(X, OutlierScores.t2)

    def score_spe(self, X: Any) -> Floats:
        """(n,) squared prediction error of each row: how far it lies outside the components, in the study's
        metric. Raises as for `score_t2`."""
        return self._outlier_score(X, OutlierScores.spe)

    @property
    def outlier_scores_(self) -> OutlierScores:
        """Limits of T² and SPE, what each feature adds to them, and warnings; from components that are
        predicted to be near the true ones, at most `n_components`.

        Raises:
            ConflictError: as for `score_t2`.
        """
        check_is_fitted(self)
        found = OutlierScores.of(self._released, are_shortened=self._are_shortened)
        return replace(found, k=min(found.k, self.n_components_))

    def _outlier_score(self, X: Any, score: Callable[[OutlierScores, Floats], Floats]) -> Floats:
        outliers = self.outlier_scores_
        with np.errstate(over="ignore", invalid="ignore"):
            return _finite(score(outliers, self._rows(X)))

    def inverse_transform(self, X: Any) -> Floats:
        """Map (n, k) scores back to (n, d) rows in original units."""
        check_is_fitted(self)
        scores = check_array(X, dtype=np.float64)
        if scores.shape[1] != self.n_components_:
            raise ParameterError(
                "wrong-shape",
                f"each row has {scores.shape[1]} scores, but there are {self.n_components_} components",
            )
        with np.errstate(over="ignore", invalid="ignore"):
            return _finite((scores @ self.components_) * self.scale_ + self.center_)

    def _rows(self, X: Any, *, reset: bool = False) -> Floats:
        """(n, d) finite numbers; `reset` is true when the estimator is being fitted to the rows."""
        with np.errstate(over="ignore", invalid="ignore"):  # scikit-learn sums up all values to find a NaN
            with _as_parameters():
                rows = numeric_matrix(X) if is_table(X) else None
            if rows is None:
                check_numbers(X)
                return np.asarray(validate_data(self, X, dtype=np.float64, reset=reset))
            validate_data(self, rows if isinstance(X, Mapping) else X, skip_check_array=True, reset=reset)
            return np.asarray(check_array(rows, dtype=np.float64, estimator=self, input_name="X"))

    @property
    def _n_features_out(self) -> int:
        """How many names `get_feature_names_out` returns."""
        return int(self.n_components_)


def positive_parameter(value: Any, what: str) -> Fraction:
    """The exact value of a finite parameter above 0.

    Raises:
        ParameterError: the value is not a finite number above 0.
    """
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, Real):
        raise ParameterError("bad-argument", f"{what} must be a number")
    try:
        exact = Fraction(int(value)) if isinstance(value, Integral) else Fraction(float(value))
    except (OverflowError, ValueError) as error:
        raise ParameterError("bad-argument", f"{what} must be a finite number above 0") from error
    if exact <= 0:
        raise ParameterError("bad-argument", f"{what} must be a finite number above 0")
    return value if isinstance(value, Fraction) else exact


def _finite(values: Floats) -> Floats:
    if not np.isfinite(values).all():
        raise ParameterError("row-too-large", "a row has values too large to be projected", "leave it out")
    return values


def check_numbers(X: Any) -> None:
    """Refuse an array with an entry that is not a number but would become one as float64.

    Raises:
        ParameterError: an entry is a text, date, time, duration or structure, or is masked.
    """
    values = X if isinstance(X, np.ndarray) else np.asanyarray(X)
    if np.ma.is_masked(values):
        raise ParameterError("bad-argument", "X has masked entries", "leave these rows out, or fill them in")
    if values.ndim != 2 or values.dtype.kind not in "OSUTmMV":
        return
    for place, value in np.ndenumerate(values):
        if isinstance(value, _NO_NUMBERS) or values.dtype.kind == "V":
            with _as_parameters():
                raise wrong_kind(Feature(f"{place[1]}", "numeric"), kind_of(value), place[0] + 1)


@contextmanager
def _as_parameters() -> Iterator[None]:
    """Turns an InputError about rows into a ParameterError, which is a `ValueError` for scikit-learn."""
    try:
        yield
    except InputError as error:
        raise ParameterError(error.slug, error.problem, error.next_step) from error


def _standardised(
    components: Components, reliability: Reliability | None, metric: str
) -> CorrelationComponents | None:
    if metric == "study":
        return None
    if metric != "correlation":
        raise ParameterError("bad-argument", "metric must be 'study' or 'correlation'")
    if components.lifted is not None:
        raise no_matrix()
    if reliability is None:
        raise ParameterError(
            "bad-argument",
            "this model file is too old to be standardised: it lacks the reliability figures",
            "fetch the model again",
        )
    found = correlation_components(components, reliability)
    if found is None:
        raise ParameterError(
            "nothing-above-noise",
            "no component is certain to be above the noise, so nothing can be standardised",
            'use metric="study", more records or a larger epsilon',
        )
    return found


class FederatedPCA(NoisyPCA):
    """Principal components of a finished study, fetched from the data user's service.

    Args:
        service_url: address of the data user's service; None means the address in the environment, else this
            machine, as for the commands.
        token: its bearer token; if None, it is read from the token file in the data user's home folder.
        study: study id, 64 hex digits.
        n_components: how many of the released components to use; None for all.
        metric: "study" for the metric of the manifest, "correlation" for standardised features.

    `fit` fetches the model from the service and uses no rows. X may be left out, or be given by a pipeline.
    Rows for `transform` are arrays of the d encoded columns, or tables with the manifest's columns by name.
    `study_` is the study id, and `model_` the whole model.

    Example:
        >>> pca = FederatedPCA("http://127.0.0.1:8450", study="9f…", n_components=3).fit()  # doctest: +SKIP
        >>> scores = pca.transform(rows)  # doctest: +SKIP
    """

    model_: Model
    study_: str
    combination_: Combination

    def __init__(
        self,
        service_url: str | None = None,
        token: str | None = None,
        study: str | None = None,
        n_components: int | None = None,
        metric: str = "study",
    ) -> None:
        self.service_url = service_url
        self.token = token
        self.study = study
        self.n_components = n_components
        self.metric = metric

    @classmethod
    def from_model(cls, path: str | Path, n_components: int | None = None, metric: str = "study") -> Self:
        """A fitted estimator from a model file, without a service."""
        estimator = cls(n_components=n_components, metric=metric)
        estimator._adopt_model(Model.from_bytes(Path(path).read_bytes()))
        return estimator

    @classmethod
    def from_models(
        cls, paths: Iterable[str | Path], n_components: int | None = None, metric: str = "study"
    ) -> Self:
        """A fitted estimator from the model files of several studies on disjoint records.

        The releases are added up, so the terms of the studies must agree. `combination_` is the result, and
        its `claim` says what it rests on. `reliability_.about_clipping` says what clipping did, and whether
        that was corrected: it is if every study tells it.

        Raises:
            ConflictError: `cannot-combine`, the message names the member that differs.
        """
        estimator = cls(n_components=n_components, metric=metric)
        models = [Model.from_bytes(Path(path).read_bytes()) for path in paths]
        found = estimator.combination_ = combine(models, OS_RANDOMNESS)
        estimator._adopt(
            found.components,
            n_components,
            {"claim": found.claim},
            found.reliability,
            found.moments,
            metric,
            models[0].manifest,
        )
        estimator.model_ = models[0]
        estimator.n_features_in_ = len(found.components.space.names)
        return estimator

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Fetch the model. If a pipeline passes rows, they are checked, but they do not change the model.

        Raises:
            NotFoundError: the service has no model of this study, or does not have it yet.
            UnavailableError: the service does not answer.
        """
        from dpdpca_user.service_client import ServiceClient, find_url

        if self.study is None:
            raise ParameterError("bad-argument", "study is not set", "give the id of a finished study")
        with ServiceClient(self.service_url or find_url(), self.token) as service:
            self._adopt_model(Model.from_bytes(service.model_file(self.study)))
        if X is not None:
            self._rows(X)
        return self

    def _adopt_model(self, model: Model) -> None:
        moments = None if model.reliability is None or model.is_wide else model.moments
        self._adopt(
            model.components,
            self.n_components,
            model.privacy,
            model.reliability,
            moments,
            self.metric,
            model.manifest,
        )
        self.model_ = model
        self.study_ = model.study.hex()
        self.n_features_in_ = len(model.components.space.names)

    def _rows(self, X: Any, *, reset: bool = False) -> Floats:
        if is_table(X):
            return rows_of_table(X, self.model_.manifest)
        return super()._rows(X, reset=reset)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_")
