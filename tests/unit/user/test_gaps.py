"""How many values are missing, and what variances are without the gaps: nothing where noise hides them."""

import json
from typing import Any

import numpy as np
import pytest
from reference_data import Seeded
from scripted import SILENCE
from study_parties import MakeManifest

from dpdpca_protocol.errors import CryptographicError, MessageError
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.reference import run_study
from dpdpca_protocol.release.ciphers import UNENCRYPTED
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.result.components import EncodedSpace, check_scatter, fit_components
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_user.results.clipping import ClippingFigures, assess_clipping
from dpdpca_user.results.gaps import Gaps, within_features, without_gaps
from dpdpca_user.results.moments import Moments
from dpdpca_user.results.reliability import assess_release

D, N, SHARE = 6, 40_000, 0.2
LEVELS = ["a", "b", "c"]
TERMS: dict[str, Any] = {
    "features": [
        *({"name": f"x{j}", "lower": -8, "upper": 8, "centre": 1} for j in range(D)),
        {"name": "level", "levels": LEVELS},
    ],
    "missing": "midpoint",
    "epsilon": 20,
    "delta": "1e-6",
    "max_records": N,
    "clip_share": "0.1",
    "clip_norm": "2.5",  # no record is longer
}
FILLED = D + len(LEVELS)


def columns_of(share: float) -> tuple[dict[str, Any], np.ndarray]:
    """Records with one common factor and some values missing; and the scatter of the complete ones."""
    rng = np.random.default_rng(5)  # noqa: TID251 - made-up records, not noise, masks or keys
    factor = rng.normal(size=N)
    rows = 0.8 * factor[:, None] * np.linspace(0.5, 1.5, D) + rng.normal(size=(N, D))
    rows = np.clip(rows, -7, 7)
    level = np.digitize(factor + 0.5 * rng.normal(size=N), [-0.5, 0.5])
    whole = np.column_stack([(rows - 1) / 8, np.eye(3)[level]])
    gaps = rng.random((N, D + 1)) < share
    columns: dict[str, Any] = {f"x{j}": np.where(gaps[:, j], np.nan, rows[:, j]) for j in range(D)}
    levels = np.array(LEVELS, dtype=object)[level]
    levels[gaps[:, D]] = None
    columns["level"] = levels
    return columns, np.asarray(np.cov(whole, rowvar=False))


def released(manifest: Manifest, share: float) -> tuple[NoisyScatter, np.ndarray]:
    columns, scatter = columns_of(share)
    # Which records are paired moves the variances of pairs by 1 %: here it is always the same.
    noisy = run_study(manifest, [columns], Seeded(7), SILENCE, UNENCRYPTED)
    assert isinstance(noisy, NoisyScatter)
    return noisy, scatter


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_variances_and_intervals_are_those_without_gaps(make_manifest: MakeManifest, release: str) -> None:
    manifest = make_manifest(**TERMS, release=release)
    figures, (noisy, scatter) = manifest.figures, released(manifest, SHARE)
    components = fit_components(noisy, figures, EncodedSpace.of(manifest))
    reliability = assess_release(noisy, figures, components, OS_RANDOMNESS)
    found = reliability.clipping
    assert found is not None
    assert found.factor is not None
    assert found.gaps is not None
    assert found.gaps.share == pytest.approx(SHARE, abs=0.005)
    assert found.present == pytest.approx((1 - SHARE) ** (2 if release == "pairs" else 1), abs=0.01)
    assert found.total_variance == pytest.approx(np.trace(scatter), rel=0.02)
    own = np.einsum("ki,ij,kj->k", components.vectors, scatter, components.vectors)[: len(found.variances)]
    assert components.captured[0] < 0.85 * own[0]
    assert found.variances[:2] == pytest.approx(own[:2], rel=0.03)
    # Noise is the least part here: intervals leave out that three levels are missing or present together.
    assert ((0.98 * found.low < own) & (own < 1.02 * found.high))[:2].all()
    best = np.linalg.eigvalsh(scatter)[::-1]
    share = np.cumsum(own)[:2] / np.cumsum(best)[:2]
    assert share[0] < 0.996  # the components are those of records with gaps, and the intervals know it
    assert (reliability.share_low[:2] <= share + 0.01).all()  # pairing is not in the intervals
    assert (share <= reliability.share_high[:2]).all()
    table = Moments.of(components, reliability, figures).covariance(remove_noise=False)
    scale = np.outer(components.space.scale, components.space.scale)
    assert table.values / scale / found.factor == pytest.approx(scatter, abs=0.02 * np.trace(scatter))
    correlation = Moments.of(components, reliability, figures).correlation(remove_noise=False).values
    root = np.sqrt(np.diag(scatter))
    assert correlation[:D, :D] == pytest.approx((scatter / np.outer(root, root))[:D, :D], abs=0.05)
    said = found.sentences("records")
    assert "values are missing" in said
    assert "missing at random, evenly over records and features" in said
    assert ClippingFigures.parse(json.loads(json.dumps(found.to_body()))).to_body() == found.to_body()


def test_a_scatter_without_gaps_is_exact_on_average() -> None:
    """Entries within a feature lose q, others q², and the mean q."""
    rng = np.random.default_rng(8)  # noqa: TID251 - made-up records, not noise, masks or keys
    rows = rng.normal([3.0, 0.0, -1.0], size=(50, 3))
    second, q = rows.T @ rows / 50, 0.7
    one = np.eye(3, dtype=bool) | np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=bool)
    mean, seen = rows.mean(axis=0), np.where(one, q * second, q**2 * second)
    shown = seen - np.outer(q * mean, q * mean)
    found = without_gaps(shown, np.where(one, seen, 0.0), q)
    assert found == pytest.approx(second - np.outer(mean, mean))
    assert (without_gaps(shown, seen, 1.0) == shown).all()


@pytest.mark.parametrize("release", ["joint", "pairs"])
def test_without_gaps_nothing_changes(make_manifest: MakeManifest, release: str) -> None:
    manifest = make_manifest(**TERMS, release=release)
    figures, (noisy, _) = manifest.figures, released(manifest, 0.0)
    assert noisy.gaps == 0
    components = fit_components(noisy, figures, EncodedSpace.of(manifest))
    found = assess_clipping(noisy, figures, components)
    silent = assess_clipping(_with_gaps(noisy, None), figures, components)
    assert found is not None
    assert silent is not None
    assert found.present == 1
    assert "No missing values can be told from noise" in found.sentences("records")
    assert {**found.to_body(), "gaps": None, "told": list(noisy.clipped or ())} == silent.to_body()


def test_a_number_near_zero_is_noise_and_only_widens(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(**TERMS, release="joint")
    figures, (noisy, _) = manifest.figures, released(manifest, 0.0)
    components = fit_components(noisy, figures, EncodedSpace.of(manifest))
    deviation = float(figures.block_variance(figures.blocks[-1].name)) ** 0.5
    bodies = []
    for gaps in (0, round(1.9 * deviation), round(2.1 * deviation)):
        found = assess_clipping(_with_gaps(noisy, gaps), figures, components)
        assert found is not None
        bodies.append(found)
    assert [found.present < 1 for found in bodies] == [False, False, True]
    assert bodies[0].variances.tolist() == bodies[1].variances.tolist()
    assert (bodies[0].deviations < bodies[1].deviations).all()
    assert (bodies[1].variances[:2] < bodies[2].variances[:2]).all()


def test_more_than_half_of_all_values_is_said_to_be_a_bound(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(**TERMS, release="joint")
    noisy, _ = released(manifest, 0.9)
    gaps = Gaps.of(noisy, manifest.figures)
    assert gaps is not None
    assert gaps.may_be_more
    assert gaps.share <= 5 / FILLED


def test_a_number_that_no_records_have_is_refused(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(**TERMS, release="joint")
    figures, (noisy, _) = manifest.figures, released(manifest, SHARE)
    check_scatter(noisy, figures)
    tail = figures.tail(figures.blocks[-1].name)
    for gaps in (-tail - 1, noisy.count * 5 + tail + 1):
        with pytest.raises(CryptographicError, match="more values are missing"):
            check_scatter(_with_gaps(noisy, gaps), figures)


@pytest.mark.parametrize(
    "damage",
    [
        {"present": 0.0},
        {"present": 1e-300},
        {"present": 1.5},
        {"share": float("nan")},
        {"share": 5.0},
        {"share_deviation": -1.0},
    ],
)
def test_damaged_figures_are_refused(make_manifest: MakeManifest, damage: dict[str, Any]) -> None:
    manifest = make_manifest(**TERMS, release="joint")
    noisy, _ = released(manifest, SHARE)
    components = fit_components(noisy, manifest.figures, EncodedSpace.of(manifest))
    found = assess_clipping(noisy, manifest.figures, components)
    assert found is not None
    body = found.to_body()
    with pytest.raises(MessageError):
        ClippingFigures.parse(body | {"gaps": body["gaps"] | damage})


def test_levels_of_one_feature_are_missing_together(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(**TERMS, release="joint")
    noisy, _ = released(manifest, SHARE)
    within = within_features(noisy, EncodedSpace.of(manifest))
    assert within[D:, D:] == pytest.approx(
        np.diag(np.diag(within)[D:]), abs=1e-3
    )  # two levels never go together
    centred = {"name": "level", "levels": LEVELS, "centre": ["0.3", "0.4", "0.3"]}
    manifest = make_manifest(**TERMS | {"features": [*TERMS["features"][:D], centred]}, release="joint")
    noisy, _ = released(manifest, SHARE)
    within = within_features(noisy, EncodedSpace.of(manifest))
    assert np.count_nonzero(within, axis=1).tolist() == [1] * D + [3] * 3


def _with_gaps(noisy: NoisyScatter, gaps: int | None) -> NoisyScatter:
    return NoisyScatter(noisy.count, noisy.scaled_scatter, noisy.sum, noisy.of_pairs, noisy.clipped, gaps)
