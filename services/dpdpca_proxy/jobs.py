"""The proxy's own jobs: close studies in time, aggregate, ask for the count, draw noise, release, tidy up.

Every step reads the state of a study from the database, computes outside of requests, and commits its result
only if the state has not changed. So a step can be interrupted at any point and repeated, with one exception.
Committed noise is never drawn a second time. The order of steps ensures this, because nothing is released
before the noise is committed.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import Connection

from dpdpca_protocol.errors import (
    ConflictError,
    CryptographicError,
    DpdpcaError,
    UnavailableError,
    printable,
)
from dpdpca_protocol.messages.software import telling_software
from dpdpca_protocol.messages.study_messages import CountChallenge, ReleaseStatement
from dpdpca_protocol.study import RELEASED_STATES, TERMINAL_STATES, StudyEvent, StudyState
from dpdpca_protocol.wire.identifiers import Digest, StudyId
from dpdpca_proxy.audit import check_before_step
from dpdpca_proxy.enrolment import forget_old_nonces
from dpdpca_proxy.feature_lists import remove_unnamed
from dpdpca_proxy.leases import StudyLeases
from dpdpca_proxy.precomputation import Precomputation, study_files
from dpdpca_proxy.precomputed import read_groups, usable_groups
from dpdpca_proxy.progress import JobProgress, Step
from dpdpca_proxy.proxy import Proxy, RefusedTermsError
from dpdpca_proxy.shares import replaced_folders
from dpdpca_proxy.store.cohorts import CohortTooCloseError, check_distance
from dpdpca_proxy.store.files import chunk_name, draw_name, product_name, release_folder, release_name
from dpdpca_proxy.store.log import DRAW, append_entry, mark_to_follow
from dpdpca_proxy.store.releases import (
    delete_secrets,
    find_draw,
    insert_draw,
    insert_product,
    insert_release_chunks,
    product_digests,
)
from dpdpca_proxy.store.shares import chunk_digests
from dpdpca_proxy.store.studies import (
    StudyRow,
    append_event,
    frozen_cohort,
    list_readable,
    load_blob,
    load_study,
    move_study,
    set_study,
)
from dpdpca_proxy.studies import close_if_due, fail, is_due, sweep
from dpdpca_proxy.study_files import StudyFiles
from dpdpca_proxy.worker import draw, make_release, multiply_chunks, rerandomized_count
from dpdpca_runtime.workers import Background, WorkerFailedError

_POLL_SECONDS = 1.0
_MOST_BACKOFF_SECONDS = 60.0
_TIDYING_SECONDS = 30.0
_LOOKING_SECONDS = 1.0
"""After a start, open studies are checked for at most this long at a time, so that studies that are due still
close on time."""
_IRREVOCABLE = frozenset({"draw", "release"})
_ORPHAN_SECONDS = 24 * 3600.0
_PATIENT_ATTEMPTS = 5
"""After so many failures in a row, even a cause that should pass by itself is logged."""
_CHUNKS_AT_ONCE = 512
"""The number of chunks that one step of the aggregation multiplies: some seconds of work."""

_logger = logging.getLogger("dpdpca.jobs")


class Jobs:
    """The job runner of a proxy process. The process runs one task for it, `run`."""

    def __init__(self, proxy: Proxy, worker: Background) -> None:
        self._proxy = proxy
        self._worker = worker
        self._precomputation = Precomputation(proxy, worker)
        self._leases = StudyLeases(proxy)
        self._progress: dict[StudyId, JobProgress] = {}
        self._not_before: dict[StudyId, float] = {}
        self._attempts: dict[StudyId, int] = {}
        self._trouble: dict[StudyId, str] = {}
        self._unread: tuple[str, ...] = ()
        self._checked: dict[StudyId, set[str]] = {}
        self._looking_until = 0.0
        self._next_tidying = self._next_listing = 0.0
        self._bells = (asyncio.Event(), asyncio.Event())

    def progress(self, study: StudyId) -> JobProgress | None:
        """The progress of the running step of a study, or None."""
        return self._progress.get(study)

    @property
    def trouble(self) -> str | None:
        """The reason why an operator must act: `state-corrupt`, `step-failing` for anything else, or None."""
        told = set(self._trouble.values())
        if self._unread or "state-corrupt" in told:
            return "state-corrupt"
        return next(iter(told), None)

    def trouble_of(self, study: StudyId) -> str | None:
        """Like `trouble`, for one study."""
        return self._trouble.get(study)

    def wake(self) -> None:
        """Makes both loops of `run` check for work at once. This method must be called in the loop's own
        thread."""
        for bell in self._bells:
            bell.set()

    def close(self) -> None:
        """Call this when `run` has ended."""
        self._leases.close()

    async def run(self, stopping: asyncio.Event) -> None:
        """Works until `stopping` is set.

        The runner checks for work when it is woken, and every second. Closing and tidying have their own
        loop, because a release takes minutes and closing must be on time.
        """
        await asyncio.gather(
            self._repeat(self._bells[0], stopping, self._close_and_tidy),
            self._repeat(self._bells[1], stopping, lambda: self._round(stopping.is_set)),
        )

    async def _repeat(self, bell: asyncio.Event, stopping: asyncio.Event, act: Callable[[], bool]) -> None:
        while not stopping.is_set():
            bell.clear()
            if await asyncio.to_thread(self._run_logged, act):
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), _POLL_SECONDS)

    def _run_logged(self, act: Callable[[], bool]) -> bool:
        """The result of `act`.

        A failure (a full disk, a busy database) is logged, and the next round tries again.
        """
        try:
            return act()
        except Exception as error:
            slug = error.slug if isinstance(error, DpdpcaError) else None
            _logger.error("round failed", extra={"slug": slug, "error_class": type(error).__name__})
            return False

    def _close_and_tidy(self) -> bool:
        """Closes studies that are due, and now and then deletes files that are no longer needed."""
        if not self._is_newest_database():
            return False
        self._guarded(self._leases.renew)
        self._looking_until = time.monotonic() + _LOOKING_SECONDS
        for row in self._under_way(StudyState.OPEN):
            self._attempt(row, self._close)
        if time.monotonic() >= self._next_tidying:
            self._next_tidying = time.monotonic() + _TIDYING_SECONDS
            self._guarded(forget_old_nonces, self._proxy)
            if time.monotonic() >= self._next_listing:
                self._next_listing = time.monotonic() + _TIDYING_SECONDS * self._proxy.files.listing_cost
                self._guarded(self._tidy)
            self._guarded(self._proxy.files.probe)
        return False

    def _under_way(self, *states: StudyState) -> list[StudyRow]:
        """The studies in these states. A damaged row is logged and does not stop the other studies."""
        with self._proxy.database.reading("list studies under way") as connection:
            listed = list_readable(connection, TERMINAL_STATES | RELEASED_STATES)
        for name in set(listed.unread) - set(self._unread):
            _logger.error("row damaged", extra={"study": printable(name, 16), "slug": "state-corrupt"})
        self._unread = listed.unread
        there = {row.study for row in listed.rows}
        for known in (self._trouble, self._checked, self._attempts):
            for study in set(known) - there:
                known.pop(study, None)
        return [row for row in listed.rows if row.state in states]

    def _close(self, row: StudyRow) -> bool:
        """Closes a study if it is due. The stored study is checked before it is closed, and once earlier
        if this process has time."""
        is_now = is_due(self._proxy, row.study)
        if is_now or row.study in self._trouble or time.monotonic() < self._looking_until:
            self._check(row.study, "closing" if is_now else "open")
        if is_now:
            close_if_due(self._proxy, row.study)
        return is_now

    def _check(self, study: StudyId, phase: str) -> None:
        """Checks the stored study, once in each phase. Raises IntegrityError if it is inconsistent."""
        done = self._checked.setdefault(study, set())
        if phase not in done:
            check_before_step(self._proxy, study)
            done.add(phase)

    def _is_newest_database(self) -> bool:
        """False if the database is an older copy. Readiness reports that."""
        try:
            self._proxy.database.settle_witness()
        except ConflictError:
            return False
        return True

    def _tidy(self) -> None:
        """Deletes leftovers: files without a key, files of replaced shares or uncommitted releases, and lists
        of features that no study names."""
        self._guarded(remove_unnamed, self._proxy)
        with self._proxy.database.reading("list studies to tidy") as connection:
            rows = list_readable(connection).rows
        for row in rows:
            self._guarded(self._tidy_study, row)

    def _tidy_study(self, row: StudyRow) -> None:
        if row.state in TERMINAL_STATES | RELEASED_STATES:
            sweep(self._proxy, row.study)
        else:
            for folder in replaced_folders(self._proxy, row.study):
                self._proxy.files.remove(folder)
        kept = release_folder(row.study, row.release_folder or "")
        for folder in self._proxy.files.folders(row.study):
            # A recent folder may belong to another process that is about to commit it.
            if "/release-" in folder and folder != kept and self._proxy.files.age(folder) > _ORPHAN_SECONDS:
                self._proxy.files.remove(folder)

    def _round(self, stop: Callable[[], bool]) -> bool:
        """Runs one step of every study that has one. Returns whether any step was run."""
        if not self._is_newest_database():
            return False
        moved = False
        for row in self._under_way(StudyState.CLOSED, StudyState.COUNTED):
            if stop():
                return False
            moved = self._attempt(row, self._advance) or moved
        return moved or (not stop() and self._prepare())

    def _prepare(self) -> bool:
        """Runs one precomputation step for the first open study that has one."""
        return self._precomputation.step(self._under_way(StudyState.OPEN))

    def _guarded(self, act: Callable[..., None], *args: Any) -> None:
        try:
            act(*args)
        except DpdpcaError as error:
            _logger.warning("job refused", extra={"slug": error.slug})
        except OSError as error:
            _logger.error("job failed", extra={"error_class": type(error).__name__, "count": error.errno})

    def _attempt(self, row: StudyRow, act: Callable[[StudyRow], bool]) -> bool:
        """Whether `act` advanced the study. After a failure the study is left alone for a while."""
        study = row.study
        if time.monotonic() < self._not_before.get(study, 0.0):
            return False
        try:
            moved = act(row)
        except (CohortTooCloseError, CryptographicError) as error:
            # The stored shares can give no release, or no allowed one, now or later.
            _logger.error("study failed", extra={"study": study.hex()[:16], "slug": error.slug})
            self._guarded(fail, self._proxy, row, error.slug, error.problem)
            moved = True
        except Exception as error:
            self._postpone(row, error)
            moved = False
        else:
            self._attempts.pop(study, None)
            self._trouble.pop(study, None)
        if not moved:
            self._progress.pop(study, None)
        return moved

    def _postpone(self, row: StudyRow, error: Exception) -> None:
        study = row.study
        attempts = self._attempts[study] = self._attempts.get(study, 0) + 1
        self._not_before[study] = time.monotonic() + min(2.0**attempts, _MOST_BACKOFF_SECONDS)
        slug, error_class = (error.slug if isinstance(error, DpdpcaError) else None), type(error).__name__
        if isinstance(error, WorkerFailedError):
            error_class = error.error_class
        trouble = _trouble_of(error, attempts)
        if trouble is not None and self._is_where_it_was(row):
            self._trouble[study] = trouble
        _logger.error(
            "step failed",
            extra={
                "study": study.hex()[:16],
                "slug": slug,
                "error_class": error_class,
                "count": attempts,
            },
        )

    def _advance(self, row: StudyRow) -> bool:
        """Runs the next step of a closed study.

        Returns whether a step was run. No step is run if another process works on the study.
        """
        study = row.study
        self._check(study, row.state)
        if self._next_step(study) is None or not self._leases.take(study):
            return False
        try:
            step = self._next_step(study)  # read again, now that no other process works on the study
            if step is not None:
                if step.phase in _IRREVOCABLE:
                    self._check(study, step.phase)
                self._progress[study] = step.begin
                with self._proxy.traces.step(step.phase):
                    step.act()
        finally:
            self._guarded(self._leases.give_back, study)
        return step is not None

    def _next_step(self, study: StudyId) -> Step | None:
        proxy = self._proxy
        with proxy.database.reading("read study state") as connection:
            row = load_study(connection, study)
            if row.state not in (StudyState.CLOSED, StudyState.COUNTED):
                return None
            products = product_digests(connection, study)
            challenge = load_blob(connection, study, "challenge")
            token = find_draw(connection, study)
            if challenge is None and token is None:
                check_distance(connection, row)
        figures = proxy.terms(study).manifest.figures
        chunks = figures.chunk_count
        if len(products) < chunks:
            missing = [position for position in range(chunks) if position not in products]
            return Step("aggregate", partial(self._aggregate, row, missing), chunks, len(products))
        if row.release_kind.needs_count and row.state is StudyState.CLOSED:
            if challenge is not None:
                return None
            return Step("count", partial(self._ask_count, row, product_name(study, 0, products[0])))
        if token is None:
            return Step("draw", partial(self._draw, row))
        names = [product_name(study, position, products[position]) for position in range(chunks)]
        return Step("release", partial(self._release, row, names, token), figures.ciphertext_count or chunks)

    def _aggregate(self, row: StudyRow, missing: list[int]) -> None:
        """Computes the next products, for some seconds."""
        study, proxy, files = row.study, self._proxy, self._files(row.study)
        with proxy.database.reading("list chunks to multiply") as connection:
            members = {(member.owner, member.version) for member in frozen_cohort(connection, study)}
            digests = {member: chunk_digests(connection, study, *member) for member in members}
        groups = usable_groups(read_groups(files), frozenset(members))
        wanted = []
        for position in missing[: max(1, _CHUNKS_AT_ONCE // len(members))]:
            made = [group for group in groups if position in group.positions]
            alone = sorted(members - {member for group in made for member in group.members})
            names = [group.product_name(position) for group in made]
            names += [chunk_name(study, *member, position, digests[member][position]) for member in alone]
            wanted.append((position, names))
        products = self._worker.call(multiply_chunks, files, wanted)
        with proxy.database.transaction("store product", study) as connection:
            there = product_digests(connection, study)
            if self._may_commit(connection, row):
                for (position, _), digest in zip(wanted, products, strict=True):
                    if position not in there:
                        insert_product(connection, study, position, digest)

    def _ask_count(self, row: StudyRow, name: str) -> None:
        study, proxy = row.study, self._proxy
        ciphertext = self._worker.call(rerandomized_count, self._files(study), name)
        assert row.cohort_digest is not None
        challenge = CountChallenge(study, row.cohort_digest, ciphertext).sign(proxy.key_of(study))
        with proxy.database.transaction("ask count") as connection:
            if self._may_commit(connection, row) and load_blob(connection, study, "challenge") is None:
                check_distance(connection, row)
                set_study(connection, load_study(connection, study), challenge=challenge.encoded)

    def _draw(self, row: StudyRow) -> None:
        study, proxy = row.study, self._proxy
        figures = proxy.terms(study).manifest.figures
        token = self._worker.call(draw, self._files(study), figures, row.records)
        with proxy.database.transaction("draw noise") as connection:
            now = proxy.now()
            if self._may_commit(connection, row) and find_draw(connection, study) is None:
                check_distance(connection, row)
                insert_draw(connection, study, token, now)
                append_entry(connection, DRAW, Digest.of(bytes.fromhex(token)), now)
                set_study(connection, load_study(connection, study), noise_drawn_at=now)
                return
        # Another process drew noise first, or took over the study. The noise of that process counts.
        proxy.files.remove(draw_name(study, token))

    def _release(self, row: StudyRow, products: list[str], token: str) -> None:
        study, proxy = row.study, self._proxy
        figures = proxy.terms(study).manifest.figures

        def progress(done: int, total: int) -> None:
            self._progress[study] = JobProgress("release", done, total)

        folder, digests = self._worker.call(
            make_release, self._files(study), figures, row.records, products, token, progress=progress
        )
        for position, chunk_digest in enumerate(digests):
            if Digest.of(proxy.files.read(release_name(study, folder, position))) != chunk_digest:
                raise UnavailableError(
                    "release-not-stored", "the release was not completely written to the disk"
                )
        with proxy.database.transaction("store release", study) as connection:
            now = proxy.now()
            present = load_study(connection, study)
            if not self._may_commit(connection, row):
                return
            members = frozen_cohort(connection, study)
            assert present.cohort_digest is not None
            statement = ReleaseStatement(
                study,
                row.release_kind,
                members,
                present.cohort_digest,
                present.records,
                digests,
                proxy.software,
            ).sign(proxy.key_of(study))
            move_study(
                connection,
                present,
                StudyEvent.RELEASE,
                release=statement.encoded,
                release_folder=folder,
                released_at=now,
            )
            insert_release_chunks(connection, study, digests)
            # From now on nobody, not even the proxy, can open a share, the noise or the mask of this study.
            delete_secrets(connection, study)
            detail = {
                "log": mark_to_follow(connection).head.hex(),
                "owners": len(members),
                "statement": statement.digest.hex(),
            }
            told = telling_software(detail, proxy.software)
            append_event(connection, proxy.key_of(study), study, "release", told, now)
        self._progress.pop(study, None)
        sweep(proxy, study)
        proxy.wake()

    def _files(self, study: StudyId) -> StudyFiles:
        return study_files(self._proxy, study)

    def _is_where_it_was(self, row: StudyRow) -> bool:
        """False if another process advanced the study and may have removed files that this step reads."""
        try:
            with self._proxy.database.reading("read study state again") as connection:
                return self._is_unchanged(connection, row)
        except DpdpcaError:
            return True

    def _may_commit(self, connection: Connection, row: StudyRow) -> bool:
        """Whether the result of a step counts: no other process took the study or advanced it meanwhile."""
        return self._leases.is_held(connection, row.study) and self._is_unchanged(connection, row)

    @staticmethod
    def _is_unchanged(connection: Connection, row: StudyRow) -> bool:
        """Whether the study is as it was when the step began. The result for a changed study is dropped."""
        return load_study(connection, row.study).state is row.state


def _trouble_of(error: Exception, attempts: int) -> str | None:
    """What to tell the operator about a failed step, or None as long as the failure may be temporary.

    A bug in this program does not mean that stored data are wrong, but a study that the bug stops is reported
    too. A
    study with terms of another version is only logged: the proxy can do its work for all others.
    """
    if isinstance(error, RefusedTermsError):
        return None
    if isinstance(error, (WorkerFailedError, UnavailableError, OSError)):
        return "step-failing" if attempts >= _PATIENT_ATTEMPTS else None
    return "state-corrupt" if isinstance(error, DpdpcaError) else "step-failing"
