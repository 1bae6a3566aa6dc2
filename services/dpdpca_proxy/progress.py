"""A step of the jobs, and its progress."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How much of a phase is done."""

    phase: str
    done: int
    total: int

    def to_body(self) -> dict[str, Any]:
        return {"done": self.done, "phase": self.phase, "total": self.total}


@dataclass(frozen=True, slots=True)
class Step:
    """The next step of a study, and its progress at the beginning."""

    phase: str
    act: Callable[[], None]
    total: int = 1
    done: int = 0

    @property
    def begin(self) -> JobProgress:
        return JobProgress(self.phase, self.done, self.total)
