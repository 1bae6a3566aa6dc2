"""The table that says which promise was shown by what."""

from pathlib import Path

import pytest
from promises import PROMISES, Promise, Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "build" / "promises.json")


def test_every_promise_has_a_number_and_a_sentence() -> None:
    assert list(PROMISES) == [f"P{number}" for number in (*range(1, 39), 42, 45)]


def test_figures_of_several_runs_make_one_table(table: Table) -> None:
    table.note("tests/a", True, [["P2", "3 kills", "0 lost"]])
    table.note("tests/b", True, [["P1", "9 owners", "9 in"], ["P2", "2 kills", "0 lost"]])
    table.write()
    later = Table(table.file)
    later.read()
    later.note("tests/b", True, [["P1", "8 owners", "8 in"]])
    assert list(later.lines()) == [
        "P1  who holds a receipt is in the release, once",
        "      8 owners: 8 in",
        "P2  every single write may be the last",
        "      3 kills: 0 lost (an earlier run)",
    ]
    assert later.unkept() == list(PROMISES)[2:]


def test_a_failed_test_keeps_no_promise(table: Table) -> None:
    table.note("tests/a", True, [["P1", "3 kills", "0 lost"]])
    table.note("tests/a", False, [["P1", "3 kills", "0 lost"]])
    assert "P1" in table.unkept()
    assert "      3 kills: FAILED" in list(table.lines())


def test_an_unknown_promise_is_a_mistake(promise: Promise) -> None:
    with pytest.raises(AssertionError, match="P99"):
        promise("P99", counted="", result="")
