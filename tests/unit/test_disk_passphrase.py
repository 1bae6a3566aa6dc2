"""Passphrases come from files or a terminal, and what is wrong with them is said."""

import getpass
import io
import sys
from pathlib import Path

import pytest

from dpdpca_protocol.errors import AuthenticationError, PolicyError, UsageError
from dpdpca_runtime.identity_files import IdentityFiles
from dpdpca_runtime.passphrase import new_passphrase, read_passphrase, unlock

NAME = "DPDPCA_TEST_FILE"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_is_named_or_stands_in_the_environment(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"correct horse\r\n")
    other.write_bytes(b"battery staple\n")
    assert read_passphrase(one, NAME, {NAME: str(other)}) == b"correct horse"
    assert read_passphrase(None, NAME, {NAME: str(other)}) == b"battery staple"
    assert read_passphrase(None, NAME, {NAME: ""}) is None
    one.write_bytes(b"\n")
    with pytest.raises(PolicyError, match="empty"):
        read_passphrase(one, NAME, {})
    with pytest.raises(UsageError, match="cannot be read"):
        read_passphrase(tmp_path / "none", NAME, {})


def test_a_new_one_is_typed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["correct horse", "correct horse", "a", "b", "", ""]
    monkeypatch.setattr(getpass, "getpass", lambda *_, **__: typed.pop(0))
    assert new_passphrase(None, NAME, ask=False) is None
    assert new_passphrase(None, NAME, ask=True) == b"correct horse"
    for _ in range(2):
        with pytest.raises(PolicyError, match="differ"):
            new_passphrase(None, NAME, ask=True)


def test_sealed_keys_ask_at_a_terminal_and_refuse_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = IdentityFiles(tmp_path)
    assert unlock(files, None, NAME) is None
    files.create(b"correct horse")
    monkeypatch.setattr(getpass, "getpass", lambda *_, **__: "correct horse")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(AuthenticationError, match=NAME):
        unlock(files, None, NAME)
    monkeypatch.setattr(sys, "stdin", Terminal())
    given = unlock(files, None, NAME)
    assert given is not None
    assert files.load(given).former == ()
