"""Cohorts for those who open a release and have no signed statements at hand."""

from dpdpca_protocol.randomness import OS_RANDOMNESS
from dpdpca_protocol.release.suite import Cohort, CohortShare
from dpdpca_protocol.terms.manifest import Manifest
from dpdpca_protocol.terms.signed_manifest import suite_of
from dpdpca_protocol.wire.identifiers import Digest, PartyId
from dpdpca_protocol.wire.salts import unsalted


def cohort_of(owners: int) -> Cohort:
    """So many shares without pads."""
    shares = (CohortShare(PartyId.of(b"owner %d" % number), 1, None) for number in range(owners))
    return Cohort(tuple(shares), Digest.of(b"cohort of %d" % owners))


def of_one_owner(manifest: Manifest, values: list[int]) -> tuple[list[bytes], Cohort]:
    """The release of a cohort of one owner with these values, under pads and without noise of the proxy's."""
    suite, owner = suite_of(manifest), PartyId.of(b"owner")
    begun = suite.begin(owner, 1, OS_RANDOMNESS)
    chunk = suite.chunk_maker(begun.secrets, OS_RANDOMNESS)(0, values)(lambda count: None)
    cohort = Cohort((CohortShare(owner, 1, begun.pad),), Digest.of(b"cohort"))
    return [unsalted(chunk)], cohort
