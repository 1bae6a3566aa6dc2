"""`dpdpca demo` that is interrupted or lacks an option. What a whole one leaves is in `test_browser`."""

import signal
import time
from pathlib import Path

import pytest
from federation.demo import left_behind, start_demo


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
