"""`DPPCA`: the joint mechanism on a single local table, with the same integer arithmetic as a study.

No other party is involved. Whoever calls `fit` sees both the rows and the result, so the guarantee holds
against others who see the fitted attributes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT
from dpdpca_protocol.privacy.sensitivity import NeighbouringRelation
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, Floats, fit_components
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import (
    MAX_ENCODED_FEATURES,
    Feature,
    check_clip_norm,
    check_resolution,
    longest_norm_squared,
)
from dpdpca_protocol.terms.figures import Figures, default_fraction_bits, figures_of
from dpdpca_protocol.terms.members import MOST_CLIP_SHARE
from dpdpca_protocol.terms.release_rules import ReleaseRules, rules_of
from dpdpca_protocol.terms.statements import privacy_figures, privacy_statements
from dpdpca_protocol.terms.terms import Terms
from dpdpca_protocol.wire.fields import decimal_text
from dpdpca_user.estimator import NoisyPCA, ParameterError, positive_parameter
from dpdpca_user.planning.clipping import CLIP_CAP, CLIP_SHARE
from dpdpca_user.planning.draft import default_delta
from dpdpca_user.results.moments import Moments
from dpdpca_user.results.reliability import assess_release

_NOMINAL_MODULUS_BITS = 3072
"""Nothing is encrypted, but the figures need the width of a plaintext."""
_DEFAULT_CLIP = 0.35
"""Usual root-mean-square norm, divided by √d, of tables that are centred and scaled by half-ranges."""

_JOINT = rules_of(ReleaseKind.JOINT)


@dataclass(frozen=True, slots=True)
class LocalTerms:
    """The terms of a study for a table that has no manifest."""

    features: tuple[Feature, ...]
    figures: Figures
    clip_norm: Fraction
    fraction_bits: int
    scaling: str
    missing: str = "reject"
    nonnegative: bool = False
    rules: ReleaseRules = _JOINT


class DPPCA(NoisyPCA):
    """Differentially private principal components of one table.

    Args:
        n_components: how many components to keep; None for all.
        bounds: public bounds of the features: (lower, upper) for all, or one such pair for each feature.
            Required. Bounds must come from knowledge of the quantities and never from the data. Values
            outside are moved to the bound.
        epsilon, delta: privacy of this one fit. The relation is replace-one, and the number of rows is
            public. `delta=None` means min(10⁻⁶, 1/n²). Every further fit on the same rows spends as much
            again.
        clip_norm: r, bound on the 2-norm of a scaled row. The clip norm may not exceed the norm of the
            longest row that bounds and centres allow: √d if centres are in the middle, 2 √d if they are at an
            end. None means 0.35 √d, a rule that does not depend on the data. Noise grows with r², so a lower
            value is usually better than a higher one.
        centres: public guess of the mean, one number for each feature; None for the middle of the bounds.
        scaling: "range" divides each feature by its half-range, "common" divides all by the largest one.
        sum_weight: a/K in (0, 2], the weight of the mean in the budget; 0.05 if the centres are good.
        clip_share: the part of the budget that each of two numbers about clipping gets: how many rows were
            clipped, and how long they were; 0 to 0.1. With 0, no attribute says what clipping did.
        metric: "study" for the metric that `scaling` chooses, "correlation" for standardised features.

    The noise is an exact discrete Gaussian, drawn with the operating system's randomness. There is no
    `random_state`, and two fits differ. Attributes are those of `NoisyPCA`; NaN and infinities are refused.

    Example:
        >>> DPPCA(n_components=2, bounds=(0, 1), epsilon=1.0).fit(rows).components_  # doctest: +SKIP
    """

    _noise = EXACT  # tests replace it to see what the noise would hide

    def __init__(
        self,
        n_components: int | None = None,
        *,
        bounds: Any = None,
        epsilon: float = 1.0,
        delta: float | None = None,
        clip_norm: float | None = None,
        centres: Sequence[float] | None = None,
        scaling: str = "range",
        sum_weight: float = 0.43,
        clip_share: float = float(CLIP_SHARE),
        metric: str = "study",
    ) -> None:
        self.n_components = n_components
        self.bounds = bounds
        self.epsilon = epsilon
        self.delta = delta
        self.clip_norm = clip_norm
        self.centres = centres
        self.scaling = scaling
        self.sum_weight = sum_weight
        self.clip_share = clip_share
        self.metric = metric

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the components to the rows, at a privacy cost of (ε, δ).

        Args:
            X: (n, d) numbers in original units.
            y: ignored.

        Raises:
            ValueError: a parameter is out of range, bounds are missing, or a row has a value that is not a
                finite number.
        """
        rows = self._rows(X, reset=True)
        n, d = rows.shape
        terms = self._terms(n, d)
        privacy = self._privacy(terms, n)
        records = {feature.name: rows[:, j] for j, feature in enumerate(terms.features)}
        noisy = run_study(terms, [records], OS_RANDOMNESS, self._noise, UNENCRYPTED)
        assert isinstance(noisy, NoisyScatter)
        k = self._wanted(d)
        components = fit_components(noisy, terms.figures, EncodedSpace.of(terms))
        reliability = assess_release(noisy, terms.figures, components, OS_RANDOMNESS)
        moments = Moments.of(components, reliability, terms.figures)
        self._adopt(components, k, privacy, reliability, moments, self.metric, terms)
        return self

    def _wanted(self, d: int) -> int | None:
        k = self.n_components
        if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= d):
            raise ParameterError("bad-argument", f"n_components must be None or a whole number from 1 to {d}")
        return None if k is None else int(k)

    def _terms(self, n: int, d: int) -> LocalTerms:
        self._wanted(d)  # before anything is spent
        if self.metric not in ("study", "correlation"):
            raise ParameterError("bad-argument", "metric must be 'study' or 'correlation'")
        if self.scaling not in ("range", "common"):
            raise ParameterError("bad-argument", "scaling must be 'range' or 'common'")
        if d > MAX_ENCODED_FEATURES:
            raise ParameterError("bad-argument", f"X has more than {MAX_ENCODED_FEATURES} features")
        features = self._features(d)
        clip_norm = positive_parameter(
            _DEFAULT_CLIP * d**0.5 if self.clip_norm is None else self.clip_norm, "clip_norm"
        )
        delta = default_delta(n) if self.delta is None else positive_parameter(self.delta, "delta")
        if delta * n >= 1:
            raise ParameterError(
                "bad-argument",
                f"delta must be below 1/{n}, because a larger one allows publishing a whole row",
            )
        sum_weight = positive_parameter(self.sum_weight, "sum_weight")
        if sum_weight > 2:
            raise ParameterError("bad-argument", "sum_weight must be at most 2")
        clip_share = Fraction(0)
        if self.clip_share != 0:
            clip_share = positive_parameter(self.clip_share, "clip_share")
        if clip_share > MOST_CLIP_SHARE:
            raise ParameterError(
                "bad-argument", f"clip_share must be from 0 to {decimal_text(MOST_CLIP_SHARE)}"
            )
        try:
            check_clip_norm(features, self.scaling, clip_norm)
            fraction_bits = default_fraction_bits(d, clip_norm)
            check_resolution(features, self.scaling, 1 << fraction_bits)
            figures = figures_of(
                Terms(
                    release=ReleaseKind.JOINT,
                    encoded_features=d,
                    clip_norm=clip_norm,
                    fraction_bits=fraction_bits,
                    epsilon=positive_parameter(self.epsilon, "epsilon"),
                    delta=delta,
                    sum_weight=sum_weight,
                    max_records=n,
                    modulus_bits=_NOMINAL_MODULUS_BITS,
                    clip_share=clip_share,
                    clip_cap_squared=_cap_squared(features, self.scaling, clip_norm)
                    if clip_share
                    else Fraction(0),
                )
            )
        except PolicyError as error:
            raise ParameterError("bad-argument", error.problem, error.next_step) from error
        return LocalTerms(features, figures, clip_norm, fraction_bits, self.scaling)

    def _features(self, d: int) -> tuple[Feature, ...]:
        lower, upper = self._bounds(d)
        centres: Sequence[float | None] = [None] * d
        if self.centres is not None:
            given = _per_feature(self.centres, d, "centres")
            if ((given < lower) | (given > upper)).any():
                raise ParameterError("bad-argument", "a centre is outside its bounds")
            centres = given.tolist()
        return tuple(
            Feature(
                f"{j}", "numeric", Fraction(low), Fraction(high), None if centre is None else Fraction(centre)
            )
            for j, (low, high, centre) in enumerate(zip(lower.tolist(), upper.tolist(), centres, strict=True))
        )

    def _bounds(self, d: int) -> tuple[Floats, Floats]:
        if self.bounds is None:
            raise ParameterError(
                "bounds-missing",
                "public bounds of the features are required, because bounds taken from the data would leak"
                " the data",
                "give bounds=(lower, upper), or one such pair for each feature",
            )
        try:
            pairs = np.asarray(self.bounds, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ParameterError("bad-argument", "bounds must be numbers") from error
        if pairs.shape == (2,):
            pairs = np.tile(pairs, (d, 1))
        if pairs.shape != (d, 2) or not np.isfinite(pairs).all() or not (pairs[:, 0] < pairs[:, 1]).all():
            raise ParameterError(
                "bad-argument",
                f"bounds must be (lower, upper) or {d} such pairs, with finite numbers and lower below upper",
            )
        return pairs[:, 0], pairs[:, 1]

    def _privacy(self, terms: LocalTerms, n: int) -> dict[str, Any]:
        return {
            "delta": float(default_delta(n) if self.delta is None else self.delta),
            "epsilon": float(self.epsilon),
            "mechanism": "discrete gaussian, joint release, one table",
            "noise_by": "this process",
            "records": n,
            "relation": str(NeighbouringRelation.REPLACE_ONE),
            "guarantee": str(terms.figures.guarantee),
            "rho": float(terms.figures.rho),
            "statements": list(privacy_statements(terms.figures)),
            "study": None,
            **privacy_figures(terms.figures),
        }


def _cap_squared(features: tuple[Feature, ...], scaling: str, clip_norm: Fraction) -> Fraction:
    """The square of the largest length that counts: three times the clip norm, or what the bounds allow."""
    longest = longest_norm_squared(features, scaling)
    return max(min(longest, (CLIP_CAP * clip_norm) ** 2), clip_norm**2)


def _per_feature(values: Any, d: int, what: str) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError("bad-argument", f"{what} must be numbers") from error
    if numbers.shape != (d,) or not np.isfinite(numbers).all():
        raise ParameterError("bad-argument", f"{what} must be {d} finite numbers")
    return numbers
