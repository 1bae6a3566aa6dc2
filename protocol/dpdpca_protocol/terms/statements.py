"""What every output says about the privacy and the noise of a study.

All outputs take these words and figures from here.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Self

from dpdpca_protocol.privacy.accounting import best_guess
from dpdpca_protocol.privacy.mechanisms import Guarantee, Quantity, SharedGaussian
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.terms import EncodingTerms, may_shorten

_GRID_POWERS = {Quantity.PRE_STUDY: 0, Quantity.LIFT: 1}
"""How many factors of a released number are in grid units, where these are not two."""


@dataclass(frozen=True, slots=True)
class DeltaParts:
    """The parts of δ. The parts add up to the δ of the guarantee.

    Attributes:
        noise: the part for the noise itself; 0 for Laplace noise.
        mask: the statistical distance between the masked sums of neighbours in a masked release.
        tails: the part for noise that is redrawn so that it fits its slot, or cut at 64 bits, and for
            re-randomisation from a pool.
    """

    noise: Fraction
    mask: Fraction
    tails: Fraction

    @classmethod
    def of(cls, figures: Figures) -> Self:
        """Source: docs/claims.md, C3. Tested: tests/unit/test_statements.py."""
        tails = figures.event.extra_delta
        return cls(figures.mechanism.guarantee.delta - tails, figures.delta_mask, tails)


def privacy_statements(figures: Figures) -> tuple[str, ...]:
    """Statements about privacy, for people.

    The statements say what is proved, how δ is divided, and what continuous noise would give. The figure for
    continuous noise is shown for comparison and never used.
    """
    mechanism, parts = figures.mechanism, DeltaParts.of(figures)
    proved = f"proved privacy: {figures.guarantee} (mechanism {mechanism.name})"
    if isinstance(mechanism, SharedGaussian):
        shares = mechanism.setting.shares
        proved += f"; each owner draws a part of the noise, and the parts of any {shares} owners are enough"
    said = [
        proved,
        f"of δ, {float(parts.noise):.6g} covers the noise, {float(parts.mask):.2g} the mask, and "
        f"{float(parts.tails):.2g} the tails of the noise and the re-randomisation",
    ]
    if (share := mechanism.setting.clip_share) > 0:
        rows = "differences" if figures.rules.of_pairs else "records"
        clipped = f"how many {rows} were clipped and how long they were before"
        told, numbers = f"{clipped}, with noise", "two"
        if mechanism.setting.tells_gaps:
            told, numbers = f"{clipped}, and how many values are missing, with noise", "three"
        said.append(
            f"the result also says {told}; each of these {numbers} numbers takes {float(share):.3g} of the"
            " privacy cost ρ"
        )
    if (real := mechanism.real_epsilon) is not None:
        continuous = f"continuous noise of this strength would give ε = {real:.4g} at the same δ"
        if (excess := _excess(figures)) is not None:
            continuous += (
                f"; for the proved ε the analytic Gaussian would need {excess:.1%} less noise (shown "
                "for comparison, never used)"
            )
        said.append(continuous)
    return tuple(said)


def about_shortened(terms: EncodingTerms) -> str:
    """What the clip norm did to the variances of a result, in words; empty if no row can be longer."""
    if not may_shorten(terms):
        return ""
    rows = "differences of two records" if terms.rules.of_pairs else "records"
    return (
        f"The variances are those of shortened {rows}: what was longer than the clip norm was shortened to it"
        " before it was added up. So variances may be too small."
    )


def privacy_figures(figures: Figures) -> dict[str, Any]:
    """The numbers in `privacy_statements`, for JSON.

    Scales are in scaled units, in which half-ranges are 1. In a pre-study, the scales are those of a quantity
    that one record changes by at most 1. In a lift, they are those of the products with whole numbers.
    """
    mechanism, parts = figures.mechanism, DeltaParts.of(figures)
    analytic = mechanism.analytic_scale
    unit = figures.grid ** _GRID_POWERS.get(mechanism.setting.quantity, 2)
    return {
        "delta_parts": {"noise": float(parts.noise), "mask": float(parts.mask), "tails": float(parts.tails)},
        "noise_scale": float(mechanism.scale) / unit,
        "continuous_gaussian": None
        if mechanism.real_epsilon is None
        else {
            "epsilon": mechanism.real_epsilon,
            "noise_scale": None if analytic is None else analytic / unit,
        },
    }


def result_guarantee(manifest: Manifest) -> Guarantee:
    """What is proved against anyone who sees the result of a study.

    In a chain, it covers all rounds: the terms of a later round depend on earlier releases, and its result
    shows them.
    """
    proved = manifest.figures.guarantee
    if manifest.rho_share == 1:
        return proved
    return replace(proved, epsilon=manifest.epsilon, delta=manifest.delta)


def best_guess_of(manifest: Manifest) -> Fraction:
    """The largest chance, rounded up, with which somebody who sees the result of a study tells which of two
    equally likely records an owner has; the reader may know all other records.

    In a chain, it covers all rounds, like `result_guarantee`.
    """
    figures, proved = manifest.figures, result_guarantee(manifest)
    if manifest.rho_share == 1:
        apart = figures.delta_mask + figures.event.extra_delta
        return best_guess(figures.rho, proved.epsilon, proved.delta, apart)
    return best_guess(figures.rho_total, proved.epsilon, proved.delta, proved.delta - figures.delta_zcdp)


def round_privacy(manifest: Manifest) -> tuple[Fraction, Fraction]:
    """The proved (ε, δ) of this study alone. In a chain, the manifest states the total of all rounds."""
    if manifest.rho_share == 1:
        return manifest.epsilon, manifest.delta
    proved = manifest.figures.guarantee
    return _up(proved.epsilon, 6), _up(proved.delta, 30)


def _excess(figures: Figures) -> float | None:
    """How much smaller the scale of the analytic Gaussian is than ours, as a fraction of ours."""
    analytic = figures.mechanism.analytic_scale
    return None if analytic is None else 1 - analytic / float(figures.mechanism.scale)


def _up(value: Fraction, places: int) -> Fraction:
    return Fraction(ceil(value * 10**places), 10**places)
