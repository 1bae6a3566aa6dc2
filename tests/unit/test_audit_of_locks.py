"""`make audit`: a known vulnerability fails, and what could not be asked does not pass for asked."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_of_locks", ROOT / "requirements" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def auditor(folder: Path, says: Any, status: int) -> list[str]:
    """A program that answers like pip-audit."""
    file = folder / "auditor.py"
    text = says if isinstance(says, str) else json.dumps(says)
    file.write_text(f"import sys\nprint({text!r})\nsys.exit({status})\n")
    return [sys.executable, str(file)]


FLAW = {"id": "PYSEC-1", "fix_versions": ["2.0"], "aliases": [], "description": "bad"}
SOUND = {"name": "sound", "version": "1.0", "vulns": []}


def test_a_known_vulnerability_fails(
    audit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flawed = {"name": "flawed", "version": "1.0", "vulns": [FLAW]}
    assert audit.main(tmp_path, auditor(tmp_path, {"dependencies": [SOUND, flawed]}, 1)) == 1
    assert "flawed 1.0 has PYSEC-1, mended in 2.0" in capsys.readouterr().out


def test_nothing_known_passes(audit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main(tmp_path, auditor(tmp_path, {"dependencies": [SOUND]}, 0)) == 0
    shown = capsys.readouterr().out
    assert "1 packages, 0 known" in shown
    assert "NOT AUDITED" not in shown


UNKNOWN = '{"dependencies": [{"name": "a", "skip_reason": "not found"}]}'


@pytest.mark.parametrize("says", ["", "connection refused", "[]", '{"other": 1}', UNKNOWN])
def test_what_could_not_be_asked_is_said(
    audit: ModuleType, tmp_path: Path, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(tmp_path, auditor(tmp_path, says, 1)) == 0
    assert capsys.readouterr().out.count("NOT AUDITED") == 2
    assert audit.main(tmp_path, [str(tmp_path / "no such program")]) == 0
    assert capsys.readouterr().out.count("NOT AUDITED") == 2
