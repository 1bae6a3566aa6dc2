"""Scales of features in a manifest: the unit of the metric, and the limits within which sums stay exact."""

from fractions import Fraction
from typing import Any

import pytest
from study_parties import MakeManifest

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.terms.signed_manifest import parse_manifest

FEATURES = [
    {"name": "income", "lower": 0, "upper": 1000, "scale": 20},
    {"name": "age", "lower": 0, "upper": 100},
]


def test_values_are_divided_by_the_scale_where_there_is_one(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(features=FEATURES)
    assert manifest.feature_units == ((Fraction(500), Fraction(20)), (Fraction(50), Fraction(50)))
    assert parse_manifest(manifest.to_body()) == manifest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scaling": "common"}, "no feature may have its own scale"),
        (
            {
                "release": "pairs",
                "missing": "midpoint",
                "sum_weight": 0,
                "fraction_bits": 26,
                "clip_norm": Fraction(1),
                "max_records": 100,
            },
            "exact 64-bit sums of squares",
        ),
    ],
)
def test_scales_that_fit_nothing_are_refused(
    make_manifest: MakeManifest, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(PolicyError, match=words):
        make_manifest(features=FEATURES, **change)
