"""The attacks that the rules of the release stop, run for real: each fails against the product, and each
succeeds once its rule is taken out. The attacker is the data user, who holds the secret key.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import isqrt

import gmpy2
import pytest
import streamed
from gmpy2 import mpz
from promises import Promise

from dpdpca_protocol.errors import CryptographicError
from dpdpca_protocol.layout.packing import BlockLayout, pack, slots_for, unpack
from dpdpca_protocol.paillier.bases import derive_base
from dpdpca_protocol.paillier.cipher import raw_encrypt
from dpdpca_protocol.paillier.keys import KeyRules, PublicKey, SecretKey, generate_secret_key
from dpdpca_protocol.paillier.residues import pool_size, uniform_residue
from dpdpca_protocol.privacy.mechanisms import Gaussian, Quantity, Setting
from dpdpca_protocol.privacy.mechanisms.interface import sqrt_up
from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release import masked as masked_release
from dpdpca_protocol.release import release
from dpdpca_protocol.release.masked import Speed

D = 3
MASK_BITS = 84
SLOT_BITS = 2 * MASK_BITS
RECORD_BOUND = 1 << 16
NOISE_VARIANCE = Fraction(8 * RECORD_BOUND**2)  # t² at ρ = 1
MAX_RECORDS = 64

COUNT = 60
Records = list[list[int]]
NEIGHBOUR_A: Records = [[100, -20, 30]] * (COUNT - 1) + [[120, 40, -60]]
NEIGHBOUR_B: Records = [[100, -20, 30]] * (COUNT - 1) + [[-120, 40, -60]]


@pytest.fixture(scope="module")
def secret() -> SecretKey:
    return generate_secret_key(1024, OS_RANDOMNESS, rules=KeyRules(512))


def moments(records: Records) -> tuple[int, list[int], list[list[int]]]:
    sums = [sum(z[i] for z in records) for i in range(D)]
    return len(records), sums, [[sum(z[i] * z[j] for z in records) for j in range(D)] for i in range(D)]


def scaled_scatter(records: Records) -> list[list[int]]:
    """N·S, by the definition."""
    n, v, r = moments(records)
    return [[n * r[i][j] - v[i] * v[j] for j in range(D)] for i in range(D)]


def drawn_noise(count: int, d: int = D) -> list[int]:
    setting = Setting(Quantity.SCATTER, d, RECORD_BOUND, Fraction(20), Fraction(1, 10**6))
    return Gaussian(setting, sqrt_up(NOISE_VARIANCE)).draw(count)


def layout_of(public: PublicKey) -> BlockLayout:
    return BlockLayout(D, SLOT_BITS, slots_for(public.bits, SLOT_BITS))


def unit(public: PublicKey) -> mpz:
    while True:
        r = mpz(OS_RANDOMNESS.below(int(public.modulus)))
        if gmpy2.gcd(r, public.modulus) == 1:
            return r


def encrypted_aggregate(public: PublicKey, records: Records) -> list[mpz]:
    n, v, r = moments(records)
    layout = layout_of(public)
    plain = [n, *v]
    for i in range(D):
        plain += [pack([r[i][j] for j in columns], SLOT_BITS) for _, columns in layout.blocks(i)]
    return [raw_encrypt(public, m, unit(public)) for m in plain]


def masked(
    secret: SecretKey, records: Records, count: int, noise: Sequence[int] | None = None
) -> tuple[list[mpz], list[int], list[int]]:
    """A masked release as the proxy makes it, with the mask and noise that it drew."""
    mask = release.draw_mask(D, MASK_BITS, OS_RANDOMNESS)
    if noise is None:
        noise = drawn_noise(count)
    layout = layout_of(secret.public)
    aggregate = encrypted_aggregate(secret.public, records)
    released = streamed.masked_release(secret.public, layout, aggregate, count, mask, noise)
    return released, mask, list(noise)


def opened(secret: SecretKey, released: Sequence[mpz], count: int) -> tuple[tuple[int, ...], ...]:
    return release.open_masked_release(secret, layout_of(secret.public), released, count).scaled_scatter


def every_copy(secret: SecretKey, released: Sequence[mpz]) -> tuple[list[int], list[list[int]]]:
    """v′ and T as they stand in the release, entries left of the diagonal included, nothing checked."""
    layout = layout_of(secret.public)
    plains = [int(secret.decrypt(c)) for c in released]
    blocks = iter(plains[D:])
    rows = [[0] * D for _ in range(D)]
    for i in range(D):
        for _, columns in layout.blocks(i):
            for j, value in zip(columns, unpack(next(blocks), SLOT_BITS, len(columns)), strict=True):
                rows[i][j] = value
    return plains[:D], rows


# --- a false N ------------------------------------------------------------------------------------------


def test_false_count_is_refused(secret: SecretKey) -> None:
    public = secret.public
    ciphertext = encrypted_aggregate(public, NEIGHBOUR_A)[0]
    count, rho = release.answer_count(secret, ciphertext)
    release.check_count(public, ciphertext, count, rho)
    for false in (1, count - 1, count + 1, MAX_RECORDS):
        residue = ciphertext * (1 - false * public.modulus) % public.ciphertext_modulus
        for proof in (rho, rho + 1, secret.residue_root(residue), mpz(1), mpz(0), public.modulus + rho):
            with pytest.raises(CryptographicError) as caught:
                release.check_count(public, ciphertext, false, proof)
            assert caught.value.slug == "count-proof-false"
    for wrong in (rho + 1, public.modulus - rho, rho + public.modulus, mpz(0), -rho):
        with pytest.raises(CryptographicError):
            release.check_count(public, ciphertext, count, wrong)


def test_without_the_proof_a_false_count_tells_neighbours_apart(secret: SecretKey) -> None:
    """With N′ = 1 the user gets R − v vᵀ under the noise of one record: neighbours are far apart."""

    def guess(records: Records) -> bool:
        released, _, _ = masked(secret, records, count=1)
        seen = opened(secret, released, 1)

        def distance(candidate: Records) -> int:
            _, v, r = moments(candidate)
            return sum((seen[i][j] - (r[i][j] - v[i] * v[j])) ** 2 for i in range(D) for j in range(D))

        return distance(NEIGHBOUR_A) < distance(NEIGHBOUR_B)

    # the neighbours lie more than twelve standard deviations apart in the direction that separates them
    _, va, ra = moments(NEIGHBOUR_A)
    _, vb, rb = moments(NEIGHBOUR_B)
    gap = sum(
        ((ra[i][j] - va[i] * va[j]) - (rb[i][j] - vb[i] * vb[j])) ** 2 for i in range(D) for j in range(D)
    )
    assert isqrt(gap) > 2 * 6 * isqrt(int(NOISE_VARIANCE))
    for _ in range(3):
        assert guess(NEIGHBOUR_A)
        assert not guess(NEIGHBOUR_B)


# --- a packed v that differs from the single ones -------------------------------------------------------

LIE = 1 << 20


def mask_from_asymmetry(secret: SecretKey, released: Sequence[mpz]) -> int:
    """b₁ from T₁₀ − T₀₁, if the packed v of column 0 is off by LIE: b₁·(v₀ + LIE) stands beside b₁·v₀."""
    _, rows = every_copy(secret, released)
    return (rows[1][0] - rows[0][1]) // LIE


def test_the_proxy_packs_v_itself_so_it_cannot_differ(secret: SecretKey) -> None:
    released, mask, _ = masked(secret, NEIGHBOUR_A, COUNT)
    assert mask_from_asymmetry(secret, released) == 0 != mask[1]


def test_a_packed_v_sent_by_an_owner_would_give_the_mask_away(
    secret: SecretKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, v, _ = moments(NEIGHBOUR_A)

    def sent_by_owner(public: PublicKey, _singles: object, slot_bits: int) -> mpz:
        return raw_encrypt(public, pack([v[0] + LIE, *v[1:]], slot_bits), unit(public))

    monkeypatch.setattr(masked_release, "pack_ciphertexts", sent_by_owner)
    released, mask, _ = masked(secret, NEIGHBOUR_A, COUNT)
    assert mask_from_asymmetry(secret, released) == mask[1]


# --- b read from the randomness -------------------------------------------------------------------------


def smooth_key(bits: int) -> tuple[SecretKey, list[int]]:
    """A user's own key with p − 1 and q − 1 divisible by the same primes, more than the mask has bits of."""
    factors: list[int] = []
    product, prime = mpz(1), mpz(1009)
    while product.bit_length() <= MASK_BITS + 8:
        factors.append(int(prime))
        product *= prime
        prime = gmpy2.next_prime(prime)

    least, most = 3 << (bits // 2 - 2), 1 << (bits // 2)  # so that a product of two has all its bits

    def prime_with_factors() -> mpz:
        while True:
            k = (least + OS_RANDOMNESS.below(most - least)) // (4 * product)
            p = 2 * product * (2 * k + 1) + 1  # ≡ 3 mod 4
            if gmpy2.is_prime(p):
                return p

    while True:
        p, q = prime_with_factors(), prime_with_factors()
        if p != q and (p * q).bit_length() == bits and gmpy2.gcd(p * q, (p - 1) * (q - 1)) == 1:
            return SecretKey(p, q), factors


def mask_from_randomness(secret: SecretKey, factors: list[int], released: Sequence[mpz]) -> int | None:
    """b₁ by characters of small order that vanish on the group of h but not on one ciphertext of an owner.

    The randomness of T₁,₀ is the owner's r of E[v₀] to the power b₁ (through the packed V₀), times things
    from the group of h. For each prime l the character of order l gives b₁ mod l.
    """
    public = secret.public
    p, q = secret.p, secret.q
    layout = layout_of(public)
    target = released[D + sum(len(layout.blocks(i)) for i in range(1))]  # T of row 1, first block
    randomness = secret.residue_root(target % public.modulus)
    h = secret.residue_root(derive_base(public) % public.modulus)
    residues, modulus = 0, 1
    for factor in factors:
        a = character(secret, h, factor)
        owner = character(secret, owner_randomness(secret, factors), factor)
        seen = character(secret, randomness, factor)
        # the combination of the two coordinates that vanishes on h
        left = (a[1] * owner[0] - a[0] * owner[1]) % factor
        right = (a[1] * seen[0] - a[0] * seen[1]) % factor
        if left == 0:
            return None
        residue = right * pow(left, -1, factor) % factor
        residues += modulus * ((residue - residues) * pow(modulus, -1, factor) % factor)
        modulus *= factor
    assert p != q
    return residues - modulus if residues > modulus // 2 else residues


def character(secret: SecretKey, value: mpz, factor: int) -> tuple[int, int]:
    """Discrete logarithms of `value` in the subgroups of order `factor` of Z*_p and Z*_q."""
    logs = []
    for prime in (secret.p, secret.q):
        exponent = (prime - 1) // factor
        generator = mpz(2)
        while gmpy2.powmod(generator, exponent, prime) == 1:
            generator += 1
        root, seen, power, log = gmpy2.powmod(generator, exponent, prime), mpz(1), 0, None
        goal = gmpy2.powmod(value % prime, exponent, prime)
        while log is None:
            if seen == goal:
                log = power
            seen, power = seen * root % prime, power + 1
        logs.append(log)
    return logs[0], logs[1]


def owner_randomness(secret: SecretKey, factors: list[int]) -> mpz:
    """An element outside the group of h at every small prime: a helper among the owners encrypts with it."""
    public = secret.public
    h = secret.residue_root(derive_base(public) % public.modulus)
    candidate = mpz(2)
    while True:
        a = [character(secret, h, factor) for factor in factors]
        b = [character(secret, candidate, factor) for factor in factors]
        if all((x[1] * y[0] - x[0] * y[1]) % f for x, y, f in zip(a, b, factors, strict=True)):
            return candidate
        candidate += 1


def aggregate_in_the_group_of_h(secret: SecretKey, factors: list[int]) -> list[mpz]:
    """As honest owners make it, powers of h everywhere, but for one E[v₀] under another randomness."""
    public = secret.public
    square, h = public.ciphertext_modulus, derive_base(public)
    n, v, r = moments(NEIGHBOUR_A)
    layout = layout_of(public)
    plain = [n, *v] + [
        pack([r[i][j] for j in columns], SLOT_BITS) for i in range(D) for _, columns in layout.blocks(i)
    ]
    ciphertexts = [
        (1 + m % public.modulus * public.modulus)
        * gmpy2.powmod(h, OS_RANDOMNESS.below(1 << public.bits // 2), square)
        % square
        for m in plain
    ]
    ciphertexts[1] = raw_encrypt(public, v[0], owner_randomness(secret, factors))
    return ciphertexts


def test_uniform_residues_hide_the_mask_from_a_smooth_key(promise: Promise) -> None:
    secret, factors = smooth_key(1024)
    layout = layout_of(secret.public)
    mask = release.draw_mask(D, MASK_BITS, OS_RANDOMNESS)
    noise = drawn_noise(COUNT)
    aggregate = aggregate_in_the_group_of_h(secret, factors)
    released = streamed.masked_release(secret.public, layout, aggregate, COUNT, mask, noise)
    assert mask_from_randomness(secret, factors, released) != mask[1]
    promise("P13", counted="1 release to a key that reads randomizers", result="mask not read")


def test_products_over_a_pool_hide_the_mask_from_a_smooth_key(promise: Promise) -> None:
    secret, factors = smooth_key(1024)
    public, layout = secret.public, layout_of(secret.public)
    pool = [uniform_residue(public, OS_RANDOMNESS) for _ in range(pool_size(public, layout.release_count))]
    for _ in range(3):
        mask = release.draw_mask(D, MASK_BITS, OS_RANDOMNESS)
        aggregate = aggregate_in_the_group_of_h(secret, factors)
        released = streamed.masked_release(
            public, layout, aggregate, COUNT, mask, drawn_noise(COUNT), Speed(pool=pool)
        )
        assert mask_from_randomness(secret, factors, released) != mask[1]
    promise("P13", counted="3 releases over a pool to a key that reads randomizers", result="mask not read")


def test_powers_of_h_would_show_the_mask_to_a_smooth_key(
    monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    secret, factors = smooth_key(1024)
    layout = layout_of(secret.public)
    mask = release.draw_mask(D, MASK_BITS, OS_RANDOMNESS)
    noise = drawn_noise(COUNT)

    def power_of_h(public: PublicKey, _randomness: object) -> mpz:
        power = OS_RANDOMNESS.below(1 << public.bits // 2)
        return gmpy2.powmod(derive_base(public), power, public.ciphertext_modulus)

    monkeypatch.setattr(masked_release, "uniform_residue", power_of_h)
    aggregate = aggregate_in_the_group_of_h(secret, factors)
    released = streamed.masked_release(secret.public, layout, aggregate, COUNT, mask, noise)
    assert mask_from_randomness(secret, factors, released) == mask[1]
    promise("P13", counted="the same attack on powers of h (planted)", result="mask read exactly")


# --- noise on S instead of N·S --------------------------------------------------------------------------


def fits_modulo_count(seen: tuple[tuple[int, ...], ...], records: Records) -> bool:
    expected = scaled_scatter(records)
    n = len(records)
    return all((seen[i][j] - expected[i][j]) % n == 0 for i in range(D) for j in range(D))


def test_noise_at_unit_granularity_hides_the_fractional_part(secret: SecretKey) -> None:
    n = len(NEIGHBOUR_A)
    released = [opened(secret, masked(secret, NEIGHBOUR_A, n)[0], n) for _ in range(3)]
    assert not all(fits_modulo_count(seen, NEIGHBOUR_A) for seen in released)  # by chance: 60⁻¹⁸


def test_noise_on_s_would_leave_the_fractional_part_in_clear(secret: SecretKey) -> None:
    n = len(NEIGHBOUR_A)
    for records, other in ((NEIGHBOUR_A, [*NEIGHBOUR_A[:-1], [121, 40, -60]]),):
        multiples = [n * h for h in drawn_noise(1)]
        seen = opened(secret, masked(secret, records, n, multiples)[0], n)
        assert fits_modulo_count(seen, records)
        assert not fits_modulo_count(seen, other)


# --- b a multiple of N ----------------------------------------------------------------------------------


def sums_modulo_count(secret: SecretKey, released: Sequence[mpz], n: int) -> list[int]:
    return [int(secret.decrypt(c)) % n for c in released[:D]]


def test_a_uniform_mask_hides_the_sums_modulo_the_count(secret: SecretKey) -> None:
    n, v, _ = moments(NEIGHBOUR_A)
    seen = [sums_modulo_count(secret, masked(secret, NEIGHBOUR_A, n)[0], n) for _ in range(4)]
    assert any(row != [x % n for x in v] for row in seen)  # by chance: 60⁻¹²


def test_a_mask_of_multiples_would_show_the_sums_modulo_the_count(
    secret: SecretKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, v, _ = moments(NEIGHBOUR_A)
    uniform = release.draw_mask
    monkeypatch.setattr(
        release, "draw_mask", lambda d, bits, randomness: [n * b for b in uniform(d, bits - 8, randomness)]
    )
    released, _, _ = masked(secret, NEIGHBOUR_A, n)
    assert sums_modulo_count(secret, released, n) == [x % n for x in v]


# --- noise left of the diagonal -------------------------------------------------------------------------


def left_entry(secret: SecretKey, released: Sequence[mpz]) -> tuple[int, int]:
    """The two copies of N·S̃₀₁ that the release holds: left and right of the diagonal."""
    sums, rows = every_copy(secret, released)
    return rows[1][0] - sums[0] * sums[1], rows[0][1] - sums[0] * sums[1]


def test_left_of_the_diagonal_stands_the_same_noisy_value(secret: SecretKey) -> None:
    released, _, noise = masked(secret, NEIGHBOUR_A, COUNT)
    left, right = left_entry(secret, released)
    assert left == right == scaled_scatter(NEIGHBOUR_A)[0][1] + noise[1]


@pytest.mark.parametrize("fresh", [False, True])
def test_fresh_or_no_noise_left_of_the_diagonal_would_leak(
    secret: SecretKey, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    true = scaled_scatter(NEIGHBOUR_A)[0][1]
    honest = release.noise_row
    draws = iter(drawn_noise(COUNT, 20))

    def leaky(noise: Sequence[int], d: int, i: int, columns: Iterable[int]) -> list[int]:
        columns = list(columns)
        row = honest(noise, d, i, columns)
        return [(next(draws) if fresh else 0) if j < i else h for h, j in zip(row, columns, strict=True)]

    monkeypatch.setattr(release, "noise_row", leaky)
    released, _, noise = masked(secret, NEIGHBOUR_A, COUNT)
    left, right = left_entry(secret, released)
    if fresh:
        assert left != right  # a second look at the same number: the mean has half the variance
        assert right == true + noise[1]
    else:
        assert left == true
    with pytest.raises(CryptographicError):
        opened(secret, released, COUNT)
