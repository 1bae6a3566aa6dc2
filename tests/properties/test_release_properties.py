"""Shares of any owners, summed under encryption and released, against sums in plain integers."""

from flat_releases import open_joint_release
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed import encrypted, masked_release, with_noise

from dpdpca_protocol.layout.packing import BlockLayout, slots_for
from dpdpca_protocol.paillier.cipher import Encryptor
from dpdpca_protocol.paillier.keys import SecretKey
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.aggregate import multiply_shares
from dpdpca_protocol.release.release import (
    answer_count,
    check_count,
    draw_mask,
    open_masked_release,
    triangle_index,
)
from dpdpca_protocol.release.vectors import PaillierVectors

BOUND = 40
MASK_BITS = 70

Records = list[list[int]]


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[int, list[Records]]:
    """d, and for each owner its records: signed integers up to BOUND."""
    d = draw(st.integers(1, 5))
    record = st.lists(st.integers(-BOUND, BOUND), min_size=d, max_size=d)
    return d, draw(st.lists(st.lists(record, min_size=1, max_size=4), min_size=1, max_size=4))


def moments(d: int, records: Records) -> tuple[int, list[int], list[list[int]]]:
    sums = [sum(z[i] for z in records) for i in range(d)]
    return len(records), sums, [[sum(z[i] * z[j] for z in records) for j in range(d)] for i in range(d)]


def noise_for(d: int, limit: int) -> st.SearchStrategy[list[int]]:
    size = d * (d + 1) // 2
    return st.lists(st.integers(-limit, limit), min_size=size, max_size=size)


def full(d: int, triangle: list[int]) -> list[list[int]]:
    return [[triangle[triangle_index(d, min(i, j), max(i, j))] for j in range(d)] for i in range(d)]


def expected(d: int, pooled: Records, noise: list[int]) -> tuple[tuple[int, ...], ...]:
    """N·R − v vᵀ + H, from the pooled records."""
    n, v, r = moments(d, pooled)
    h = full(d, noise)
    return tuple(tuple(n * r[i][j] - v[i] * v[j] + h[i][j] for j in range(d)) for i in range(d))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), cohort=cohorts())
def test_joint_release_is_the_pooled_moments_plus_the_noise(
    toy_key: SecretKey, data: st.DataObject, cohort: tuple[int, list[Records]]
) -> None:
    d, owners = cohort
    vectors = PaillierVectors(toy_key.public, data.draw(st.integers(24, 200), label="slot width"))
    shares = []
    for records in owners:
        n, v, r = moments(d, records)
        upper = [r[i][j] for i in range(d) for j in range(i, d)]
        shares.append(encrypted(vectors, [n, *v, *upper]))
    sum_noise = data.draw(st.lists(st.integers(-9999, 9999), min_size=d, max_size=d))
    noise = data.draw(noise_for(d, 99999))
    released = with_noise(vectors, multiply_shares(shares, toy_key.public), [0, *sum_noise, *noise])

    opened = open_joint_release(vectors, toy_key, released, d, max_records=100)
    pooled = [z for records in owners for z in records]
    n, v, r = moments(d, pooled)
    noisy = [x + g for x, g in zip(v, sum_noise, strict=True)]
    h = full(d, noise)
    assert opened.count == n
    assert opened.sum == tuple(noisy)
    assert opened.scaled_scatter == tuple(
        tuple(n * (r[i][j] + h[i][j]) - noisy[i] * noisy[j] for j in range(d)) for i in range(d)
    )


@settings(max_examples=25, deadline=None)
@given(data=st.data(), cohort=cohorts())
def test_masked_release_is_the_scaled_scatter_plus_the_noise_exactly(
    toy_key: SecretKey, data: st.DataObject, cohort: tuple[int, list[Records]]
) -> None:
    d, owners = cohort
    slot_bits = 2 * MASK_BITS + data.draw(st.integers(2, 100), label="spare bits")
    layout = BlockLayout(d, slot_bits, slots_for(toy_key.public.bits, slot_bits))
    encryptor = Encryptor(toy_key.public, layout.ciphertext_count)
    shares = [encryptor.encrypt_many(list(layout.pack_share(*moments(d, records)))) for records in owners]
    aggregate = multiply_shares(shares, toy_key.public)

    pooled = [z for records in owners for z in records]
    count, rho = answer_count(toy_key, aggregate[0])
    assert count == len(pooled)
    check_count(toy_key.public, aggregate[0], count, rho)
    mask = draw_mask(d, MASK_BITS, OS_RANDOMNESS)
    noise = data.draw(noise_for(d, 10**9))
    released = masked_release(toy_key.public, layout, aggregate, count, mask, noise)
    assert len(set(released) | set(aggregate)) == len(released) + len(aggregate)

    opened = open_masked_release(toy_key, layout, released, count)
    assert opened.count == count
    assert opened.sum is None
    assert opened.scaled_scatter == expected(d, pooled, noise)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), cohort=cohorts())
def test_noise_that_owners_bring_adds_up_and_leaves_the_count_exact(
    toy_key: SecretKey, data: st.DataObject, cohort: tuple[int, list[Records]]
) -> None:
    """Whatever owners add to v and R before they encrypt, the aggregate is the pooled sums plus all of it."""
    d, owners = cohort
    vectors = PaillierVectors(toy_key.public, data.draw(st.integers(30, 200), label="slot width"))
    size = d + d * (d + 1) // 2
    parts = st.lists(st.integers(-99999, 99999), min_size=size, max_size=size)
    shares, total = [], [0] * size
    for records in owners:
        n, v, r = moments(d, records)
        exact = [*v, *(r[i][j] for i in range(d) for j in range(i, d))]
        own = data.draw(parts)
        noisy = [x + g for x, g in zip(exact, own, strict=True)]
        total = [a + b for a, b in zip(total, noisy, strict=True)]
        shares.append(encrypted(vectors, [n, *noisy]))
    released = multiply_shares(shares, toy_key.public)
    opened = open_joint_release(vectors, toy_key, released, d, max_records=100)
    assert opened.count == sum(len(records) for records in owners)
    assert opened.sum == tuple(total[:d])
    r = full(d, total[d:])
    assert opened.scaled_scatter == tuple(
        tuple(opened.count * r[i][j] - total[i] * total[j] for j in range(d)) for i in range(d)
    )
