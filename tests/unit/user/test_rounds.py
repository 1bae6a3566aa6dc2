"""What the next draft of a chain says is what a manifest may say: a round refused has spent for nothing."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest

from dpdpca_protocol.errors import MessageError, PolicyError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.planning.choice import Guess, first_round, norm_study
from dpdpca_user.planning.lint import lint_alone
from dpdpca_user.planning.rounds import begin_chain, check_base, round_draft

SCALES = first_round(1, 10**6, 1.0, Guess(1.0, 0.0, of_categories=False), unknown_scales=True)


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        (("0", "0.3333337"), 0.16666685),  # rounded to a millionth of the range it would pass the half-range
        (("0", "1000"), 500.0),
        (("0", "1000"), 500 * 2.0**-16),  # as where the base had a scale already
        (("-1", "2"), 1.0606601717798212),
    ],
)
def test_scales_stay_within_what_a_feature_may_have(bounds: tuple[str, str], found: float) -> None:
    lower, upper = bounds
    base: dict[str, Any] = {"features": [{"name": "a", "kind": "numeric", "lower": lower, "upper": upper}]}
    (feature,) = round_draft(base, replace(SCALES, blocks={}, scale=(found,)))["features"]
    scale = Feature.parse(feature, "feature").scaled_unit
    half = (Fraction(upper) - Fraction(lower)) / 2
    assert half / 2**14 <= scale <= half
    assert abs(scale - Fraction(found)) <= half / 2**14


def test_scales_are_not_asked_for_where_one_is_common() -> None:
    base = {"features": [{"name": "a", "lower": 0, "upper": 1}], "scaling": "common"}
    check_base(base)
    with pytest.raises(PolicyError, match="its own unit"):
        check_base(base, scales=True)
    with pytest.raises(PolicyError, match="its own unit"):
        round_draft(base, SCALES)


def test_a_base_under_paillier_is_refused_with_the_reason() -> None:
    base = {"features": [{"name": "a", "lower": 0, "upper": 1}]}
    check_base(base | {"suite": "pads"})
    with pytest.raises(PolicyError, match="a chain has one suite"):
        check_base(base | {"suite": "paillier"})


@pytest.mark.parametrize(
    "features",
    [
        None,
        {"a": 1},
        [1],
        [{"name": "a"}],
        [{"name": "a", "lower": 0}],
        [{"name": "a", "levels": 3}],
        [{"name": "a", "levels": ["x"] * 1001}],
        [{"name": "a", "lower": 0, "upper": 1}] * 200_001,
    ],
)
def test_what_has_no_features_is_the_base_of_no_chain(features: Any) -> None:
    with pytest.raises((MessageError, PolicyError)):
        check_base({"features": features})


def with_owners_noise(min_owners: int) -> dict[str, Any]:
    return {
        "title": "A chain",
        "purpose": "A test.",
        "features": [{"name": name, "lower": 0, "upper": 10} for name in "abc"],
        "epsilon": 10,
        "delta": "0.000001",
        "max_records": 100_000,
        "min_owners": min_owners,
        "noise_by": "owners",
    }


def complete(draft: Mapping[str, Any]) -> Manifest:
    return lint_alone(draft, datetime(2026, 1, 1, tzinfo=UTC))


def test_a_later_round_that_owners_noise_cannot_pay_is_refused_before_the_first() -> None:
    """After a study of scales, the histogram of norms takes all of its round: it has the least noise."""
    first = begin_chain(with_owners_noise(8), complete, 100_000, scales=True)
    assert BlockName.OCTAVES in first.blocks
    complete(round_draft(with_owners_noise(15), first))
    with pytest.raises(PolicyError, match=r"lower rho_share to .* or lower epsilon to"):
        begin_chain(with_owners_noise(15), complete, 100_000, scales=True)
    begin_chain(with_owners_noise(15), complete, 100_000, scales=False)


CATEGORY: dict[str, Any] = {"name": "ward", "levels": ["A", "B", "C"]}


def of_category(moved: tuple[float, ...] | None, **given: Any) -> dict[str, Any]:
    """The category of a round whose choice has these centres."""
    base: dict[str, Any] = {"features": [{"name": "a", "lower": 0, "upper": 1}, CATEGORY | given]}
    chosen = replace(norm_study(4), centre=None if moved is None else (0.5, *moved))
    feature = round_draft(base, chosen)["features"][1]
    Feature.parse(feature | {"kind": "categorical"}, "feature")
    return dict(feature)


def test_levels_begin_alike_unless_the_draft_has_centres() -> None:
    assert of_category(None)["centre"] == ["0.333333"] * 3
    assert of_category(None, centre=["0.5", "0", "0"])["centre"] == ["0.5", "0", "0"]


def test_levels_move_to_the_private_mean_within_their_bounds() -> None:
    assert of_category((0.25, -0.1, 1.2))["centre"] == ["0.25", "0", "1"]
    assert of_category((0.25, 0.5, 0), centre=["0.5", "0", "0"])["centre"] == ["0.25", "0.5", "0"]
    assert "centre" not in of_category((0, -0.1, -2), centre=["0.5", "0", "0"])


@pytest.mark.parametrize(
    ("features", "records", "release"),
    [
        ([{"name": f"x{i}", "lower": 0, "upper": 10} for i in range(20)], 1000, "pairs"),
        ([{"name": f"x{i}", "lower": -5, "upper": 5} for i in range(20)], 1000, "pairs"),
        ([CATEGORY | {"name": f"c{i}"} for i in range(20)], 1000, "joint"),
        ([CATEGORY | {"name": f"c{i}"} for i in range(20)], 100_000, "pre-study"),
        ([{"name": f"x{i}", "lower": 0, "upper": 10} for i in range(20)], 100_000, "pre-study"),
    ],
)
def test_a_chain_of_few_records_is_one_study(
    features: list[dict[str, Any]], records: int, release: str
) -> None:
    base = {"title": "A", "purpose": "B", "features": features, "epsilon": "0.1", "max_records": 100_000}
    first = begin_chain(base, complete, records, scales=False)
    manifest = complete(round_draft(base, first))
    assert (manifest.release, first.is_last) == (release, release != "pre-study")
    assert first.is_last == (manifest.rho_share == 1)
