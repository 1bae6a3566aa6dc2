"""`--to FOLDER` and `dpdpca owner send`, as people use them."""

import json
from functools import partial
from pathlib import Path

import httpx
import pytest
from carried import ONCE, TOY_BITS
from memory_proxy import URL
from owner_scene import OwnerCommands

from dpdpca_owner import carrying, sending
from dpdpca_owner.accounts.charge import SpendState
from dpdpca_owner.home import OwnerHome
from dpdpca_owner.package import Package
from dpdpca_protocol.paillier.keys import KeyRules


@pytest.fixture
def folder(run: OwnerCommands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder whose machine that sends reaches the proxy in memory."""
    transport = httpx.MockTransport(run.scene.proxy.answer)
    monkeypatch.setattr(carrying, "carrying", partial(carrying.carrying, key_rules=KeyRules(TOY_BITS)))
    monkeypatch.setattr(sending, "send", partial(sending.send, transport=transport, patience=ONCE))
    return tmp_path / "stick"


def join_words(run: OwnerCommands, folder: Path, *more: str) -> list[str]:
    return [
        "join",
        str(run.scene.address),
        "--data",
        str(run.scene.location.data),
        "--yes",
        "--to",
        str(folder),
        *more,
    ]


def state_of(run: OwnerCommands) -> SpendState | None:
    spend = run.scene.desk.home.ledger.read().spend(run.scene.address.study)
    return None if spend is None else spend.state


def test_each_command_says_what_is_next(run: OwnerCommands, folder: Path) -> None:
    status, out, _ = run(*join_words(run, folder))
    assert status == 0
    assert "contains the questions to the proxy; nothing of your records is in it" in out
    assert f"dpdpca owner send {folder.name}" in out
    status, out, _ = run("send", str(folder))
    assert status == 0
    assert f"next: carry {folder} back" in out
    status, out, _ = run(*join_words(run, folder))
    assert status == 0
    assert f"the share is in {folder}; it counts once the proxy has it" in out
    status, out, _ = run("send", str(folder))
    assert status == 0
    assert "receipt for a share: version 1" in out
    assert "the components are not published yet" in out
    status, out, _ = run(*join_words(run, folder))
    assert status == 0
    assert "the proxy has the share: version 1" in out
    assert state_of(run) is SpendState.COMMITTED
    about = (folder / "README.txt").read_text()
    assert "dpdpca owner send FOLDER" in about


def test_programs_read_the_same_facts(run: OwnerCommands, folder: Path) -> None:
    words, study = join_words(run, folder, "--json"), run.scene.address.study.hex()
    told = []
    for command in (words, ["send", str(folder), "--json"], words, ["send", str(folder), "--json"], words):
        status, out, _ = run(*command)
        assert status == 0
        told.append(json.loads(out))
    assert told[0] == {"study": study, "carry": str(folder), "contains": "questions"}
    assert told[1]["sent"] == 0
    assert told[2] == {"study": study, "carry": str(folder), "contains": "share"}
    assert told[3]["receipts"] == [
        {"study": study, "subject": "share", "version": 1, "time": told[4]["receipt_time"]}
    ]
    assert told[4]["version"] == 1


def test_status_books_the_receipt_too(run: OwnerCommands, folder: Path) -> None:
    for command in (
        join_words(run, folder),
        ["send", str(folder)],
        join_words(run, folder),
        ["send", str(folder)],
    ):
        assert run(*command)[0] == 0
    status, out, err = run("status", str(run.scene.address), "--to", str(folder))
    assert status == 0, err
    assert "the folder brought the receipt for a share" in err
    assert "open" in out
    assert state_of(run) is SpendState.COMMITTED


def test_a_question_without_an_answer_is_an_error_that_says_so(run: OwnerCommands, folder: Path) -> None:
    for words in (("review",), ("status",), ("components",)):
        status, _, err = run(*words, str(run.scene.address), "--to", str(folder))
        assert status != 0
        assert "does not contain the proxy's answer yet" in err


def test_what_needs_a_connection_is_refused(run: OwnerCommands, folder: Path) -> None:
    status, _, err = run(*join_words(run, folder, "--follow"))
    assert status != 0
    assert "join each round with --to" in err
    for words in (
        ["status", "--to", str(folder)],
        ["status", str(run.scene.address), "--offline", "--to", str(folder)],
    ):
        status, _, err = run(*words)
        assert status != 0
        assert "--to is for one study" in err
    assert not folder.exists()


def test_a_share_on_its_way_is_not_withdrawn(run: OwnerCommands, folder: Path) -> None:
    withdraw = ["withdraw", str(run.scene.address), "--yes", "--to", str(folder)]
    for command in (join_words(run, folder), ["send", str(folder)], join_words(run, folder)):
        assert run(*command)[0] == 0
    before = Package.load(folder).requests
    status, _, err = run(*withdraw)
    assert status != 0
    assert "destroy all copies" in err
    assert Package.load(folder).requests == before
    assert run("send", str(folder))[0] == 0
    status, out, _ = run(*withdraw)
    assert status == 0
    assert "the withdrawal is in" in out
    assert run("send", str(folder))[0] == 0
    status, out, _ = run(*withdraw)
    assert status == 0
    assert "withdrawn" in out
    assert run.scene.proxy.share_state == "withdrawn"


def test_an_owner_enrols_through_a_folder(
    run: OwnerCommands, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "new"
    monkeypatch.setenv("DPDPCA_OWNER_HOME", str(home))
    assert run("init", "--name", "Hospital N")[0] == 0
    token = tmp_path / "token"
    token.write_text("ab" * 32)
    token.chmod(0o600)
    enrol = ["enrol", URL, "--invitation-file", str(token), "--yes", "--to", str(folder)]
    status, out, _ = run(*enrol)
    assert (status, "the questions" in out) == (0, True)
    assert OwnerHome(home).pins.proxy_urls() == []
    assert run("send", str(folder))[0] == 0
    status, out, _ = run(*enrol)
    assert (status, "the enrolment with its invitation is in" in out) == (0, True)
    (body,) = (folder / "to-proxy").iterdir()
    assert body.stat().st_mode & 0o077 == 0
    assert run("send", str(folder))[0] == 0
    status, out, _ = run(*enrol)
    assert (status, "is now enrolled at Relay" in out) == (0, True)
    assert OwnerHome(home).pins.proxy_urls() == [URL]
    assert run.scene.proxy.received.count("POST /v1/parties") == 1
