"""The owner's command line: exit statuses, one-line errors, JSON, and no answer without a person or --yes."""

import json
from pathlib import Path

import httpx
import pytest
from owner_scene import OwnerCommands

from dpdpca_owner.commands.display import watching
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_runtime.words import fingerprint_words


def test_init_prints_the_words_and_does_not_overwrite(run: OwnerCommands, tmp_path: Path) -> None:
    home = str(tmp_path / "new")
    status, out, _ = run("init", "--name", "Hospital B", "--home", home, "--json")
    assert status == 0
    assert len(json.loads(out)["words"].split()) == 12
    status, out, err = run("init", "--name", "Hospital B", "--home", home)
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert run("init")[0] == 2


def test_a_passphrase_comes_from_a_file(
    run: OwnerCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pass").write_text("correct horse\n", encoding="utf-8")
    home = str(tmp_path / "new")
    assert run("init", "--name", "B", "--home", home, "--passphrase-file", str(tmp_path / "pass"))[0] == 0
    status, _, err = run("status", "--home", home)
    assert status == 1
    assert "--passphrase-file" in err


def test_review_and_join_and_status_and_withdraw(run: OwnerCommands) -> None:
    scene = run.scene
    address, data = str(scene.address), scene.location.data
    status, out, _ = run("review", address, "--data", data, "--json")
    assert (status, json.loads(out)["dry_run"]["records"]) == (0, 40)
    status, out, _ = run("review", address)
    assert status == 0
    assert "Who could read what" in out
    status, out, err = run("join", address, "--data", data)
    assert (status, out) == (2, "")
    assert "--yes" in err
    assert not any(line.startswith("PUT") for line in scene.proxy.received)
    status, out, _ = run("join", address, "--data", data, "--yes", "--json")
    facts = json.loads(out)
    assert (status, facts["already"], facts["version"], facts["records"]) == (0, False, 1, 40)
    status, out, _ = run("join", address, "--data", data, "--yes")
    assert status == 0
    assert "already has this share" in out
    status, out, _ = run("status", address, "--json")
    assert json.loads(out)["receipt"] == {"subject": "share", "version": 1, "time": "2026-01-01T00:00:00Z"}
    status, out, _ = run("status")
    assert "share version 1" in out
    status, out, _ = run("withdraw", address)
    assert (status, "is withdrawn" in out) == (0, True)


def test_status_is_one_when_the_proxy_leaves_this_owner_out(run: OwnerCommands) -> None:
    scene = run.scene
    run("join", str(scene.address), "--data", scene.location.data, "--yes", "--json")
    scene.proxy.close(without_owner=True)
    status, out, err = run("status", str(scene.address))
    assert (status, out) == (1, "")
    assert "lacks the share" in err


def test_enrolling_pins_the_key_and_never_takes_the_invitation_from_the_line(
    run: OwnerCommands, tmp_path: Path
) -> None:
    home, url = str(tmp_path / "new"), "http://127.0.0.1:8080"
    run("init", "--name", "Hospital B", "--home", home)
    status, _, err = run("enrol", url, "--home", home, given="token\n")
    assert status == 2
    assert "--yes" in err
    assert not (tmp_path / "new" / "proxies").exists()
    status, out, _ = run("enrol", url, "--home", home, "--yes", "--json", given="token\n")
    assert status == 0
    assert json.loads(out)["proxy"]["name"] == "Relay"
    (tmp_path / "invitation").write_text("token\n", encoding="utf-16")
    assert run("enrol", url, "--home", home, "--invitation-file", str(tmp_path / "invitation"))[0] == 0
    assert run("enrol", url, "token", "--home", home)[0] == 2


def test_an_enrolment_that_is_refused_pins_nothing(run: OwnerCommands, tmp_path: Path) -> None:
    scene = run.scene
    home = str(tmp_path / "new")
    run("init", "--name", "B", "--home", home)

    def interfere(request: httpx.Request) -> httpx.Response | None:
        if request.method == "POST":
            body = {"type": "urn:dpdpca:problem:invitation-used", "detail": "used before"}
            return httpx.Response(401, json=body)
        return None

    scene.proxy.interfere = interfere
    status, _, err = run("enrol", "http://127.0.0.1:8080", "--home", home, "--yes", given="token\n")
    assert (status, "used before" in err) == (1, True)
    assert not (tmp_path / "new" / "proxies").exists()


def test_a_proxy_with_a_changed_key_is_refused_even_with_yes(run: OwnerCommands) -> None:
    scene = run.scene
    other = scene.parties.user
    card = ProxyCard("Relay", "http://127.0.0.1:8080", other.public).sign(other)
    scene.proxy.interfere = lambda request: (
        httpx.Response(200, content=card.encoded) if request.url.path == "/v1/proxy" else None
    )
    status, _, err = run("enrol", "http://127.0.0.1:8080", "--yes", given="token\n")
    assert status == 1
    assert "another key" in err


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("review", "nonsense"), 2),
        (("review", "http://proxy.example/" + "a" * 64), 2),
        (("join", "ADDRESS"), 2),
        (("join", "ADDRESS", "--data", "/nothing/here.csv", "--yes"), 1),
        (("join", "ADDRESS", "--data", "sqlite:///x.db", "--yes"), 2),
        (("transform", "ADDRESS", "--data", "x.csv"), 2),
        (("components", "ADDRESS"), 1),
        (("nonsense",), 2),
    ],
)
def test_what_does_not_work_is_one_line(run: OwnerCommands, words: tuple[str, ...], status: int) -> None:
    scene = run.scene
    before = sorted(scene.desk.home.path.rglob("*"))
    code, out, err = run(*(str(scene.address) if word == "ADDRESS" else word for word in words))
    assert (code, out) == (status, "")
    assert err.count("\n") == 1
    assert err.startswith("dpdpca: ")
    assert sorted(scene.desk.home.path.rglob("*")) == before


@pytest.mark.parametrize(
    "command",
    ["init", "enrol", "review", "join", "status", "withdraw", "ledger", "components", "transform"],
)
def test_every_command_has_help_with_an_example(run: OwnerCommands, command: str) -> None:
    status, out, _ = run(command, "--help")
    assert status == 0
    assert f"Example: dpdpca owner {command}" in out
    assert "--json" in out


def test_progress_writes_nothing_into_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal stays the only line on stderr where that is no terminal."""
    with watching(10, 1000, quiet=False) as watcher:
        watcher.on_encrypted(10)
        watcher.on_sent(1000)
    assert capsys.readouterr().err == ""


def test_words_of_another_owner_are_compared_and_noted(run: OwnerCommands) -> None:
    scene = run.scene
    words = fingerprint_words(scene.parties.owners[1].public.ed25519)
    status, out, _ = run("trust", str(scene.address), "Hospital B", "--words", words, "--json")
    assert (status, json.loads(out)) == (0, {"name": "Hospital B", "words": words})
    for name, told, reason in (
        ("Hospital B", "some other words", "other words"),
        ("Hospital Z", words, "names no owner"),
    ):
        status, out, err = run("trust", str(scene.address), name, "--words", told)
        assert (status, out) == (1, "")
        assert reason in err
    status, _, err = run("trust", str(scene.address), "Hospital B")
    assert status != 0
    assert "compare words" in err
    status, out, _ = run("review", str(scene.address), "--json")
    assert [each["compared"] for each in json.loads(out)["participants"]] == [False, True, False]
