"""What clipping did, and variances before it: exact without noise, and nothing where noise hides it."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scripted import SILENCE
from study_parties import MakeManifest

from dpdpca_protocol.errors import CryptographicError, MessageError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.records.encoding import RecordEncoder
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import Components, EncodedSpace, check_scatter, fit_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.planning.clipping import clip_terms
from dpdpca_user.planning.prestudy import Histogram
from dpdpca_user.results.clipping import ClippingFigures, assess_clipping
from dpdpca_user.results.reliability import CLIPPING_IS_ALLOWED_FOR, Reliability, assess_release

D, N = 4, 4000
TERMS: dict[str, Any] = {
    "features": [{"name": f"x{j}", "lower": -8, "upper": 8} for j in range(D)],
    "missing": "midpoint",
    "epsilon": 20,
    "delta": "1e-6",
    "max_records": N,
    "clip_share": "0.1",
}


def rows_about_centre(seed: int) -> np.ndarray:
    """Records of a normal distribution, and their opposites, so that their mean is the centre."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - made-up records, not noise, masks or keys
    half = rng.normal(size=(N // 2, D)) * [1.5, 1.0, 0.7, 0.5]
    return np.concatenate([half, -half])


def released(manifest: Manifest, rows: np.ndarray) -> tuple[NoisyScatter, Components]:
    """A release without noise, although the figures state some."""
    columns = {f"x{j}": rows[:, j] for j in range(D)}
    noisy = run_study(manifest, [columns], OS_RANDOMNESS, SILENCE, UNENCRYPTED)
    assert isinstance(noisy, NoisyScatter)
    return noisy, fit_components(noisy, manifest.figures, EncodedSpace.of(manifest), owners=1)


@pytest.mark.parametrize("clip_norm", ["0.05", "0.2", "0.3", "1"])
def test_without_noise_the_total_before_clipping_is_exact(
    make_manifest: MakeManifest, clip_norm: str
) -> None:
    manifest, rows = make_manifest(**TERMS, release="joint", clip_norm=clip_norm), rows_about_centre(1)
    noisy, components = released(manifest, rows)
    found = assess_clipping(noisy, manifest.figures, components)
    assert found is not None
    assert found.factor is not None
    norms = np.linalg.norm(rows / 8, axis=1)
    assert found.share == pytest.approx(np.mean(norms > float(clip_norm)), abs=0.01)
    if clip_norm == "0.05":  # all are clipped, so the share says nothing about the factor
        before = np.cov(rows / 8, rowvar=False)
        assert found.factor == pytest.approx(np.trace(before) * (N - 1) / (N * 0.05**2), rel=0.01)
        assert found.total_variance == pytest.approx(np.trace(before), rel=0.01)
    if clip_norm == "1":
        assert found.factor == pytest.approx(1, abs=1e-3)


def test_rows_that_keep_their_directions_have_nearly_exact_variances(make_manifest: MakeManifest) -> None:
    """If the length of a row does not depend on its direction, every variance falls by the same factor. The
    first ones get up to 10 % too much, because on real tables they lose more."""
    rng = np.random.default_rng(3)  # noqa: TID251 - made-up records, not noise, masks or keys
    directions = rows_about_centre(2)
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    lengths = rng.uniform(2, 6, N // 2)
    rows = directions * np.concatenate([lengths, lengths])[:, None]
    manifest = make_manifest(**TERMS, release="joint", clip_norm="0.2")
    noisy, components = released(manifest, rows)
    found = assess_clipping(noisy, manifest.figures, components)
    assert found is not None
    scatter = np.cov(rows / 8, rowvar=False)
    own = np.einsum("ki,ij,kj->k", components.vectors, scatter, components.vectors)[: len(found.variances)]
    assert len(own) >= 2
    assert (0.95 * own < found.variances).all()
    assert (found.variances < 1.1 * own).all()
    assert ((found.low < own) & (own < found.high)).all()
    assert (components.captured[: len(own)] < 0.5 * own).all()


def test_pairs_count_differences(make_manifest: MakeManifest) -> None:
    manifest, rows = make_manifest(**TERMS, release="pairs", clip_norm="0.05"), rows_about_centre(4)
    noisy, components = released(manifest, rows)
    found = assess_clipping(noisy, manifest.figures, components)
    assert found is not None
    assert found.share > 0.99
    assert found.total_variance == pytest.approx(np.trace(np.cov(rows / 8, rowvar=False)), rel=0.05)


def test_a_study_that_does_not_tell_has_no_figures(make_manifest: MakeManifest) -> None:
    terms = {name: value for name, value in TERMS.items() if name != "clip_share"}
    manifest = make_manifest(**terms, release="joint", clip_norm="0.2")
    noisy, components = released(manifest, rows_about_centre(5))
    assert noisy.clipped is None
    assert assess_clipping(noisy, manifest.figures, components) is None
    reliability = assess_release(noisy, manifest.figures, components, OS_RANDOMNESS)
    assert reliability.clipping is None
    assert "cannot be seen" in reliability.about_clipping


def test_where_noise_hides_the_total_only_the_share_is_told(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(**TERMS | {"epsilon": "0.01"}, release="joint", clip_norm="0.2")
    noisy, components = released(manifest, rows_about_centre(6))
    found = assess_clipping(noisy, manifest.figures, components)
    assert found is not None
    assert found.factor is found.total_variance is None
    assert len(found.variances) == 0
    assert "too little above its noise" in found.sentences("records")
    assert ClippingFigures.parse(json.loads(json.dumps(found.to_body()))).to_body() == found.to_body()


def test_intervals_are_about_the_records_before_clipping(make_manifest: MakeManifest) -> None:
    for clip_norm, most in (("0.05", True), ("0.5", False)):
        manifest = make_manifest(**TERMS, release="joint", clip_norm=clip_norm)
        noisy, components = released(manifest, rows_about_centre(7))
        reliability = assess_release(noisy, manifest.figures, components, OS_RANDOMNESS)
        assert reliability.clipping is not None
        assert reliability.clipping.is_most is most
        assert reliability.of_unclipped
        assert len(reliability.share_low) > 0
        assert CLIPPING_IS_ALLOWED_FOR in reliability.about_clipping
        again = Reliability.parse(json.loads(json.dumps(reliability.to_body())), D)
        assert again.to_body() == reliability.to_body()


def test_noise_in_both_numbers_is_part_of_the_deviations(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(**TERMS, release="joint", clip_norm="0.05")
    noisy, components = released(manifest, rows_about_centre(8))
    once, twice = (
        assess_clipping(noisy, replace(manifest.figures, draws=draws), components) for draws in (1, 2)
    )
    assert once is not None
    assert twice is not None
    assert twice.share_deviation == pytest.approx(once.share_deviation * math.sqrt(2))
    assert (twice.deviations > once.deviations).all()


@pytest.mark.parametrize(
    "damage",
    [
        {"share": float("nan")},
        {"factor": None},
        {"low": [1.0]},
        {"high": [[1.0]]},
        {"variances": "none"},
        {"deviations": [float("inf")] * 4},
        {"told": [1, 2]},
        {"told": [1, 2, 3.5]},
        {"told": [1, True, 3]},
        {"told": [1, 1 << 200, 3]},
        {"told": "123"},
        {"told": None},
    ],
)
def test_damaged_figures_are_refused(make_manifest: MakeManifest, damage: dict[str, Any]) -> None:
    manifest = make_manifest(**TERMS, release="joint", clip_norm="0.2")
    noisy, components = released(manifest, rows_about_centre(9))
    found = assess_clipping(noisy, manifest.figures, components)
    assert found is not None
    assert len(found.variances) > 1
    with pytest.raises(MessageError):
        ClippingFigures.parse(found.to_body() | damage)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("side", [-1, 1])
def test_what_no_rows_can_give_is_refused(make_manifest: MakeManifest, place: int, side: int) -> None:
    manifest = make_manifest(**TERMS, release="joint", clip_norm="0.2")
    noisy, _ = released(manifest, rows_about_centre(10))
    figures, block = manifest.figures, manifest.figures.blocks[-3 + place]
    check_scatter(noisy, figures, 1)
    edge = -block.tail if side < 0 else block.bound + block.tail
    for beyond in (0, 1):
        values = list(noisy.clipped or ())
        values[place] = edge + side * beyond
        changed = replace(noisy, clipped=(values[0], values[1]))
        if beyond:
            with pytest.raises(CryptographicError, match="more rows were clipped"):
                check_scatter(changed, figures, 1)
        else:
            check_scatter(changed, figures, 1)


# --- the cap of a chain -----------------------------------------------------------------------------------

EDGES = tuple(2.0 ** ((b - 48) / 4) for b in range(49))


def histogram(lengths: np.ndarray, noise: float) -> Histogram:
    counts = np.bincount(np.minimum(np.searchsorted(EDGES, lengths), 48), minlength=49)
    return Histogram(EDGES, tuple(counts.tolist()), noise)


def lengths(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).gamma(4.0, 0.02, 5000)  # noqa: TID251 - made-up lengths, not secrets


def long_tailed(seed: int) -> np.ndarray:
    return 0.03 * np.exp(np.random.default_rng(seed).normal(0, 0.7, 5000))  # noqa: TID251 - as above


def missed_and_noise(drawn: np.ndarray, cap: float, share: float, rho: float) -> tuple[float, float]:
    """What a cap misses, and the noise of the sum over 10,000 rows, as parts of all squared lengths."""
    total = float((drawn**2).mean())
    missed = float(np.maximum(drawn**2 - cap**2, 0.0).mean())
    return missed / total, cap**2 / (2 * share * rho) ** 0.5 / (10_000 * total)


@pytest.mark.parametrize("draw", [lengths, long_tailed])
@pytest.mark.parametrize("rho", [1.0, 1e-1, 1e-2, 1e-3])
def test_the_cap_weighs_what_it_misses_against_its_noise(
    draw: Callable[[int], np.ndarray], rho: float
) -> None:
    drawn = draw(11)
    terms = clip_terms(histogram(drawn, 10.0), 5000, 10_000, 0.05, rho)
    assert terms is not None
    assert terms.cap in EDGES
    least = min(math.hypot(*missed_and_noise(drawn, cap, 0.02, rho)) for cap in EDGES)
    assert math.hypot(*missed_and_noise(drawn, terms.cap, 0.02, rho)) < max(2 * least, 0.04)


def test_a_cap_is_never_so_short_that_most_is_missed() -> None:
    """With little noise, the cap is long. With much noise, nothing is told rather than too little."""
    drawn = long_tailed(13)
    found = [clip_terms(histogram(drawn, 10.0), 5000, 10_000, 0.05, rho) for rho in (1.0, 1e-2, 1e-9)]
    caps = [terms.cap for terms in found if terms is not None]
    assert caps == sorted(caps, reverse=True)
    assert len(set(caps)) == 3
    missed = [missed_and_noise(drawn, cap, 0.02, 1.0)[0] for cap in caps]
    assert missed[0] < 0.01
    assert missed[-1] < 0.1


def test_a_cap_is_never_shorter_than_the_clip_norm() -> None:
    terms = clip_terms(histogram(lengths(11), 10.0), 5000, 10_000, 0.7, 1e-2)
    assert terms is not None
    assert terms.cap == 0.7


def test_the_share_grows_until_the_noise_of_the_sum_is_small() -> None:
    drawn, found = lengths(11), []
    for rho in (10.0, 0.15, 0.1, 1e-3):
        terms = clip_terms(histogram(drawn, 10.0), 5000, 10_000, 0.05, rho)
        assert terms is not None
        found.append(terms.share)
        assert (missed_and_noise(drawn, terms.cap, float(terms.share), rho)[1] < 0.045) == (rho > 1e-3)
    assert found == ["0.005", "0.01", "0.02", "0.02"]


def test_a_stray_bin_far_away_does_not_move_the_cap() -> None:
    seen = histogram(lengths(12), 30.0)
    stray = replace(seen, counts=(*seen.counts[:-1], 100))
    assert clip_terms(stray, 5000, 10_000, 0.05, 1e-3) == clip_terms(seen, 5000, 10_000, 0.05, 1e-3)


def test_a_cap_comes_from_the_lengths_that_are_seen() -> None:
    counts = [0] * 49
    counts[20:22] = [900, 800]
    seen = Histogram(EDGES, tuple(counts), 100.0)
    most_unseen, most_seen = (clip_terms(seen, counted, 10_000, 0.001, 1e-2) for counted in (5000, 3000))
    assert most_unseen is not None
    assert most_seen is not None
    assert EDGES[21] <= most_unseen.cap <= most_seen.cap < 8 * EDGES[21]
    assert clip_terms(Histogram(EDGES, (5,) * 49, 10.0), 245, 100, 0.3, 1e-3) is None


def test_the_encoder_says_how_long_clipped_records_were(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(**TERMS, release="joint", clip_norm="0.2")
    encoded = RecordEncoder(manifest).encode({f"x{j}": [0.0, 8.0, -8.0, 1.0] for j in range(D)})
    q = manifest.figures.grid
    assert encoded.long.tolist() == [4 * q**2, 4 * q**2, int(Fraction(4, 64) * q**2)]
    assert encoded.report.clipped == 3
