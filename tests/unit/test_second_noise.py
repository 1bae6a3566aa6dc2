"""A second draw is added to the integers of a release as the first was, and the figures know of both."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import figures_of
from dpdpca_protocol.terms.terms import NoiseBy, Terms
from dpdpca_user.results.second_noise import add_noise, own_samplers, with_second_noise

JOINT = Terms(
    ReleaseKind.JOINT, 3, Fraction(1), 12, Fraction(1), Fraction(1, 10**9), Fraction(43, 100), 100, 3072
)
MASKED = replace(JOINT, release=ReleaseKind.MASKED, sum_weight=Fraction(0))
N = 7
SUM = np.array([5, -3, 11], dtype=object)
MOMENT = np.array([[90, 4, -8], [4, 70, 2], [-8, 2, 60]], dtype=object)
TRIANGLE = [1, 20, 300, -4000, 50_000, -600_000]
MATRIX = np.array([[1, 20, 300], [20, -4000, 50_000], [300, 50_000, -600_000]], dtype=object)


def of(matrix: object) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, np.asarray(matrix).tolist()))


def test_a_masked_release_gets_it_on_the_scaled_scatter() -> None:
    scaled = N * MOMENT - np.outer(SUM, SUM)
    assert add_noise(NoisyScatter(N, of(scaled), None), TRIANGLE) == NoisyScatter(
        N, of(scaled + MATRIX), None
    )


def test_a_joint_release_gets_it_on_sum_and_second_moment_as_the_proxy_would_have_put_it_there() -> None:
    drawn = [0, 2, -6, 9, *TRIANGLE]
    scaled, total = N * MOMENT - np.outer(SUM, SUM), SUM + np.array([2, -6, 9], dtype=object)
    expected = N * (MOMENT + MATRIX) - np.outer(total, total)
    assert add_noise(NoisyScatter(N, of(scaled), tuple(SUM)), drawn) == NoisyScatter(
        N, of(expected), tuple(total)
    )


def test_a_release_of_pairs_gets_it_on_the_moment() -> None:
    noisy = NoisyScatter(N, of(MOMENT), None, of_pairs=True)
    assert add_noise(noisy, [0, *TRIANGLE]) == replace(noisy, scaled_scatter=of(MOMENT + MATRIX))


@pytest.mark.parametrize("terms", [JOINT, MASKED], ids=["joint", "masked"])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_figures_know_of_both_draws(terms: Terms, mechanism: str) -> None:
    figures = figures_of(replace(terms, mechanism=mechanism))
    total = tuple(SUM) if terms is JOINT else None
    noisy = NoisyScatter(N, of(N * MOMENT - np.outer(SUM, SUM)), total)
    again, both = with_second_noise(noisy, figures)
    assert again.scaled_scatter != noisy.scaled_scatter
    assert (again.sum is None) == (total is None)
    once, twice = figures.law(N), both.law(N)
    assert (twice.diagonal, twice.sum_) == (2 * once.diagonal, 2 * once.sum_)
    assert both.guarantee == figures.guarantee
    with pytest.raises(UsageError):
        with_second_noise(again, both)


def test_one_release_has_one_draw_and_another_release_another() -> None:
    figures = figures_of(MASKED)
    noisy = NoisyScatter(N, of(N * MOMENT - np.outer(SUM, SUM)), None)
    given = [
        (b"key", [b"one", b"two"]),
        (b"key", [b"onetwo"]),
        (b"key", [b"one", b"tw0"]),
        (b"kez", [b"one", b"two"]),
    ]
    drawn = [with_second_noise(noisy, figures, own_samplers(*each))[0].scaled_scatter for each in given]
    assert len(set(drawn)) == len(given)
    again = with_second_noise(noisy, figures, own_samplers(*given[0]))[0].scaled_scatter
    assert again == drawn[0]
    assert with_second_noise(noisy, figures)[0] != with_second_noise(noisy, figures)[0]


@pytest.mark.parametrize("terms", [JOINT, MASKED], ids=["joint", "masked"])
def test_the_same_release_under_two_keys_has_two_draws(terms: Terms) -> None:
    """What anybody could compute from the release alone would hide nothing."""
    figures = figures_of(terms)
    noisy = NoisyScatter(N, of(N * MOMENT - np.outer(SUM, SUM)), tuple(SUM) if terms is JOINT else None)
    chunks = [b"one", b"two"]
    drawn = [
        with_second_noise(noisy, figures, own_samplers(key, chunks))[0] for key in (b"a" * 96, b"b" * 96)
    ]
    assert drawn[0].scaled_scatter != drawn[1].scaled_scatter
    triangle = np.triu_indices(3)
    one, other = (np.array(each.scaled_scatter, dtype=object)[triangle] for each in drawn)
    assert not (one == other).any()


def test_own_draws_have_the_law_of_others() -> None:
    sample, variance, count = own_samplers(b"key", []), Fraction(10**6), 40_000
    drawn = np.array(sample.gaussian(variance, count, 13_000), dtype=float)
    assert abs(drawn.mean()) < 6 * 1000 / count**0.5
    assert abs(drawn.var() / 10**6 - 1) < 6 * (2 / count) ** 0.5
    assert sample.gaussian(variance, count, 13_000) != drawn.tolist()


def test_owners_noise_needs_no_second() -> None:
    shared = figures_of(replace(JOINT, noise_by=NoiseBy.OWNERS, assured_shares=2, max_owners=3))
    assert shared.draws == 1
