"""Cohorts whose sums were seen before: the difference of two releases shows the owners by which they differ.

Compared are studies with a feature in common, by name. A cohort counts as seen once its count was asked for
or its noise drawn, whatever became of the study. An owner that changed its key is the same owner.
"""

from collections import defaultdict

from sqlalchemy import Connection, or_, select

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_proxy.store.studies import StudyRow
from dpdpca_proxy.store.tables import cohort, rotations, studies, study_features


class CohortTooCloseError(PolicyError):
    """A study's cohort differs from one that was seen before, by too few owners."""


def check_distance(connection: Connection, row: StudyRow) -> None:
    """That no cohort seen before differs from this study's by at least one and too few owners.

    How many are enough says the manifest of this study or of the earlier one, whichever asks for more. The
    same cohort again is for its owners' ledgers to judge.

    Raises:
        CohortTooCloseError: `cohort-too-close`.
    """
    own = select(study_features.c.name).where(study_features.c.study == row.study)
    alike = select(study_features.c.study).where(study_features.c.name.in_(own))
    seen = connection.execute(
        select(studies.c.study, studies.c.cohort_distance, cohort.c.owner)
        .join(cohort, cohort.c.study == studies.c.study)
        .where(
            or_(
                studies.c.study == row.study,
                studies.c.study.in_(alike)
                & (studies.c.challenge.is_not(None) | studies.c.noise_drawn_at.is_not(None)),
            )
        )
    )
    newest = _newest_keys(connection)
    cohorts: dict[StudyId, set[PartyId]] = defaultdict(set)
    distances: dict[StudyId, int] = {}
    for study, distance, owner in seen:
        cohorts[study].add(newest.get(owner, owner))
        distances[study] = max(distance, row.cohort_distance)
    mine = cohorts.pop(row.study, set())
    for study, theirs in cohorts.items():
        difference = len(mine ^ theirs)
        if 0 < difference < distances[study]:
            raise CohortTooCloseError(
                "cohort-too-close",
                f"the cohort differs by {difference} {'owner' if difference == 1 else 'owners'} from that of"
                f" an earlier study with a feature in common, and by {distances[study]} it would have to",
            )


def _newest_keys(connection: Connection) -> dict[PartyId, PartyId]:
    """Of each party that changed its key, the last of its ids."""
    rows = connection.execute(select(rotations.c.party, rotations.c.successor))
    following: dict[PartyId, PartyId] = {row.party: row.successor for row in rows}
    newest = {}
    for party in following:
        last = party
        while last in following:
            last = following[last]
        newest[party] = last
    return newest
