"""What only POSIX has is used where it is there, and something else is done where it is not."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from dpdpca_runtime.asgi.loop import EdgeLoop, on_stop_signal
from dpdpca_runtime.system import (
    detached_from_terminal,
    lower_priority,
    optional_module,
    terminate_group,
)


def test_a_module_that_is_not_there_is_none() -> None:
    assert optional_module("errno") is __import__("errno")
    assert optional_module("winreg") is None


def test_ctrl_c_is_kept_from_children_on_each_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert detached_from_terminal() == {"process_group": 0}
    assert detached_from_terminal(without_terminal=True) == {"start_new_session": True}
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 512, raising=False)
    assert detached_from_terminal() == {"creationflags": 512}


def test_without_nice_the_priority_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "nice")
    lower_priority(10)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("has_groups", [True, False])
def test_a_child_is_ended_on_each_system(
    monkeypatch: pytest.MonkeyPatch, at_once: bool, has_groups: bool
) -> None:
    if not has_groups:
        monkeypatch.delattr(os, "killpg")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    terminate_group(child, at_once=at_once)
    expected = signal.SIGTERM if has_groups and not at_once else signal.SIGKILL
    assert child.wait(60) == -expected


class LoopOfWindows(EdgeLoop):
    def add_signal_handler(self, *_: Any) -> None:  # type: ignore[override] # typeshed types each argument
        raise NotImplementedError  # as on Windows


@pytest.mark.parametrize("kind", [EdgeLoop, LoopOfWindows])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_loop_on_each_system(kind: type[EdgeLoop], number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    async def serve() -> None:
        stopping = asyncio.Event()
        on_stop_signal(asyncio.get_running_loop(), stopping.set)
        os.kill(os.getpid(), number)
        async with asyncio.timeout(60):
            while not stopping.is_set():  # a loop of Windows wakes up only now and then, as uvicorn's does
                await asyncio.sleep(0.01)

    try:
        with asyncio.Runner(loop_factory=kind) as runner:
            runner.run(serve())
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
