"""The proxy's keys under a passphrase, at the command line; and its keys rotated there."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpdpca_cli import main as cli
from dpdpca_protocol.messages.rotation import follow_rotations
from dpdpca_runtime.identity_files import IdentityFiles


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPDPCA_PROXY_HOME", str(tmp_path / "proxy"))
    return tmp_path / "proxy"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["proxy", *words])
    assert isinstance(left.value.code, int)
    return left.value.code


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(*words, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def test_sealed_keys_open_with_their_passphrase_only(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("correct horse\n")
    wrong.write_text("battery staple\n")
    assert run("init", "--passphrase-file", str(right)) == 0
    assert b"ENCRYPTED" in (home / "identity.pem").read_bytes()
    assert run("studies") == 1
    assert "DPDPCA_PROXY_PASSPHRASE_FILE" in capsys.readouterr().err
    monkeypatch.setenv("DPDPCA_PROXY_PASSPHRASE_FILE", str(wrong))
    assert run("studies") == 1
    assert "cannot be decrypted" in capsys.readouterr().err
    assert run("init") == 1
    monkeypatch.setenv("DPDPCA_PROXY_PASSPHRASE_FILE", str(right))
    assert run("studies") == 0
    assert asked(capsys, "init")["new"] is False
    assert asked(capsys, "rotate")["rotations"] == 1
    assert all(b"ENCRYPTED" in pem.read_bytes() for pem in home.rglob("*.pem"))


def test_rotations_add_up(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rotate") == 1
    assert "dpdpca proxy init" in capsys.readouterr().err
    first = asked(capsys, "init")["ed25519"]
    words = [asked(capsys, "rotate")["words"] for _ in range(3)]
    assert len(set(words)) == 3
    keys = IdentityFiles(home).load(None)
    chain = follow_rotations(
        [statement.encoded for statement in keys.rotations], "proxy", bytes.fromhex(first)
    )
    assert chain[-1].identity == keys.current.public
    assert run("rotate") == 0
    assert "Restart the proxy" in capsys.readouterr().out
