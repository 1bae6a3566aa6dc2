"""Fits of another library, in a process of its own environment and with a time limit."""

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dpdpca_lab.central.entropy import Floats
from dpdpca_runtime.system import detached_from_terminal, terminate_group

_MOST_SLOW = 2
_LONGEST_LINE = 50_000_000
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait, in seconds of the clock.

    Attributes:
        fit: for one fit.
        point: for all fits together: once it has passed, no other starts.
        start: until the library is there.
    """

    fit: float
    point: float
    start: float = 120.0


@dataclass(frozen=True, slots=True)
class Fits:
    """What came out.

    Attributes:
        version: of the library; empty if it did not say.
        components: a (k, d) array of orthonormal rows for each fit.
        slow: how many fits took too long.
        note: why there are fewer than wanted, for people; empty if all are there.
    """

    version: str
    components: tuple[Floats, ...]
    slow: int
    note: str


class _SlowError(Exception):
    """No answer in time."""


class _StopError(Exception):
    """There is no use in trying again."""


def fits(
    program: Sequence[str | Path],
    rows: NDArray[np.floating],
    epsilon: float,
    k: int,
    count: int,
    limits: Limits,
) -> Fits:
    """Ask a program for fits, and start it anew after one that takes too long. Two such fits are the end.

    Args:
        program: what to start. It gets the file with the rows, ε, k and the number of fits, and answers as
            `foreign.py` does.
        rows: (n, d) of norm at most 1.
        epsilon: for one fit.
        k: number of components.
        count: number of fits.
        limits: how long to wait.
    """
    found: list[Floats] = []
    version, slow, trouble = "", 0, ""
    left = limits.point
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.npz"
        np.savez(file, rows=rows)
        while (missing := count - len(found) - slow) > 0 and slow < _MOST_SLOW:
            words = [*map(str, program), str(file), repr(epsilon), str(k), str(missing)]
            try:
                with _started(words) as answers:
                    version = answers.version(limits.start)
                    for _ in range(missing):
                        if left < 0:
                            raise _StopError(f"no more after {limits.point:g} s")
                        begin = time.monotonic()
                        found.append(answers.components(limits.fit, (k, rows.shape[1])))
                        left -= time.monotonic() - begin
            except _SlowError:
                slow += 1
                left -= limits.fit
            except _StopError as stop:
                trouble = str(stop)
                break
    return Fits(version, tuple(found), slow, _note(len(found), count, slow, limits, trouble))


def _note(found: int, count: int, slow: int, limits: Limits, trouble: str) -> str:
    if found == count:
        return ""
    if not slow:
        reasons = trouble
    elif found:
        reasons = ", ".join(filter(None, [f"{slow} took more than {limits.fit:g} s", trouble]))
    else:
        reasons = f"no fit in {limits.fit:g} s, tried {'once' if slow == 1 else 'twice'}"
    return f"{found} of {count} fits: {reasons}" if found else reasons


class _Answers:
    """The lines that a process writes, each with a time limit."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def version(self, seconds: float) -> str:
        try:
            body = self._next(seconds)
        except _SlowError as slow:
            raise _StopError(f"no start in {seconds:g} s") from slow
        found = body.get("version")
        if not isinstance(found, str):
            raise _StopError("it answered something else than its version")
        return found[:40]

    def components(self, seconds: float, shape: tuple[int, int]) -> Floats:
        """(k, d) orthonormal rows."""
        body = self._next(seconds)
        try:
            found = np.array(body.get("components"), dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise _StopError("it answered no components") from error
        if found.shape != shape or not np.isfinite(found).all():
            raise _StopError("it answered no components")
        if np.abs(found @ found.T - np.eye(len(found))).max() > 1e-6:
            raise _StopError("its components are not orthonormal")
        return found

    def _next(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except Empty as empty:
            raise _SlowError from empty
        if not line:
            raise _StopError(f"it failed: {self._last_words()}")
        try:
            body = json.loads(line)
        except ValueError as error:
            raise _StopError("it answered no JSON") from error
        if not isinstance(body, dict):
            raise _StopError("it answered no object")
        return body

    def _read(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_LONGEST_LINE):
            self._lines.put(line)
        self._lines.put(b"")

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:200] if said else f"it ended with status {self._process.returncode}"


@contextmanager
def _started(words: Sequence[str]) -> Iterator[_Answers]:
    """A process with one thread for its matrices, which is killed in the end."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603 - a program of ours, words without a shell
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **_ONE_THREAD},
            **detached_from_terminal(),
        )
        try:
            yield _Answers(process, errors)
        finally:
            terminate_group(process, at_once=True)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
