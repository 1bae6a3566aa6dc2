"""A second noise, drawn by the data user, so that the components of a study may be published in clear.

The proxy knows its own noise and could subtract it from whatever it sees. The data user therefore adds an
independent draw from the same distribution, to the integers and before any division. The proxy knows nothing
about this draw. Each of the two draws alone gives the study's (ε, δ) against anybody who knows the other one.
If a release is opened again, for example from a backup, it gets the same draw: from two different draws the
proxy could compute a mean with less noise.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms.samplers import EXACT, Samplers
from dpdpca_protocol.records.seeded_noise import seeded_samplers
from dpdpca_protocol.release.release import NoisyScatter, triangle_index
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


def with_second_noise(
    noisy: NoisyScatter, figures: Figures, sample: Samplers = EXACT
) -> tuple[NoisyScatter, Figures]:
    """The release with one more draw of noise, and figures for the distribution of both draws together.

    Args:
        noisy: the release, decrypted and checked, but shown to nobody yet.
        figures: the figures of the study. The proxy drew the first noise.
        sample: draws the integers.

    Raises:
        UsageError: the second draw was already added.

    Guarantee: (ε, δ) of the mechanism against anybody who knows the first draw; docs/claims.md, C13.
    Tested: tests/unit/test_second_noise.py, tests/hostile/test_denoising_proxy.py.
    """
    if figures.draws != 1:
        raise UsageError("bad-argument", "the second noise was already added")
    drawn = figures.mechanism.draw(noisy.count, sample)
    return add_noise(noisy, drawn), replace(figures, draws=2)


def add_noise(noisy: NoisyScatter, drawn: Sequence[int]) -> NoisyScatter:
    """N·S̃ + E in a masked release, in a joint one N·(R̃ + E) − (ṽ + e)(ṽ + e)ᵀ, in exact integers.

    Args:
        noisy: a release.
        drawn: in the order of `Mechanism.draw`: E as an upper triangle by rows; if joint, 0 and e come first.
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
