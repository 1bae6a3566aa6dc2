"""A second draw is added to the integers of a release as the first was, and the figures know of both."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName, whole_numbers
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures, figures_of
from dpdpca_protocol.terms.terms import NoiseBy, Terms
from dpdpca_user.results.second_noise import own_samplers, with_second_draw, with_second_noise

JOINT = Terms(
    ReleaseKind.JOINT, 3, Fraction(1), 12, Fraction(1), Fraction(1, 10**9), Fraction(43, 100), 100, 3072
)
PAIRS = replace(JOINT, release=ReleaseKind.PAIRS, sum_weight=Fraction(0))
MASKED = replace(JOINT, release=ReleaseKind.MASKED, sum_weight=Fraction(0))
N = 7
SUM = np.array([5, -3, 11], dtype=object)
MOMENT = np.array([[90, 4, -8], [4, 70, 2], [-8, 2, 60]], dtype=object)
MATRIX = np.array([[1, 20, 300], [20, -4000, 50_000], [300, 50_000, -600_000]], dtype=object)


def of(matrix: object) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, np.asarray(matrix).tolist()))


def fixed(draws: list[int]) -> Samplers:
    """Samplers that give these draws one after the other."""
    left = iter(draws)
    return Samplers(gaussian=lambda variance, count, bound: [next(left) for _ in range(count)])


def noisy_masked() -> NoisyScatter:
    return NoisyScatter(N, of(N * MOMENT - np.outer(SUM, SUM)), None)


def test_a_masked_release_gets_it_on_the_scaled_scatter() -> None:
    diagonal, off = [1, -4000, -600_000], [20, 300, 50_000]
    again, _ = with_second_noise(noisy_masked(), figures_of(MASKED), fixed(diagonal + off))
    assert again == NoisyScatter(N, of(N * MOMENT - np.outer(SUM, SUM) + MATRIX), None)


@pytest.mark.parametrize(
    ("terms", "names"),
    [(JOINT, [BlockName.SUM, BlockName.SECOND_MOMENT]), (PAIRS, [BlockName.PAIR_MOMENT])],
    ids=["joint", "pairs"],
)
def test_a_flat_release_gets_it_on_every_value_but_the_count(terms: Terms, names: list[BlockName]) -> None:
    figures = figures_of(terms)
    released = {block.name: [7] * block.length for block in figures.blocks}
    again, _ = with_second_draw(released, figures, fixed(list(range(1, 10))))
    assert again[BlockName.COUNT] == [7]
    assert [*again] == [BlockName.COUNT, *names]
    moved = [value - 7 for name in names for value in again[name]]
    assert sorted(moved) == list(range(1, len(moved) + 1))


def test_arrays_get_the_same_draw_and_stay_exact_modulo_two_to_the_64() -> None:
    figures = figures_of(JOINT)
    noise = [*range(-(2**62), 2**62, 2**60), 5]
    top = 2**63 - 1
    numbers = {block.name: [top - i for i in range(block.length)] for block in figures.blocks}
    arrays = {name: np.array(values, dtype=np.int64) for name, values in numbers.items()}
    expected, _ = with_second_draw(numbers, figures, fixed(noise))
    found, _ = with_second_draw(arrays, figures, fixed(noise))
    for name, values in expected.items():
        assert whole_numbers(found[name]) == [(value + 2**63) % 2**64 - 2**63 for value in values]


@pytest.mark.parametrize("terms", [JOINT, MASKED], ids=["joint", "masked"])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_figures_know_of_both_draws(terms: Terms, mechanism: str) -> None:
    figures = figures_of(replace(terms, mechanism=mechanism))
    _, both = drawn_again(figures, EXACT)
    once, twice = figures.law(N), both.law(N)
    assert (twice.diagonal, twice.sum_) == (2 * once.diagonal, 2 * once.sum_)
    assert both.guarantee == figures.guarantee
    with pytest.raises(UsageError):
        drawn_again(both, EXACT)


def drawn_again(figures: Figures, sample: Samplers) -> tuple[list[int], Figures]:
    """All numbers of a release after a second draw, and its figures."""
    if not figures.blocks:
        again, both = with_second_noise(noisy_masked(), figures, sample)
        return [again.scaled_scatter[i][j] for i in range(3) for j in range(i, 3)], both
    blocks, both = with_second_draw(
        {block.name: [N] * block.length for block in figures.blocks}, figures, sample
    )
    return [value for block in figures.blocks[1:] for value in blocks[block.name]], both


@pytest.mark.parametrize("terms", [JOINT, PAIRS, MASKED], ids=["joint", "pairs", "masked"])
def test_one_release_has_one_draw_and_another_release_another(terms: Terms) -> None:
    figures = figures_of(terms)
    given = [
        (b"key", [b"one", b"two"]),
        (b"key", [b"onetwo"]),
        (b"key", [b"one", b"tw0"]),
        (b"kez", [b"one", b"two"]),
    ]
    drawn = [drawn_again(figures, own_samplers(*each))[0] for each in given]
    assert len(set(map(tuple, drawn))) == len(given)
    assert drawn_again(figures, own_samplers(*given[0]))[0] == drawn[0]
    assert drawn_again(figures, EXACT)[0] != drawn_again(figures, EXACT)[0]


@pytest.mark.parametrize("terms", [JOINT, PAIRS, MASKED], ids=["joint", "pairs", "masked"])
def test_the_same_release_under_two_keys_has_two_draws(terms: Terms) -> None:
    """What anybody could compute from the release alone would hide nothing."""
    figures, chunks = figures_of(terms), [b"one", b"two"]
    one, other = (drawn_again(figures, own_samplers(key, chunks))[0] for key in (b"a" * 96, b"b" * 96))
    assert all(x != y for x, y in zip(one, other, strict=True))


def test_own_draws_have_the_law_of_others() -> None:
    sample, variance, count = own_samplers(b"key", []), Fraction(10**6), 40_000
    drawn = np.array(sample.gaussian(variance, count, 13_000), dtype=float)
    assert abs(drawn.mean()) < 6 * 1000 / count**0.5
    assert abs(drawn.var() / 10**6 - 1) < 6 * (2 / count) ** 0.5
    assert sample.gaussian(variance, count, 13_000) != drawn.tolist()


def test_owners_noise_needs_no_second() -> None:
    shared = figures_of(replace(JOINT, noise_by=NoiseBy.OWNERS, assured_shares=2, max_owners=3))
    assert shared.draws == 1
