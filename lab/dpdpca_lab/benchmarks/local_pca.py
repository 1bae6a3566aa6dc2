"""PrivateLocalPCA, the baseline of the DPDPCA paper: noisy local PCA, passed from owner to owner.

Each owner adds noise to its own second moment, adds what it received from the owner before, keeps the leading
`rank` eigenpairs, and passes V·Λ^½ to the next owner (Imtiaz et al., run by one owner after the other as in
the DPDPCA paper). There is no cryptography, and every owner adds the full noise.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdpca_lab.central.entropy import Floats
from dpdpca_lab.mechanisms import Calibration, PublishedGaussian, noise_matrix
from dpdpca_lab.tables import EncodedTable
from dpdpca_protocol.errors import UsageError
from dpdpca_protocol.privacy.mechanisms import Gaussian, Guarantee, Quantity, Setting


@dataclass(frozen=True, slots=True)
class LocalChain:
    """What the last owner publishes, and how long the owners took.

    Attributes:
        directions: (rank, d) orthonormal rows, leading direction first.
        claim: what the paper that defines the noise claims; the guarantee where the calibration is ours.
        guarantee: what is proved, towards every later owner and the public: each record is in one owner's
            second moment, owners' data are disjoint, and all that follows is post-processing.
        seconds: of each owner, one after the other.
    """

    directions: Floats
    claim: Guarantee
    guarantee: Guarantee
    seconds: tuple[float, ...]


def private_local_pca(
    tables: Sequence[EncodedTable],
    epsilon: Fraction,
    delta: Fraction,
    rank: int,
    calibration: Calibration = Calibration.PROVED,
) -> LocalChain:
    """Run the owners one after the other.

    Args:
        tables: one for each owner, encoded with the same public bounds.
        epsilon, delta: the privacy of every owner's noise.
        rank: number of eigenpairs that are passed on, and of components at the end.
        calibration: ours for one replaced record, or the published noise scale, whose guarantee is weaker
            than its claim.

    Raises:
        UsageError: there is no table, or tables have different shapes.
    """
    if len({(table.z.shape[1], table.record_bound) for table in tables}) != 1:
        raise UsageError("wrong-shape", "there must be one or more tables, all with the same shape")
    d, bound = tables[0].z.shape[1], tables[0].record_bound
    setting = Setting(Quantity.SECOND_MOMENT, d, bound, epsilon, delta)
    mechanism: Gaussian = Gaussian.calibrated(setting)
    claim = mechanism.guarantee
    if calibration is Calibration.AS_PUBLISHED:
        mechanism = published = PublishedGaussian.calibrated(setting)
        claim = published.claim
    directions, seconds = pass_on((table.second_moment for table in tables), mechanism, rank)
    return LocalChain(directions, claim, mechanism.guarantee, seconds)


def pass_on(moments: Iterable[Floats], mechanism: Gaussian, rank: int) -> tuple[Floats, tuple[float, ...]]:
    """The steps of the owners, one after the other.

    Args:
        moments: the second moment of each owner, (d, d), in the units of the mechanism's record bound.
        mechanism: of each owner's noise.
        rank: number of eigenpairs that are passed on.

    Returns:
        (rank, d) directions of the last owner, leading direction first, and the seconds of each owner.
    """
    d = mechanism.setting.encoded_features
    carried, vectors, seconds = np.zeros((d, 0)), np.zeros((d, 0)), []
    for moment in moments:
        begin = time.perf_counter()
        values, columns = np.linalg.eigh(moment + noise_matrix(mechanism) + carried @ carried.T)
        vectors = columns[:, ::-1][:, :rank]
        carried = vectors * np.sqrt(np.maximum(values[::-1][:rank], 0.0))
        seconds.append(time.perf_counter() - begin)
    return vectors.T, tuple(seconds)
