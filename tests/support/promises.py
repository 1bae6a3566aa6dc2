"""One table at the end of a run: each promise of reliability, what was counted for it, and what came out.

A test asks for the fixture `promise` and says what it counted once it has asserted it:

    def test_kills(promise):
        ...
        promise("P1", counted="200 kills, 30 owners", result="0 lost, 0 doubled")

The rows travel with the reports of pytest, so xdist's workers need nothing more. They are kept in a file by
test, and a run replaces those of the tests that it ran: CI's several runs make one table together. A promise
without a figure counts as not kept and is named.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

PROMISES = {
    "P1": "who holds a receipt is in the release, once",
    "P2": "every single write may be the last",
    "P3": "a receipt means on disk",
    "P4": "same request, same answer; other content, refused",
    "P5": "a dropped response is harmless",
    "P6": "a closed study stays closed",
    "P7": "any role restarts in any state",
    "P8": "two processes on one database act as one",
    "P9": "one study, one noise",
    "P10": "a restored backup makes no second draw",
    "P11": "nothing leaves below the agreed size",
    "P12": "noise is what the manifest says",
    "P13": "randomizers give no clue",
    "P14": "slots never overflow",
    "P15": "the release is as private as claimed",
    "P16": "malformed requests: no 5xx, no change",
    "P17": "no record, no act",
    "P18": "a full disk hurts nobody",
    "P19": "forged, stale, replayed, redirected: refused",
    "P20": "no rollback",
    "P21": "bad ciphertexts never enter",
    "P22": "bad keys never enter",
    "P23": "a key mismatch is found before encryption",
    "P24": "shares, noise and mask are gone after release",
    "P25": "secrets are nowhere else",
    "P26": "files are private",
    "P27": "what strangers write cannot act",
    "P28": "a thousand owners at once",
    "P29": "slow clients take nothing from others",
    "P30": "overload is refused, not suffered",
    "P31": "big inputs stay bounded",
    "P32": "clock trouble is understood",
    "P33": "owners stay in control of their budget",
    "P34": "numbers survive upgrade",
    "P35": "the end result is right",
    "P36": "no test switch in the wheel",
    "P37": "no request unpacks beyond 512 MiB",
    "P38": "whatever a home is called, its files are in it",
    "P42": "agents do what was approved, and nothing else",
    "P45": "two proxies on one PostgreSQL and one bucket act as one",
}
DEFAULT_FILE = "build/promises.json"
_PROPERTY = "promise"


class Promise(Protocol):
    def __call__(self, number: str, *, counted: str, result: str) -> None: ...


@pytest.fixture
def promise(request: pytest.FixtureRequest) -> Promise:
    """Records a figure of this test; to be called after its asserts."""

    def record(number: str, *, counted: str, result: str) -> None:
        assert number in PROMISES, f"there is no promise {number}"
        request.node.user_properties.append((_PROPERTY, [number, counted, result]))

    return record


@dataclass(frozen=True)
class Row:
    """One figure: of which promise, what was counted, what came out, by which test."""

    number: str
    counted: str
    result: str
    test: str


@dataclass
class Table:
    """Figures by test, of this run and of those before it that share its file."""

    file: Path
    rows: dict[str, list[Row]] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)

    def read(self) -> None:
        if self.file.is_file():
            kept = json.loads(self.file.read_text())
            self.rows = {
                test: [Row(number, counted, result, test) for number, counted, result in rows]
                for test, rows in kept.items()
            }

    def note(self, test: str, passed: bool, figures: Iterable[list[str]]) -> None:
        """A test has ended; where it failed, its figures are worth nothing."""
        self.ran.add(test)
        rows = [
            Row(number, counted, result if passed else "FAILED", test) for number, counted, result in figures
        ]
        self.rows.pop(test, None)
        if rows:
            self.rows[test] = rows

    def write(self) -> None:
        if not self.ran & set(self.rows):
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            test: [[r.number, r.counted, r.result] for r in rows] for test, rows in sorted(self.rows.items())
        }
        self.file.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")

    def sorted(self) -> list[Row]:
        rows = [row for rows in self.rows.values() for row in rows]
        return sorted(rows, key=lambda row: (int(row.number[1:]), row.test))

    def unkept(self) -> list[str]:
        kept = {row.number for row in self.sorted() if row.result != "FAILED"}
        return [number for number in PROMISES if number not in kept]

    def lines(self) -> Iterable[str]:
        last = ""
        for row in self.sorted():
            if row.number != last:
                yield f"{row.number:<4}{PROMISES[row.number]}"
            last = row.number
            earlier = "" if row.test in self.ran else " (an earlier run)"
            yield f"      {row.counted}: {row.result}{earlier}"


_TABLE: pytest.StashKey[Table] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--promises", default=DEFAULT_FILE, help=f"file of the table of promises (default: {DEFAULT_FILE})"
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    table = Table(config.rootpath / config.getoption("--promises"))
    table.read()
    config.stash[_TABLE] = table
    config.pluginmanager.register(_Collector(table), "promise-collector")


@dataclass(eq=False)  # pytest keeps its plugins in sets
class _Collector:
    """On the process that sees the reports of all."""

    table: Table

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            figures: list[Any] = [value for name, value in report.user_properties if name == _PROPERTY]
            self.table.note(report.nodeid, report.passed, figures)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    table = config.stash.get(_TABLE, None)
    if table is None:
        return
    table.write()
    if not table.ran & set(table.rows):
        return
    write: Callable[[str], None] = terminalreporter.write_line
    terminalreporter.section("promises")
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not config.getoption("keyword")
    only = (
        table
        if whole
        else Table(table.file, {t: r for t, r in table.rows.items() if t in table.ran}, table.ran)
    )
    for line in only.lines():
        write(line)
    if whole and table.unkept():
        write(f"without a figure, so not kept: {', '.join(table.unkept())}")
