"""Files that people write by hand are read by their byte-order mark, in every role, and else as UTF-8."""

import io
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from given_keys import give_key
from marked_text import NO_TEXT, WRITTEN

from dpdpca_cli import main as cli
from dpdpca_lab.audit.terms import read_terms
from dpdpca_owner.policy import DEFAULT_POLICY, load_policy
from dpdpca_owner.records.open import locate_data, open_source
from dpdpca_owner.records.source import DataLocation
from dpdpca_protocol.errors import InputError, LimitError, MessageError, UsageError
from dpdpca_protocol.terms.features import Feature
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.identity_files import IdentityFiles
from dpdpca_runtime.passphrase import new_passphrase, read_passphrase, unlock
from dpdpca_runtime.text import load_line, load_text
from dpdpca_user.commands.parts import load_draft, read_draft
from dpdpca_user.planning.lint import parse_draft
from dpdpca_user.planning.sample import columns_of_sample, draft_from_sample
from dpdpca_user.service_client import TOKEN_FILE_VARIABLE, find_token

NAME = "DPDPCA_TEST_FILE"
DRAFT = """\
title = "Größe und Gewicht"
purpose = "To see."
participants = "enrolled"
release = "joint"
epsilon = 1
clip_norm = 1
max_records = 5000
[[features]]
name = "Größe"
lower = 0
upper = 1
[[features]]
name = "weight"
lower = 0
upper = 1
"""
STUDY = f"http://127.0.0.1:1/{'0' * 64}"
CSV = "Größe,weight\n" + "".join(f"{i},0.{i}\n" for i in range(1, 9))


@pytest.fixture(params=WRITTEN)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    """written(name, text): the file with this text, in one of the encodings."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_bytes(WRITTEN[request.param](text))
        return path

    return write


class Write:
    """For annotations: what the fixture `written` gives."""

    def __call__(self, name: str, text: str) -> Path:
        raise NotImplementedError  # only a type


def test_drafts(written: Write) -> None:
    plain = parse_draft(DRAFT.encode(), "application/toml")
    assert read_draft(written("draft.toml", DRAFT)) == plain
    assert read_draft(written("draft.json", json.dumps(plain, ensure_ascii=False, indent=1))) == plain
    content, media_type = load_draft(written("draft.toml", DRAFT))
    assert (media_type, content.decode().replace("\r\n", "\n")) == ("application/toml", DRAFT)
    assert read_terms(written("draft.toml", DRAFT)).title == "Größe und Gewicht"


def test_policies(written: Write) -> None:
    path = written("policy.toml", DEFAULT_POLICY.replace("max_epsilon = 10", "max_epsilon = 3"))
    assert load_policy(path).max_epsilon == Fraction(3)


def test_samples(written: Write, tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text(CSV, encoding="utf-8")
    sample = written("sample.csv", CSV)
    assert draft_from_sample(sample) == draft_from_sample(tmp_path / "plain.csv")
    assert columns_of_sample(sample)["weight"] == [float(f"0.{i}") for i in range(1, 9)]


def test_records(written: Write) -> None:
    features = [
        Feature(name, "numeric", Fraction(0), Fraction(9), Fraction(1)) for name in ("Größe", "weight")
    ]
    source = open_source(DataLocation(str(written("records.csv", CSV))), features)
    assert source.names == ("Größe", "weight")
    (columns,) = source.read([0, 1], features, 100)
    np.testing.assert_array_equal(columns, [range(1, 9), [float(f"0.{i}") for i in range(1, 9)]])


def test_tokens_and_addresses(written: Write) -> None:
    with written("token", "abc-123\n").open("rb") as stream:
        assert load_line(stream) == "abc-123"
    assert load_line(io.BytesIO(written("two", "one\ntwo\n").read_bytes())) == "one"
    token = written("token", "open sesame\n")
    assert find_token(None, environment={TOKEN_FILE_VARIABLE: str(token)}) == "open sesame"
    address = written("url", "sqlite:///räume.db\n")
    assert locate_data(None, "SELECT 1", address, None, ".", {}).data == "sqlite:///räume.db"


def test_passphrases_are_what_a_terminal_gives(written: Write, tmp_path: Path) -> None:
    file = written("passphrase", "correct hörse\n")
    assert read_passphrase(file, NAME) == new_passphrase(file, NAME, ask=False) == "correct hörse".encode()
    files = IdentityFiles(tmp_path)
    key = files.create("correct hörse".encode())
    assert files.load(unlock(files, file, NAME)).current.public == key.public


def test_keys_sealed_under_the_bytes_of_a_marked_file_still_open(tmp_path: Path) -> None:
    """As earlier versions took them; rotated keys and study keys go on under the same."""
    file = tmp_path / "passphrase"
    for number, write in enumerate(WRITTEN.values()):
        file.write_bytes(write("correct hörse\n"))
        home = tmp_path / str(number)
        home.mkdir()
        files = IdentityFiles(home)
        key = files.create(file.read_bytes().strip())
        assert unlock(files, file, NAME) == file.read_bytes().strip()
        assert files.load(unlock(files, file, NAME)).current.public == key.public


def test_random_bytes_are_a_passphrase_too(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    for content in (bytes(range(128, 160)), *NO_TEXT.values()):
        file.write_bytes(content)
        assert read_passphrase(file, NAME) == content.strip()


@pytest.mark.parametrize("content", NO_TEXT.values(), ids=NO_TEXT)
def test_what_is_no_text_is_named(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, the file's name in it, status 2; and no line of the file."""
    path = tmp_path / "file.toml"
    path.write_bytes(content)
    for read in (load_text, load_policy, read_draft, read_terms):
        with pytest.raises(UsageError, match="is not text") as refused:
            read(path)
        assert str(path) in str(refused.value)
    with pytest.raises(InputError, match=r"file\.toml is (not CSV|compressed with gzip)"):
        draft_from_sample(path)
    with pytest.raises(UsageError, match="standard input is not text"):
        load_line(io.BytesIO(content))
    monkeypatch.setenv("DPDPCA_USER_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("DPDPCA_OWNER_HOME", str(tmp_path / "owner"))
    for words in (
        ("user", "study", "lint", str(path)),
        ("owner", "review", STUDY, "--query", "SELECT 1", "--data-url-file", str(path)),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(list(words))
        said = capsys.readouterr().err
        assert (left.value.code, said.count("\n"), str(path) in said) == (2, 1, True), said


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(LimitError, match="/dev/zero"):
        load_text(Path("/dev/zero"))


def test_over_http_a_mark_is_no_draft() -> None:
    for name, write in WRITTEN.items():
        if not name.startswith("utf-8") or name.endswith("mark"):
            with pytest.raises(MessageError):
                parse_draft(write(DRAFT), "application/toml")
            with pytest.raises(MessageError):
                parse_draft(write('{"title": "x"}'), "application/json")


def test_a_damaged_key_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key file is no such text: it is as this program wrote it, or it is refused by its name."""
    home = tmp_path / "owner"
    home.mkdir(0o700)
    give_key(home, IdentityKey.generate())
    pem = (home / "identity.pem").read_text()
    (home / "identity.pem").write_bytes(WRITTEN["utf-16-le"](pem))
    with pytest.raises(SystemExit) as left:
        cli.main(["owner", "status", "--home", str(home)])
    said = capsys.readouterr().err
    assert (left.value.code, said.count("\n"), str(home / "identity.pem") in said) == (1, 1, True), said
