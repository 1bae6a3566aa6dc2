"""Precomputation for open studies, so that little work is left when they close.

Precomputation runs in steps of about a second, only when nothing else waits for the worker. Precomputation is
optional: anything missing when a study closes is computed then.
"""

import logging
import time
from collections.abc import Sequence

from dpdpca_protocol.layout.packing import BlockLayout
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_proxy.precomputed import (
    GROUP_SHARES,
    Group,
    Member,
    begin_group,
    multiply_group,
    prepare_residues,
    read_groups,
)
from dpdpca_proxy.proxy import Proxy
from dpdpca_proxy.store.files import chunk_name
from dpdpca_proxy.store.shares import chunk_digests
from dpdpca_proxy.store.studies import StudyRow, complete_members, load_study
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_runtime.workers import Background

_PAUSE_SECONDS = 10.0
"""The pause after a failed step: a share may have been withdrawn meanwhile, or the disk may be full."""

_POSITIONS_AT_ONCE = 32
"""The most positions of a group that the workers of a cluster multiply in one step."""

_logger = logging.getLogger("dpdpca.jobs")


class Precomputation:
    """Precomputes for open studies, and remembers which studies have nothing left to prepare."""

    def __init__(self, proxy: Proxy, worker: Background) -> None:
        self._proxy = proxy
        self._worker = worker
        self._prepared: dict[StudyId, int] = {}
        self._not_before: dict[StudyId, float] = {}

    def step(self, open_studies: list[StudyRow]) -> bool:
        """Runs one step for the first study that has one. Returns whether a step was run."""
        present = {row.study for row in open_studies}
        self._prepared = {study: self._prepared[study] for study in self._prepared.keys() & present}
        for row in open_studies:
            study = row.study
            if self._prepared.get(study) == row.revision or time.monotonic() < self._not_before.get(study, 0):
                continue
            try:
                if self._advance(study):
                    return True
                self._prepared[study] = row.revision
            except Exception as error:
                self._not_before[study] = time.monotonic() + _PAUSE_SECONDS
                _logger.warning(
                    "precomputation step failed",
                    extra={"study": study.hex()[:16], "error_class": type(error).__name__},
                )
        return False

    def _advance(self, study: StudyId) -> bool:
        proxy = self._proxy
        with proxy.database.reading("list work to prepare") as connection:
            row = load_study(connection, study)
            members = {(member.owner, member.version) for member in complete_members(connection, study)}
        if row.state is not StudyState.OPEN:
            return False
        files = study_files(proxy, study)
        if files.suite.is_quick:
            return False
        return self._multiply(files, members) or self._rerandomise(row, files)

    def _multiply(self, files: StudyFiles, members: set[Member]) -> bool:
        groups = []
        for group in read_groups(files):
            if group.members <= members:
                groups.append(group)
            else:  # one of its shares was withdrawn or replaced
                files.store.remove(group.folder)
        positions = range(self._proxy.terms(files.study).manifest.figures.chunk_count)
        unfinished = next((group for group in groups if not set(positions) <= group.positions), None)
        if unfinished is None:
            alone = sorted(members - {member for group in groups for member in group.members})
            if len(alone) < GROUP_SHARES:
                return False
            unfinished = begin_group(files, alone[:GROUP_SHARES])
        missing = [k for k in positions if k not in unfinished.positions][:_POSITIONS_AT_ONCE]
        self._worker.call(multiply_group, files, unfinished, self._wanted(files, unfinished, missing))
        return True

    def _wanted(
        self, files: StudyFiles, group: Group, positions: Sequence[int]
    ) -> list[tuple[int, list[str]]]:
        """Positions with the names of the group's chunks there."""
        with self._proxy.database.reading("list chunks to multiply") as connection:
            digests = {
                member: chunk_digests(connection, files.study, *member) for member in sorted(group.members)
            }
        return [
            (
                position,
                [
                    chunk_name(files.study, *member, position, there[position])
                    for member, there in digests.items()
                    # A share that was withdrawn meanwhile has no chunks; the next step drops its group.
                    if position in there
                ],
            )
            for position in positions
        ]

    def _rerandomise(self, row: StudyRow, files: StudyFiles) -> bool:
        if not row.release_kind.needs_count:
            return False
        figures = self._proxy.terms(row.study).manifest.figures
        layout = BlockLayout(figures.encoded_features, figures.slot_bits, figures.slots)
        return self._worker.call(prepare_residues, files, layout.release_count)


def study_files(proxy: Proxy, study: StudyId) -> StudyFiles:
    """The files of a study for the worker. Raises ConflictError if the study's key was deleted."""
    return StudyFiles(
        proxy.files, study, proxy.terms(study).suite, proxy.data_key(study), proxy.settings.cluster
    )
