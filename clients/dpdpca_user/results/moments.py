"""Covariances, correlations and means from a release, each with the standard deviation of its noise.

All of this is post-processing of one release, so it costs no budget, and every analysis that needs only first
and second moments may use it. The figures are about all records of the study, not about a population behind
them: a deviation here contains no sampling error.

Noise is removed in two steps. Each component above its noise edge gets the variance that it really captures.
Of what is left, the entries off the diagonal are shrunk by one factor, which compares their size with that of
the noise: near 1 if there is little noise, and 0 if noise alone explains them. Variances stay as released.
"""

from dataclasses import dataclass, replace
from math import sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.result.components import Components, Floats
from dpdpca_protocol.terms.figures import Figures
from dpdpca_user.results.clipping import ClippingFigures
from dpdpca_user.results.gaps import same_feature, without_gaps
from dpdpca_user.results.reliability import Reliability

Kind = Literal["covariance", "correlation"]

_FALSE_ALARM = 0.02
"""How often noise alone may lift any entry of a table above its bound, as for the noise edge."""
_FLOOR = 2.0
"""Deviations of its noise below which a variance is too small to divide by."""


@dataclass(frozen=True, slots=True)
class MomentTable:
    """A symmetric table of figures about pairs of features.

    Attributes:
        kind: covariances are in products of original units; correlations have none.
        names: d encoded features.
        values: (d, d); NaN for a correlation of a feature whose variance is lost in the noise.
        deviations: (d, d) standard deviations of the noise in the released figures; NaN as for `values`. In a
            study of pairs they contain the choice of the pairs, and in a covariance the uncertainty of
            `factor`.
        in_noise: (d, d) entries that cannot be told from noise. If all true entries were 0, one or more of a
            table would miss this mark in at most 2 of 100 releases.
        kept: the factor by which entries off the diagonal were shrunk, apart from the components above their
            noise edges; 1 if the noise was not removed.
        factor: what covariances were multiplied by to undo the loss of length by clipping; 1 if the release
            does not tell it. Correlations do not change.
        present: the share of coordinates with a value, by which figures were corrected for missing values; 1
            if they were not.
    """

    kind: Kind
    names: tuple[str, ...]
    values: Floats
    deviations: Floats
    in_noise: NDArray[np.bool_]
    kept: float
    factor: float = 1.0
    present: float = 1.0

    @property
    def hidden_count(self) -> int:
        """How many figures on and above the diagonal cannot be told from noise."""
        return int(np.triu(self.in_noise).sum())


@dataclass(frozen=True, slots=True)
class MeanTable:
    """The mean of each feature.

    Attributes:
        names: d encoded features.
        values, deviations: (d,) in original units; the deviations are those of the noise.
    """

    names: tuple[str, ...]
    values: Floats
    deviations: Floats


@dataclass(frozen=True, slots=True)
class Moments:
    """What a release says about first and second moments.

    All figures here are in a unit of their own, in which the largest variance is about 1, because squares of
    variances in the metric's units may exceed the largest double.

    Attributes:
        components: of the release, at least all that are above their noise edges.
        root_unit: the unit of the axes, in the metric's units.
        variances: (d,) as released.
        mean: (d,) the released mean less the public centre; 0 without a mean.
        diagonal, off_diagonal: deviations of the noise on the entries of the covariance.
        on_mean: deviation of the noise on each coordinate of `mean`; 0 without a mean.
        bessel: N/(N − 1), by which the noise of the mean counts more in a covariance.
        pairs: the number of pairs, or None.
        clipping: what clipping did, if the release tells.
    """

    components: Components
    root_unit: float
    variances: Floats
    mean: Floats
    diagonal: float
    off_diagonal: float
    on_mean: float
    bessel: float
    pairs: int | None
    clipping: ClippingFigures | None

    @classmethod
    def of(
        cls,
        components: Components,
        reliability: Reliability,
        figures: Figures,
        owners: int | None = None,
    ) -> "Moments":
        """What a release says.

        Args:
            components: from `fit_components`.
            reliability: of the same release.
            figures: of its study, with as many draws of noise as the release has.
            owners: how many are in the cohort; needed if they drew the noise.
        """
        space, count = components.space, components.count
        law, factor = figures.law(count, owners), figures.mechanism.factor(count)
        degrees = count if reliability.of_pairs else max(count - 1, 1)
        largest = float(np.abs(reliability.variances).max()) or 1.0
        root, grid = sqrt(largest), space.unit / figures.grid
        entry = (grid / root) ** 2 / degrees
        mean = np.zeros(len(space.names))
        if components.mean is not None:
            mean = (components.mean - space.centre) / space.scale / root
        per_component = ("eigenvalues", "noise_edges", "captured", "signals")
        return cls(
            components=replace(
                components, **{name: getattr(components, name) / largest for name in per_component}
            ),
            root_unit=root,
            variances=reliability.variances / largest,
            mean=mean,
            diagonal=float(law.diagonal / factor**2) ** 0.5 * entry,
            off_diagonal=float(law.off_diagonal / factor**2) ** 0.5 * entry,
            on_mean=0.0 if components.mean is None else float(law.sum_) ** 0.5 / count * grid / root,
            bessel=count / degrees,
            pairs=count if reliability.of_pairs else None,
            clipping=reliability.clipping,
        )

    @property
    def known_variances(self) -> NDArray[np.bool_]:
        """(d,) whether the variance of a feature is far enough above its noise to divide by."""
        return np.asarray(self.variances > _FLOOR * self._noise_deviations())

    def covariance(self, remove_noise: bool = True, positive: bool = False) -> MomentTable:
        """(d, d) covariances of the encoded features, in products of original units.

        Args:
            remove_noise: whether the noise is removed as far as possible.
            positive: whether negative eigenvalues are replaced by 0, so that the table is positive
                semidefinite. Without noise to remove, few tables need that.

        Raises:
            ConflictError: `components-missing`, the noise is to stay, but the model has not all d components.
        """
        released, kept = self._matrix(remove_noise)
        variance = self._noise_variance()
        in_noise = np.abs(released) <= _bound(len(released)) * np.sqrt(variance)
        matrix, shrunk = self._whole(released), self._shrunk()
        if positive:
            matrix = _semidefinite(matrix)
        factor, deviation = 1.0, 0.0
        if self.clipping is not None and self.clipping.factor is not None:
            factor, deviation = self.clipping.factor, self.clipping.factor_deviation or 0.0
        unsure = (matrix * deviation) ** 2 + (factor * self._unsure_of_gaps(released)) ** 2
        spread = (variance + self._pairing(released)) / shrunk**2
        deviations = np.sqrt(factor**2 * spread + unsure)
        scale = np.outer(self._scale, self._scale)
        return MomentTable(
            kind="covariance",
            names=self.components.space.names,
            values=factor * matrix * scale,
            deviations=deviations * scale,
            in_noise=in_noise,
            kept=kept,
            factor=factor,
            present=self._present,
        )

    def correlation(self, remove_noise: bool = True, positive: bool = False) -> MomentTable:
        """(d, d) correlations of the encoded features.

        Args:
            remove_noise, positive: as for `covariance`. A semidefinite table again has ones on its diagonal.

        Raises:
            ConflictError: `components-missing`, as for `covariance`.

        Source: the deviations follow from the first derivatives of rᵢⱼ = Cᵢⱼ/√(Cᵢᵢ Cⱼⱼ), with the exact
            covariances of the noise on the three.
        """
        released, kept = self._matrix(remove_noise)
        matrix = self._whole(released)
        known = self.known_variances & (np.diag(matrix) > 0)
        root = np.sqrt(np.where(known, self.variances, 1.0))
        whole_root = np.sqrt(np.where(known, np.diag(matrix), 1.0))
        both = np.outer(known, known)
        values = np.clip(matrix / np.outer(whole_root, whole_root), -1.0, 1.0)
        # Gaps shrink a covariance more than the two variances, so they shrink a correlation too.
        shrunk = self._shrunk() * np.outer(whole_root, whole_root) / np.outer(root, root)
        if positive:
            values = _with_unit_diagonal(_semidefinite(np.where(both, values, np.eye(len(values)))))
        variance = self._correlation_variance(values * shrunk, root) / shrunk**2
        in_noise = np.abs(values) <= _bound(len(matrix)) * np.sqrt(variance)
        variance = variance + (values * self._present_deviation / self._present) ** 2
        if self.pairs is not None:
            variance = variance + (1 - values**2) ** 2 / (2 * self.pairs)
        np.fill_diagonal(variance, 0.0)
        np.fill_diagonal(values, 1.0)
        np.fill_diagonal(in_noise, False)
        return MomentTable(
            kind="correlation",
            names=self.components.space.names,
            values=np.where(both, values, np.nan),
            deviations=np.where(both, np.sqrt(variance), np.nan),
            in_noise=in_noise | ~both,
            kept=kept,
            present=self._present,
        )

    def means(self) -> MeanTable:
        """(d,) private means in original units.

        Raises:
            ConflictError: `no-mean`, the release has none.
        """
        components = self.components
        if components.mean is None:
            raise ConflictError(
                "no-mean",
                "this release has no mean: a masked study hides it, and a study of pairs does not need it",
                "use a joint study",
            )
        return MeanTable(components.space.names, components.mean, self.on_mean * self._scale)

    def loadings(self) -> tuple[Floats, Floats]:
        """(k̂, d) loadings of the components above their noise edges, and the deviations of their noise, in
        the metric's units.

        A loading is an entry of a component times √(the variance that the component captures).
        """
        loadings, deviations = self._loadings()
        return loadings * self.root_unit, deviations * self.root_unit

    def correlations_with_components(self) -> tuple[Floats, Floats]:
        """(k̂, d) correlations of features with the components above their noise edges, and the deviations of
        the noise in the loadings; NaN where noise hides a variance."""
        root = np.sqrt(np.where(self.known_variances, self.variances, np.nan))
        loadings, deviations = self._loadings()
        return loadings / root, deviations / root

    def _loadings(self) -> tuple[Floats, Floats]:
        """Source: to first order, noise turns vₖ towards vₗ by a normal deviate of deviation s/(θ̂ₖ − θ̂ₗ), and
        towards everything below the edges by s/θ̂ₖ in each direction."""
        components = self.components
        k = components.trusted_count
        vectors, signals = components.vectors[:k], components.signals[:k]
        gaps = signals[:, None] - signals[None, :]
        np.fill_diagonal(gaps, np.inf)
        between = np.minimum(self.off_diagonal / np.maximum(np.abs(gaps), 1e-300), 1.0) ** 2
        rest = np.maximum(1 - (vectors**2).sum(axis=0), 0.0)
        turned = between @ vectors**2 + rest * (self.off_diagonal / signals[:, None]) ** 2
        size = np.sqrt(components.captured[:k])[:, None]
        return vectors * size, np.sqrt(np.minimum(turned, 1.0)) * size

    @property
    def _scale(self) -> Floats:
        """(d,) original units per unit of these figures."""
        return np.asarray(self.components.space.scale * self.root_unit)

    def _matrix(self, remove_noise: bool) -> tuple[Floats, float]:
        """(d, d) covariances in the metric's units, and what was kept of entries below the noise edges."""
        components, d = self.components, len(self.variances)
        is_complete = components.component_count == d
        if not remove_noise:
            if not is_complete:
                raise ConflictError(
                    "components-missing",
                    f"the model has only {components.component_count} of {d} components, so its covariances "
                    "are known without noise only",
                    "remove the noise",
                )
            return _symmetric((components.vectors.T * components.eigenvalues) @ components.vectors), 1.0
        k = components.trusted_count
        leading = (components.vectors[:k].T * components.captured[:k]) @ components.vectors[:k]
        kept = 0.0
        if is_complete and k < d:
            below = (components.vectors[k:].T * components.eigenvalues[k:]) @ components.vectors[k:]
            np.fill_diagonal(below, 0.0)
            kept = self._kept(float((below**2).sum()), components.vectors[:k])
            leading += kept * below
        elif k == d:
            kept = 1.0
        np.fill_diagonal(leading, self.variances)
        return _symmetric(leading), kept

    def _kept(self, size: float, vectors: Floats) -> float:
        """The factor that gives entries of this sum of squares the least expected error.

        Source: an estimate of 1 − E|noise|²/E|entry|², as in James and Stein's.
        """
        d, k = len(self.variances), len(vectors)
        mean = self.mean - (vectors @ self.mean) @ vectors
        noise = (d - k) * (d - k - 1) * self.off_diagonal**2
        noise += 2 * (d - k) * (self.bessel * self.on_mean) ** 2 * float(mean @ mean)
        return max(0.0, 1 - noise / size) if size > 0 else 0.0

    @property
    def _present(self) -> float:
        return 1.0 if self.clipping is None else self.clipping.present

    @property
    def _present_deviation(self) -> float:
        gaps = None if self.clipping is None else self.clipping.gaps
        return 0.0 if gaps is None or self._present == 1 else gaps.present_deviation

    def _whole(self, matrix: Floats, present: float | None = None) -> Floats:
        """(d, d) covariances as they would be without gaps, for this share of coordinates with a value."""
        second = matrix + self.bessel * np.outer(self.mean, self.mean)
        within = np.where(same_feature(self.components.space), second, 0.0)
        return without_gaps(matrix, within, self._present if present is None else present)

    def _shrunk(self) -> Floats:
        """(d, d) by what gaps multiplied the released entries, and so their noise, on average."""
        present = self._present
        return np.where(same_feature(self.components.space), present, present**2)

    def _unsure_of_gaps(self, matrix: Floats) -> Floats:
        """(d, d) what the uncertainty of the share of gaps adds to the deviations of covariances."""
        other = self._present - self._present_deviation
        return np.abs(self._whole(matrix, other) - self._whole(matrix))

    def _noise_variance(self) -> Floats:
        """(d, d) variances of the noise on the released covariances.

        Source: the noise of the mean adds −(μeᵀ + eμᵀ).
        """
        along = (self.bessel * self.on_mean) ** 2 * self.mean**2
        variance = self.off_diagonal**2 + along[:, None] + along[None, :]
        np.fill_diagonal(variance, self.diagonal**2 + 4 * along)
        return variance

    def _noise_deviations(self) -> Floats:
        return np.sqrt(np.diag(self._noise_variance()))

    def _pairing(self, matrix: Floats) -> Floats | float:
        """The variance that the choice of the pairs adds to a covariance."""
        if self.pairs is None:
            return 0.0
        variances = np.maximum(self.variances, 0.0)
        return (np.outer(variances, variances) + matrix**2) / (2 * self.pairs)

    def _correlation_variance(self, values: Floats, root: Floats) -> Floats:
        inverse = 1 / root**2
        across = np.outer(1 / root, 1 / root)
        first, second = values * inverse[:, None] / 2, values * inverse[None, :] / 2
        noise = (across * self.off_diagonal) ** 2 + (first**2 + second**2) * self.diagonal**2
        mean = self.bessel * self.on_mean * self.mean
        noise += (2 * first * mean[:, None] - across * mean[None, :]) ** 2
        noise += (2 * second * mean[None, :] - across * mean[:, None]) ** 2
        return np.asarray(noise)


def _bound(d: int) -> float:
    """Deviations that noise alone exceeds in any entry of a d × d table in at most 2 of 100 tables."""
    entries = d * (d + 1) // 2
    return NormalDist().inv_cdf(1 - _FALSE_ALARM / (2 * entries))


def _semidefinite(matrix: Floats) -> Floats:
    """The nearest positive semidefinite matrix in the sum of squares."""
    values, columns = np.linalg.eigh(matrix)
    return _symmetric((columns * np.maximum(values, 0.0)) @ columns.T)


def _symmetric(matrix: Floats) -> Floats:
    """Removes what rounding did to the symmetry, which solvers of equations rely on."""
    return np.asarray((matrix + matrix.T) / 2)


def _with_unit_diagonal(matrix: Floats) -> Floats:
    root = np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    return np.asarray(matrix / np.outer(root, root))
