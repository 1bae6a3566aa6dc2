"""Each secret of the product made public or constant: some test notices each time."""

import json
from pathlib import Path

import pytest
from mutants import run_alone
from secret_mutants import SECRETS, mutants, places_in

SMALL = '''
"""Text."""
import secrets
from dpdpca_protocol.randomness import OS_RANDOMNESS

def passed(count, randomness=OS_RANDOMNESS):
    """More text."""
    return [randomness.bytes(count), other(randomness, OS_RANDOMNESS)]

def named():
    return secrets.token_hex(4) + secrets.token_urlsafe(8)

def keyed(key, study):
    return sha256(b"tag" + key + study)
'''


def test_every_source_and_every_use_of_a_key_is_found() -> None:
    assert places_in(SMALL) == ["passed", "named", "sha256(key)"]
    assert places_in("import secrets\nNUMBER = secrets.randbelow(9)\n") == [""]


def test_one_draw_is_made_public_and_the_others_stay() -> None:
    made = [list(mutants(SMALL, name)) for name in places_in(SMALL)]
    assert list(map(len, made)) == [3, 2, 1]
    (given, drawn, passed), (hexadecimal, url), (keyed,) = made
    assert "def passed(count, randomness=_GIVEN)" in given
    assert "randomness = _Public() if randomness is _GIVEN else randomness" in given
    assert "[randomness.bytes(count), other(randomness, OS_RANDOMNESS)]" in given
    assert "[_public.bytes(count), other(randomness, OS_RANDOMNESS)]" in drawn
    assert "[randomness.bytes(count), other(randomness, _Public())]" in passed
    assert "'00' * 4 + secrets.token_urlsafe(8)" in hexadecimal
    assert "secrets.token_hex(4) + 'A' * 8" in url
    assert "sha256(b'tag' + bytes(len(key)) + study)" in keyed
    for other in (hexadecimal, url, keyed):
        assert "[randomness.bytes(count), other(randomness, OS_RANDOMNESS)]" in other
    for other in (given, drawn, passed, keyed):
        assert "secrets.token_hex(4) + secrets.token_urlsafe(8)" in other


@pytest.mark.nightly
def test_some_test_notices_when_a_secret_is_public(tmp_path: Path) -> None:
    ran = run_alone("secret_mutants.py", str(tmp_path / "found.json"), seconds=3600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == dict.fromkeys(SECRETS, "noticed"), ran.stdout
