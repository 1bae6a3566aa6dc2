"""Measures time, memory and the cost of one bare multiplication. Compared functions run in turns."""

import os
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from mmap import PAGESIZE
from pathlib import Path

from gmpy2 import mpz

_MULTIPLICATIONS = 2000
_LOOK_SECONDS = 0.02
_TURN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one phase at one size.

    Attributes:
        seconds: wall time on `workers` cores, of a whole run or extrapolated from `sample` of `ciphertexts`.
        values: number of values in the phase, of all owners together.
        bytes: size of the ciphertexts that it makes or reads.
        peak_memory_bytes: of all processes of the run together, including interpreter and libraries.
        multiplications: number of multiplications mod n² that the algorithm needs.
        multiplication_seconds: time of one bare multiplication in the same run.
        peer: the library that is compared, or None.
        peer_seconds: its time for the same values on as many cores, extrapolated from `peer_sample` values.
        cpu_seconds: CPU time of all processes together; a busy machine hardly changes it.
        cpu_multiplication_seconds: CPU time of one bare multiplication.
        notes: what was simulated or extrapolated.
    """

    phase: str
    seconds: float
    values: int
    bytes: int
    peak_memory_bytes: int
    multiplications: float
    multiplication_seconds: float
    workers: int
    peer: str | None = None
    peer_seconds: float | None = None
    peer_sample: int = 0
    cpu_seconds: float = 0.0
    cpu_multiplication_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    details: dict[str, float] = field(default_factory=dict)

    @property
    def floor_seconds(self) -> float:
        """Time of the multiplications alone, if the workers share them without loss."""
        return self.multiplications * self.multiplication_seconds / self.workers

    @property
    def _cpu_ratio(self) -> float | None:
        floor = self.multiplications * self.cpu_multiplication_seconds
        return self.cpu_seconds / floor if floor else None

    def facts(self) -> dict[str, object]:
        peer = self.peer_seconds
        return {
            "phase": self.phase,
            "seconds": self.seconds,
            "values_per_second": self.values / self.seconds,
            "bytes": self.bytes,
            "peak_memory_bytes": self.peak_memory_bytes,
            "floor_seconds": self.floor_seconds,
            "ratio_to_floor": self.seconds / self.floor_seconds if self.floor_seconds else None,
            "ratio_to_peer": None if peer is None else peer / self.seconds,
            "peer": self.peer,
            "peer_seconds": peer,
            "peer_sample": self.peer_sample,
            "workers": self.workers,
            "cpu_seconds": self.cpu_seconds,
            "cpu_ratio_to_floor": self._cpu_ratio,
            "values": self.values,
            "multiplications": self.multiplications,
            "multiplication_seconds": self.multiplication_seconds,
            "notes": list(self.notes),
            **self.details,
        }


def multiplication_seconds(modulus: mpz, clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one product mod `modulus` with gmpy2, including the loop around it."""
    factors = [mpz(secrets.randbelow(int(modulus))) for _ in range(50)]
    product = factors[0]
    begin = clock()
    for _ in range(_MULTIPLICATIONS // len(factors)):
        for factor in factors:
            product = product * factor % modulus
    return (clock() - begin) / _MULTIPLICATIONS


def cpu_seconds() -> float:
    """CPU time used so far by this process and by its children that have ended.

    A child's time has a resolution of some milliseconds, and this process's time a much finer one.
    """
    return time.process_time() + sum(os.times()[2:4])


def in_turns(rounds: int, *measurements: Callable[[], float]) -> list[float]:
    """Medians of what each of `measurements` returns. Each round calls every measurement once, in order."""
    found: list[list[float]] = [[] for _ in measurements]
    for _ in range(rounds):
        for measure, values in zip(measurements, found, strict=True):
            values.append(measure())
    return [statistics.median(values) for values in found]


def steady(measure: Callable[[], float]) -> float:
    """Mean of what `measure` returns, over as many calls as a turn has time for.

    The single run of a short act would mostly show how cold the caches are after the turn before.
    """
    end, found = time.perf_counter() + _TURN_SECONDS, [measure()]
    while time.perf_counter() < end:
        found.append(measure())
    return statistics.mean(found)


def seconds_of(act: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    act()
    return clock() - begin


@dataclass
class Peak:
    """The largest resident memory of this process and its descendants, measured 50 times a second."""

    bytes: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_LOOK_SECONDS):
                self.bytes = max(self.bytes, resident_bytes(os.getpid()))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.bytes = max(self.bytes, resident_bytes(os.getpid()))


def resident_bytes(process: int) -> int:
    """Resident memory of a process and its descendants; 0 if the system has no /proc."""
    folder = Path("/proc") / str(process)
    try:
        total = int((folder / "statm").read_text().split()[1]) * PAGESIZE
        children = [
            int(child)
            for task in (folder / "task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except (OSError, IndexError, ValueError):
        return 0
    return total + sum(map(resident_bytes, children))
