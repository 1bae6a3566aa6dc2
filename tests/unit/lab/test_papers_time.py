"""What the experiments about time measure: which steps count, and which bytes are sent."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpdpca_lab.papers.accuracy import Split, classifier, fit_and_predict_seconds
from dpdpca_lab.papers.cells import cells_of
from dpdpca_lab.papers.declared import Panel, experiments
from dpdpca_lab.papers.measures import MEASURES
from dpdpca_lab.papers.methods import Point
from dpdpca_lab.papers.owners_time import LINES, Spent, spent_by
from dpdpca_lab.papers.prepared import Problem, problem
from dpdpca_protocol.errors import UsageError

POINT = Point(Fraction(3, 10), Fraction(1, 10**5), 2)
ROWS = problem(Panel(title="a", data="css13-normal", records=60), None, False).rows.astype(np.float64)


def test_owners_in_turn_send_their_components_to_the_next() -> None:
    few = spent_by("local-chain", ROWS, 4, POINT, quick=True)
    assert few.sent == 4 * 10 * 10 * 8  # fifteen records have rank 10
    assert spent_by("local-chain", ROWS, 10, POINT, quick=True).sent == 10 * 6 * 10 * 8
    assert few.proxy == few.user == 0
    assert few.seconds == few.owners > 0


@pytest.mark.parametrize("line", ["masked", "joint", "joint-pads"])
def test_our_owners_send_a_share_each_and_the_proxy_one_release(line: str) -> None:
    two, six = (spent_by(line, ROWS, owners, POINT, quick=True) for owners in (2, 6))
    share = (six.sent - two.sent) / 4
    assert share > 0
    assert two.sent > 2 * share  # and the release
    assert all(part > 0 for part in (two.owners, two.proxy, two.user))
    assert two.seconds == pytest.approx(two.owners + two.proxy + two.user)


def test_transmission_is_at_ten_megabytes_a_second() -> None:
    assert Spent(1, 2, 3, 25_000_000).transmission == 2.5


def test_lines_and_owners_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="joint-pads"):
        spent_by("no", ROWS, 2, POINT, quick=True)
    with pytest.raises(UsageError, match="61 owners"):
        spent_by("local-chain", ROWS, 61, POINT, quick=True)


def test_what_measures_time_runs_alone() -> None:
    timed = {each.name for each in experiments() if MEASURES[each.measure].is_timed}
    assert timed == {"wc18-fig3", "hy21-fig4"}
    (figure,) = (each for each in experiments() if each.name == "wc18-fig3")
    assert {cell.line.method for cell in cells_of(figure, quick=False)} == set(LINES)


def test_both_solvers_find_a_rule_and_take_time() -> None:
    """The classes are two halves of one column, so that every machine can tell them apart."""
    rows = np.column_stack([np.linspace(-0.6, 0.6, 200), 0.1 * np.cos(np.arange(200))])
    labels = (rows[:, 0] > 0).astype(np.int64)
    split = Split(Problem.of(rows, labels, True, "made up"), rows, labels)
    for solver in ("libsvm", "liblinear"):
        point = Point(Fraction(1), Fraction(1, 10**5), 1, {"solver": solver, "penalty": 100.0})
        for name in ("svm", "optimum"):
            rule = next(classifier(name).predictors(split.train, point))
            assert (rule(rows) == labels).mean() > 0.98
            assert all(seconds > 0 for seconds in fit_and_predict_seconds(classifier(name), split, point))


def test_only_rules_on_components_pay_for_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    split = Split(Problem.of(ROWS, np.arange(60) % 2, True, "made up"), ROWS, np.arange(60) % 2)
    asked: list[int] = []
    sums = Problem.of

    def counted(*given: Any) -> Problem:
        asked.append(1)
        return sums(*given)

    monkeypatch.setattr(Problem, "of", counted)
    for name, wanted in (("svm", 0), ("majority", 0), ("optimum", 1), ("pca-dpsvm", 1)):
        asked.clear()
        fit_and_predict_seconds(classifier(name), split, POINT)
        assert len(asked) == wanted, name
