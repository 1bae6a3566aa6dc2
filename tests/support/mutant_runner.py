"""Runs a module's own tests against mutants of it: `python tests/support/mutant_runner.py AREA COUNT FILE`.

All happens on a copy of the folder that holds the module, which stands before the installed one. The
interpreter loads what is not ours once; each mutant gets a fork of it, which loads the copy anew. FILE takes
what came out.
"""

import ast
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from mutants import Mutant, mutants_of, sampled

ROOT = Path(__file__).parents[2]
CORE = "protocol/dpdpca_protocol"
SEED = 1
_MEMORY_BYTES = 6 * 2**30


@dataclass(frozen=True)
class Target:
    """A module of the protocol, the tests that it answers to, and what of it is meant.

    Attributes:
        file: below CORE.
        tests: files below tests, those that find most first.
        but: functions and constants left alone, for they decide on how fast and not on what.
    """

    file: str
    tests: tuple[str, ...]
    but: Collection[str] = ()


_SPEED_OF_MASKED = {"POOL_BYTES", "_BLOCK_BYTES", "_ROW_BYTES", "_ALL_POOLS_BYTES", "_TASK_CIPHERTEXTS"}
_SPEED_OF_MASKED |= {"Speed", "_pool", "_row_shape", "_block_shape", "multiplications"}
_SPEED_OF_PRODUCTS = {"_MOST_TEETH", "building", "power", "best"}
_RELEASES = ("unit/test_masked.py", "unit/test_core_study.py", "properties/test_release_properties.py")
_MECHANISMS, _CLIPPED = "unit/test_mechanisms.py", "unit/test_clipped_rows.py"
_FIGURES = ("unit/test_figures.py", _MECHANISMS, "unit/test_manifest.py")
AREAS: dict[str, tuple[Target, ...]] = {
    "packing": (
        Target("layout/packing.py", ("unit/test_packing.py", "properties/test_packing_properties.py")),
    ),
    "aggregation": (
        Target("release/aggregate.py", _RELEASES[1:]),
        Target("paillier/products.py", ("unit/test_products.py", *_RELEASES[:1]), _SPEED_OF_PRODUCTS),
    ),
    "masking": (
        Target("reference.py", ("unit/test_reference.py",)),
        Target("release/masked.py", _RELEASES, _SPEED_OF_MASKED),
        Target(
            "release/release.py", ("unit/test_release.py", *_RELEASES[1:], "hostile/test_release_attacks.py")
        ),
    ),
    "calibration": (
        Target("privacy/accounting.py", ("unit/test_accounting.py", "unit/test_best_guess.py", _MECHANISMS)),
        Target("privacy/sensitivity.py", ("unit/test_sensitivity.py", _CLIPPED, _MECHANISMS)),
        Target("privacy/mechanisms/gaussian.py", (_MECHANISMS, "unit/test_figures.py", _CLIPPED)),
        Target("terms/terms.py", _FIGURES),
        Target("terms/figures.py", _FIGURES),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant: killed by "failure" or "time", or "survived"."""

    file: str
    function: str
    line: int
    text: str
    before: str
    after: str
    end: str
    seconds: float

    def __str__(self) -> str:
        change = f"{self.before}  →  {self.after}".replace("\n", " ")
        return f"{self.end:<9}{self.seconds:5.1f} s  {self.file}:{self.line} {self.function}: {change}"


class Bench:
    """A copy of some folders with packages, and forks that test what is in it. Files are named below ROOT."""

    def __init__(self, folder: Path, wings: Sequence[str] = ("protocol",)) -> None:
        self._folder = folder
        for wing in wings:
            shutil.copytree(ROOT / wing, folder / wing, ignore=shutil.ignore_patterns("__pycache__"))
        copies = [str(folder / wing) for wing in wings]
        sys.path[:0] = copies
        # Processes that tests start find the copy too.
        os.environ["PYTHONPATH"] = os.pathsep.join([*copies, str(ROOT / "tests/support")])
        _load_what_is_not_ours(folder)
        # The same examples each time; shrinking a failure is of no use here.
        settings.register_profile(
            "mutants",
            max_examples=15,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
        )

    def source(self, file: str) -> str:
        return self._path(file).read_text()

    def put(self, file: str, source: str) -> None:
        """In the copy; compiled files are told apart by seconds and sizes, too coarse for mutants."""
        path = self._path(file)
        path.write_text(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def run(self, tests: tuple[str, ...], seconds: int, *, compiled: bool = False) -> int:
        """The status in which the tests end, as of `os.waitpid`; 0 if they pass."""
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            signal.alarm(seconds)
            resource.setrlimit(resource.RLIMIT_CPU, (2 * seconds, 2 * seconds))
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
            log = os.open(self._folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.dont_write_bytecode = not compiled
            os._exit(self._tested(tests))
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the tests have started and no longer end
        return status

    def _path(self, file: str) -> Path:
        return self._folder / file

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def _tested(self, tests: tuple[str, ...]) -> int:
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not nightly"]
        options += ["--hypothesis-profile=mutants", f"--rootdir={ROOT}", f"-c{ROOT / 'pyproject.toml'}"]
        options += [f"--basetemp={self._folder / 'tmp'}", f"--promises={self._folder / 'promises.json'}"]
        status = int(pytest.main([*options, *(str(ROOT / "tests" / test) for test in tests)]))
        used = sys.modules.get("dpdpca_protocol")
        sys.stdout.flush()
        return status if used is None or str(used.__file__).startswith(str(self._folder)) else 99


def _load_what_is_not_ours(folder: Path) -> None:
    """What tests import. Ours is forgotten again, so that each fork loads it from the copy."""
    import dp_accounting.pld  # noqa: F401 - slow to load
    import opendp.prelude  # noqa: F401 - slow to load
    import proxy_world  # noqa: F401 - what the conftest of all tests needs
    import sklearn.decomposition  # noqa: F401 - slow to load

    ours = tuple(str(ROOT / wing) for wing in ("protocol", "runtime", "services", "clients", "lab"))
    ours += (str(folder), str(ROOT / "tests/support"))
    for name, module in list(sys.modules.items()):
        if name != "__main__" and str(getattr(module, "__file__", "")).startswith(ours):
            del sys.modules[name]


def outcomes(bench: Bench, area: str, count: int, seed: int = SEED) -> list[Outcome]:
    """Of `count` mutants of an area. Raises RuntimeError where the tests fail without any."""
    targets = {target.file: target for target in AREAS[area]}
    sources = {file: bench.source(f"{CORE}/{file}") for file in targets}
    limits: dict[tuple[str, ...], int] = {}
    for target in targets.values():
        # As mutants are written, so that what the tests find in them is not the way of writing.
        bench.put(f"{CORE}/{target.file}", ast.unparse(ast.parse(sources[target.file])))
        if target.tests not in limits:
            start = time.monotonic()
            if bench.run(target.tests, 120, compiled=True) != 0:
                raise RuntimeError(f"tests fail without a mutant:\n{bench.log()}")
            limits[target.tests] = 10 + 3 * round(time.monotonic() - start)
    candidates = [
        (file, mutant) for file, target in targets.items() for mutant in mutants_of(sources[file], target.but)
    ]
    print(f"{area}: {len(candidates)} mutants, {min(count, len(candidates))} sampled", flush=True)
    return [
        _outcome(bench, targets[file], sources[file], mutant, limits[targets[file].tests])
        for file, mutant in sampled(candidates, count, seed)
    ]


def _outcome(bench: Bench, target: Target, source: str, mutant: Mutant, limit: int) -> Outcome:
    start = time.monotonic()
    bench.put(f"{CORE}/{target.file}", mutant.source)
    status = bench.run(target.tests, limit)
    bench.put(f"{CORE}/{target.file}", source)
    by_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU)
    outcome = Outcome(
        target.file,
        mutant.function,
        mutant.line,
        source.splitlines()[mutant.line - 1].strip(),
        mutant.before,
        mutant.after,
        "survived" if status == 0 else "time" if by_time else "failure",
        round(time.monotonic() - start, 1),
    )
    print(outcome, flush=True)
    return outcome


def main(area: str, count: str, file: str, seed: str = str(SEED)) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = outcomes(Bench(Path(folder)), area, int(count), int(seed))
    Path(file).write_text(json.dumps([asdict(outcome) for outcome in found], indent=1, ensure_ascii=False))
    survivors = [outcome for outcome in found if outcome.end == "survived"]
    print(f"{area}: {len(found) - len(survivors)} of {len(found)} killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
