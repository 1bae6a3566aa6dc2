"""A second noise, drawn by the data user, so that components of a study may be published in clear.

The proxy knows its own noise, and could take it off whatever it sees. Of an independent draw of the same law,
on the integers and before any division, it knows nothing: each of the two draws alone gives the study's
(ε, δ), towards whoever knows the other one. A release that is opened again, out of a backup say, gets the
same draw again: of two the proxy could take the mean.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.gaussian import discrete_gaussian
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.records.pairing import KeyStream
from dpdpca_protocol.release.release import NoisyScatter, triangle_index
from dpdpca_protocol.terms.figures import Figures

_TAG = b"dpdpca/second-noise/v1\x00"


class _Stream:
    """Randomness that is the same again for the same seed."""

    def __init__(self, seed: bytes) -> None:
        self._stream = KeyStream(seed)

    def bytes(self, count: int) -> bytes:
        return self._stream.take(count).tobytes()

    def below(self, bound: int) -> int:
        length = (bound.bit_length() + 7) // 8
        limit = 256**length // bound * bound
        while (value := int.from_bytes(self.bytes(length), "big")) >= limit:
            pass
        return value % bound


def own_samplers(secret: bytes, chunks: Iterable[bytes]) -> Samplers:
    """Samplers whose Gaussian draws follow from a study's secret key and what was released under it.

    Args:
        secret: of the study's key; whoever does not have it cannot tell the draws from others.
        chunks: the ciphertexts of the release: another release has other draws.

    Guarantee: one release, one draw. Draws of Laplace's law are fresh each time.
    """
    seed = hashlib.sha256(_TAG + len(secret).to_bytes(4, "big") + secret)
    for chunk in chunks:
        seed.update(hashlib.sha256(chunk).digest())
    return Samplers(gaussian=partial(discrete_gaussian, randomness=_Stream(seed.digest())))


def with_second_noise(
    noisy: NoisyScatter, figures: Figures, sample: Samplers = EXACT
) -> tuple[NoisyScatter, Figures]:
    """The release under one draw more, and figures whose law is that of both.

    Args:
        noisy: as decrypted, checked, and shown to nobody.
        figures: of its study, where the proxy drew the noise.
        sample: where the integers come from.

    Raises:
        UsageError: the noise has two draws already.

    Guarantee: (ε, δ) of the mechanism towards whoever knows the first draw; docs/claims.md, C13.
    Tested: tests/unit/test_second_noise.py, tests/hostile/test_denoising_proxy.py.
    """
    if figures.draws != 1:
        raise UsageError("bad-argument", "the second noise was drawn already")
    drawn = figures.mechanism.draw(noisy.count, sample)
    return add_noise(noisy, drawn), replace(figures, draws=2)


def add_noise(noisy: NoisyScatter, drawn: Sequence[int]) -> NoisyScatter:
    """N·S̃ + E in a masked release, in a joint one N·(R̃ + E) − (ṽ + e)(ṽ + e)ᵀ, in exact integers.

    Args:
        noisy: a release.
        drawn: in the order of `Mechanism.draw`: E as an upper triangle by rows, 0 and e before it if joint.
    """
    d = len(noisy.scaled_scatter)
    old = noisy.sum
    triangle = drawn[-(d * (d + 1) // 2) :]
    new = (
        None
        if old is None
        else tuple(value + noise for value, noise in zip(old, drawn[1 : 1 + d], strict=True))
    )
    factor = 1 if old is None else noisy.count
    rows: list[list[int]] = []
    for i in range(d):
        row = [above[i] for above in rows]
        for j in range(i, d):
            entry = noisy.scaled_scatter[i][j] + factor * triangle[triangle_index(d, i, j)]
            if old is not None and new is not None:
                entry += old[i] * old[j] - new[i] * new[j]
            row.append(entry)
        rows.append(row)
    return replace(noisy, scaled_scatter=tuple(map(tuple, rows)), sum=new)
