"""Mutants of what the whole system stands on: packing, aggregation, masking, calibration."""

import ast
import json
from pathlib import Path

import pytest
from mutants import mutants_of, run_alone, sampled
from promises import Promise

ROOT = Path(__file__).parents[2]
# Some mutants cannot be told from the original: a zero that is overwritten, one bit of precision more.
LEAST_KILLED = 0.85
AREAS = {"packing": "P14", "aggregation": "P35", "masking": "P35", "calibration": "P12"}
MUTANTS = 50
SMALL = '''
"""Text."""
__slots__ = ("a", "b")
LIMIT: int = 3

def halves(values, *, slow=False):
    """More text."""
    if not values:
        raise ValueError(f"{1 + 1} values")
    return [v // 2 for v in values if v < LIMIT]

def slow(n):
    return n * n
'''


def test_each_mutant_is_one_change_of_what_is_computed() -> None:
    found = mutants_of(SMALL, but={"slow"})
    assert [(mutant.before, mutant.after) for mutant in found if "\n" not in mutant.before] == [
        ("3", "4"),
        ("3", "2"),
        ("False", "True"),
        ("not values", "values"),
        ("return [v // 2 for v in values if v < LIMIT]", "return None"),
        ("v // 2", "v * 2"),
        ("2", "3"),
        ("2", "1"),
        ("v < LIMIT", "v <= LIMIT"),
    ]
    assert all(mutant.line and ast.unparse(ast.parse(SMALL)) != mutant.source for mutant in found)
    assert len({mutant.source for mutant in found}) == len(found)


def test_a_sample_hardly_changes_with_the_rest_of_the_file() -> None:
    before = [("m.py", mutant) for mutant in mutants_of(SMALL, but={"slow"})]
    after = [("m.py", mutant) for mutant in mutants_of("# a line more\n" + SMALL)]
    first, second = ([m.after for _, m in sampled(found, 5, seed=1)] for found in (before, after))
    assert first == [m.after for _, m in sampled(before, 5, seed=1)]
    assert len(set(first) & set(second)) >= 3
    assert first != [m.after for _, m in sampled(before, 5, seed=2)]


@pytest.mark.nightly
@pytest.mark.parametrize("area", AREAS)
def test_the_tests_notice_a_change(area: str, tmp_path: Path, promise: Promise) -> None:
    """Survivors stand in build/mutants-AREA.txt, each with its line."""
    ran = run_alone("mutant_runner.py", area, str(MUTANTS), str(tmp_path / "found.json"), seconds=1800)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / f"build/mutants-{area}.txt").write_text(ran.stdout)
    found = json.loads((tmp_path / "found.json").read_text())
    killed = sum(outcome["end"] != "survived" for outcome in found)
    assert len(found) == MUTANTS
    assert killed >= LEAST_KILLED * MUTANTS, ran.stdout
    promise(AREAS[area], counted=f"{MUTANTS} mutants of {area}", result=f"{killed} noticed by its tests")
