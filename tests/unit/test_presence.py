"""The name of a running process: nobody else has it, and others notice when the process ends."""

import subprocess
import sys
from pathlib import Path

from dpdpca_runtime.presence import Presence

_HOLDING = """
import sys
from pathlib import Path
from dpdpca_runtime.presence import Presence
mine = Presence(Path(sys.argv[1]))
print(mine.name, flush=True)
sys.stdin.read()
"""


def holding(folder: Path) -> tuple["subprocess.Popen[str]", str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDING, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_name_is_free_as_soon_as_its_process_is_killed(tmp_path: Path) -> None:
    process, theirs = holding(tmp_path / "processes")
    try:
        mine = Presence(tmp_path / "processes")
        assert mine.name == mine.name != theirs
        assert len(mine.name) <= 40
        assert mine.may_be_running(theirs)
    finally:
        process.kill()
        process.wait()
    assert not mine.may_be_running(theirs)
    following, name = holding(tmp_path / "processes")
    following.kill()
    following.wait()
    assert name == theirs


def test_an_unknown_name_may_be_running(tmp_path: Path) -> None:
    mine = Presence(tmp_path / "processes")
    former = mine.name
    mine.end()
    assert mine.name == former
    assert mine.may_be_running("0123456789abcdef.1")
    assert mine.may_be_running(former.partition(".")[0] + ".1")  # a copy of the folder
    assert mine.may_be_running("12345-00")  # as earlier versions wrote it
