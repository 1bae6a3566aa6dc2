"""Outlier scores of records, from published components alone.

T² says how unusual a record is within the components, and SPE (the squared prediction error) how far it lies
outside them. Each score belongs to one record and does not depend on other records. The limits are those of
records with a normal distribution whose mean and variances are the released ones. Released variances are
those of records that the clip norm may have shortened, while scores are those of records as they are.
"""

from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Self

import numpy as np

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.result.components import Components, Floats, finite_size_factor

_CLOSE = 0.9
"""A squared cosine with the true component from which on the noise moves T² and SPE only little."""
_UNSURE = 0.1
"""A relative deviation of the residual variance above which the limit of SPE is not to be relied on."""


@dataclass(frozen=True)
class OutlierScores:
    """Scores about the private mean, from leading components.

    Attributes:
        components: as published; the first `k` of them are used.
        k: at most the number of components above their noise edges.
        are_shortened: whether the clip norm may have shortened records of the study.
    """

    components: Components
    k: int
    are_shortened: bool = False

    @classmethod
    def of(cls, components: Components, k: int | None = None, *, are_shortened: bool = False) -> Self:
        """Scores from the first k components.

        Args:
            components: as published, with a mean.
            k: at most as many as are above their noise edges. None for those that are predicted to be near
                the true ones, but at least one.
            are_shortened: as the attribute.

        Raises:
            ConflictError: `no-mean`, without a mean there is no distance from it; `nothing-above-noise`, no
                component is above its noise edge.
        """
        if components.mean is None:
            raise ConflictError(
                "no-mean",
                "this release has no mean, and outlier scores measure the distance from the mean",
                "use a joint study, or scores of records after a lift",
            )
        trusted = components.trusted_count
        if not trusted:
            raise ConflictError(
                "nothing-above-noise",
                "no component can be told from noise, so no record can be called unusual",
                "use more records or a larger epsilon",
            )
        close = int(np.logical_and.accumulate(components.overlaps >= _CLOSE).sum())
        return cls(components, max(close, 1) if k is None else min(k, trusted), are_shortened)

    def t2(self, rows: Floats) -> Floats:
        """(n,) Hotelling's T² of (n, d) rows in original units: Σ score²/variance over the components."""
        return np.asarray((self._scores(self._centred(rows)) ** 2 / self._variances).sum(axis=1))

    def spe(self, rows: Floats) -> Floats:
        """(n,) squared distances of the rows from the plane of the components, in the metric's units."""
        return np.asarray((self._residuals(rows) ** 2).sum(axis=1))

    def t2_contributions(self, rows: Floats) -> Floats:
        """(n, d) what each feature adds to T²; the sum over features is T². Entries may be negative."""
        centred = self._centred(rows)
        weights = (self._scores(centred) / self._variances) @ self._vectors
        return np.asarray(centred * weights)

    def spe_contributions(self, rows: Floats) -> Floats:
        """(n, d) what each feature adds to SPE; the sum over features is SPE."""
        return np.asarray(self._residuals(rows) ** 2)

    def t2_limit(self, confidence: float) -> float:
        """What T² of a new record exceeds with probability 1 − confidence.

        Source: k(N² − 1)/(N(N − k)) times a quantile of F with k and N − k degrees of freedom, for a mean and
            a covariance of N records. If there are no more records than components, the quantile of χ².
        """
        from scipy.stats import chi2, f  # takes a second to import

        n, k = self.components.count, self.k
        if n <= k:
            return float(chi2.ppf(confidence, k))
        return float(k * (n * n - 1) / (n * (n - k)) * f.ppf(confidence, k, n - k))

    def spe_limit(self, confidence: float) -> float | None:
        """What SPE of a new record exceeds with probability 1 − confidence; None if the publication contains
        too few components to tell, or the components are those of a lift: it says nothing about the
        variance outside them.

        Source: Box's approximation g·χ²(h) with g = θ₂/θ₁ and h = θ₁²/θ₂, where θ₁ and θ₂ are the sums of
            the residual eigenvalues and of their squares. θ₁ is the total less what the components capture.
            θ₂ is that of the released residual less the energy of its noise.
        """
        from scipy.stats import chi2

        d, k = len(self.components.space.names), self.k
        if self.components.component_count < d or k == d or self.components.lifted is not None:
            return None
        first = self._residual_variance
        if first <= 0:
            return None
        unit = float(self._variances[0])  # squares of variances may exceed the largest double
        first = first / unit
        second = max(self._second_moment(unit), first**2 / (d - k))
        return float(second / first * chi2.ppf(confidence, min(first**2 / second, d - k)) * unit)

    def warnings(self) -> tuple[str, ...]:
        """What a reader of these scores has to know, as sentences."""
        d, n = len(self.components.space.names), self.components.count
        said = []
        if d > n:
            said.append(
                f"There are more features ({d}) than records ({n}), so the limits are only a rough guide."
            )
        if self.are_shortened:
            said.append(
                "The variances are those of shortened records: the study shortened what was longer than its"
                " clip norm. Scores are those of records as they are. If many were shortened, T² and SPE are"
                " too large for their limits."
            )
        low = float(self.components.overlaps[: self.k].min())
        if low < _CLOSE:
            said.append(
                f"The noise turned a component, so scores on it are only {sqrt(low):.0%} as large as on the"
                " true one. T² allows for this on average. SPE contains what is missing."
            )
        residual, noise = self._residual_variance, self.components.noise_scale * sqrt(d)
        if self.components.lifted is not None:
            said.append("A lift shows no variance outside its components, so there is no limit for SPE.")
        elif self.k < d and noise > _UNSURE * residual:
            said.append(
                "The noise moves the variance outside the components by more than a tenth, so the limit of"
                " SPE is only a rough guide."
            )
        return tuple(said)

    @cached_property
    def _vectors(self) -> Floats:
        return self.components.vectors[: self.k]

    @cached_property
    def _variances(self) -> Floats:
        return self.components.captured[: self.k]

    @property
    def _residual_variance(self) -> float:
        """θ₁."""
        return self.components.total_variance - float(self._variances.sum())

    def _centred(self, rows: Floats) -> Floats:
        return np.asarray((rows - self.components.origin) / self.components.space.scale)

    def _scores(self, centred: Floats) -> Floats:
        return np.asarray(centred @ self._vectors.T)

    def _residuals(self, rows: Floats) -> Floats:
        centred = self._centred(rows)
        return centred - self._scores(centred) @ self._vectors

    def _second_moment(self, unit: float) -> float:
        """θ₂ in units²: of the residual eigenvalues, and of what the noise moved out of the components."""
        components, d, k = self.components, len(self.components.space.names), self.k
        off_diagonal = components.noise_edge / (2 * sqrt(d) * finite_size_factor(d)) / unit
        diagonal, below = components.noise_scale / unit, components.eigenvalues[k:] / unit
        noise = (d - k) * ((d - k - 1) * off_diagonal**2 + diagonal**2)
        moved = (components.signals[:k] - components.captured[:k]) / unit
        return float((below**2).sum()) - noise + float((moved**2).sum())
