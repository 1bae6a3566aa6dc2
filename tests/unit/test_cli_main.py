"""The command `dpdpca`: exit statuses, one line an error, lazy parts."""

import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import typer

from dpdpca_cli import main as cli
from dpdpca_protocol.errors import PolicyError, UsageError


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.fixture
def owner_that(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """A stand-in for the owner's commands, to which a test adds one that does what it wants."""
    app = typer.Typer()
    module = types.ModuleType("pretend_owner")
    module.app = app  # type: ignore[attr-defined]  # a module made by hand
    monkeypatch.setitem(sys.modules, "pretend_owner", module)
    monkeypatch.setitem(cli.PARTS, "owner", cli.Part("pretend", ("pretend_owner",), "owner"))
    return app


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (
            PolicyError("manifest-refused", "the manifest says no", "ask for another"),
            1,
            "no; ask for another",
        ),
        (UsageError("wrong-order", "not like this"), 2, "not like this"),
        (ModuleNotFoundError("no", name="fastapi"), 1, "pip install '.[owner]'"),
        (ModuleNotFoundError("no", name="fcntl"), 1, "this Python lacks the standard module fcntl"),
        (PermissionError(13, "Permission denied", "f"), 1, "Permission denied (f)"),
        (OSError(28, "No space left", "f"), 1, "No space left (f); free disk space and try again"),
        (OSError(30, "Read-only", "f"), 1, "Read-only (f); make this path writable, or choose another one"),
        (ValueError("secret 4711"), 1, "unexpected internal error (ValueError)"),
        (PolicyError("x", "two\nlines \x1b[31mred"), 1, "two lines  [31mred"),
        (typer.Abort(), 1, "stopped"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_every_failure_is_one_line_and_a_status(
    owner_that: typer.Typer, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
) -> None:
    @owner_that.command("act")
    def act() -> None:
        raise error

    assert run(["owner", "act"]) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") <= 1
    assert line in shown.err
    assert "4711" not in shown.err
    assert "\x1b" not in shown.err


def test_no_command_leaves_an_image_of_its_memory(tmp_path: Path) -> None:
    """Owners' commands hold keys, passphrases and records: one that is aborted writes no core file.

    Where the system hands cores to a program, no limit of a process holds it back: that one is not dumpable.
    """
    program = (
        "import ctypes, os, resource, sys, types, typer; from dpdpca_cli import main\n"
        "hard = resource.getrlimit(resource.RLIMIT_CORE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))\n"
        "app = typer.Typer(); app.callback()(lambda: None)\n"
        "@app.command('act')\n"
        "def act():\n"
        "    print(resource.getrlimit(resource.RLIMIT_CORE), *dumpable(), flush=True); os.abort()\n"
        "def dumpable():\n"
        "    return [ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)] if sys.platform == 'linux' else [0]\n"
        "sys.modules['pretend'] = module = types.ModuleType('pretend'); module.app = app\n"
        "main.PARTS['owner'] = main.Part('pretend', ('pretend',), 'owner')\n"
        "main.main(['owner', 'act'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "(0, 0) 0\n")
    assert list(tmp_path.iterdir()) == []


def test_log_lines_of_a_service_are_no_output_of_a_command() -> None:
    """Where nobody says where log lines go, Python writes them to stderr, bare."""
    program = (
        "import logging, sys, types, typer; from dpdpca_cli import main\n"
        "app = typer.Typer(); app.callback()(lambda: None)\n"
        "app.command('act')(lambda: logging.getLogger('dpdpca.store').error('database'))\n"
        "sys.modules['pretend'] = module = types.ModuleType('pretend'); module.app = app\n"
        "main.PARTS['owner'] = main.Part('pretend', ('pretend',), 'owner')\n"
        "main.main(['owner', 'act'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_debug_shows_the_traceback_wherever_it_stands(owner_that: typer.Typer) -> None:
    @owner_that.command("act")
    def act() -> None:
        raise PolicyError("no", "no")

    for arguments in (["--debug", "owner", "act"], ["owner", "act", "--debug"]):
        with pytest.raises(PolicyError):
            cli.main(arguments)


@pytest.mark.parametrize("arguments", [["nonsense"], ["version", "--wrong"], []])
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "--help" in capsys.readouterr().err


def test_the_overview_loads_no_part() -> None:
    program = (
        "import sys; from dpdpca_cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in"
        " {'dpdpca_owner', 'dpdpca_proxy', 'dpdpca_user', 'numpy', 'pyarrow', 'httpx', 'sqlalchemy'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "owner" in done.stdout
