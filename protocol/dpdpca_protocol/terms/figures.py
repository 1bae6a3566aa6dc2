"""The figures that follow from a manifest's terms: ρ, noise, slots and sizes.

Every party recomputes these figures and never trusts the stated ones. All rounding goes to the safe side: δ
is rounded down; ρ, noise and slot widths are rounded up. Only integers and exact rationals are used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import repeat
from math import ceil, log

from dpdpca_protocol.errors import PolicyError, UsageError
from dpdpca_protocol.layout.blocks import (
    Block,
    BlockName,
    block_bound,
    block_length,
    gap_bound,
    value_count,
)
from dpdpca_protocol.layout.packing import BlockLayout, FlatLayout, slots_for
from dpdpca_protocol.messages.share import CHUNK_OVERHEAD_BYTES
from dpdpca_protocol.pads.chunks import MAGNITUDE_LIMIT
from dpdpca_protocol.pads.chunks import chunk_count as padded_chunk_count
from dpdpca_protocol.pads.streams import VALUE_BYTES
from dpdpca_protocol.paillier.chunks import chunk_count
from dpdpca_protocol.privacy.accounting import (
    MAX_NOISE_DRAWS,
    ceil_sqrt,
    delta_of_mask,
    delta_of_tails,
    epsilon_of_rho,
    zcdp_rho,
)
from dpdpca_protocol.privacy.mechanisms import (
    Gaussian,
    Guarantee,
    Mechanism,
    NoiseLaw,
    PrivacyEvent,
    Quantity,
    Setting,
    SharedGaussian,
    mechanism_for,
)
from dpdpca_protocol.privacy.mechanisms.gaussian import tail_bound
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.study import ReleaseKind
from dpdpca_protocol.terms.release_rules import ReleaseRules
from dpdpca_protocol.terms.terms import NoiseBy, SuiteName, Terms
from dpdpca_protocol.wire.fields import decimal_text, refused

__all__ = [
    "MAX_FRACTION_BITS",
    "MAX_ROUNDS",
    "Figures",
    "NoiseBy",
    "Terms",
    "default_fraction_bits",
    "figures_of",
]

_SCALE_GRID = 2**40
_SCALE_UP = 1 + Fraction(1, 2**31)
_SCALE_TOLERANCE = 1 + Fraction(1, 2**30)
_SAMPLER_LIMIT = 2**63 - 1
MAX_FRACTION_BITS = 40
MAX_ROUNDS = 8
"""The most studies that may share one (ε, δ)."""
OUTSIDE_SHARE = Fraction(1, 1024)
"""The fraction of a shared δ that pays, in all rounds together, for what ρ does not cover."""


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of one study, in grid units.

    Attributes:
        rules: of what is released.
        encoded_features: d.
        record_bound: K = ⌊(r q)²⌋ ≥ Σ z² of a record or, in a study of pairs, of a difference.
        summed_features: the coordinates of what is summed: d, or m of a sketch, or k of scores.
        summed_bound: the bound on the squared length of what is summed: K, or 2K for a sketch, or K′ for
            scores.
        sum_bound: V = ⌈√(summed_bound)⌉; |v_i| ≤ N̄·V.
        grid: q.
        max_records: N̄.
        mechanism: draws the noise and says what is proved for it. `law` says how much noise there is.
        rho: the ρ that the release spends.
        rho_share: the fraction of `rho_total` that it may spend.
        delta_zcdp, delta_mask, delta_tails: the parts of the manifest's δ.
        alpha_squared: a for a joint release, else 0.
        mask_bits: β; the mask is uniform on [−2^(β−1), 2^(β−1)). 0 for a joint release.
        slot_bits, slots: the width of a slot, and the slots of a plaintext; 0 under pads.
        blocks: the blocks of a flat release, the count first; empty for a masked release.
        value_count: the values in a share; in a masked study N, v, and the upper triangle of R.
        ciphertext_count: the Paillier ciphertexts in a share; 0 under pads.
        chunk_count, share_bytes: the size of one share, without salts and seals.
        clip_shift: e; what clipping did is told in units of 2^e grid units².
        draws: how many independent draws of the noise a result contains: 2 if the data user added its own.
    """

    rules: ReleaseRules
    encoded_features: int
    record_bound: int
    summed_features: int
    summed_bound: int
    sum_bound: int
    grid: int
    max_records: int
    mechanism: Mechanism
    rho: Fraction
    rho_share: Fraction
    delta_zcdp: Fraction
    delta_mask: Fraction
    delta_tails: Fraction
    alpha_squared: Fraction
    mask_bits: int
    slot_bits: int
    slots: int
    blocks: tuple[Block, ...]
    value_count: int
    ciphertext_count: int
    chunk_count: int
    share_bytes: int
    clip_shift: int = 0
    draws: int = 1

    @property
    def release(self) -> ReleaseKind:
        """What is released."""
        return self.rules.kind

    @property
    def sealed_bytes(self) -> int:
        """A share with salts and seals, as it leaves an owner's machine; without the signed statement."""
        return self.share_bytes + self.chunk_count * CHUNK_OVERHEAD_BYTES

    @property
    def released_bytes(self) -> int:
        """All chunks of the release. A masked release lacks the ciphertext of the count."""
        if not self.rules.is_masked:
            return self.share_bytes
        return self.share_bytes // self.ciphertext_count * (self.ciphertext_count - 1)

    @property
    def noise_scale(self) -> Fraction:
        """The scale of all noise, as the manifest states it; t for the Gaussian mechanism."""
        return self.mechanism.scale

    @property
    def rho_total(self) -> Fraction:
        """The ρ of the manifest's ε and δ.

        All studies of a chain have the same ρ and may spend it together.
        """
        return zcdp_rho(self.mechanism.setting.epsilon, self.delta_zcdp)

    @property
    def most_counted(self) -> int:
        """The largest count that the study allows: N̄, or ⌊N̄/2⌋ if pairs are counted."""
        return self.max_records // 2 if self.rules.of_pairs else self.max_records

    @property
    def event(self) -> PrivacyEvent:
        """What a ledger books for the noise, without `delta_mask`."""
        return self.mechanism.event

    @property
    def guarantee(self) -> Guarantee:
        """What is proved for the whole release: the mechanism's guarantee, with the mask's part in δ."""
        proved = self.mechanism.guarantee  # its δ for tails covers the re-randomisation too
        return replace(proved, delta=proved.delta + self.delta_mask)

    @property
    def noise_by(self) -> NoiseBy:
        return NoiseBy.OWNERS if isinstance(self.mechanism, SharedGaussian) else NoiseBy.PROXY

    def epsilon_among(self, honest: int) -> Fraction:
        """The ε of a blinded study if only so many owners are honest, and all others work together."""
        assert isinstance(self.mechanism, SharedGaussian)
        return epsilon_of_rho(self.mechanism.rho_among(honest), self.delta_zcdp)

    def law(self, count: int, owners: int | None = None) -> NoiseLaw:
        """Moments and bounds of the noise in the release.

        Args:
            count: N.
            owners: how many are in the cohort; needed if they draw the noise, because each adds noise.
        """
        if not isinstance(self.mechanism, SharedGaussian):
            return self.mechanism.law(count).times(self.draws)
        return self.mechanism.law_of(_known(owners))

    def block_variance(self, name: BlockName, owners: int | None = None) -> Fraction:
        """σ² of Gaussian noise on each integer of a block of a flat release; for a matrix, on the diagonal.

        Args:
            name: of the block; the result is 0 for the count.
            owners: as for `law`.
        """
        assert isinstance(self.mechanism, Gaussian)
        if isinstance(self.mechanism, SharedGaussian):
            return self.mechanism.variance(name, _known(owners))
        return self.mechanism.variance(name) * self.draws

    def tail(self, name: BlockName, owners: int | None = None) -> int:
        """The largest absolute value of Gaussian noise on an integer of a block; `owners` as for `law`."""
        return self.draws * tail_bound(self.block_variance(name, owners) / self.draws)

    def own_noise(self, sample: Samplers = EXACT) -> Iterator[int]:
        """The noise that an owner adds to its own share, value by value; zeros if others draw the noise.

        Args:
            sample: where the integers come from. An owner derives them from its secret and its sums, so that
                the same sums always get the same noise.
        """
        if isinstance(self.mechanism, SharedGaussian):
            return self.mechanism.share(sample)
        return repeat(0, self.value_count)


def _known(owners: int | None) -> int:
    if owners is None:
        raise UsageError(
            "bad-argument", "the number of owners is needed: it determines how much noise they drew"
        )
    return owners


def figures_of(terms: Terms, noise_scale: Fraction | None = None) -> Figures:
    """All figures of a study. t is `noise_scale` if a manifest states it, and is computed otherwise.

    Args:
        terms: public terms, each already within its own limits.
        noise_scale: t in grid units as the manifest states it, or None for a draft.

    Raises:
        PolicyError: the terms contradict each other or leave too little δ, or `noise_scale` differs from the
            recomputed value by more than a factor of 1 + 2⁻³⁰. The error names both values.

    Guarantee: that of the mechanism, (ε, δ)-DP for one replaced record.
    Source: docs/claims.md, C1 to C3; docs/spec.md, section 3; docs/mechanisms.md.
    Tested: tests/unit/test_figures.py.
    """
    _check_record_bound(terms)
    _check_differences(terms)
    mask_bits = _mask_bits(terms) if terms.rules.is_masked else 0
    delta_tails = delta_of_tails(terms.epsilon)
    delta_mask = (
        delta_of_mask(terms.encoded_features, terms.record_bound, mask_bits) if mask_bits else Fraction(0)
    )
    if terms.rho_share < 1:
        # All rounds use one δ for ρ. So they divide the same ρ, and their shares of it add up exactly.
        delta_zcdp = terms.delta * (1 - OUTSIDE_SHARE)
        if MAX_ROUNDS * (delta_tails + delta_mask) > terms.delta * OUTSIDE_SHARE:
            refused("δ is too small for the tails and masks of a chain of studies", "raise δ or lower ε")
    else:
        delta_zcdp = terms.delta - delta_tails - delta_mask
        if delta_zcdp < terms.delta / 2:
            _refuse_epsilon(terms.delta, delta_mask)
    alpha_squared = terms.sum_weight * terms.summed_bound
    mechanism = _mechanism(terms, alpha_squared, delta_zcdp, noise_scale)
    if isinstance(mechanism, SharedGaussian):
        widest = mechanism.law_of(terms.max_owners)
    else:
        widest = mechanism.law(terms.max_records)
    blocks = _blocks(terms, mechanism, widest)
    _check_noise(terms, blocks, widest)
    d = terms.encoded_features
    values = value_count(blocks) if blocks else 1 + d + d * (d + 1) // 2
    if terms.suite is SuiteName.PADS:
        size = _padded_size(blocks, values)
    else:
        size = _packed_size(terms, blocks, values, _slot_bits(terms, blocks, widest, mask_bits))
    return Figures(
        rules=terms.rules,
        encoded_features=d,
        record_bound=terms.record_bound,
        summed_features=terms.summed_features,
        summed_bound=terms.summed_bound,
        sum_bound=ceil_sqrt(Fraction(terms.summed_bound)),
        grid=terms.grid,
        max_records=terms.max_records,
        mechanism=mechanism,
        rho=mechanism.event.rho,
        rho_share=terms.rho_share,
        delta_zcdp=delta_zcdp,
        delta_mask=delta_mask,
        delta_tails=delta_tails,
        alpha_squared=alpha_squared,
        mask_bits=mask_bits,
        slot_bits=size.slot_bits,
        slots=size.slots,
        blocks=blocks,
        value_count=values,
        ciphertext_count=size.ciphertext_count,
        chunk_count=size.chunk_count,
        share_bytes=size.share_bytes,
        clip_shift=terms.clip_shift if terms.clip_share else 0,
    )


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of one share, with the names of `Figures`."""

    slot_bits: int
    slots: int
    ciphertext_count: int
    chunk_count: int
    share_bytes: int


def _packed_size(terms: Terms, blocks: tuple[Block, ...], values: int, slot_bits: int) -> _Size:
    slots = slots_for(terms.modulus_bits, slot_bits)
    if slots < 1:
        refused(
            f"a slot needs {slot_bits} bits, which do not fit into a modulus of {terms.modulus_bits} bits"
        )
    if blocks:
        count = FlatLayout(values, slot_bits, slots).plaintext_count
    else:
        count = BlockLayout(terms.encoded_features, slot_bits, slots).ciphertext_count
    return _Size(slot_bits, slots, count, chunk_count(count), count * (terms.modulus_bits // 4))


def _padded_size(blocks: tuple[Block, ...], values: int) -> _Size:
    for block in blocks:
        if block.bound + block.tail >= MAGNITUDE_LIMIT:
            refused(
                f"sums with noise in block {block.name} reach 2⁶², which is too much for sums modulo 2⁶⁴",
                "lower fraction_bits or max_records, or raise epsilon",
            )
    return _Size(0, 0, 0, padded_chunk_count(values), VALUE_BYTES * values)


def _refuse_epsilon(delta: Fraction, delta_mask: Fraction) -> None:
    # ε of delta_of_tails(ε) = δ/2 − the mask's part
    room = (delta / 2 - delta_mask) * 2**80 - 2
    if room > 1:
        limit = f"epsilon must be above 0 and, with this delta, below {log(room):.1f}"
    else:
        limit = "delta is too small for any epsilon"
    refused(
        f"{limit}: otherwise less than half of δ is left for the noise itself", "raise delta or lower epsilon"
    )


def default_fraction_bits(encoded_features: int, clip_norm: Fraction) -> int:
    """The least f ≥ 10 with √d/(2 r 2^f) ≤ 2⁻¹⁰: rounding costs at most a thousandth of the clip norm.

    Raises:
        PolicyError: the clip norm is so small that no grid is fine enough.
    """
    bits = 10
    while encoded_features * 4**10 > 4 * clip_norm**2 * 4**bits:
        bits += 1
        if bits > MAX_FRACTION_BITS:
            least = encoded_features**0.5 * 2.0 ** (9 - MAX_FRACTION_BITS)
            refused(
                f"clip_norm is below {least:.3g}, too small for the finest grid",
                "raise clip_norm, or give narrower bounds",
            )
    return bits


def _check_record_bound(terms: Terms) -> None:
    d, r = terms.encoded_features, terms.clip_norm
    if 4 * r**2 * terms.grid**2 <= d or terms.record_bound < 1:
        refused("clip_norm is no larger than the rounding error of a record", "raise fraction_bits")
    # A pre-study adds up or counts records, never their squares, but it compares the squares.
    largest = ceil_sqrt(Fraction(terms.record_bound)) if terms.blocks else terms.record_bound
    if terms.suite is SuiteName.PADS:
        if terms.record_bound >= 2**62:
            refused(
                "clip_norm² · 4^fraction_bits reaches 2⁶², which is too much for exact squares",
                "lower fraction_bits",
            )
    elif max(terms.max_records * largest, terms.record_bound) >= 2**62:
        refused(
            "max_records · clip_norm² · 4^fraction_bits reaches 2⁶², which is too much for exact 64-bit sums",
            "lower fraction_bits or max_records",
        )


def _mechanism(
    terms: Terms, alpha_squared: Fraction, delta: Fraction, noise_scale: Fraction | None
) -> Mechanism:
    quantity = terms.rules.quantity
    try:
        chosen = mechanism_for(terms.mechanism, quantity)
        if terms.noise_by is NoiseBy.OWNERS:
            chosen = _in_shares(chosen, quantity)
        setting = Setting(
            quantity,
            terms.summed_features,
            terms.summed_bound,
            terms.epsilon,
            delta,
            alpha_squared,
            terms.assured_shares if chosen.in_shares else 1,
            terms.nonnegative,
            terms.rho_share,
            terms.blocks,
            terms.clip_share,
            terms.clip_bound,
            terms.tells_gaps,
            terms.columns if terms.score_bound else 0,
            terms.score_bound,
            bool(terms.score_bound) and terms.rules.of_pairs,
        )
        return chosen(setting, _agreed_scale(chosen.least_scale(setting), noise_scale))
    except UsageError as error:
        refused(error.problem, error.next_step)


def _in_shares(chosen: type[Mechanism], quantity: Quantity) -> type[Mechanism]:
    if quantity is Quantity.SCATTER:
        refused(
            "noise_by owners is not possible in a masked release: it would multiply the noise inside the "
            "shares by N, which would leave N·S modulo N without noise",
            "use another release, or noise_by proxy",
        )
    if not issubclass(chosen, Gaussian):
        refused("noise_by owners is proved only for the gaussian mechanism", "use noise_by proxy")
    return SharedGaussian


def _agreed_scale(least: Fraction, stated: Fraction | None) -> Fraction:
    published = Fraction(ceil(least * _SCALE_UP * _SCALE_GRID), _SCALE_GRID)
    if stated is None:
        return published
    if not least <= stated <= least * _SCALE_TOLERANCE:
        raise PolicyError(
            "manifest-refused",
            f"noise_scale is {decimal_text(stated)}, but the terms give {decimal_text(published)}",
            "create the manifest again with this version",
        )
    return stated


def _blocks(terms: Terms, mechanism: Mechanism, widest: NoiseLaw) -> tuple[Block, ...]:
    """The blocks of a flat release, each with the largest values that records and noise can give."""
    features, bound = terms.summed_features, terms.summed_bound
    root = ceil_sqrt(Fraction(bound))

    def tail(name: BlockName) -> int:
        if name is BlockName.COUNT:
            return 0
        if isinstance(mechanism, SharedGaussian):
            return tail_bound(mechanism.variance(name, terms.max_owners))
        if isinstance(mechanism, Gaussian):
            return tail_bound(mechanism.variance(name))
        return widest.sum_bound if name is BlockName.SUM else widest.triangle_bound

    def most(name: BlockName) -> int:
        of_pairs = terms.rules.of_pairs
        clip_bound, score_bound, gaps = terms.clip_bound, terms.score_bound, gap_bound(features)
        return block_bound(name, terms.max_records, bound, root, clip_bound, of_pairs, score_bound, gaps)

    def length(name: BlockName) -> int:
        return block_length(name, features, terms.columns)

    return tuple(Block(name, length(name), most(name), tail(name)) for name in terms.block_names)


def _check_differences(terms: Terms) -> None:
    """Checks that squares of records and differences before clipping are exact in 64 bits."""
    uncut = not terms.rules.clips_records
    # A scaled value is within 2 of the centre, two values are within 2 of each other, and each is rounded.
    if uncut and terms.encoded_features * (2 * terms.grid + 2) ** 2 >= 2**62:
        refused(
            "records before clipping are too large for exact 64-bit sums of squares", "lower fraction_bits"
        )


def _check_noise(terms: Terms, blocks: tuple[Block, ...], widest: NoiseLaw) -> None:
    d = terms.encoded_features
    draws = value_count(blocks) - 1 if blocks else d * (d + 1) // 2
    if max(widest.triangle_bound, *(block.tail for block in blocks), 0) >= _SAMPLER_LIMIT:
        refused("the noise exceeds the 63 bits of the sampler", "lower fraction_bits or raise ε")
    if terms.noise_by is NoiseBy.OWNERS:
        draws *= terms.max_owners
    if draws > MAX_NOISE_DRAWS:
        refused("the release needs more than 2⁴⁰ noise draws")


def _mask_bits(terms: Terms) -> int:
    """β, the least with 4^(β−65) ≥ N̄²·d·K."""
    needed = terms.max_records**2 * terms.encoded_features * terms.record_bound
    return 65 + ((needed - 1).bit_length() + 1) // 2


def _slot_bits(terms: Terms, blocks: tuple[Block, ...], widest: NoiseLaw, mask_bits: int) -> int:
    if blocks:
        return max(block.bound + block.tail for block in blocks).bit_length() + 1
    masked_sum = terms.max_records * ceil_sqrt(Fraction(terms.record_bound)) + (1 << (mask_bits - 1))
    return max(2 * mask_bits, (masked_sum**2 + widest.triangle_bound).bit_length() + 1)
