"""A second noise, drawn by the data user, so that the components of a study may be published in clear.

The proxy knows its own noise and could subtract it from whatever it sees. The data user therefore adds an
independent draw from the same distribution, to the integers and before any division. The proxy knows nothing
about this draw. Each of the two draws alone gives the study's (ε, δ) against anybody who knows the other one.
If a release is opened again, for example from a backup, it gets the same draw: from two different draws the
proxy could compute a mean with less noise.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.layout.blocks import BlockName, Values, cut_blocks
from dpdpca_protocol.layout.packing import symmetric_rows
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.records.seeded_noise import seeded_samplers
from dpdpca_protocol.release.release import NoisyScatter
from dpdpca_protocol.terms.figures import Figures

_TAG = b"dpdpca/second-noise/v1\x00"


def own_samplers(secret: bytes, chunks: Iterable[bytes]) -> Samplers:
    """Samplers whose Gaussian draws are derived from a study's secret key and its release.

    Args:
        secret: from the study's secret key. Without this secret, nobody can distinguish the draws from fresh
            ones.
        chunks: the ciphertexts of the release, so that another release gets other draws.

    Guarantee: a release gets the same Gaussian draws each time it is opened. Laplace noise cannot be derived
    from a key, so each opening draws it anew.
    """
    seed = hashlib.sha256(_TAG + len(secret).to_bytes(4, "big") + secret)
    for chunk in chunks:
        seed.update(hashlib.sha256(chunk).digest())
    return seeded_samplers(seed.digest())


def with_second_draw(
    released: Mapping[BlockName, Values], figures: Figures, sample: Samplers = EXACT
) -> tuple[dict[BlockName, Values], Figures]:
    """The blocks of a flat release with one more draw of noise, and figures for both draws together.

    Args:
        released: the opened blocks, shown to nobody yet. The proxy drew their noise. Arrays hold sums modulo
            2⁶⁴, and the noise is added to them modulo 2⁶⁴.
        figures: the figures of the study.
        sample: draws the integers.

    Raises:
        UsageError: the second draw was already added.

    Guarantee: that of the study, against the proxy too; docs/claims.md, C11 and C13.
    Tested: tests/unit/test_second_noise.py, tests/hostile/test_denoising_proxy.py.
    """
    twice = _drawn_twice(figures)
    drawn = cut_blocks(figures.blocks, figures.mechanism.draw(1, sample))
    return {name: _plus(values, drawn[name]) for name, values in released.items()}, twice


def _plus(values: Values, noise: Values) -> Values:
    if isinstance(values, np.ndarray):
        return values + np.asarray(noise, dtype=np.int64)  # numpy adds modulo 2⁶⁴
    return [value + draw for value, draw in zip(values, noise, strict=True)]


def with_second_noise(
    noisy: NoisyScatter, figures: Figures, sample: Samplers = EXACT
) -> tuple[NoisyScatter, Figures]:
    """A masked release with one more draw of noise, and figures for both draws together.

    Args:
        noisy: the release, decrypted and checked, but shown to nobody yet.
        figures, sample: as for `with_second_draw`.

    Raises:
        UsageError: the second draw was already added.

    Guarantee: (ε, δ) of the mechanism against anybody who knows the first draw; docs/claims.md, C13.
    Tested: tests/unit/test_second_noise.py, tests/hostile/test_denoising_proxy.py.
    """
    twice = _drawn_twice(figures)
    rows = symmetric_rows(figures.encoded_features, figures.mechanism.draw(noisy.count, sample))
    scaled = tuple(
        tuple(entry + noise for entry, noise in zip(*pair, strict=True))
        for pair in zip(noisy.scaled_scatter, rows, strict=True)
    )
    return replace(noisy, scaled_scatter=scaled), twice


def _drawn_twice(figures: Figures) -> Figures:
    if figures.draws != 1:
        raise UsageError("bad-argument", "the second noise was already added")
    return replace(figures, draws=2)
