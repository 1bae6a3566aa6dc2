"""What is said about noise adds up, and says what is really given."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest
from study_parties import MakeManifest

from dpdpca_protocol.privacy.accounting import delta_of_tails
from dpdpca_protocol.privacy.mechanisms import Laplace
from dpdpca_protocol.study import ReleaseKind, SummedOver
from dpdpca_protocol.terms.figures import Figures, figures_of
from dpdpca_protocol.terms.statements import (
    DeltaParts,
    about_shortened,
    privacy_figures,
    privacy_statements,
)
from dpdpca_protocol.terms.terms import NoiseBy, SuiteName, Terms

JOINT = Terms(
    ReleaseKind.JOINT, 10, Fraction(1), 12, Fraction(1), Fraction(1, 10**9), Fraction(43, 100), 25_000, 3072
)
MASKED = replace(JOINT, release=ReleaseKind.MASKED, sum_weight=Fraction(0))


def named(terms: Terms, mechanism: str) -> Figures:
    return figures_of(replace(terms, mechanism=mechanism))


@pytest.mark.parametrize("terms", [JOINT, MASKED], ids=["joint", "masked"])
def test_our_noise_says_what_delta_is_made_of_and_what_is_never_used(terms: Terms) -> None:
    figures = figures_of(terms)
    proved, parts, continuous = privacy_statements(figures)
    assert proved == "proved privacy: (ε, δ) = (1, 1e-09), replace-one (mechanism gaussian)"
    mask = "0" if terms is JOINT else f"{float(figures.delta_mask):.2g}"
    assert parts == (
        f"of δ, 1e-09 covers the noise, {mask} the mask, and 3.9e-24 the tails of the noise and the "
        "re-randomisation"
    )
    assert re.fullmatch(
        r"continuous noise of this strength would give ε = 0\.94\d+ at the same δ; for the proved ε the "
        r"analytic Gaussian would need 4\.9% less noise \(shown for comparison, never used\)",
        continuous,
    )


@pytest.mark.parametrize(
    "figures",
    [
        figures_of(JOINT),
        figures_of(MASKED),
        named(JOINT, "laplace"),
        named(MASKED, "laplace"),
        figures_of(replace(JOINT, noise_by=NoiseBy.OWNERS, assured_shares=4, max_owners=25)),
    ],
    ids=lambda figures: f"{figures.release}-{type(figures.mechanism).__name__}",
)
def test_the_parts_of_delta_add_up_to_what_is_proved(figures: Figures) -> None:
    parts = DeltaParts.of(figures)
    assert parts.noise + parts.mask + parts.tails == figures.guarantee.delta
    assert parts.noise >= 0
    assert parts.mask == figures.delta_mask
    assert parts.noise == (0 if isinstance(figures.mechanism, Laplace) else figures.mechanism.setting.delta)
    assert parts.tails == delta_of_tails(figures.guarantee.epsilon)


def test_owners_who_draw_are_named() -> None:
    shared = figures_of(replace(JOINT, noise_by=NoiseBy.OWNERS, assured_shares=4, max_owners=25))
    assert (
        "each owner draws a part of the noise, and the parts of any 4 owners are enough"
        in privacy_statements(shared)[0]
    )


def test_figures_are_the_numbers_in_the_words() -> None:
    figures = figures_of(MASKED)
    facts = privacy_figures(figures)
    assert facts["delta_parts"] == {
        "noise": float(figures.delta_zcdp),
        "mask": float(figures.delta_mask),
        "tails": float(figures.delta_tails),
    }
    assert 0.94 < facts["continuous_gaussian"]["noise_scale"] / facts["noise_scale"] < 0.96
    assert facts["noise_scale"] == pytest.approx(float(figures.noise_scale) / 4**12)
    assert privacy_figures(named(MASKED, "laplace"))["continuous_gaussian"] is None


def test_the_scale_of_a_lift_is_that_of_products_with_whole_numbers() -> None:
    """One factor is in grid units, the other is a number that a rule makes."""
    lift = replace(
        JOINT,
        release=ReleaseKind.LIFT,
        of=SummedOver.RECORDS,
        sum_weight=Fraction(0),
        suite=SuiteName.PADS,
        modulus_bits=0,
        columns=2,
    )
    facts = privacy_figures(figures_of(lift))
    assert facts["noise_scale"] == pytest.approx(float(figures_of(lift).noise_scale) / 2**12)


@pytest.mark.parametrize(("terms", "longest"), [({"release": "joint"}, "1.75"), ({"release": "pairs"}, "2")])
def test_shortened_rows_are_told_if_there_can_be_any(
    make_manifest: MakeManifest, terms: dict[str, str], longest: str
) -> None:
    """One feature reaches 1.75 half-ranges from its centre, and two of its values differ by 2."""
    features = [{"name": "x", "lower": 0, "upper": 8, "centre": 7}]
    told = [
        about_shortened(make_manifest(features=features, missing="midpoint", clip_norm=norm, **terms))
        for norm in ("0.9", "1.9" if terms["release"] == "pairs" else "1.7", longest)
    ]
    assert [bool(each) for each in told] == [True, True, False]
    assert ("differences of two records" in told[0]) == (terms["release"] == "pairs")
