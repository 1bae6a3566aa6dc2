"""The pairs that are played: neighbours indeed, on the bound, as far apart as ρ allows and never further."""

import math

import numpy as np
import pytest
from present import present
from study_parties import MakeManifest

from dpdpca_lab.audit.neighbours import (
    Arena,
    Neighbours,
    arena_of,
    distance,
    hard_records,
    searched_pair,
    worst_pairs,
)
from dpdpca_lab.audit.releases import release_of
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.terms.manifest import Manifest

COUNT = 200


def play(manifest: Manifest, count: int = COUNT) -> tuple[Arena, list[float], list[Neighbours]]:
    arena = arena_of(manifest)
    release = release_of(manifest.figures, len(arena.columns))
    pairs = worst_pairs(manifest, arena, count)
    return arena, [distance(release, pair.first, pair.second) for pair in pairs], pairs


def allowed(manifest: Manifest) -> float:
    return math.sqrt(2 * present(manifest.figures.rho))


@pytest.mark.parametrize("release", ["masked", "joint"])
@pytest.mark.parametrize("clip_norm", ["0.5", "1", "1.3", "1.7"])
def test_the_worst_pair_uses_nearly_all_of_rho(
    make_manifest: MakeManifest, release: str, clip_norm: str
) -> None:
    """Through the encoder where two or four features at their bounds are as long as the clip norm."""
    manifest = make_manifest(release=release, clip_norm=clip_norm)
    arena, apart, pairs = play(manifest)
    assert max(apart) <= allowed(manifest)
    assert max(apart) >= (0.98 if arena.encoded else 0.99) * allowed(manifest) * (COUNT - 1) / COUNT
    # age and weight reach 1 both ways, systolic with its centre at 120 only 0.6
    assert arena.encoded == (float(clip_norm) <= (1.3 if release == "masked" else 1))
    for pair in pairs:
        assert pair.first.count == pair.second.count == COUNT
        assert pair.encoded == arena.encoded


def test_joint_plays_the_turned_record_first(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(release="joint")
    _, apart, pairs = play(manifest)
    assert len(pairs) == 2
    assert apart[0] > apart[1]


@pytest.mark.parametrize("release", ["masked", "joint"])
def test_search_comes_close_and_never_passes(make_manifest: MakeManifest, release: str) -> None:
    manifest = make_manifest(release=release)
    mechanism = release_of(manifest.figures, 2)
    pair = searched_pair(mechanism, manifest.figures.record_bound, COUNT, 400, OS_RANDOMNESS)
    found = distance(mechanism, pair.first, pair.second)
    assert 0.8 * allowed(manifest) <= found <= allowed(manifest)


@pytest.mark.parametrize("release", ["masked", "joint"])
def test_one_feature_is_enough(make_manifest: MakeManifest, release: str) -> None:
    manifest = make_manifest(
        release=release, features=[{"name": "age", "lower": 0, "upper": 100}], clip_norm=1
    )
    arena, apart, _ = play(manifest)
    assert arena.columns == (0,)
    # on a line a joint pair cannot turn: it stays below the bound, whatever it does
    assert (0.98 if release == "masked" else 0.6) * allowed(manifest) <= max(apart) <= allowed(manifest)


def test_features_of_levels_are_left_out_or_played_as_integers(make_manifest: MakeManifest) -> None:
    features = [
        {"name": "sex", "levels": ["f", "m"]},
        {"name": "age", "lower": 0, "upper": 100},
        {"name": "weight", "lower": 0, "upper": 200},
    ]
    midpoint = make_manifest(release="joint", features=features, missing="midpoint")
    arena, apart, _ = play(midpoint)
    assert arena.columns == (2, 3)
    assert arena.encoded
    assert max(apart) >= 0.98 * allowed(midpoint)
    rejecting = make_manifest(release="joint", features=features)
    assert not arena_of(rejecting).encoded


def test_hard_records_obey_the_bound_and_come_close_to_it(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(release="joint", missing="midpoint")
    z = hard_records(manifest, OS_RANDOMNESS, count=200)
    squares = (z.astype(object) ** 2).sum(axis=1)
    assert 0.99 * manifest.figures.record_bound <= max(squares) <= manifest.figures.record_bound
    assert z.shape == (200, 3)
    assert z.dtype == np.int64


def test_a_huge_grid_leaves_records_within_the_bound(make_manifest: MakeManifest) -> None:
    """K ≈ 2⁵⁵: doubles no longer hold the square, and truncation still keeps records inside."""
    manifest = make_manifest(
        release="joint", fraction_bits=27, max_records=3, clip_norm="1.4", epsilon=5, scaling="common"
    )
    assert manifest.figures.record_bound > 2**54
    _, apart, _ = play(manifest, 3)
    assert 0.99 * allowed(manifest) <= max(apart) <= allowed(manifest)
