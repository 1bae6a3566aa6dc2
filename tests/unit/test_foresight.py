"""Forecasts for good and bad centres: where records are assumed, what is clipped, how a chain goes."""

from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from reference_data import Seeded

from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.features import Feature
from dpdpca_user.commands.parts import lint_draft
from dpdpca_user.planning.advice import advice
from dpdpca_user.planning.foresight import chain_outlook, foreseen_chain
from dpdpca_user.planning.noise import usual_norm
from dpdpca_user.planning.placement import Placement, placements
from dpdpca_user.planning.plan import as_release, outlook
from dpdpca_user.planning.preview import planned
from dpdpca_user.results.deviates import normal_deviates


def base_of(d: int, epsilon: float) -> dict[str, Any]:
    return {
        "title": "T",
        "purpose": "P",
        "participants": "enrolled",
        "epsilon": epsilon,
        "max_records": 20_000,
        "features": [{"name": f"x{index}", "lower": 0, "upper": 10} for index in range(d)],
    }


def test_the_assumptions_follow_the_units_of_the_features() -> None:
    numeric = Feature("x", "numeric", Fraction(0), Fraction(10))
    small = Feature("y", "numeric", Fraction(0), Fraction(1))
    levels = Feature("z", "categorical", levels=("a", "b"))
    near, far = placements([numeric, small, levels], "range")
    assert near.spread == pytest.approx(2 * 0.35**2 + 0.81) == usual_norm(2, 1) ** 2
    assert (near.offset, far.spread) == (0.0, near.spread)
    assert far.offset == pytest.approx(2 + 0.19)
    _, far = placements([numeric, small], "common")
    assert far.offset == pytest.approx(1 + 0.01)
    assert far.kappa(0.1) == pytest.approx(1 + 1 / 0.35**2)
    centred = Feature("z", "categorical", levels=("a", "b"), level_centres=(Fraction(1, 2), Fraction(1, 2)))
    assert placements([centred], "range")[1].offset == 0


def test_kappa_grows_with_the_offset_and_with_a_norm_that_is_too_long() -> None:
    near, far = Placement(1.0), Placement(1.0, 8.0)
    assert [near.kappa(r) for r in (0.5, 1, 2)] == [1, 1, 4]
    assert [far.kappa(r) for r in (0.5, 3, 4)] == [9, 9, 16]
    assert far.offset_left(1.0) == pytest.approx(8 / 9)
    assert far.offset_left(4.0) == 8


@pytest.mark.parametrize("offset", [0.0, 1.0, 9.0])
def test_the_share_of_long_records_is_that_of_normal_records(offset: float) -> None:
    """Of 20,000 records, whose share has a deviation below 0.004: a fresh seed fails below 10⁻⁶ at 0.02 plus
    what the approximation may be off."""
    variances = np.array([0.3, 0.2, 0.15, 0.1, *[0.025] * 10])
    rows = normal_deviates(20_000 * len(variances), Seeded(3)).reshape(20_000, -1) * np.sqrt(variances)
    concentration = float((variances**2).sum() / variances.sum() ** 2)
    along = variances / np.sqrt((variances**2).sum())  # so that the variance along the mean is as assumed
    direction = np.sqrt(along / along.sum())
    rows += sqrt(offset) * direction
    placement = Placement(float(variances.sum()), offset, concentration)
    lengths = np.linalg.norm(rows, axis=1)
    for quantile in (0.1, 0.5, 0.9):
        norm = float(np.quantile(lengths, quantile))
        assert placement.share_longer(norm) == pytest.approx(1 - quantile, abs=0.05)


def test_a_chain_is_foreseen_with_the_choice_that_a_real_one_makes() -> None:
    """Enough records move the centres to the means; with too few, the chain ends with pairs."""
    base = base_of(10, 0.5)
    _, far = placements(lint_draft(as_release(base, ReleaseKind.JOINT)).features, "range")
    rich = foreseen_chain(base, lint_draft, 20_000, far)
    assert rich.manifests[-1].release is ReleaseKind.JOINT
    assert rich.left.offset < 0.1 * far.spread < far.offset
    assert sum(each.rho_share for each in rich.manifests) == 1
    poor = foreseen_chain(base_of(40, 0.2), lint_draft, 1000, placements(_features(40), "range")[1])
    assert poor.manifests[-1].release is ReleaseKind.PAIRS
    assert poor.left.offset > 0


@pytest.mark.parametrize(
    ("offset", "rounds", "left"),
    [
        (0.0, ["sum", "joint"], 0.0),
        (0.5, ["sum", "norms", "sum", "joint"], 0.14),
        (1.0, ["sum", "norms", "sum", "sum", "sum", "joint"], 0.144),
        (3.0, ["sum", "pairs"], 9.0),
    ],
)
def test_the_directions_of_few_records_are_foreseen(offset: float, rounds: list[str], left: float) -> None:
    """`offset` and √`left` are distances of the mean from the centres in units of the usual distance."""
    spread = 100 * 0.35**2
    base = base_of(100, 0.3) | {"max_records": 2500}
    foreseen = foreseen_chain(base, lint_draft, 2500, Placement(spread, offset**2 * spread))
    kinds = ["+".join(name for name, _ in each.blocks) or str(each.release) for each in foreseen.manifests]
    assert kinds == rounds
    assert foreseen.left.offset == pytest.approx(left * spread, rel=0.1)
    assert sum(each.rho_share for each in foreseen.manifests) == 1


@pytest.mark.parametrize(("offset", "last"), [(0.9, "joint"), (1.1, "pairs")])
def test_a_count_of_far_pairs_is_foreseen(offset: float, last: str) -> None:
    """`offset` is the distance of the mean from the public centre, in units of the usual distance."""
    spread = 100 * 0.35**2
    base = base_of(100, 0.3) | {"max_records": 1700}
    foreseen = foreseen_chain(base, lint_draft, 1700, Placement(spread, offset**2 * spread))
    first, second = foreseen.manifests
    assert [name for name, _ in first.blocks] == ["far-pairs"]
    assert second.release == last
    assert first.rho_share + second.rho_share == 1


def _features(d: int) -> list[Feature]:
    return [Feature(f"x{index}", "numeric", Fraction(0), Fraction(10)) for index in range(d)]


def test_far_centres_cost_a_plain_draft_its_components_and_a_chain_few() -> None:
    base, spectrum = base_of(40, 0.5), [0.4 * 0.8**index for index in range(20)]
    assumed = placements(_features(40), "range", spectrum)
    chain = chain_outlook(base, lint_draft, 20_000, assumed, spectrum)
    plain = outlook(lint_draft(as_release(base, ReleaseKind.JOINT)), 20_000, spectrum)
    assert plain.near.kappa == pytest.approx(1, rel=1e-4)
    assert plain.far.kappa == pytest.approx(1 + 1 / 0.35**2)
    assert plain.far.least_records[0.5] > plain.far.kappa * plain.near.least_records[0.5]
    seen = [each.components_seen for each in (chain.near, chain.far, plain.near, plain.far)]
    assert None not in seen
    assert 2 * (seen[3] or 0) <= (seen[1] or 0) <= (seen[2] or 0)
    assert chain.far.least_records[0.5] < 1.2 * chain.near.least_records[0.5]
    assert plain.far.clipped > 0.99 > 0.6 > plain.near.clipped
    assert chain.share_bytes > plain.share_bytes
    assert chain.statements == plain.statements


def test_a_chain_is_not_advised_about_a_rule_that_it_sets_itself() -> None:
    """A plain draft drops records with gaps unless it says otherwise; every round of a chain keeps them."""
    base = base_of(3, 1.0)
    chain = planned(base, lint_draft)
    assert chain.missing == "midpoint"
    assert not any("missing" in said for said in advice(chain, of_chain=True))
    assert any(
        "missing" in said
        for said in advice(planned(base | {"release": "joint", "clip_norm": "0.5"}, lint_draft))
    )
