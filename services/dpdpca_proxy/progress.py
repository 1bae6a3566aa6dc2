"""A step of the jobs, and how far it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What of a phase is done."""

    phase: str
    done: int
    total: int

    def to_body(self) -> dict[str, Any]:
        return {"done": self.done, "phase": self.phase, "total": self.total}


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done next for a study, and how it begins to show."""

    phase: str
    act: Callable[[], None]
    total: int = 1
    done: int = 0

    @property
    def begin(self) -> JobProgress:
        return JobProgress(self.phase, self.done, self.total)
