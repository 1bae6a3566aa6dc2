"""Sums the parts of a table on the owner's Dask cluster.

Each worker reads its part where it is stored. The calls and the sums pass the scheduler, sealed under the key
that the owner and its workers have.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from dpdpca_owner.records.open import Part
from dpdpca_owner.records.summed import SummedRecords, sum_part
from dpdpca_protocol.release.prefetch import prefetch_results
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_runtime.cluster.address import Cluster
from dpdpca_runtime.cluster.carrier import InMessage


def sums_of_parts(
    cluster: Cluster, parts: Sequence[Part], manifest: Manifest, key: bytes, *, strict: bool
) -> Iterator[SummedRecords]:
    """The sums of each part, in the order of the parts.

    Args:
        cluster: the owner's own; its workers see the parts under the same names.
        parts: of one table.
        manifest: opened and checked.
        key: the key of this owner's ledger.
        strict: as in `sum_part`.

    Raises:
        UnavailableError: the cluster cannot do it now.
        InputError: see `sum_part`.
    """
    from dpdpca_runtime.cluster.executor import ClusterExecutor  # Dask is needed only here

    calls, before = [], 0
    for part in parts:
        calls.append(partial(sum_part, part.location, manifest, key, before, strict=strict))
        before += part.records
    with ClusterExecutor(cluster, InMessage()) as executor:
        yield from prefetch_results(executor, 3 * executor.workers, calls)
