"""Dry runs on registered records, one at a time, in a thread of their own.

What a dry run finds is shown to a person. It decides nothing, and it stays in this process.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from dpdpca_owner.consent import ConsentSheet
from dpdpca_owner.sources import RegisteredSource
from dpdpca_protocol.errors import ConflictError, DpdpcaError
from dpdpca_runtime.http.address import StudyAddress

_KEPT = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """How a dry run ended: a sheet with its result, or why there is none."""

    sheet: ConsentSheet | None = None
    problem: str | None = None


Subject = tuple[StudyAddress, RegisteredSource]


@dataclass
class DryRuns:
    """The dry runs of one page."""

    _findings: OrderedDict[Subject, Finding] = field(default_factory=OrderedDict)
    _under_way: Subject | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, subject: Subject, read: Callable[[], ConsentSheet]) -> None:
        """Begin a dry run. Nothing happens if the same one is under way.

        Raises:
            ConflictError: `busy`, another one is under way.
        """
        with self._lock:
            if self._under_way == subject:
                return
            if self._under_way is not None:
                raise ConflictError(
                    "busy", "another dry run is under way", "wait until it has ended, then try again"
                )
            self._under_way = subject
            self._findings.pop(subject, None)
        threading.Thread(target=self._run, args=(subject, read), name="dry run", daemon=True).start()

    def is_under_way(self, subject: Subject) -> bool:
        with self._lock:
            return self._under_way == subject

    def finding(self, subject: Subject) -> Finding | None:
        with self._lock:
            return self._findings.get(subject)

    def _run(self, subject: Subject, read: Callable[[], ConsentSheet]) -> None:
        finding = Finding(problem="the dry run ended with an unexpected error")
        try:
            finding = Finding(sheet=read())
        except (DpdpcaError, OSError) as error:
            finding = Finding(problem=str(error))
        finally:
            with self._lock:
                self._findings[subject] = finding
                self._under_way = None
                while len(self._findings) > _KEPT:
                    self._findings.popitem(last=False)
