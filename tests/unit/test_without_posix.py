"""On a machine that lacks what Windows lacks, every part imports, every command helps, and an owner works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import no_posix
import pytest
from proxy_world import ProxyWorld

from dpdpca_protocol.study import StudyState
from dpdpca_proxy.enrolment import invite

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("protocol", "runtime", "services", "clients", "lab")
TAKEN_AWAY = "import no_posix; no_posix.take_away()\n"
AS_ON_WINDOWS = f"{TAKEN_AWAY}no_posix.add_windows_locks()\n"

LOOK_AT_ALL = """
import dataclasses, every_part, json
print(json.dumps(dataclasses.asdict(every_part.look())))
"""

OWNER = """
import dataclasses, sys
from dpdpca_cli.main import main
from dpdpca_owner import actions
from dpdpca_protocol.paillier.keys import KeyRules

make, short = actions.make_desk, KeyRules(512)
actions.make_desk = lambda *args, **options: dataclasses.replace(make(*args, **options), key_rules=short)
main(["owner", *sys.argv[1:]])
"""

AGENTS = """
import sys
from pathlib import Path
from dpdpca_owner.agent import is_agent_running, only_agent
from dpdpca_owner.home import OwnerHome
from dpdpca_protocol.errors import ConflictError

home = OwnerHome(Path(sys.argv[1]))
with only_agent(home):
    print(is_agent_running(home))
    try:
        with only_agent(home):
            print("two agents")
    except ConflictError as error:
        print(error.slug)
print(is_agent_running(home))
"""


def run(program: str, *words: str, given: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        input=given,
        env={**os.environ, "PYTHONPATH": str(Path(no_posix.__file__).parent), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_module_imports_and_every_command_helps() -> None:
    looked = run(AS_ON_WINDOWS + LOOK_AT_ALL)
    assert looked.returncode == 0, looked.stderr
    seen = json.loads(looked.stdout)
    assert seen["failed"] == {}
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    there = {
        str(path.relative_to(ROOT).with_suffix("")).partition("/")[2].replace("/", ".")
        for path in files
        if path.name != "__init__.py" and "migrations" not in path.parts
    }
    assert there <= set(seen["modules"])
    assert {"", "owner join", "proxy serve", "user serve", "bench encrypt", "demo"} <= set(seen["helped"])


def test_an_owner_makes_its_keys_looks_at_a_study_joins_and_leaves(world: ProxyWorld, tmp_path: Path) -> None:
    study = world.open_study(3, min_records=1, named=False)
    address = f"{world.url}/{study.study.hex()}"
    records = tmp_path / "records.csv"
    records.write_text("f0,f1,f2\n" + "\n".join(f"0.{k},0.{k + 1},0.{k + 2}" for k in range(1, 7)) + "\n")
    home = {"DPDPCA_OWNER_HOME": str(tmp_path / "owner")}

    def owner(*words: str, given: str = "") -> str:
        done = run(AS_ON_WINDOWS + OWNER, *words, given=given, **home)
        assert done.returncode == 0, done.stderr
        return done.stdout

    owner("init", "--name", "Hospital W")
    (tmp_path / "owner" / "policy.toml").write_text("[study]\nmin_owners = 2\n")
    owner("enrol", world.url, "--yes", given=invite(world.proxy, "owner", "Hospital W").token + "\n")
    assert "Blood pressure and age" in owner("review", address, "--data", str(records))
    owner("join", address, "--data", str(records), "--yes")
    client = world.client(world.user)
    assert client.study(study.study).owners_complete == 1
    assert json.loads(owner("status", "--json"))["studies"]
    owner("withdraw", address)
    assert client.study(study.study).owners_complete == 0
    assert client.study(study.study).state == StudyState.OPEN
    assert (tmp_path / "owner" / "ledger" / "entries.jsonl").read_bytes().count(b"\r") == 0


def test_one_home_has_one_agent(tmp_path: Path) -> None:
    done = run(AS_ON_WINDOWS + AGENTS, str(tmp_path))
    assert done.stdout.split() == ["True", "busy", "False"], done.stderr


def test_where_no_file_can_be_locked_that_is_said(tmp_path: Path) -> None:
    refused = run(TAKEN_AWAY + OWNER, "init", "--name", "Hospital W", DPDPCA_OWNER_HOME=str(tmp_path / "o"))
    assert refused.returncode == 2
    assert "cannot lock files" in refused.stderr
    assert "use CPython on Linux, macOS or Windows" in refused.stderr
    assert "pip install" not in refused.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_nothing_is_called_that_the_system_lacks_by_its_types(platform: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--platform", platform, "--cache-dir", str(tmp_path), *FOLDERS]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert checked.returncode == 0, checked.stdout
