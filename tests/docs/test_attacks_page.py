"""docs/attacks.md tells every attack, and the tests that it names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "attacks.md").read_text()


def test_every_attack_has_its_line_with_what_remains() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| A\d+ \|", line)]
    assert [row[0] for row in rows] == [f"| A{number}" for number in range(1, 35)]
    assert all(len(row) == 7 and all(cell.strip(" |") for cell in row) for row in rows)


def test_the_tests_that_it_names_are_there() -> None:
    named = set(re.findall(r"[a-z]+/[a-z_/]*test_[a-z_]+\.py", PAGE))
    assert len(named) > 15
    assert not [name for name in named if not (ROOT / "tests" / name).is_file()]
