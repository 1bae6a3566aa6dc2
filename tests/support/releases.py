"""Releases of a table at hand, as a data user would have decrypted them: exact sums, seeded noise.

The noise is continuous and rounded to the grid, which is too fine for the difference to be seen.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from reference_data import Floats, Seeded

from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Components, EncodedSpace, fit_components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures, default_fraction_bits, figures_of
from dpdpca_protocol.terms.terms import Terms
from dpdpca_user.planning.draft import default_delta
from dpdpca_user.results.deviates import normal_deviates, symmetric_noise


@dataclass(frozen=True)
class Clipped:
    """Scaled rows after clipping, and what their release would be.

    Attributes:
        rows: (n, d) in half-ranges about the public centre, norms at most the clip norm; in a study of pairs,
            differences.
        figures: of the study.
    """

    rows: Floats
    figures: Figures

    @property
    def scatter(self) -> Floats:
        """(d, d) true scatter of the clipped rows, in half-ranges squared."""
        centred = self.rows - self.rows.mean(axis=0)
        scatter: Floats = centred.T @ centred
        return scatter

    @property
    def space(self) -> EncodedSpace:
        d = self.rows.shape[1]
        return EncodedSpace(tuple(f"x{j}" for j in range(d)), np.zeros(d), np.ones(d), common=False)

    def release(self, source: Seeded) -> NoisyScatter:
        """One draw of the noise."""
        n, d = self.rows.shape
        grid, law = self.figures.grid, self.figures.mechanism.law(n)
        factor = self.figures.mechanism.factor(n)
        noise = symmetric_noise(
            d, float(law.diagonal / factor**2) ** 0.5, float(law.off_diagonal / factor**2) ** 0.5, source
        )
        total = self.rows.sum(axis=0) * grid
        if self.figures.release is ReleaseKind.MASKED:
            return NoisyScatter(n, _integers(n * (self.scatter * grid**2 + noise)), None)
        if self.figures.release is ReleaseKind.PAIRS:
            return NoisyScatter(n, _integers(self.rows.T @ self.rows * grid**2 + 2 * noise), None, True)
        noisy_total = total + float(law.sum_) ** 0.5 * normal_deviates(d, source)
        moment = self.rows.T @ self.rows * grid**2 + noise
        return NoisyScatter(
            n,
            _integers(n * moment - np.outer(noisy_total, noisy_total)),
            tuple(int(value) for value in noisy_total),
        )

    def fit(self, noisy: NoisyScatter, count: int | None = None) -> Components:
        return fit_components(noisy, self.figures, self.space, count)


def clip_rows(scaled: Floats, norm: float) -> Floats:
    norms = np.linalg.norm(scaled, axis=1)
    clipped: Floats = scaled * np.minimum(1.0, norm / np.maximum(norms, 1e-300))[:, None]
    return clipped


def clipped(
    scaled: Floats,
    norm: float,
    epsilon: float,
    release: ReleaseKind = ReleaseKind.JOINT,
    weight: float = 0.05,
) -> Clipped:
    """A study of scaled rows at a clip norm and ε, with the default δ."""
    n, d = scaled.shape
    clip_norm = Fraction(norm).limit_denominator(10**6)
    figures = figures_of(
        Terms(
            release=release,
            encoded_features=d,
            clip_norm=clip_norm,
            fraction_bits=default_fraction_bits(d, clip_norm),
            epsilon=Fraction(epsilon).limit_denominator(10**6),
            delta=default_delta(n),
            sum_weight=Fraction(weight).limit_denominator(100)
            if release is ReleaseKind.JOINT
            else Fraction(0),
            max_records=2 * n if release is ReleaseKind.PAIRS else n,
            modulus_bits=3072,
        )
    )
    return Clipped(clip_rows(scaled, norm), figures)


def share_captured(vectors: Floats, scatter: Floats) -> float:
    """tr V'SV over the most that as many directions can have."""
    best = np.linalg.eigvalsh(scatter)[::-1][: len(vectors)].sum()
    return float(np.einsum("ki,ij,kj->", vectors, scatter, vectors) / best)


def _integers(matrix: Floats) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(entry) for entry in row) for row in matrix.tolist())
