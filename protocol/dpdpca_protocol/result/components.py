"""Computes principal components from a decrypted noisy scatter, and figures about their quality.

All of this is post-processing of a private release: it costs no budget and adds no privacy promise. The
figures that separate signal from noise come from the known law of the noise (its variances off the diagonal
and on the sums), never from the data. Components below the noise edge are kept and labelled.

Units: the release arrives in grid² units. Everything in `Components` is a variance (divided by N − 1, as
scikit-learn does) in the units of the metric that the manifest's scaling selects. With `range` the unit of
each axis is the feature's half-range. With `common` all axes keep their original units.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import CryptographicError, UsageError
from dpdpca_protocol.layout.blocks import CLIPPING, BlockName, gap_bound
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.terms.features import encoded_names, feature_units
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.terms import EncodingTerms

BELOW_THE_EDGE = "not distinguishable from noise"
"""The label of every component below its noise edge, wherever it is shown."""
OF_THE_SPAN = "of the span"
"""The label of a component of a lift with nearly the variance of another one: both can be told apart from the
rest, but not from each other."""
MIXTURE = "a mixture that the sketch did not resolve"
"""The label of a direction of a lift that is no noise, but whose column the sketch did not find. It has
variance, but no component belongs to it."""
LOWER_BOUND = "lower bound"
VARIANCE = "variance"

Floats = NDArray[np.float64]

_TIE = 1 - 1e-9
_SUBSET_FROM = 128


def scatter_matrix(noisy: NoisyScatter) -> Floats:
    """S̃ as (d, d) float64 in grid² units, each entry rounded once from exact integers."""
    divisor = noisy.divisor
    return np.array([[entry / divisor for entry in row] for row in noisy.scaled_scatter])


@dataclass(frozen=True, slots=True)
class EncodedSpace:
    """The axes of an encoded record: x = centre + half_range · z/q.

    Attributes:
        names: one for each encoded feature; a categorical feature has one for each level.
        centre: (d,) public centres in original units.
        half_range: (d,) the size of one unit of the encoded feature in original units. With `common` scaling
            all half-ranges here are the largest one.
        common: whether all features have one scale, so that the metric is that of the original units.
        widths: how many encoded features each feature has; empty if each has one.
    """

    names: tuple[str, ...]
    centre: Floats
    half_range: Floats
    common: bool
    widths: tuple[int, ...] = ()

    @classmethod
    def of(cls, terms: EncodingTerms) -> Self:
        units = feature_units(terms.features, terms.scaling)
        return cls(
            encoded_names(terms.features),
            np.array([float(origin) for origin, _ in units]),
            np.array([float(divisor) for _, divisor in units]),
            terms.scaling == "common",
            tuple(feature.width for feature in terms.features),
        )

    @property
    def unit(self) -> float:
        """The size of one encoded unit on each axis of the metric."""
        return float(self.half_range[0]) if self.common else 1.0

    @property
    def scale(self) -> Floats:
        """(d,) original units per unit of the metric."""
        return np.ones_like(self.half_range) if self.common else self.half_range


@dataclass(frozen=True, slots=True)
class Lifted:
    """What only the components of a lift have, with or without scores.

    Attributes:
        trusted_count: k̂, how many leading components the sketch shows, and the lift above its noise edge.
        above_count: how many leading directions are above the noise edge of the lift.
        singular_values: (k,) of the lift, descending, in its integers; `Components.noise_edge` is about them.
        deviations: (k,) standard deviations of the noise of `Components.captured`; None without scores, where
            the variances are lower bounds.
        of_span: (k,) whether a figure is about the span with a neighbour of nearly the same variance.
        unseen_variance: the variance that a component may have without being found.
    """

    trusted_count: int
    above_count: int
    singular_values: Floats
    deviations: Floats | None
    of_span: NDArray[np.bool_]
    unseen_variance: float

    def label(self, index: int) -> str:
        """The label of component `index` (from 0)."""
        if index >= self.above_count:
            return BELOW_THE_EDGE
        if index >= self.trusted_count:
            return MIXTURE
        return OF_THE_SPAN if self.of_span[index] else ""

    def leading(self, count: int) -> Self:
        """The figures of the first `count` components."""
        return replace(
            self,
            trusted_count=min(self.trusted_count, count),
            above_count=min(self.above_count, count),
            singular_values=self.singular_values[:count],
            deviations=None if self.deviations is None else self.deviations[:count],
            of_span=self.of_span[:count],
        )


@dataclass(frozen=True, slots=True)
class Components:
    """Noisy principal components, best first, with quality figures for each.

    The components of a lift come from no matrix of covariances. Their `eigenvalues` and `captured` are the
    variances that their scores have, or lower bounds, and `noise_scale`·√d is the deviation of the total.

    Attributes:
        space: the axes. `vectors` are orthonormal in the metric of this space.
        count: N, or the number of pairs.
        vectors: (k, d) one component in each row. The loading with the largest absolute value is positive.
        eigenvalues: (k,) the eigenvalues of the noisy covariance, as in the scree plot.
        noise_edges: (k,) the level that noise alone exceeds in at most 2 of 100 releases, in the direction of
            each component.
        captured: (k,) the estimated variance that each component really captures: θ̂ − g/θ̂ for the leading
            components above their noise edges, and 0 for the others.
        signals: (k,) θ̂, the estimate of the true eigenvalue of each component; 0 where `captured` is 0.
        overlaps: (k,) the predicted squared cosine with the true component; an upper estimate if eigenvalues
            are close; 0 where `captured` is 0.
        noise_scale: the standard deviation of the noise on a diagonal entry of the covariance.
        noise_edge: 2 s √d (1 + d^(−2/3)), the edge away from the mean's direction. s is the standard
            deviation of an entry off the diagonal (noise_scale/√2 for the Gaussian mechanism).
        total_variance: tr S̃/(N − 1). This estimate is unbiased and may be negative if noise dominates.
        mean: (d,) private mean in original units (joint release), or None. With scores, only its part along
            the components is known, and the rest is that of the public centre.
        lifted: what only the components of a lift have; None for those of a full matrix.
    """

    space: EncodedSpace
    count: int
    vectors: Floats
    eigenvalues: Floats
    noise_edges: Floats
    captured: Floats
    signals: Floats
    overlaps: Floats
    noise_scale: float
    noise_edge: float
    total_variance: float
    mean: Floats | None
    lifted: Lifted | None = None

    @property
    def component_count(self) -> int:
        return len(self.eigenvalues)

    @property
    def trusted_count(self) -> int:
        """k̂: the number of leading components above their noise edge."""
        if self.lifted is not None:
            return self.lifted.trusted_count
        below = np.flatnonzero(self.eigenvalues <= self.noise_edges)
        return int(below[0]) if len(below) else self.component_count

    @property
    def origin(self) -> Floats:
        """(d,) the point subtracted from rows before projection: the private mean or the public centre."""
        return self.space.centre if self.mean is None else self.mean

    def leading(self, count: int) -> Self:
        """The first `count` components; `count` is at least 1."""
        per_component = ("vectors", "eigenvalues", "noise_edges", "captured", "signals", "overlaps")
        cut: dict[str, Any] = {name: getattr(self, name)[:count] for name in per_component}
        return replace(self, lifted=self.lifted.leading(count) if self.lifted else None, **cut)

    @property
    def variance_kind(self) -> str:
        """What `captured` are: estimates of variances, or lower bounds."""
        return LOWER_BOUND if self.lifted is not None and self.lifted.deviations is None else VARIANCE

    def label(self, index: int) -> str:
        """The label of component `index` (from 0)."""
        if self.lifted is None:
            return "" if index < self.trusted_count else BELOW_THE_EDGE
        return self.lifted.label(index)

    def captured_share(self, k: int) -> tuple[float, bool]:
        """The fraction of the variance of the best k components that the released k capture.

        Returns:
            The fraction in [0, 1], and whether it is an estimate (k ≤ k̂) or only a lower bound (k > k̂).
        """
        signals, captured = float(self.signals[:k].sum()), float(self.captured[:k].sum())
        trusted = self.trusted_count
        if k > trusted:
            signals, captured = float(self.signals[:trusted].sum()), float(self.captured[:trusted].sum())
            spread = self.noise_scale * len(self.space.names) ** 0.5
            unexplained = max(self.total_variance + 2 * spread - signals, 0.0)
            unseen = self.lifted.unseen_variance if self.lifted else float(self.noise_edges.max()) / 2
            signals += min((k - trusted) * unseen, unexplained)
        share = captured / signals if signals > 0 else 0.0
        return min(max(share, 0.0), 1.0), k <= trusted and self.variance_kind == VARIANCE

    def scores(self, rows: Floats) -> Floats:
        """(n, d) rows in original units → (n, k) coordinates on the components, in the metric's units."""
        return ((rows - self.origin) / self.space.scale) @ self.vectors.T


def fit_components(
    noisy: NoisyScatter,
    figures: Figures,
    space: EncodedSpace,
    count: int | None = None,
    owners: int | None = None,
) -> Components:
    """The leading principal components of a noisy scatter.

    Args:
        noisy: the decrypted release, in grid units.
        figures: the figures of its study. The mechanism of these figures defines the noise, and q defines the
            grid.
        space: the d axes.
        count: k in [1, d]; None for all d.
        owners: how many are in the cohort; needed if they drew the noise.

    Returns:
        Components in the metric's units, eigenvalues descending.

    Raises:
        UsageError: shapes do not fit, or k is out of range.

    Source: the edge, the outlier map l = θ + s²d/θ and the overlap are those of a spiked symmetric Gaussian
        matrix. The joint release subtracts ṽṽᵀ/N, which adds −(μeᵀ + eμᵀ) to the noise, where e is the noise
        on v. Along u this raises s²d to g = s²d + var(e)·(|μ|² + d(μ·u)²). Without this correction, a mean
        far from the centre would lift a component of pure noise above the edge.
    """
    d = len(space.names)
    law, factor = figures.law(noisy.count, owners), figures.mechanism.factor(noisy.count)
    scatter, unit = scatter_of(noisy, figures, space)
    if scatter.shape != (d, d) or (noisy.sum is not None and len(noisy.sum) != d):
        raise UsageError(
            "wrong-shape", f"a scatter of shape {scatter.shape} does not fit {d} encoded features"
        )
    k = d if count is None else count
    if not 1 <= k <= d:
        raise UsageError(
            "wrong-shape", f"{k} components were requested, but there are {d}", f"request 1 to {d}"
        )
    values, vectors = leading_pairs(scatter, k)
    base_energy = float(law.off_diagonal / factor**2) * d
    energy = np.full(k, base_energy)
    mean = None
    if noisy.sum is not None:
        mean_grid = np.array([entry / noisy.count for entry in noisy.sum])
        offset = float(mean_grid @ mean_grid) + d * (vectors @ mean_grid) ** 2
        energy += float(law.sum_) * offset
        mean = space.centre + space.half_range * mean_grid / figures.grid
    finite_size = finite_size_factor(d)
    edges = 2 * np.sqrt(energy) * finite_size
    above = np.logical_and.accumulate(values > edges)
    signals = np.zeros(k)
    signals[above] = (values[above] + np.sqrt(values[above] ** 2 - 4 * energy[above])) / 2
    seen = signals > 0
    ratio = np.divide(energy, signals**2, out=np.ones(k), where=seen)
    return Components(
        space=space,
        count=noisy.count,
        vectors=vectors,
        eigenvalues=values * unit,
        noise_edges=edges * unit,
        captured=np.clip(signals * (1 - ratio), 0, None) * unit,
        signals=signals * unit,
        overlaps=np.clip(1 - ratio, 0, 1),
        noise_scale=float(law.diagonal / factor**2) ** 0.5 * unit,
        noise_edge=2 * base_energy**0.5 * finite_size * unit,
        total_variance=float(np.trace(scatter)) * unit,
        mean=mean,
    )


def finite_size_factor(d: int) -> float:
    """1 + d^(−2/3): the factor of the noise edge 2s√d for a matrix of finite size.

    Source: the largest eigenvalue of a symmetric Gaussian matrix is 2s√d(1 + ξ/(2d^(2/3))), where ξ follows
        the Tracy–Widom law of order 1, whose 99 % point is 2.02. At a finite size, noise alone exceeds the
        edge in 0.2 % (d = 1) to 0.9 % (large d) of releases; along a mean far from the centre in up to 2 %.
    Tested: tests/statistical/test_noise_edge.py.
    """
    return float(1 + d ** (-2 / 3))


def scatter_of(noisy: NoisyScatter, figures: Figures, space: EncodedSpace) -> tuple[Floats, float]:
    """S̃ in grid² units, and the variance that one such unit stands for."""
    return scatter_matrix(noisy), (space.unit / figures.grid) ** 2 / noisy.degrees


def leading_pairs(scatter: Floats, k: int) -> tuple[Floats, Floats]:
    """The k largest eigenvalues, descending, and their unit vectors as rows with fixed signs."""
    d = len(scatter)
    solved: tuple[Any, Any] | None = None
    if d >= _SUBSET_FROM and 4 * k <= d:
        try:
            from scipy.linalg import eigh  # takes half a second to import, and only the data user has it
        except ImportError:
            pass
        else:
            solved = eigh(scatter, subset_by_index=[d - k, d - 1])
    values, columns = solved if solved is not None else np.linalg.eigh(scatter)
    order = np.argsort(values, kind="stable")[::-1][:k]
    return np.asarray(values[order]), settle_signs(np.ascontiguousarray(columns[:, order].T))


def settle_signs(vectors: Floats) -> Floats:
    """Each row times ±1, so that its largest loading by absolute value (the first of equals) is positive."""
    sizes = np.abs(vectors)
    leaders = np.argmax(sizes >= sizes.max(axis=1, keepdims=True) * _TIE, axis=1)
    signs = np.where(vectors[np.arange(len(vectors)), leaders] < 0, -1.0, 1.0)
    return vectors * signs[:, None]


def check_scatter(noisy: NoisyScatter, figures: Figures, owners: int | None = None) -> None:
    """Refuses a scatter that no set of honest records within the bound can produce.

    A dishonest owner can encrypt anything. This check detects impossible data, not false data in general.

    Raises:
        CryptographicError: N is out of range, the trace is above N·K, a diagonal entry is below zero, or an
            entry is above the geometric mean of its diagonal entries, or what clipping did, or the number of
            missing values, is below zero or above what all rows allow, each by more than the noise's tail.
    """
    bound = noisy.count * figures.summed_bound / (2 if noisy.of_pairs else 1)
    d = len(noisy.scaled_scatter)
    if not 1 <= noisy.count <= figures.most_counted:
        raise _implausible(
            f"the release counts {noisy.count}, but the manifest allows at most {figures.most_counted}"
        )
    law, factor = figures.law(noisy.count, owners), figures.mechanism.factor(noisy.count)
    scatter = scatter_matrix(noisy)
    tail = law.triangle_bound / factor
    spread = np.full((d, d), tail)
    if noisy.sum is not None:
        each = float(law.sum_bound)
        mean = np.abs(np.array([entry / noisy.count for entry in noisy.sum]))
        spread += each * (mean[:, None] + mean[None, :]) + 3 * each * each / noisy.count
    slack = 1e-9 * (bound + tail) + 1
    if np.trace(scatter) > bound + tail * d**0.5 + slack:
        raise _implausible("the trace of the release is larger than records within the norm bound allow")
    diagonal = np.diag(scatter) + np.diag(spread) + slack
    if (diagonal < 0).any():
        raise _implausible("one of its variances is more negative than noise can explain")
    _check_told(noisy, figures, owners)
    root = np.sqrt(diagonal)
    if (np.abs(scatter) > np.outer(root, root) + spread + slack).any():
        raise _implausible("one of its covariances is larger than the two variances allow")


def _check_told(noisy: NoisyScatter, figures: Figures, owners: int | None) -> None:
    if noisy.gaps is not None:
        tail = figures.tail(BlockName.GAPS, owners)
        # A record without a partner counts too, so the number of pairs is not enough to bound the records.
        records = figures.max_records if noisy.of_pairs else noisy.count
        if not -tail <= noisy.gaps <= records * gap_bound(figures.encoded_features) + tail:
            raise _implausible("more values are missing than there can be")
    if noisy.clipped is None:
        return
    most = (noisy.count, noisy.count * figures.mechanism.setting.clip_bound)
    for name, value, bound in zip(CLIPPING, noisy.clipped, most, strict=True):
        tail = figures.tail(name, owners)
        if not -tail <= value <= bound + tail:
            raise _implausible("more rows were clipped, or longer ones, than there can be")


def _implausible(what: str) -> CryptographicError:
    return CryptographicError(
        "release-implausible",
        f"honest shares cannot give this release: {what}",
        "do not use the release; ask the owners which of them encoded records outside the manifest's bounds",
    )
