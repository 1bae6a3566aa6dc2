"""The house rules hold, and their guards see a violation: each forbidden import is planted in a copy."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from promises import Promise

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("protocol", "runtime", "services", "clients", "lab")
PACKAGES = {
    "dpdpca_protocol": "protocol",
    "dpdpca_runtime": "runtime",
    "dpdpca_proxy": "services",
    "dpdpca_user_service": "services",
    "dpdpca_owner": "clients",
    "dpdpca_user": "clients",
    "dpdpca_interop": "clients",
    "dpdpca_cli": "clients",
    "dpdpca_lab": "lab",
}

IO_MODULES = (
    "os",
    "pathlib",
    "socket",
    "asyncio",
    "sqlite3",
    "random",
    "logging",
    "time",
    "httpx",
    "fastapi",
    "sqlalchemy",
)
NOT_EVERYWHERE = ("fcntl", "resource", "pwd", "grp", "termios", "msvcrt", "multiprocessing")
ROOMS_FROM_THE_GROUND = (
    ("errors",),
    ("study", "randomness"),
    ("wire", "layout"),
    ("paillier", "pads", "privacy"),
    ("messages", "release"),
    ("terms",),
    ("records", "result"),
    ("reference",),
)
"""Rooms of the core by floor. None uses another of its own floor or one above."""


def _above(room: str) -> tuple[str, ...]:
    """What a room of the core must not import, as dotted names."""
    floor = next(number for number, names in enumerate(ROOMS_FROM_THE_GROUND) if room in names)
    names = [name for names in ROOMS_FROM_THE_GROUND[floor:] for name in names if name != room]
    return tuple(f"dpdpca_protocol.{name}" for name in names)


# Written out here, not read from pyproject.toml: a contract that someone deletes must be missed.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "dpdpca_protocol": ("dpdpca_runtime", "dpdpca_proxy", "dpdpca_owner", "dpdpca_cli", "phe", *IO_MODULES),
    "dpdpca_protocol.wire": (*_above("wire"), "dpdpca_protocol.study"),
    "dpdpca_protocol.layout": (*_above("layout"), "dpdpca_protocol.study", "dpdpca_protocol.randomness"),
    "dpdpca_protocol.paillier": (
        *_above("paillier"),
        *(f"dpdpca_protocol.wire.{name}" for name in ("canonical", "fields", "http", "sealing", "signing")),
        "dpdpca_protocol.layout",
        "dpdpca_protocol.study",
    ),
    "dpdpca_protocol.pads": (
        *_above("pads"),
        "dpdpca_protocol.layout",
        "dpdpca_protocol.study",
        "dpdpca_protocol.wire.http",
    ),
    "dpdpca_protocol.privacy": (*_above("privacy"), "dpdpca_protocol.wire", "dpdpca_protocol.study"),
    "dpdpca_protocol.messages": (
        *_above("messages"),
        "dpdpca_protocol.privacy",
        "dpdpca_protocol.layout",
    ),
    "dpdpca_protocol.release": (*_above("release"), "dpdpca_protocol.privacy", "dpdpca_protocol.study"),
    "dpdpca_protocol.terms": _above("terms"),
    "dpdpca_protocol.records": _above("records"),
    "dpdpca_protocol.result": _above("result"),
    "dpdpca_runtime": (
        *("dpdpca_owner", "dpdpca_user", "dpdpca_proxy", "dpdpca_user_service", "phe"),
        *NOT_EVERYWHERE,
    ),
    "dpdpca_runtime.asgi": ("dpdpca_runtime.http",),
    "dpdpca_runtime.http": ("dpdpca_runtime.asgi",),
    "dpdpca_proxy": (
        "dpdpca_owner",
        "dpdpca_user",
        "dpdpca_runtime.http",
        "dpdpca_user_service",
        "dpdpca_cli",
        "dpdpca_lab",
        "phe",
        *NOT_EVERYWHERE,
    ),
    "dpdpca_owner": (
        *("dpdpca_proxy", "dpdpca_user", "dpdpca_user_service", "dpdpca_cli", "phe"),
        *NOT_EVERYWHERE,
    ),
    "dpdpca_owner.accounts": ("dpdpca_owner.records", "dpdpca_owner.actions", "dpdpca_owner.commands"),
    "dpdpca_owner.records": ("dpdpca_owner.actions", "dpdpca_owner.commands", "dpdpca_owner.page"),
    "dpdpca_owner.agent": ("dpdpca_owner.page", "dpdpca_owner.commands"),
    "dpdpca_owner.page": ("dpdpca_owner.commands",),
    "dpdpca_user": (
        *("dpdpca_proxy", "dpdpca_owner", "dpdpca_user_service", "dpdpca_cli", "phe"),
        *("dpdpca_runtime.cluster", "distributed"),
    ),
    "dpdpca_user.planning": ("dpdpca_user.commands", "dpdpca_user.estimator"),
    "dpdpca_user.results": ("dpdpca_user.commands", "dpdpca_user.planning", "dpdpca_user.estimator"),
    "dpdpca_user_service": (
        *("dpdpca_proxy", "dpdpca_lab", "phe", "dpdpca_runtime.cluster", "distributed"),
        *NOT_EVERYWHERE,
    ),
    "dpdpca_cli": ("dpdpca_proxy", "dpdpca_user_service", "dpdpca_lab", "phe"),
    "dpdpca_lab": ("phe",),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the source folders and the contracts."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run_in(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A tool over the copy; its folders go before the installed ones."""
    search_path = os.pathsep.join(str(copy / folder) for folder in FOLDERS)
    tool = Path(sys.executable).parent / command[0]
    return subprocess.run(
        [str(tool), *command[1:]],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": search_path, "COLUMNS": "400", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def folder_of(copy: Path, module: str) -> Path:
    return copy / PACKAGES[module.partition(".")[0]] / Path(*module.split("."))


def test_import_contracts_hold(copy: Path) -> None:
    outcome = run_in(copy, "lint-imports", "--no-cache")
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.parametrize("importer", FORBIDDEN)
def test_planted_import_is_seen(copy: Path, importer: str) -> None:
    folder = folder_of(copy, importer)
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    planted = dict(enumerate(FORBIDDEN[importer]))
    for number, target in planted.items():
        (folder / f"planted_{number}.py").write_text(f"import {target}\n")
        home = PACKAGES.get(target.partition(".")[0])
        if home and not folder_of(copy, target).is_dir():  # a module of the design that is still to come
            folder_of(copy, target).with_suffix(".py").touch()

    outcome = run_in(copy, "lint-imports", "--no-cache")

    assert outcome.returncode != 0
    unseen = [
        target
        for number, target in planted.items()
        if not re.search(rf"{re.escape(importer)}\.planted_{number} -> {re.escape(target)}\b", outcome.stdout)
    ]
    assert not unseen, outcome.stdout


@pytest.mark.parametrize(
    "line",
    [
        "import protocol.dpdpca_protocol",
        "from services import dpdpca_proxy",
        "import clients.dpdpca_owner",
        "from runtime import dpdpca_runtime",
        "import lab.dpdpca_lab",
        "import numpy.random",
        "from numpy.random import default_rng",
        "from time import time",
    ],
)
def test_planted_banned_name_is_seen(copy: Path, line: str) -> None:
    (copy / "protocol" / "dpdpca_protocol" / "planted.py").write_text(f"{line}\n")
    outcome = run_in(copy, "ruff", "check", "--no-cache", "--select", "TID251", "protocol")
    assert outcome.returncode == 1
    assert "planted.py" in outcome.stdout


@pytest.mark.parametrize("folder", FOLDERS)
def test_source_folders_are_no_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists(), (
        f"{folder}/__init__.py makes a second copy of every class"
    )


def imported_by_others(package: str) -> set[str]:
    """First names of the modules of `package` that other packages import."""
    found: set[str] = set()
    for other, folder in PACKAGES.items():
        for path in (ROOT / folder / other).rglob("*.py") if other != package else ():
            source = path.read_text("utf-8")
            found |= set(re.findall(rf"^\s*(?:from|import) {package}\.(\w+)", source, re.M))
            for names in re.findall(rf"^\s*from {package} import ([\w, ]+)", source, re.M):
                found |= set(names.split(", "))
    return found


@pytest.mark.parametrize(
    "package", sorted(set(PACKAGES) - {"dpdpca_protocol", "dpdpca_runtime", "dpdpca_interop"})
)
def test_other_packages_import_what_a_package_offers_them(package: str) -> None:
    """Each `__init__` lists it in one sentence: nothing else is imported, and nothing is listed in vain."""
    stated = (ROOT / PACKAGES[package] / package / "__init__.py").read_text("utf-8")
    sentence = re.search(r"^Other packages import (only|nothing) ([^.]*)\.", stated, re.M)
    assert sentence is not None
    assert set(re.findall(r"`(\w+)`", sentence[2])) == imported_by_others(package)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_wheel_holds_exactly_the_packages(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == set(PACKAGES)


def test_wheel_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert all(f"{package}/py.typed" in names for package in PACKAGES)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_has_the_files_of_all_pages(wheel: zipfile.ZipFile) -> None:
    suffixes = (".html", ".css", ".js", ".svg")
    files = {
        str(path.relative_to(ROOT / folder))
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder / package).rglob("*")
        if path.suffix in suffixes
    }
    assert len(files) > 15
    assert files <= set(wheel.namelist())


def build_wheel(source: Path, target: Path, **environment: str) -> bytes:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    whole = {**os.environ, **environment}
    subprocess.run(command, cwd=source, env=whole, check=True, capture_output=True, timeout=120)
    (built,) = target.glob("*.whl")
    return built.read_bytes()


def test_two_builds_are_the_same_byte_for_byte(tmp_path: Path, promise: Promise) -> None:
    """Another folder, later file times, another umask and time zone: the same wheel."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for path in copy.rglob("*"):
        os.utime(path, (2_000_000_000, 2_000_000_000))
    first = build_wheel(copy, tmp_path / "first", SOURCE_DATE_EPOCH="1700000000", TZ="UTC")
    before = os.umask(0o077)
    try:
        second = build_wheel(ROOT, tmp_path / "second", SOURCE_DATE_EPOCH="1700000000", TZ="Asia/Tokyo")
    finally:
        os.umask(before)
    assert hashlib.sha256(first).hexdigest() == hashlib.sha256(second).hexdigest()
    promise("P36", counted=f"2 wheels of {len(first):,} bytes, built apart", result="byte-identical")


def test_wheel_holds_no_test_and_no_test_switch(wheel: zipfile.ZipFile, promise: Promise) -> None:
    """Nothing that weakens a study can be reached from a setting: tests pass such things as arguments."""
    names = [name for name in wheel.namelist() if name.endswith(".py")]
    assert not [name for name in names if re.search(r"(^|/)(tests?|test_\w+|conftest)(\.py|/)", name)]
    switch = re.compile(
        r"DPDPCA_\w*(TEST|INSECURE|NOISELESS)|PYTEST_CURRENT_TEST|fail_?point|fault_?plan|zero_?noise"
        r"|scripted_?randomness|InlineWorker|HandClock",
        re.IGNORECASE,
    )
    assert not [name for name in names if switch.search(wheel.read(name).decode())]
    promise("P36", counted=f"{len(names)} files of the wheel", result="0 test switches")


def test_least_key_length_is_out_of_reach_of_people(wheel: zipfile.ZipFile) -> None:
    """Short keys are an argument that only tests give: no command, setting or start of a server names it."""
    edges = re.compile(r"(^|/|_)(commands|settings|serve|main|demo)\w*\.py$")
    names = [name for name in wheel.namelist() if edges.search(name)]
    assert len(names) >= 5
    assert not [name for name in names if re.search(r"least_(modulus_)?bits", wheel.read(name).decode())]


def test_project_lists_the_same_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(path).name: Path(path).parent.name for path in listed} == PACKAGES


def test_locks_name_no_index_and_pin_everything() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        lines = lock.read_text().splitlines()
        assert not [line for line in lines if re.search(r"https?://|file:/|^-", line)], lock
        names = [line for line in lines if re.match(r"[A-Za-z0-9]", line)]
        assert names
        assert all(re.match(r"[a-z0-9._-]+==\S+( ; .*)? \\$", line) for line in names), lock
