"""Cohorts for those who open a release and have no signed statements at hand."""

from dpdpca_protocol.release.suite import Cohort, CohortShare
from dpdpca_protocol.wire.identifiers import Digest, PartyId


def cohort_of(owners: int) -> Cohort:
    """So many shares without pads."""
    shares = (CohortShare(PartyId.of(b"owner %d" % number), 1, None) for number in range(owners))
    return Cohort(tuple(shares), Digest.of(b"cohort of %d" % owners))
