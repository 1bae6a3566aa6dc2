"""`dpdpca demo` as people run it: five processes, real HTTP, real data, full-size keys. Needs pip alone."""

import re
import signal
import time
from pathlib import Path

import pytest
from federation.demo import FinishedDemo, start_demo


def left_behind(folder: Path) -> list[str]:
    """Living processes whose environment names `folder`: the demo's children have their homes there."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.mark.system
def test_demo_runs_its_studies_and_writes_its_report(demo: FinishedDemo) -> None:
    studies = demo.said["studies"]
    assert [study["release"] for study in studies] == ["masked", "joint", "auto (joint)"]
    assert studies[2]["rounds"] == ["pre-study", "pre-study", "pre-study", "joint"]
    assert studies[2]["promise"] == "(ε, δ) = (1, 1.6e-09), replace-one, over 4 rounds"
    captured = [study["captured_variance"][-1] for study in studies]
    assert captured[2] > max(captured[:2])
    for study in studies:
        assert study["records"] == 20_000
        assert study["promise"].startswith("(ε, δ) = (1, 1.6e-09), replace-one")
        assert study["privacy"]["relation"] == "replace-one"
        best = study["captured_variance_without_privacy"]
        # The noise is random; at this size it costs about one part in a hundred, and never gains anything.
        for found, optimum in zip(study["captured_variance"], best, strict=True):
            assert 0.9 * optimum < found <= optimum + 1e-9
        assert study["trusted_components"] >= 3
        assert len(study["bytes"]["owners"]) == 3

    assert demo.said["report"] == str(demo.report)
    page = demo.report.read_text()
    assert not re.search(r"(?:src|href)\s*=|url\((?!#)|@import|https?://(?!www\.w3\.org/)", page)
    assert "noise edge" in page
    assert "Biplot" in page
    assert "What is guaranteed" in page
    assert list(demo.temporary.iterdir()) == []
    assert left_behind(demo.temporary) == []


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    process = start_demo(tmp_path, "--out", str(tmp_path / "report.html"))
    assert process.stderr is not None
    for line in process.stderr:
        if "making a key" in line:
            break
    time.sleep(1)  # a key is being made: the service has a worker of its own by now
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    assert list(tmp_path.iterdir()) == []
    assert left_behind(tmp_path) == []


def test_demo_says_what_its_options_lack(tmp_path: Path) -> None:
    process = start_demo(tmp_path, "--data", "records.csv")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.startswith("dpdpca: --data and --manifest must be given together; give both")
