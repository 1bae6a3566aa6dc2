"""What every output says about a study's noise, in words and in figures: written here and nowhere else."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Self

from dpdpca_protocol.privacy.mechanisms import Guarantee, Quantity, SharedGaussian
from dpdpca_protocol.terms.figures import Figures
from dpdpca_protocol.terms.manifest import Manifest


@dataclass(frozen=True, slots=True)
class DeltaParts:
    """What δ is made of; the parts add up to that of the guarantee.

    Attributes:
        noise: of the mechanism itself.
        mask: the distance that one record shows through the mask of a masked release.
        tails: draws that are redrawn, so that none leaves its slot, and re-randomisation from a pool.
    """

    noise: Fraction
    mask: Fraction
    tails: Fraction

    @classmethod
    def of(cls, figures: Figures) -> Self:
        """Source: docs/claims.md, C3. Tested: tests/unit/test_statements.py."""
        mechanism = figures.mechanism
        noise = Fraction(0) if mechanism.guarantee.is_pure else mechanism.setting.delta
        return cls(noise, figures.delta_mask, figures.guarantee.delta - noise - figures.delta_mask)


def privacy_statements(figures: Figures) -> tuple[str, ...]:
    """Sentences: what is proved; the parts of δ; and what continuous noise would give, which is shown and
    never used."""
    mechanism, parts = figures.mechanism, DeltaParts.of(figures)
    proved = f"{mechanism.name}, proved: {figures.guarantee}"
    if isinstance(mechanism, SharedGaussian):
        shares = mechanism.setting.shares
        proved += f"; drawn by the owners, each a part, of which any {shares} are enough"
    said = [
        proved,
        f"of δ {float(parts.noise):.6g} is for the noise, {float(parts.mask):.2g} for the distance of the"
        f" mask, {float(parts.tails):.2g} for redrawn tails and re-randomisation",
    ]
    if (real := mechanism.real_epsilon) is not None:
        continuous = f"continuous noise of this strength gives ε = {real:.4g} at the same δ"
        if (excess := _excess(figures)) is not None:
            continuous += f", and {excess:.1%} less of it would do (analytic Gaussian; shown, never used)"
        said.append(continuous)
    return tuple(said)


def privacy_figures(figures: Figures) -> dict[str, Any]:
    """The numbers in `privacy_statements`, for JSON. Scales are in scaled units: half-ranges are 1; in a
    pre-study they are those of a quantity that one record moves by 1."""
    mechanism, parts = figures.mechanism, DeltaParts.of(figures)
    analytic = mechanism.analytic_scale
    unit = 1 if mechanism.setting.quantity is Quantity.PRE_STUDY else figures.grid**2
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
    """What is proved for whoever sees a study's result; in a chain that of all rounds.

    The terms of a later round are made of what earlier ones released, and its result shows them.
    """
    proved = manifest.figures.guarantee
    if manifest.rho_share == 1:
        return proved
    return replace(proved, epsilon=manifest.epsilon, delta=manifest.delta)


def round_privacy(manifest: Manifest) -> tuple[Fraction, Fraction]:
    """(ε, δ) that are proved for this study alone; those of a manifest are the total of its chain."""
    if manifest.rho_share == 1:
        return manifest.epsilon, manifest.delta
    proved = manifest.figures.guarantee
    return _up(proved.epsilon, 6), _up(proved.delta, 30)


def _excess(figures: Figures) -> float | None:
    """How much smaller the analytic Gaussian's scale is, as a share of ours."""
    analytic = figures.mechanism.analytic_scale
    return None if analytic is None else 1 - analytic / float(figures.mechanism.scale)


def _up(value: Fraction, places: int) -> Fraction:
    return Fraction(ceil(value * 10**places), 10**places)
