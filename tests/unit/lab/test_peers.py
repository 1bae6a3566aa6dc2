"""Fits of other libraries as processes. Tiny programs take their place: right, slow, broken or rubbish."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dpdpca_lab.papers import tables
from dpdpca_lab.papers.cells import cells_of
from dpdpca_lab.papers.declared import Axis, Experiment, Line, Panel, Plot, Terms, experiments
from dpdpca_lab.papers.runner import key, run
from dpdpca_lab.peers import declared
from dpdpca_lab.peers.declared import LIBRARIES, PEERS, Library, library
from dpdpca_lab.peers.process import Fits, Limits, fits
from dpdpca_protocol.errors import UsageError

HEAD = """
import json, sys, time
import numpy as np
file, epsilon, k, count = sys.argv[1:]
rows = np.load(file)["rows"]
d, k = rows.shape[1], int(k)
def say(body):
    print(json.dumps(body), flush=True)
good = {"components": np.eye(d)[:k].tolist()}
"""
START = HEAD + 'say({"version": "1.2"})\n'
LOCKS = Path(__file__).resolve().parents[3] / "requirements"
ROWS = np.diag([1.0, 0.5, 0.25, 0.1])
LIMITS = Limits(fit=1.0, point=60.0, start=60.0)


def answered(folder: Path, program: str, count: int = 3, limits: Limits = LIMITS) -> Fits:
    script = folder / "peer.py"
    script.write_text(program)
    return fits([sys.executable, script], ROWS, 0.5, 2, count, limits)


def test_good_answers_are_taken_with_the_version(tmp_path: Path) -> None:
    program = START + (
        "assert float(epsilon) == 0.5 and rows.tolist()[1][1] == 0.5\nfor _ in range(int(count)): say(good)\n"
    )
    found = answered(tmp_path, program)
    assert (found.version, found.slow, found.note, len(found.components)) == ("1.2", 0, "", 3)
    assert np.array_equal(found.components[0], np.eye(4)[:2])


def test_two_slow_fits_are_the_end_and_their_processes_are_gone(tmp_path: Path) -> None:
    left = tmp_path / "left"
    program = START + f"time.sleep(1.5)\nopen({str(left)!r}, 'a').close()\n"
    begin = time.monotonic()
    found = answered(tmp_path, program, count=20, limits=Limits(fit=0.3, point=60.0, start=60.0))
    assert (found.components, found.slow, found.note) == ((), 2, "no fit in 0.3 s, tried twice")
    assert time.monotonic() - begin < 50
    time.sleep(2)
    assert not left.exists()


def test_one_slow_fit_is_tried_again_and_counted(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = START + (
        f"import os\nsay(good)\nif not os.path.exists({str(mark)!r}):\n"
        f"    open({str(mark)!r}, 'w').close()\n    time.sleep(30)\n"
        "for _ in range(int(count) - 1): say(good)\n"
    )
    found = answered(tmp_path, program, count=4)
    assert (len(found.components), found.slow) == (3, 1)
    assert found.note == "3 of 4 fits: 1 took more than 1 s"


def test_no_fit_starts_once_the_time_of_a_point_is_over(tmp_path: Path) -> None:
    program = START + "while True:\n    time.sleep(0.4)\n    say(good)\n"
    found = answered(tmp_path, program, count=50, limits=Limits(fit=30.0, point=0.6, start=60.0))
    assert 1 <= len(found.components) <= 2
    assert found.note == f"{len(found.components)} of 50 fits: no more after 0.6 s"


@pytest.mark.parametrize(
    ("program", "note"),
    [
        (HEAD + "raise ValueError('no such thing')\n", "it failed: ValueError: no such thing"),
        (HEAD + "sys.exit(3)\n", "it failed: it ended with status 3"),
        (HEAD + "print('hello')\n", "it answered no JSON"),
        (HEAD + "say([1])\n", "it answered no object"),
        (HEAD + "say(good)\n", "it answered something else than its version"),
        (START + "say({})\n", "it answered no components"),
        (START + "say({'components': 'x'})\n", "it answered no components"),
        (START + "say({'components': [[1, 0], [0]]})\n", "it answered no components"),
        (START + "say({'components': [[1, 0], [0, 1]]})\n", "it answered no components"),
        (START + "say({'components': [[float('nan')] * d] * k})\n", "it answered no components"),
        (START + "say({'components': [[1, 0, 0, 0]] * k})\n", "its components are not orthonormal"),
        (START + "say(good)\nraise ValueError('later')\n", "1 of 3 fits: it failed: ValueError: later"),
    ],
)
def test_a_broken_answer_is_a_clear_result(tmp_path: Path, program: str, note: str) -> None:
    found = answered(tmp_path, program)
    assert found.note == note
    assert len(found.components) == int(note.startswith("1 of"))


def test_a_program_that_never_starts_is_a_clear_result(tmp_path: Path) -> None:
    found = answered(tmp_path, "import time\ntime.sleep(60)\n", limits=Limits(fit=1.0, point=60.0, start=0.5))
    assert (found.note, found.version) == ("no start in 0.5 s", "")


def comparison() -> Experiment:
    return Experiment(
        name="small",
        group="peers",
        paper="nobody",
        item="Comparison 0",
        shows="nothing",
        reported="nothing",
        ran=(),
        measure="peers",
        repetitions=3,
        terms=Terms(delta=0.01, k=2),
        axis=Axis(name="epsilon", label="ε", values=(0.5, 1.0), quick=(1.0,)),
        panels=(Panel(title="synthetic", data="css13-normal", records=50),),
        lines=(
            Line(method="gaussian"),
            Line(method="opendp", quick=False, options={"seconds": 5, "most": 30}),
        ),
        plot=Plot(measure="captured", label="captured"),
    )


def put(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str | None) -> None:
    """An environment for OpenDP whose Python is this one, and that runs another program; or none."""

    class Fake(Library):
        @property
        def is_installed(self) -> bool:
            return program is not None

        @property
        def program(self) -> tuple[str | Path, ...]:
            return sys.executable, folder / "fake.py"

    (folder / "fake.py").write_text(program or "")
    monkeypatch.setitem(declared.LIBRARIES, "opendp", Fake("opendp", "OpenDP", "pure ε claimed"))


def test_a_comparison_shows_fits_and_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, tmp_path, START + "say(good)\nsay(good)\nsys.exit(3)\n")
    rows = tables.rows_of(run(comparison(), None, tmp_path))
    theirs = {(row.x, row.measure): row for row in rows if row.line == "OpenDP 1.2"}
    assert theirs[0.5, "captured"].repetitions == 2
    assert theirs[0.5, "fits"].mean == 1
    shown = tables.as_markdown(comparison(), tables.from_csv(tables.as_csv(rows)))
    assert shown.count("(2 of 3 fits: it failed: it ended with status 3)") == 2
    assert [row.note for row in tables.from_csv(tables.as_csv(rows))] == [row.note for row in rows]


def test_what_is_not_installed_is_said_and_measured_once_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, tmp_path, None)
    rows = tables.rows_of(run(comparison(), None, tmp_path))
    assert [(row.mean, row.note) for row in rows if row.line == "OpenDP"] == [
        (0, "not installed: make peers")
    ] * 2
    table = tables.as_markdown(comparison(), rows)
    assert "| OpenDP | pure ε claimed | – | not installed: make peers | not installed: make peers |" in table
    put(monkeypatch, tmp_path, START + "for _ in range(3): say(good)\n")
    again = tables.rows_of(run(comparison(), None, tmp_path))
    assert {row.note for row in again} == {""}
    assert {row.line for row in again} == {"proved Gaussian on R", "OpenDP 1.2"}


def test_a_quick_run_leaves_other_libraries_out_and_says_so(tmp_path: Path) -> None:
    results = run(comparison(), None, tmp_path, quick=True)
    assert [result.label for result in results] == ["proved Gaussian on R"]
    shown = tables.as_markdown(comparison(), tables.rows_of(results), ("opendp",))
    assert shown.endswith("Not in a quick run: opendp.\n")
    for experiment in experiments():
        for line in experiment.lines:
            assert line.quick == (line.method not in LIBRARIES), experiment.name


def test_whether_a_line_is_quick_is_not_in_the_key() -> None:
    both = [
        key(
            cells_of(
                comparison().model_copy(update={"lines": (Line(method="gaussian", quick=quick),)}),
                quick=False,
            )[0],
            None,
        )
        for quick in (True, False)
    ]
    assert both[0] == both[1]


def test_peers_have_locks_with_hashes_and_say_what_they_claim() -> None:
    assert {peer.package for peer in PEERS if peer.package} == set(LIBRARIES)
    for peer in PEERS:
        assert peer.relation
        assert peer.claim
        assert peer.ran
    for found in LIBRARIES.values():
        lock = (LOCKS / f"peers-{found.package}.txt").read_text()
        assert f"\n{found.package}==" in lock
        assert lock.count("==") <= lock.count("--hash=")
    with pytest.raises(UsageError, match="opendp"):
        library("no")


def test_a_note_has_a_column_only_where_there_is_one(tmp_path: Path) -> None:
    rows = tables.rows_of(run(comparison(), None, tmp_path, quick=True))
    assert json.dumps(tables.as_csv(rows).splitlines()[0]).count("note") == 0
