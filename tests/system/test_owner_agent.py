"""The agent as a process of its own: it ends at once when it is told to, and runs as its unit asks."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from dpdpca_cli.federation.processes import free_port, inherited_environment, launch
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.sources import RegisteredSource
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.http.address import StudyAddress

UNIT = Path(__file__).parents[2] / "deploy" / "dpdpca-owner.service"
START_SECONDS, STOP_SECONDS = 300.0, 60.0
NOBODY = 65534
READ_ONLY = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro /
shift
exec "$@"
"""
"""Runs what follows its first argument where only the folder that this argument names can be written."""


@contextmanager
def agent(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`dpdpca owner serve` in the home `folder/home`, and where its errors are."""
    environment = {**inherited_environment(), "DPDPCA_OWNER_HOME": str(folder / "home")}
    errors = folder / "errors"
    with errors.open("wb") as stream:
        words = ["owner", "serve", "--port", str(free_port()), *options]
        process = launch(words, environment, subprocess.DEVNULL, stream)
        try:
            yield process, errors
        finally:
            process.kill()
            process.wait()


def wait_for_text(process: subprocess.Popen[bytes], file: Path, text: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while text not in file.read_text():
        assert process.poll() is None, file.read_text()
        assert time.monotonic() < deadline, f"it did not say '{text}'"
        time.sleep(0.05)


def follow_at_a_silent_proxy(home: OwnerHome) -> None:
    """Nobody listens at the address of this proxy."""
    url, key = f"http://127.0.0.1:{free_port()}", IdentityKey.generate("proxy")
    home.pins.pin_proxy(url, ProxyCard("Relay", url, key.public).sign(key))
    records = home.path / "records.csv"
    records.write_text("f0\n1\n")
    home.sources.add(RegisteredSource("patients", str(records), data_set="people"), {})
    home.followed.add(FollowedStudy(StudyAddress(url, StudyId(bytes(32))), "patients", "people"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("is_proxy_silent", [True, False])
def test_it_ends_at_once_while_it_waits(
    tmp_path: Path, number: signal.Signals, is_proxy_silent: bool
) -> None:
    home = OwnerHome(tmp_path / "home")
    home.create("Hospital A", None)
    if is_proxy_silent:
        follow_at_a_silent_proxy(home)
    with agent(tmp_path, "--every", "600") as (process, errors):
        wait_for_text(process, errors, "trying again" if is_proxy_silent else "is running")
        process.send_signal(number)
        assert process.wait(STOP_SECONDS) == 0
    said = errors.read_text()
    assert "it continues at its next start" in said
    assert "Traceback" not in said


def test_a_second_agent_is_refused(tmp_path: Path) -> None:
    OwnerHome(tmp_path / "home").create("Hospital A", None)
    with agent(tmp_path) as (first, errors):
        wait_for_text(first, errors, "is running")
        (tmp_path / "second").mkdir()
        (tmp_path / "second" / "home").symlink_to(tmp_path / "home")
        with agent(tmp_path / "second") as (second, second_errors):
            assert second.wait(START_SECONDS) == 1
    assert "another agent is already running" in second_errors.read_text()


def settings(name: str) -> list[str]:
    """The values of a setting of the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """With a command that is installed here."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/dpdpca/bin/dpdpca", str(installed())))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    about_it = [line for line in verified.stderr.splitlines() if UNIT.name in line]
    assert (verified.returncode, about_it) == (0, []), verified.stderr


def installed() -> Path:
    return Path(sys.executable).with_name("dpdpca")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder to which every user has a way."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))  # pytest's own folders are private
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a tree read-only for a process")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="there is no setpriv")
def test_the_units_command_runs_unprivileged_on_a_read_only_tree(open_folder: Path) -> None:
    """As the unit says: only ReadWritePaths can be written, and no right can be gained."""
    (writable,) = settings("ReadWritePaths")
    (started,) = settings("ExecStart")
    state = open_folder / "state"
    state.mkdir()
    environment = unit_environment({writable: str(state)})
    os.chown(state, NOBODY, NOBODY)
    command = [str(installed()) if "/" in word else word for word in shlex.split(started)]
    confined = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    init = [*confined, command[0], "owner", "init", "--name", "Hospital A"]
    subprocess.run(init, env=environment, check=True, capture_output=True)
    words = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(state), *confined, *command]
    errors = open_folder / "errors"
    with errors.open("wb") as stream:
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stderr=stream)
        try:
            wait_for_text(process, errors, "is running")
            process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_SECONDS) == 0
        finally:
            process.kill()
            process.wait()


def unit_environment(places: Mapping[str, str]) -> dict[str, str]:
    """The environment that the unit sets, with other places."""
    made = {"PATH": os.environ["PATH"], "HOME": next(iter(places.values()))}
    for line in settings("Environment"):
        name, _, value = line.partition("=")
        for place, other in places.items():
            value = value.replace(place, other)
        made[name] = value
    return made
