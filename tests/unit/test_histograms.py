"""Noisy histograms, made by hand."""

from dataclasses import replace
from math import sqrt

import pytest

from dpdpca_protocol.layout.blocks import NORM_BINS, OCTAVES
from dpdpca_user.planning.histograms import feature_scale, has_two_modes, quantile
from dpdpca_user.planning.prestudy import Histogram

EDGES = tuple(2.0 * 2 ** ((b + 1 - NORM_BINS) / 4) for b in range(NORM_BINS))


def histogram(counts: dict[int, int], noise: float = 1.0) -> Histogram:
    return Histogram(EDGES, tuple(counts.get(b, 0) for b in range(NORM_BINS)), noise)


def test_quantiles_interpolate_and_take_no_bin_below_two_sigma() -> None:
    even = histogram({10: 100, 11: 100, 40: 1})
    assert quantile(even, 0.5) == pytest.approx(EDGES[10])
    assert quantile(even, 0.75) == pytest.approx((EDGES[10] + EDGES[11]) / 2)
    assert quantile(even, 1.0) == pytest.approx(EDGES[11])
    assert quantile(histogram({0: 1}), 0.5) is None
    assert quantile(histogram({0: 10}), 0.5) == pytest.approx(EDGES[0] / 2)


def test_norms_spread_over_many_bins_are_read_together() -> None:
    """No bin is above four deviations of noise, but six neighbours together are at 4.9."""
    spread = dict.fromkeys(range(20, 26), 20)
    found = quantile(histogram(spread, noise=10.0), 0.5)
    assert found == pytest.approx(EDGES[22])
    assert quantile(histogram(spread, noise=13.0), 0.5) is None
    beside = histogram(spread | {22: -5, 10: 17, 40: 17}, noise=9.0)
    assert EDGES[19] < (quantile(beside, 0.5) or 0) < EDGES[25]
    peak = histogram(spread | {40: 41}, noise=10.0)
    assert (quantile(peak, 0.01) or 0) > EDGES[39]  # a bin that stands out alone comes first


def test_two_modes_are_seen_and_noise_is_no_mode() -> None:
    assert has_two_modes(histogram({20: 1000, 30: 800}))
    assert not has_two_modes(histogram({20: 1000, 21: 900, 22: 800}))
    assert not has_two_modes(histogram({20: 1000, 30: 30}, noise=10))
    assert not has_two_modes(histogram({}))


def test_feature_scales_are_powers_of_the_root_of_two() -> None:
    edges = tuple(2.0 ** (o + 1 - OCTAVES) for o in range(OCTAVES))
    whole = Histogram(edges, tuple(100 if o == OCTAVES - 1 else 0 for o in range(OCTAVES)), 1.0)
    assert feature_scale(whole, 100) == pytest.approx(sqrt(0.5) * sqrt(2))
    assert feature_scale(replace(whole, noise=100.0), 100) is None
