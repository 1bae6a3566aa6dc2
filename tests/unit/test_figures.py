"""Figures recomputed by hand, by formula and at their edges."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from present import present
from promises import Promise

from dpdpca_protocol.errors import PolicyError, UsageError
from dpdpca_protocol.layout.blocks import BlockName
from dpdpca_protocol.privacy.accounting import delta_of_tails, zcdp_rho
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.figures import Figures, default_fraction_bits, figures_of
from dpdpca_protocol.terms.terms import NoiseBy, SuiteName, Terms
from dpdpca_protocol.wire.fields import decimal_text

JOINT = Terms(
    release=ReleaseKind.JOINT,
    encoded_features=10,
    clip_norm=Fraction("1.1"),
    fraction_bits=11,
    epsilon=Fraction(1),
    delta=Fraction("1e-9"),
    sum_weight=Fraction("0.43"),
    max_records=25000,
    modulus_bits=3072,
)
MASKED = replace(JOINT, release=ReleaseKind.MASKED, sum_weight=Fraction(0))
BOUND = 5075107  # ⌊(1.1 · 2048)²⌋ = ⌊5075107.84⌋


def bit_length_of_signed(value: float) -> int:
    return int(value).bit_length() + 1


def test_record_and_sum_bounds() -> None:
    figures = figures_of(JOINT)
    assert (figures.grid, figures.record_bound, figures.sum_bound) == (2048, BOUND, 2253)
    assert (figures.sum_bound - 1) ** 2 < BOUND <= figures.sum_bound**2


@pytest.mark.parametrize("terms", [JOINT, MASKED], ids=["joint", "masked"])
def test_noise_scale_is_the_theory_rounded_up(terms: Terms) -> None:
    figures = figures_of(terms)
    rho = zcdp_rho(terms.epsilon, figures.delta_zcdp)
    a = Fraction("0.43") * BOUND
    exact = (2 * BOUND + a) ** 2 / (4 * rho) if terms is JOINT else 8 * BOUND**2 / rho
    assert exact < figures.noise_scale**2 <= exact * (1 + Fraction(1, 2**30)) ** 2
    assert (figures.noise_scale * 2**40).denominator == 1
    assert (
        present(figures.rho)
        == present(present(figures.event).rho)
        <= rho
        < present(figures.rho) * (1 + Fraction(1, 2**29))
    )


@pytest.mark.parametrize(
    ("terms", "scale", "slot_bits"),
    [
        (JOINT, "50392538.0576755943739044596441090106964111328125", 38),
        (MASKED, "117309976.5655426717785303480923175811767578125", 186),
        (
            replace(
                JOINT,
                encoded_features=2,
                epsilon=Fraction("0.1"),
                sum_weight=Fraction("0.000001"),
                max_records=2,
                delta=Fraction("0.1"),
            ),
            "29052192.563623548450777889229357242584228515625",
            30,
        ),
        (
            replace(
                MASKED, encoded_features=617, clip_norm=Fraction(8), fraction_bits=13, epsilon=Fraction(3)
            ),
            "34983466478.700243830315230297856032848358154296875",
            202,
        ),
        (
            replace(
                JOINT,
                encoded_features=1,
                clip_norm=Fraction(1),
                epsilon=Fraction("0.0001"),
                delta=Fraction("1e-12"),
            ),
            "382261724370.1591984633751053479500114917755126953125",
            44,
        ),
    ],
)
def test_published_figures_stay_what_they_were(terms: Terms, scale: str, slot_bits: int) -> None:
    """Signed manifests carry these numbers: another bit in them, and every old study is refused."""
    figures = figures_of(terms)
    assert (decimal_text(figures.noise_scale), figures.slot_bits) == (scale, slot_bits)


def named(terms: Terms, mechanism: str) -> Figures:
    return figures_of(replace(terms, mechanism=mechanism))


def test_what_each_mechanism_is_worth_in_a_release() -> None:
    """The whole δ. Laplace noise has that of its tails, and that of a mask where there is one."""
    ours = figures_of(MASKED)
    assert (ours.guarantee.epsilon, ours.guarantee.delta) == (MASKED.epsilon, MASKED.delta)
    joint = figures_of(JOINT)
    assert (joint.guarantee.epsilon, joint.guarantee.delta) == (JOINT.epsilon, JOINT.delta)
    flat = named(JOINT, "laplace")
    assert flat.guarantee.epsilon == 1
    assert flat.guarantee.delta == flat.delta_tails
    # (2 + e)·2⁻⁸⁰, by Euler's number to 30 places
    euler = Fraction("2.718281828459045235360287471352")
    assert 0 < flat.guarantee.delta * 2**80 - (2 + euler) < Fraction(1, 10**28)
    assert flat.guarantee.delta < JOINT.delta
    assert flat.event.extra_delta == flat.delta_tails
    veiled = named(MASKED, "laplace")
    assert not veiled.guarantee.is_pure
    assert veiled.guarantee.epsilon == 1
    assert veiled.guarantee.delta == veiled.delta_mask + veiled.delta_tails
    assert present(veiled.event).pure_epsilon == 1
    assert veiled.rho == Fraction(1, 2)


@pytest.mark.parametrize("terms", [JOINT, MASKED], ids=["joint", "masked"])
def test_slots_hold_the_tails_of_any_mechanism(terms: Terms) -> None:
    figures = named(terms, "laplace")
    law = figures.law(terms.max_records)
    if terms is JOINT:
        largest = max(25000 * BOUND + law.triangle_bound, 25000 * figures.sum_bound + law.sum_bound)
        assert figures.slot_bits == bit_length_of_signed(largest)
    else:
        half_mask = 2 ** (figures.mask_bits - 1)
        worst = (25000 * figures.sum_bound + half_mask) ** 2 + law.triangle_bound
        assert figures.slot_bits == max(2 * figures.mask_bits, bit_length_of_signed(worst))


def test_owners_noise_has_the_same_claim_and_room_for_all_of_it() -> None:
    """m = 4 shares are assured; 25 owners may add theirs: 2.5 times the deviation, and a slot for it."""
    terms = replace(JOINT, noise_by=NoiseBy.OWNERS, assured_shares=4, max_owners=25, max_records=100)
    shared, alone = figures_of(terms), figures_of(replace(JOINT, max_records=100))
    assert alone.noise_scale <= shared.noise_scale <= alone.noise_scale * (1 + Fraction(1, 2**30))
    assert (shared.guarantee.epsilon, shared.guarantee.delta) == (terms.epsilon, terms.delta)
    assert present(shared.rho) <= zcdp_rho(terms.epsilon, shared.delta_zcdp)
    worst = max(
        100 * BOUND + math.ceil(13 * shared.noise_scale * Fraction(5, 2)),
        100 * shared.sum_bound + math.ceil(13 * 2.5 * float(shared.noise_scale) / shared.alpha_squared**0.5),
    )
    assert shared.slot_bits == bit_length_of_signed(worst)
    assert shared.law(1, 25).diagonal == shared.noise_scale**2 * 25 / 4
    with pytest.raises(UsageError, match="the number of owners is needed"):
        shared.law(1)
    assert len(list(shared.own_noise())) == shared.value_count
    assert list(alone.own_noise()) == [0] * alone.value_count


@pytest.mark.parametrize(("release", "values"), [("joint", 65), ("pairs", 55), ("pre-study", 49 + 10)])
def test_draws_of_all_owners_count(release: str, values: int) -> None:
    terms = replace(JOINT, noise_by=NoiseBy.OWNERS, max_owners=2**40 // values)
    if release != "joint":
        half = Fraction(1, 2)
        blocks = ((BlockName.NORMS, half), (BlockName.SUM, half)) if release == "pre-study" else ()
        terms = replace(terms, release=ReleaseKind(release), sum_weight=Fraction(0), blocks=blocks)
    figures_of(terms)
    with pytest.raises(PolicyError, match="2⁴⁰ noise draws"):
        figures_of(replace(terms, max_owners=2**40 // values + 1))


def test_slots_of_pairs_have_room_for_the_noise_of_all_owners() -> None:
    terms = replace(JOINT, release=ReleaseKind.PAIRS, sum_weight=Fraction(0), max_records=100)
    terms = replace(terms, noise_by=NoiseBy.OWNERS, assured_shares=4, max_owners=25)
    figures = figures_of(terms)
    tail = math.ceil(13 * figures.noise_scale * Fraction(5, 2))
    assert [block.tail for block in figures.blocks] == [0, tail]
    assert figures.slot_bits == bit_length_of_signed(50 * BOUND + tail)
    assert figures.law(50, 25).diagonal == figures.noise_scale**2 * 25 / 4


def test_draws_of_a_masked_release_are_those_of_its_triangle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdpca_protocol.terms.figures.MAX_NOISE_DRAWS", 55)
    figures_of(MASKED)
    monkeypatch.setattr("dpdpca_protocol.terms.figures.MAX_NOISE_DRAWS", 54)
    with pytest.raises(PolicyError, match="noise draws"):
        figures_of(MASKED)


def test_delta_is_split_without_remainder() -> None:
    for terms in (JOINT, MASKED):
        figures = figures_of(terms)
        assert figures.delta_zcdp + figures.delta_mask + figures.delta_tails == terms.delta
        assert figures.delta_tails == delta_of_tails(Fraction(1))
    assert figures_of(JOINT).delta_mask == 0


def test_mask_is_the_least_that_hides_the_sum() -> None:
    figures = figures_of(MASKED)
    needed = 25000**2 * 10 * BOUND
    assert 4 ** (figures.mask_bits - 65) >= needed > 4 ** (figures.mask_bits - 66)
    assert 2 * math.sqrt(10 * BOUND) / 2**figures.mask_bits <= float(figures.delta_mask)
    # Hiding v itself: |v|₁ ≤ N̄√(dK), so two data sets differ by at most 2N̄√(dK) of the B offsets.
    assert 2 * 25000 * math.sqrt(10 * BOUND) / 2**figures.mask_bits <= 2**-64


def test_slots_hold_the_worst_sum_and_the_tail(promise: Promise) -> None:
    joint, masked = figures_of(JOINT), figures_of(MASKED)
    worst_moment = 25000 * BOUND + math.ceil(13 * joint.noise_scale)
    worst_sum = 25000 * joint.sum_bound + math.ceil(
        13 * float(joint.noise_scale) / math.sqrt(joint.alpha_squared)
    )
    assert joint.slot_bits == bit_length_of_signed(max(worst_moment, worst_sum))
    assert joint.slots == 3070 // joint.slot_bits
    half_mask = 2 ** (masked.mask_bits - 1)
    worst = (25000 * masked.sum_bound + half_mask) ** 2 + math.ceil(13 * 25000 * masked.noise_scale)
    assert masked.slot_bits == max(2 * masked.mask_bits, bit_length_of_signed(worst))
    promise(
        "P14",
        counted="all owners at the bound and noise at its tail, both releases",
        result="fits, and not in a bit less",
    )


def test_one_record_at_a_tiny_weight_lets_the_sum_decide_the_slot() -> None:
    figures = figures_of(
        replace(JOINT, max_records=2, sum_weight=Fraction("0.000001"), delta=Fraction("0.1"))
    )
    tail = 13 * float(figures.noise_scale) / math.sqrt(figures.alpha_squared)
    moment = 2 * BOUND + 13 * float(figures.noise_scale)
    assert figures.slot_bits == bit_length_of_signed(max(moment, 2 * 2253 + math.ceil(tail)))


@pytest.mark.parametrize("d", [1, 2, 10, 61, 200])
def test_sizes_of_a_share(d: int) -> None:
    joint = figures_of(replace(JOINT, encoded_features=d, clip_norm=Fraction("0.9")))
    masked = figures_of(replace(MASKED, encoded_features=d, clip_norm=Fraction("0.9")))
    assert joint.value_count == masked.value_count == 1 + d + d * (d + 1) // 2
    assert joint.ciphertext_count == math.ceil(joint.value_count / joint.slots)
    last = math.ceil(d / masked.slots)
    blocks = sum(len(range(row // masked.slots, last)) for row in range(d))
    assert masked.ciphertext_count == 1 + d + blocks
    for figures in (joint, masked):
        assert figures.chunk_count == math.ceil(figures.ciphertext_count / 1024)
        assert figures.share_bytes == figures.ciphertext_count * 768


def test_a_stated_scale_within_the_tolerance_is_used_everywhere() -> None:
    computed = figures_of(JOINT)
    stated = computed.noise_scale * (1 + Fraction(1, 2**32))
    used = figures_of(JOINT, stated)
    assert used.noise_scale == stated
    assert used.law(7).diagonal == stated**2
    assert present(used.rho) < present(computed.rho)


@pytest.mark.parametrize(
    "factor", [1 - Fraction(1, 2**30), 1 + Fraction(1, 2**30), Fraction(1, 2), Fraction(2)]
)
def test_another_scale_is_refused_with_both_values(factor: Fraction) -> None:
    # Denominators of 40 decimals at most, as a manifest has them.
    stated = Fraction(int(figures_of(JOINT).noise_scale * factor * 10**20), 10**20)
    with pytest.raises(PolicyError, match=r"noise_scale is [0-9.]+, but the terms give 50[0-9.]+") as caught:
        figures_of(JOINT, stated)
    assert caught.value.slug == "manifest-refused"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"clip_norm": Fraction("0.0007")}, "rounding error"),
        ({"fraction_bits": 24}, "2⁶²"),
        ({"max_records": 2**52, "delta": Fraction("1e-17")}, "2⁶²"),
        ({"delta": Fraction("3e-24")}, "half of δ"),
        ({"epsilon": Fraction(40)}, "half of δ"),
        ({"modulus_bits": 32}, "do not fit"),
    ],
)
def test_terms_that_contradict_each_other_are_refused(
    change: dict[str, Fraction] | dict[str, int] | dict[str, Fraction | int], reason: str
) -> None:
    with pytest.raises(PolicyError, match=reason):
        figures_of(replace(JOINT, **change))


def test_the_clip_norm_must_pass_the_rounding_error_of_a_record() -> None:
    root = Fraction(1, 2048)  # √4/(2q)
    with pytest.raises(PolicyError, match="rounding error"):
        figures_of(replace(MASKED, encoded_features=4, clip_norm=root))


def test_sums_of_squares_stay_below_two_to_the_62() -> None:
    terms = replace(JOINT, encoded_features=1, clip_norm=Fraction(1), delta=Fraction("1e-15"))
    assert figures_of(replace(terms, max_records=2**40 - 1)).max_records * 2**22 < 2**62
    with pytest.raises(PolicyError, match="64-bit"):
        figures_of(replace(terms, max_records=2**40))


def test_under_pads_sums_with_their_noise_stay_below_two_to_the_62() -> None:
    small = replace(JOINT, encoded_features=1, clip_norm=Fraction(1), fraction_bits=0, max_records=10)
    terms = replace(small, suite=SuiteName.PADS, modulus_bits=0, delta=Fraction(1, 10**20))
    most = 2**62 - 1 - max(block.tail for block in figures_of(terms).blocks)
    figures = figures_of(replace(terms, max_records=most))
    assert max(block.bound + block.tail for block in figures.blocks) == 2**62 - 1
    with pytest.raises(PolicyError, match="2⁶²"):
        figures_of(replace(terms, max_records=most + 1))


def test_a_share_under_pads_has_8_bytes_a_value_and_no_slots() -> None:
    figures = figures_of(replace(JOINT, suite=SuiteName.PADS, modulus_bits=0))
    assert (figures.value_count, figures.share_bytes, figures.chunk_count) == (66, 528, 1)
    assert (figures.slot_bits, figures.slots, figures.ciphertext_count) == (0, 0, 0)
    wide = figures_of(replace(JOINT, suite=SuiteName.PADS, modulus_bits=0, encoded_features=617))
    assert (wide.value_count, wide.chunk_count) == (191_271, 2)


def test_half_of_delta_is_enough_and_less_is_not() -> None:
    tails = delta_of_tails(JOINT.epsilon)
    assert figures_of(replace(JOINT, delta=2 * tails)).delta_zcdp == tails
    with pytest.raises(PolicyError, match="half of δ"):
        figures_of(replace(JOINT, delta=2 * tails * (1 - Fraction(1, 10**9))))


def test_noise_above_the_sampler_is_refused() -> None:
    """13·N̄·t must stay below 2⁶³ in a masked study; joint is bound by 13·t and by 13·t/α."""
    terms = replace(MASKED, epsilon=Fraction("0.0001"), delta=Fraction("1e-12"), max_records=900_000)
    with pytest.raises(PolicyError, match="63 bits"):
        figures_of(terms)
    figures_of(replace(JOINT, epsilon=Fraction("0.0001"), delta=Fraction("1e-12"), max_records=900_000))
    tiny = replace(JOINT, sum_weight=Fraction(1, 10**39), encoded_features=1, clip_norm=Fraction(1))
    with pytest.raises(PolicyError, match="63 bits"):
        figures_of(tiny)


@pytest.mark.parametrize(
    ("d", "clip_norm"), [(1, "1"), (10, "1.1"), (100, "0.01"), (617, "8"), (5000, "0.3")]
)
def test_default_fraction_bits_are_the_least_that_round_to_a_thousandth(d: int, clip_norm: str) -> None:
    r = Fraction(clip_norm)
    bits = default_fraction_bits(d, r)

    def loss(f: int) -> float:
        return float(math.sqrt(d) / (2 * r * 2**f))

    assert bits >= 10
    assert loss(bits) <= 2**-10
    assert bits == 10 or loss(bits - 1) > 2**-10


PAIRS = replace(JOINT, release=ReleaseKind.PAIRS, sum_weight=Fraction(0), clip_norm=Fraction(2))
PRE_STUDY = replace(
    JOINT,
    release=ReleaseKind.PRE_STUDY,
    sum_weight=Fraction(0),
    blocks=((BlockName.NORMS, Fraction("0.25")), (BlockName.SUM, Fraction("0.75"))),
)


def test_pairs_by_formula() -> None:
    figures = figures_of(PAIRS)
    bound, rho = 4 * 2048**2, zcdp_rho(Fraction(1), figures.delta_zcdp)
    assert figures.record_bound == bound
    assert float(figures.noise_scale) == pytest.approx(bound / float(rho) ** 0.5, rel=1e-9)
    tail = math.ceil(13 * figures.noise_scale)
    assert [(block.length, block.bound, block.tail) for block in figures.blocks] == [
        (1, 25000, 0),
        (55, 12500 * bound, tail),
    ]
    assert figures.slot_bits == bit_length_of_signed(12500 * bound + tail)
    assert (figures.value_count, figures.alpha_squared, figures.mask_bits) == (56, Fraction(0), 0)
    assert figures.most_counted == 12500


def test_a_pre_study_by_formula() -> None:
    figures = figures_of(PRE_STUDY)
    rho = zcdp_rho(Fraction(1), figures.delta_zcdp)
    assert float(figures.noise_scale) == pytest.approx(1 / (2 * float(rho)) ** 0.5, rel=1e-9)
    norms, total = figures.blocks[1:]
    assert norms.tail == math.ceil(13 * (2 / (2 * float(rho) / 4)) ** 0.5)
    assert total.tail == pytest.approx(13 * (4 * BOUND / (2 * float(rho) * 3 / 4)) ** 0.5, rel=1e-3)
    assert figures.value_count == 1 + 49 + 10
    assert figures.slot_bits == bit_length_of_signed(25000 * 2253 + total.tail)
    assert figures.most_counted == 25000
    assert figures.guarantee.epsilon == 1


def test_all_rounds_of_a_chain_may_be_masked() -> None:
    """δ/1024 pays for eight masks: for one alone is not enough."""
    one = figures_of(replace(MASKED, rho_share=Fraction(1, 8))).delta_mask
    tails = delta_of_tails(MASKED.epsilon)
    few, enough = (1024 * 8 * (tails + part * one) for part in (Fraction(7, 8), 1))
    assert 8 * tails + one < few / 1024
    with pytest.raises(PolicyError, match="tails and masks of a chain"):
        figures_of(replace(MASKED, delta=few, rho_share=Fraction(1, 8)))
    assert figures_of(replace(MASKED, delta=enough, rho_share=Fraction(1, 8))).delta_mask == one


def test_a_round_of_a_chain_spends_its_share_of_one_rho() -> None:
    shares = ((PRE_STUDY, "0.05"), (MASKED, "0.25"), (PAIRS, "0.7"))
    parts = [figures_of(replace(terms, rho_share=Fraction(share))) for terms, share in shares]
    assert len({figures.delta_zcdp for figures in parts}) == 1
    whole = zcdp_rho(Fraction(1), JOINT.delta * Fraction(1023, 1024))
    assert all(figures.rho_total == whole for figures in parts)
    assert sum(present(figures.rho) for figures in parts) <= whole
    assert float(sum(present(figures.rho) for figures in parts)) == pytest.approx(float(whole), rel=1e-8)
    for figures in parts:
        assert figures.guarantee.epsilon < 1
        assert figures.guarantee.delta < JOINT.delta
    # Less of ρ is more noise, and the ε of a round by itself is below the share's root of the whole.
    assert 0.2 < float(present(parts[0].guarantee.epsilon)) < 0.3


def test_a_chain_pays_for_the_tails_of_eight_rounds_from_its_first() -> None:
    paid = 8 * 1024 * delta_of_tails(JOINT.epsilon)
    round_ = replace(JOINT, rho_share=Fraction(1, 2), delta=paid)
    assert figures_of(round_).delta_zcdp == paid * Fraction(1023, 1024)
    with pytest.raises(PolicyError, match="chain of studies"):
        figures_of(replace(round_, delta=paid * (1 - Fraction(1, 10**9))))


def test_squares_of_records_that_nothing_cuts_stay_exact() -> None:
    fine = replace(PRE_STUDY, fraction_bits=27, max_records=100, delta=Fraction(1, 10**6))
    assert figures_of(fine).grid == 2**27
    with pytest.raises(PolicyError, match="before clipping"):
        figures_of(replace(fine, fraction_bits=29))
