"""Comparison with earlier cohorts: the difference of two releases can reveal the owners by which they differ.

Studies are compared if they have a feature name in common. A cohort counts once its number of records was
requested or its noise was drawn, even if the study failed later. An owner that changed its key is still the
same owner.
"""

from collections import defaultdict

from sqlalchemy import Connection, or_, select

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_proxy.store.studies import StudyRow
from dpdpca_proxy.store.tables import cohort, rotations, studies, study_features


class CohortTooCloseError(PolicyError):
    """The cohort of a study differs from an earlier cohort by too few owners."""


def check_distance(connection: Connection, row: StudyRow) -> None:
    """Checks that no earlier cohort differs from this study's cohort by one or more, but too few, owners.

    The larger of the distances in the two manifests applies. If the cohorts are equal, the owners' ledgers
    decide.

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
                f"the cohort differs by {difference} {'owner' if difference == 1 else 'owners'} from the "
                "cohort of an earlier study with a feature in common; it must differ by at least "
                f"{distances[study]}",
            )


def _newest_keys(connection: Connection) -> dict[PartyId, PartyId]:
    """For each party that changed its key, its newest id."""
    rows = connection.execute(select(rotations.c.party, rotations.c.successor))
    following: dict[PartyId, PartyId] = {row.party: row.successor for row in rows}
    newest = {}
    for party in following:
        last = party
        while last in following:
            last = following[last]
        newest[party] = last
    return newest
