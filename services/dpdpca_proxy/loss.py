"""Continues with an older copy of the database, after the operator accepted that later data are lost."""

from dpdpca_protocol.errors import ConflictError
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.log import LOSS, append_entry
from dpdpca_proxy.store.studies import list_studies
from dpdpca_proxy.store.witness import START
from dpdpca_proxy.studies import fail_study, sweep

_UNDECIDED = (StudyState.OPEN, StudyState.CLOSED, StudyState.COUNTED)


def accept_loss(proxy: Proxy) -> list[StudyId]:
    """Permanently fails every study that may have advanced further than the database shows.

    Each of these studies may since have drawn its noise, lost a share by withdrawal, or been released. New
    log entries get numbers above all numbers that were used before.

    Returns:
        The studies that failed.

    Raises:
        ConflictError: `nothing-lost`, the database is not an older copy.
    """
    try:
        proxy.database.settle_witness()
    except ConflictError:
        pass
    else:
        raise ConflictError("nothing-lost", "the database is up to date; there is no loss to accept")
    seen = proxy.database.witnessed() or START
    with proxy.database.transaction("accept loss", accepting_loss=True) as connection:
        now = proxy.now()
        append_entry(connection, LOSS, seen.head, now, after=seen.generation)
        lost = list_studies(connection, _UNDECIDED)
        for row in lost:
            detail = "an older copy of the proxy's database was restored, and later data are lost"
            fail_study(proxy, connection, row, now, "generation-mismatch", detail)
    for row in lost:
        sweep(proxy, row.study)
    return [row.study for row in lost]
