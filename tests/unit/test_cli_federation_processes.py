"""No child of the demo outlives it, and a failing one says why."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpdpca_cli.federation import processes as federation_processes
from dpdpca_cli.federation.processes import Child, ChildFailedError, ChildProcesses, free_port

SLEEPER = "import time; time.sleep(60)"
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def python_as_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are plain Python here: `arguments` are its own."""
    monkeypatch.setattr(federation_processes, "COMMAND", (sys.executable,))


def has_ended(child: Child) -> bool:
    return child.process.poll() is not None


def test_children_end_with_the_block(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path, {}) as processes:
        child = processes.start("sleeper", ["-c", SLEEPER])
        assert not has_ended(child)
    assert has_ended(child)


def test_stubborn_child_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation_processes, "_GRACE_SECONDS", 0.3)
    with ChildProcesses(tmp_path, {}) as processes:
        child = processes.start("stubborn", ["-c", STUBBORN])
        processes.wait_until(lambda: child.output.stat().st_size > 0, 10, child, "said nothing")
    assert child.process.returncode == -signal.SIGKILL


def test_failing_child_ends_the_others_and_shows_its_last_lines(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path, {}) as processes:
        server = processes.start("server", ["-c", SLEEPER], is_server=True)
        with pytest.raises(ChildFailedError, match="owner ended with status 1") as caught:
            processes.run("owner", ["-c", "import sys; sys.exit('the disk is full')"])
    assert caught.value.tail == "the disk is full"
    assert has_ended(server)


def test_server_that_ends_early_is_noticed_while_waiting_for_another(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path, {}) as processes:
        processes.start("server", ["-c", "pass"], is_server=True)
        with pytest.raises(ChildFailedError, match="server ended too early"):
            processes.run("owner", ["-c", SLEEPER])


def test_whoever_looks_on_sees_every_child_end(tmp_path: Path) -> None:
    """Also one that ends in the moment after a look."""
    go = tmp_path / "go"
    waiting = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    seen: list[bool] = []
    with ChildProcesses(tmp_path, {}) as processes:
        child = processes.start("owner", ["-c", waiting])

        def look() -> None:
            seen.append(has_ended(child))
            go.touch()
            child.process.wait(10)

        processes.wait_for([child], 10, look)
    assert seen == [False, True]


def test_time_limit_names_the_child(tmp_path: Path) -> None:
    with (
        ChildProcesses(tmp_path, {}) as processes,
        pytest.raises(ChildFailedError, match="owner did not finish"),
    ):
        processes.run("owner", ["-c", SLEEPER], limit_seconds=0.2)


def test_output_and_environment(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path, {"DEMO_A": "1"}) as processes:
        said = processes.run(
            "owner", ["-c", "import os; print(os.environ['DEMO_A'], os.environ['DEMO_B'])"], {"DEMO_B": "2"}
        )
    assert said == "1 2\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_parent_leaves_nobody_behind(tmp_path: Path, number: signal.Signals) -> None:
    program = f"""
import sys, time
from pathlib import Path
from dpdpca_cli.federation import processes as federation_processes
federation_processes.COMMAND = (sys.executable,)
with federation_processes.ChildProcesses(Path({str(tmp_path)!r}), {{}}) as processes:
    print(processes.start("sleeper", ["-c", {SLEEPER!r}]).process.pid, flush=True)
    time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(number)
    assert parent.wait(20) != 0
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the child lives on")


def test_free_port_is_free() -> None:
    assert 0 < free_port() < 65536
