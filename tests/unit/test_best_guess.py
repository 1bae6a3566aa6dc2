"""The chance that the consent sheet states: no law exceeds it, and it is close to what a law reaches."""

import math
from fractions import Fraction
from typing import Any

import pytest
from study_parties import MakeManifest

from dpdpca_lab.audit.flat import FlatRelease, flat_pairs
from dpdpca_lab.audit.neighbours import Neighbours, arena_of, distance, worst_pairs
from dpdpca_lab.audit.observe import Lens
from dpdpca_lab.audit.releases import Release, release_of
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.accounting import best_guess, zcdp_rho
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.statements import best_guess_of

NONE = Fraction(0)
LARGE = Fraction(50)


def normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def chance_at_discrete_gaussians(variance: float, moved: int) -> float:
    """(1 + TV)/2 of two discrete Gaussians that are `moved` integers apart, added up term by term."""
    reach = int(40 * math.sqrt(variance)) + moved + 40
    weights = {x: math.exp(-(x**2) / (2 * variance)) for x in range(-reach, reach + 1)}
    mass = sum(weights.values())
    larger = sum(max(weights[x], weights.get(x - moved, 0.0)) for x in weights)
    return larger / mass / 2


@pytest.mark.parametrize("moved", [1, 3])
@pytest.mark.parametrize("variance", [0.1, 0.5, 2.0, 40.0, 900.0])
def test_no_discrete_gaussian_gives_more_away(variance: float, moved: int) -> None:
    rho = Fraction(moved**2) / (2 * Fraction(variance))
    bound = float(best_guess(rho, LARGE, NONE, NONE))
    reached = chance_at_discrete_gaussians(variance, moved)
    assert reached <= bound
    if rho < 1:  # √(2π)/2 = 1.2533 is what Pinsker's inequality gives away at small ρ
        assert bound - 0.5 <= 1.4 * (reached - 0.5)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_some_law_reaches_what_epsilon_and_delta_allow(epsilon: float, delta: float) -> None:
    """The law with outcomes that only one side has, of probability δ, and randomised response otherwise."""
    likely = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    rare = (1 - delta) / (1 + math.exp(epsilon))
    first, second = (delta, likely, rare, 0.0), (0.0, rare, likely, delta)
    for p, q in zip(first, second, strict=True):
        assert p <= math.exp(epsilon) * q + delta + 1e-15
    reached = sum(map(max, first, second)) / 2
    bound = best_guess(Fraction(100), Fraction(epsilon), Fraction(delta), NONE)
    assert float(bound) == pytest.approx(reached, rel=1e-12)


def test_the_bound_grows_with_all_that_it_depends_on_and_never_exceeds_certainty() -> None:
    rho, epsilon, delta = zcdp_rho(Fraction(1), Fraction(1, 10**9)), Fraction(1), Fraction(1, 10**9)
    bound = best_guess(rho, epsilon, delta, NONE)
    assert Fraction(1, 2) < bound < best_guess(2 * rho, epsilon, delta, NONE)
    assert best_guess(rho, epsilon, delta, Fraction(1, 10)) == pytest.approx(bound + Fraction(1, 20))
    assert best_guess(Fraction(10**6), Fraction(10**9), delta, NONE) == 1
    assert best_guess(rho, Fraction(1, 100), delta, NONE) < bound
    with pytest.raises(UsageError):
        best_guess(NONE, epsilon, delta, NONE)


def arena(manifest: Manifest) -> tuple[Release, list[Neighbours]]:
    """The audit's game for a study: what it plays, and its worst pairs."""
    if manifest.release in (ReleaseKind.PAIRS, ReleaseKind.PRE_STUDY):
        flat = FlatRelease(manifest.figures, 2)
        return flat, flat_pairs(manifest, flat, 200)
    columns = arena_of(manifest)
    return release_of(manifest.figures, len(columns.columns)), worst_pairs(manifest, columns, 200)


KINDS: list[dict[str, Any]] = [
    {"release": "joint"},
    {"release": "masked"},
    {"release": "pairs"},
    {"release": "joint", "noise_by": "owners", "max_colluding": 1},
    {"release": "joint", "epsilon": 6},
]


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_the_audits_worst_pairs_stay_below_it(make_manifest: MakeManifest, changes: dict[str, Any]) -> None:
    """At a distance μ of noise scales, the best guess between two Gaussians is right with chance Φ(μ/2)."""
    manifest = make_manifest(**changes)
    release, pairs = arena(manifest)
    reached = max(normal(distance(release, pair.first, pair.second) / 2) for pair in pairs)
    bound = float(best_guess_of(manifest))
    assert reached <= bound
    assert bound - 0.5 <= 1.4 * (reached - 0.5)


@pytest.mark.parametrize("stronger", [False, True])
def test_guesses_in_the_game_stay_below_it_unless_the_noise_is_too_weak(
    make_manifest: MakeManifest, stronger: bool
) -> None:
    """Guesses by the likelihood ratio. False alarm: 6 standard deviations above a true chance, below 1e-8.

    At ε = 8 a reader of the result itself is right in four of five guesses, which ε = 1 would not allow.
    """
    honest = make_manifest(release="joint", max_records=200, min_records=2)
    played = make_manifest(release="joint", max_records=200, min_records=2, epsilon=8 if stronger else 1)
    release, pairs = arena(played)
    runs = 400
    lens = Lens(release, pairs[0])
    middle = float(lens.shift @ lens.shift) / 2
    right = 0
    for side, totals in enumerate((pairs[0].first, pairs[0].second)):
        seen = lens.read(release.play(totals, runs), side).seen
        right += int((((seen @ lens.shift) > middle) == bool(side)).sum())
    limit = float(best_guess_of(honest)) + 6 * math.sqrt(0.25 / (2 * runs))
    assert (right / (2 * runs) > limit) is stronger


def test_a_chain_counts_all_its_rounds(make_manifest: MakeManifest) -> None:
    terms: dict[str, Any] = {"release": "pairs", "delta": "0.00000001"}
    alone, first = make_manifest(**terms), make_manifest(**terms, rho_share="0.05")
    assert float(best_guess_of(first)) == pytest.approx(float(best_guess_of(alone)), abs=1e-4)


def test_laplace_noise_is_bounded_by_epsilon(make_manifest: MakeManifest) -> None:
    manifest = make_manifest(release="joint", mechanism="laplace")
    assert float(best_guess_of(manifest)) == pytest.approx(math.e / (1 + math.e))
