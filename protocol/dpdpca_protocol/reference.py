"""The whole protocol in one process and one loop.

Read this module together with docs/spec.md, which prints it. Every faster implementation must give the same
result. Randomness, noise and cipher are arguments. All integers are exact: if all noise is 0, the release
equals the plain sums.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Generic, Protocol

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName, Values, cut_blocks
from dpdpca_protocol.layout.packing import BlockLayout, FlatLayout, pack, symmetric_rows
from dpdpca_protocol.privacy.mechanisms.samplers import Samplers
from dpdpca_protocol.randomness import Randomness
from dpdpca_protocol.records.block_sums import new_sums
from dpdpca_protocol.records.columns import Column
from dpdpca_protocol.records.encoding import NONE_LONG, Integers, RecordEncoder
from dpdpca_protocol.records.pairing import SEED_BYTES, KeyStream, pairs, shuffled
from dpdpca_protocol.records.projection import Projection
from dpdpca_protocol.records.scatter import SecondMoments
from dpdpca_protocol.release.ciphers import Cipher, Ciphertext, Pads, VectorCipher
from dpdpca_protocol.release.release import NoisyScatter, check_count_range, draw_mask, flat_scatter, unmask
from dpdpca_protocol.terms.figures import Figures, NoiseBy
from dpdpca_protocol.terms.terms import EncodingTerms

Records = Mapping[str, Column]
Released = NoisyScatter | dict[BlockName, Values]


class StudyTerms(EncodingTerms, Protocol):
    """The terms of a study: a manifest, or terms for a table without a manifest."""

    @property
    def figures(self) -> Figures: ...


def run_study(
    terms: StudyTerms,
    owners: Sequence[Records],
    randomness: Randomness,
    noise: Samplers,
    cipher: Cipher[Any] | Pads,
    projection: Projection | None = None,
) -> Released:
    """Runs one study, from the owners' records to the result of the data user.

    Steps that change no number are omitted: keys, statements, chunks, and the rules of who may take part.

    Args:
        terms: the manifest.
        owners: the records of each owner, by column.
        randomness: for the mask, and for the order in which owners pair records.
        noise: the source of the noise, whichever party draws it.
        cipher: the cipher with the data user's key, or pads. A masked study cannot use pads.
        projection: the public rule of a sketch, a lift or scores, which makes a few numbers of each record.

    Returns:
        The noisy scatter or, for a pre-study, a sketch, a lift or scores, the noisy blocks.

    Raises:
        InputError: records do not fit the terms.
        CryptographicError: `count-out-of-range`, there is no record, or there are more than the terms allow.
        UsageError: pads were given for a masked study.
    """
    figures, encoder = terms.figures, RecordEncoder(terms)

    # Each owner encodes its records, adds them up and hides the sums (sections 4 to 6).
    vectors = vectors_of(figures, cipher)
    shares = []
    for records in owners:
        encoded = encoder.encode(records)
        z = encoded.z
        if figures.mechanism.setting.has_pairs:
            z = z[shuffled(len(z), KeyStream(randomness.bytes(SEED_BYTES)))]
        sums = owner_sums(figures, z, encoded.long, projection, encoded.gaps)
        shares.append(vectors.encrypt(list(map(add, sums, figures.own_noise(noise)))))

    # The proxy adds up position by position (section 7).
    aggregate = reduce(vectors.add, shares)

    # Masked: the data user proves N; the proxy adds mask and noise; the data user removes the mask (9).
    if figures.release.needs_count:
        if isinstance(cipher, Pads):
            raise UsageError("bad-argument", "a masked study multiplies values, which pads cannot do")
        count = cipher.prove(cipher.rerandomize(aggregate[0]))
        check_count_range(count, 1, figures.most_counted)
        d = figures.encoded_features
        b = draw_mask(d, figures.mask_bits, randomness)
        H = symmetric_rows(d, figures.mechanism.draw(count, noise))
        released = masked_release(figures, aggregate, count, b, H, cipher)
        return unmask(block_layout(figures), [cipher.decrypt(ciphertext) for ciphertext in released], count)

    # Flat: the proxy adds noise unless the owners did; the data user decodes block by block (8).
    by_proxy = figures.noise_by is NoiseBy.PROXY
    drawn = figures.mechanism.draw(1, noise) if by_proxy else [0] * figures.value_count
    values = vectors.decrypt(vectors.add_plain(aggregate, drawn))
    blocks = cut_blocks(figures.blocks, values)
    check_count_range(blocks[BlockName.COUNT][0], 1, figures.most_counted)
    is_matrix = figures.release.has_components and not figures.rules.is_wide
    return flat_scatter(blocks, figures.encoded_features) if is_matrix else blocks


def owner_sums(
    figures: Figures,
    z: Integers,
    long: Integers = NONE_LONG,
    projection: Projection | None = None,
    gaps: Integers = NONE_LONG,
) -> list[int]:
    """One owner's exact sums over (n, d) encoded records, paired in their present order, as in a share.

    Args:
        figures: of the study.
        z, long, gaps: as in `EncodedBatch`; `long` and `gaps` may be left out if the records are clipped when
            they are summed.
        projection: of a sketch, a lift or scores.
    """
    sums = new_sums(figures, projection)
    sums.add(z)
    if isinstance(sums, SecondMoments):
        sums.add_clipped(long)
        sums.add_gaps(gaps)
    elif sums.has_pairs:
        for first, second in pairs([z]):
            sums.add_pairs(first, second)
    return list(sums.stream())


@dataclass(frozen=True, slots=True)
class Packed(Generic[Ciphertext]):
    """Vectors under a cipher. Each plaintext holds several values, as the release requires (section 6)."""

    figures: Figures
    cipher: Cipher[Ciphertext]

    def encrypt(self, values: Sequence[int]) -> list[Ciphertext]:
        return [self.cipher.encrypt(plain) for plain in plaintexts(self.figures, values)]

    def add(self, left: list[Ciphertext], right: list[Ciphertext]) -> list[Ciphertext]:
        return [self.cipher.add(x, y) for x, y in zip(left, right, strict=True)]

    def add_plain(self, hidden: list[Ciphertext], values: Sequence[int]) -> list[Ciphertext]:
        return flat_release(self.figures, hidden, values, self.cipher)

    def decrypt(self, hidden: list[Ciphertext]) -> list[int]:
        plains = [self.cipher.decrypt(each) for each in hidden]
        return flat_layout(self.figures).unpack_all(plains) if self.figures.slots else plains


def vectors_of(figures: Figures, cipher: Cipher[Any] | Pads) -> VectorCipher[Any]:
    """Pads hide each value by itself; a cipher encrypts packed values."""
    return cipher if isinstance(cipher, Pads) else Packed(figures, cipher)


def plaintexts(figures: Figures, values: Sequence[int]) -> list[int]:
    """Values in the order of a share, packed for the release: flat, or N, v and R by rows and blocks.

    A study under pads has no slots. There each plaintext is one value.
    """
    if not figures.slots:
        return list(values)
    if figures.blocks:
        return list(flat_layout(figures).pack_stream(values))
    d = figures.encoded_features
    rows = symmetric_rows(d, values[1 + d :])
    return list(block_layout(figures).pack_share(values[0], values[1 : 1 + d], rows))


def flat_layout(figures: Figures) -> FlatLayout:
    return FlatLayout(figures.value_count, figures.slot_bits, figures.slots)


def block_layout(figures: Figures) -> BlockLayout:
    return BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)


def flat_release(
    figures: Figures, aggregate: Sequence[Ciphertext], noise: Sequence[int], cipher: Cipher[Ciphertext]
) -> list[Ciphertext]:
    """The aggregate with the encrypted noise (section 8)."""
    packed = zip(aggregate, plaintexts(figures, noise), strict=True)
    return [cipher.add_plain(ciphertext, plain) for ciphertext, plain in packed]


def masked_release(
    figures: Figures,
    aggregate: Sequence[Ciphertext],
    count: int,
    b: Sequence[int],
    H: Sequence[Sequence[int]],
    cipher: Cipher[Ciphertext],
) -> list[Ciphertext]:
    """E[v′] and E[T] with v′ = v + b and T = N·R + v bᵀ + b vᵀ + b bᵀ + H (section 9, steps 2 to 4)."""
    d, w = figures.encoded_features, figures.slot_bits
    v, R = aggregate[1 : 1 + d], iter(aggregate[1 + d :])
    released = [cipher.add_plain(v[i], b[i]) for i in range(d)]
    for i in range(d):
        for _, J in block_layout(figures).blocks(i):
            b_J, H_J = pack([b[j] for j in J], w), pack([H[i][j] for j in J], w)
            v_J = reduce(cipher.add, [cipher.scale(v[j], 1 << w * k) for k, j in enumerate(J)])
            terms = (cipher.scale(next(R), count), cipher.scale(v[i], b_J), cipher.scale(v_J, b[i]))
            released.append(cipher.add_plain(reduce(cipher.add, terms), b[i] * b_J + H_J))
    return [cipher.rerandomize(ciphertext) for ciphertext in released]
