"""Comparison with earlier cohorts: the difference of two releases can reveal the owners by which they differ.

Studies are compared if they have a feature name in common. A cohort counts once its number of records was
requested or its noise was drawn, even if the study failed later. An owner that changed its key is still the
same owner.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, or_, select

from dpdpca_protocol.errors import PolicyError
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.identifiers import PartyId, StudyId
from dpdpca_proxy.store.studies import StudyRow
from dpdpca_proxy.store.tables import cohort, participants, rotations, studies, study_features


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
    if (problem := _too_close(connection, row, seen.all())) is not None:
        raise CohortTooCloseError("cohort-too-close", problem)


def check_planned_distance(connection: Connection, row: StudyRow) -> None:
    """Like `check_distance`, for a stored study whose cohort can only be all of its participants.

    This is judged when the study is created, before any owner pays. Other studies that can only have one
    cohort count as soon as they are open.

    Raises:
        PolicyError: `cohort-too-close`.
    """
    own = select(study_features.c.name).where(study_features.c.study == row.study)
    alike = select(study_features.c.study).where(study_features.c.name.in_(own))
    seen = connection.execute(
        select(studies.c.study, studies.c.cohort_distance, cohort.c.owner)
        .join(cohort, cohort.c.study == studies.c.study)
        .where(
            studies.c.study.in_(alike),
            studies.c.challenge.is_not(None) | studies.c.noise_drawn_at.is_not(None),
        )
    )
    planned = connection.execute(
        select(studies.c.study, studies.c.cohort_distance, participants.c.owner)
        .join(participants, participants.c.study == studies.c.study)
        .where(
            studies.c.study.in_(alike),
            studies.c.min_owners == studies.c.max_owners,
            studies.c.state.in_([StudyState.OPEN, StudyState.CLOSED]),
        )
    )
    if (problem := _too_close(connection, row, [*seen, *planned])) is not None:
        raise PolicyError("cohort-too-close", problem, "name the same owners, or more new ones")


def _too_close(connection: Connection, row: StudyRow, members: Iterable[Any]) -> str | None:
    """Why the cohort of this study is too close to another; None if it is not."""
    newest = _newest_keys(connection)
    cohorts: dict[StudyId, set[PartyId]] = defaultdict(set)
    distances: dict[StudyId, int] = {}
    for study, distance, owner in members:
        cohorts[study].add(newest.get(owner, owner))
        distances[study] = max(distance, row.cohort_distance)
    mine = cohorts.pop(row.study, set())
    for study, theirs in cohorts.items():
        difference = len(mine ^ theirs)
        if 0 < difference < distances[study]:
            return (
                f"the cohort differs by {difference} {'owner' if difference == 1 else 'owners'} from the "
                "cohort of an earlier study with a feature in common; it must differ by at least "
                f"{distances[study]}"
            )
    return None


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
