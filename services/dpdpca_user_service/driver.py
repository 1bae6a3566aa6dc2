"""Advances all unfinished studies repeatedly, a few at a time, until each has ended."""

import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from dpdpca_protocol.errors import ConflictError, DpdpcaError
from dpdpca_user_service.chains import advance_chain
from dpdpca_user_service.service import UserService
from dpdpca_user_service.stages import STAGES, Stage
from dpdpca_user_service.steps import RefusedError, step
from dpdpca_user_service.store.chains import ChainRow, ChainState
from dpdpca_user_service.store.studies import StudyRow

_AT_ONCE = 4
_LONGEST_WAIT_SECONDS = 60.0
_IDLE_SECONDS = 5.0
_KEY_AHEAD = "key ahead"

_logger = logging.getLogger("dpdpca.user")


class Driver:
    """A background thread that passes the next step of each study to a small pool of threads.

    Args:
        idle_seconds: how long nothing must have changed before a key is made ahead.
    """

    def __init__(self, service: UserService, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._service = service
        self._poll = service.settings.poll_seconds
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._idle_seconds = idle_seconds
        self._changed = time.monotonic()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="study")
        self._thread = threading.Thread(target=self._run, name="driver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Wakes the driver, because there may be something to do."""
        self._changed = time.monotonic()
        self._due.clear()
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread. A running step is interrupted, as in a crash."""
        self._stop.set()
        self._wake.set()
        self._service.workers.close()
        if self._thread.is_alive():
            self._thread.join(10)
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        under_way: dict[str, Future[None]] = {}
        while not self._stop.is_set():
            self._wake.clear()
            under_way = {row_id: task for row_id, task in under_way.items() if not task.done()}
            now = time.monotonic()
            self.forget()
            try:
                rows, chains = self._service.store.unfinished(), self._service.chains.running()
            except DpdpcaError as error:
                _logger.warning("store", extra={"slug": error.slug})
                rows, chains = [], []
            for row in rows:
                if row.id not in under_way and self._due.get(row.id, 0.0) <= now:
                    under_way[row.id] = self._pool.submit(self.advance, row)
            for chain in chains:
                if chain.id not in under_way and self._due.get(chain.id, 0.0) <= now:
                    under_way[chain.id] = self._pool.submit(self.advance_chain, chain)
            if not under_way and self._may_make_key(now):
                under_way[_KEY_AHEAD] = self._pool.submit(self.make_key_ahead)
            self._wake.wait(min(self._poll, 0.5))

    def _may_make_key(self, now: float) -> bool:
        return (
            now >= self._changed + self._idle_seconds
            and self._due.get(_KEY_AHEAD, 0.0) <= now
            and not self._service.study_keys.has_one_ahead
        )

    def make_key_ahead(self) -> None:
        """Makes the key of a later study. Never raises."""
        try:
            self._service.study_keys.make_ahead()
            _logger.info("key ahead")
        except DpdpcaError as error:
            _logger.info("waiting", extra={"slug": error.slug})
            self._due[_KEY_AHEAD] = time.monotonic() + _LONGEST_WAIT_SECONDS
        except Exception as error:
            _logger.exception("internal", extra={"error_class": type(error).__name__})
            self._due[_KEY_AHEAD] = time.monotonic() + _LONGEST_WAIT_SECONDS

    def forget(self) -> None:
        """Tries again to remove a deleted secret key from the database's log. Never raises."""
        database = self._service.store.database
        try:
            if database.has_to_forget and database.forget_deleted():
                _logger.info("forgotten")
        except DpdpcaError as error:
            _logger.warning("store", extra={"slug": error.slug})

    def advance(self, row: StudyRow) -> None:
        """Advances one study as far as possible now. Never raises."""
        try:
            while step(self._service, row) and not self._stop.is_set():
                self._changed = time.monotonic()
                row = self._service.store.find(row.id)
                _logger.info("moved", extra={"study": row.id, "state": str(row.stage)})
                if (row.stage is Stage.FITTED and not row.is_to_publish) or not (
                    STAGES[row.stage] or row.cancel_due
                ):
                    return
            self._failures.pop(row.id, None)
            if row.problem is not None and STAGES[row.stage]:
                self._service.store.note(row, problem=None, problem_slug=None)
            self._due[row.id] = time.monotonic() + self._poll
        except RefusedError as refused:
            self._fail(row.id, refused.reason)
        except ConflictError as error:
            # Either another operation (a cancellation) changed the study meanwhile, or the proxy is not that
            # far yet.
            self._retry(row, error)
        except DpdpcaError as error:
            self._retry(row, error)
        except Exception as error:
            _logger.exception("internal", extra={"study": row.id, "error_class": type(error).__name__})
            self._due[row.id] = time.monotonic() + _LONGEST_WAIT_SECONDS

    def advance_chain(self, chain: ChainRow) -> None:
        """Advances one chain as far as possible now. Never raises."""
        try:
            while advance_chain(self._service, chain) and not self._stop.is_set():
                self._changed = time.monotonic()
                chain = self._service.chains.find(chain.id)
                _logger.info("chain", extra={"chain": chain.id, "state": str(chain.state)})
                if chain.state is not ChainState.RUNNING:
                    return
        except DpdpcaError as error:
            _logger.info("waiting", extra={"chain": chain.id, "slug": error.slug})
        except Exception as error:
            _logger.exception("internal", extra={"chain": chain.id, "error_class": type(error).__name__})
        self._due[chain.id] = time.monotonic() + self._poll

    def _fail(self, row_id: str, reason: DpdpcaError) -> None:
        _logger.warning("failed", extra={"study": row_id, "slug": reason.slug, "file": reason.place})
        try:
            row = self._service.store.find(row_id)
            following = Stage.CANCELLED if reason.slug == "study-cancelled" else Stage.FAILED
            if following in STAGES[row.stage]:
                self._service.store.move(
                    row,
                    following,
                    self._service.now(),
                    problem_slug=reason.slug[:60],
                    problem=reason.public_text[:1000],
                )
        except DpdpcaError as error:
            self._due[row_id] = time.monotonic() + self._poll
            _logger.warning("store", extra={"study": row_id, "slug": error.slug})

    def _retry(self, row: StudyRow, error: DpdpcaError) -> None:
        if self._stop.is_set():
            return
        failures = self._failures[row.id] = self._failures.get(row.id, 0) + 1
        wait = min(self._poll * 2.0 ** min(failures - 1, 10), _LONGEST_WAIT_SECONDS)
        self._due[row.id] = time.monotonic() + max(wait, error.retry_after_seconds or 0)
        _logger.info("waiting", extra={"study": row.id, "slug": error.slug, "file": error.place})
        if not STAGES[row.stage]:
            return  # its problem says why it ended
        try:
            self._service.store.note(row, problem_slug=error.slug[:60], problem=error.public_text[:1000])
        except DpdpcaError:
            _logger.warning("store", extra={"study": row.id})
