"""Sums the parts of a table on the owner's Dask cluster.

Each worker reads its part where it is stored. The calls and the sums pass the scheduler, sealed under the key
that the owner and its workers have.
"""

from collections.abc import Iterator, Sequence

from dpdpca_owner.records.summed import PartCall, SummedRecords
from dpdpca_protocol.release.prefetch import prefetch_results
from dpdpca_runtime.cluster.address import Cluster
from dpdpca_runtime.cluster.carrier import InMessage
from dpdpca_runtime.cluster.executor import ClusterExecutor


def sum_on(cluster: Cluster, calls: Sequence[PartCall]) -> Iterator[SummedRecords]:
    """The results of `calls`, in order. The workers must see the parts under the same names.

    Raises:
        UnavailableError: the cluster cannot be used now.
        InputError: see `sum_part`.
    """
    with ClusterExecutor(cluster, InMessage()) as executor:
        yield from prefetch_results(executor, 3 * executor.workers, calls)
