"""Sources of records that are registered once, and used by their name."""

import json
from pathlib import Path

import pytest
from owner_scene import OwnerCommands


@pytest.fixture
def records(run: OwnerCommands) -> str:
    return run.scene.location.data


def test_a_source_is_registered_listed_and_removed(run: OwnerCommands, records: str) -> None:
    status, out, _ = run("data", "add", "patients", "--data", records, "--dataset", "people", "--json")
    kept = json.loads(out)
    assert (status, kept["name"], kept["data"], kept["data_set"]) == (0, "patients", records, "people")
    assert run("data", "add", "patients", "--data", records, "--dataset", "people")[0] == 0
    assert json.loads(run("data", "list", "--json")[1]) == {"sources": [kept]}
    assert "patients" in run("data", "list")[1]
    assert run("data", "remove", "patients")[0] == 0
    assert run("data", "list")[1] == "no source of records is registered\n"
    assert Path(records).exists()


def test_a_name_stands_for_one_source(run: OwnerCommands, records: str) -> None:
    run("data", "add", "patients", "--data", records)
    status, _, err = run("data", "add", "patients", "--data", records, "--decimal", ",")
    assert status == 1
    assert "another source is registered as 'patients'" in err
    assert json.loads(run("data", "list", "--json")[1])["sources"][0]["decimal"] == "."


@pytest.mark.parametrize("name", ["", "../up", "Patients", "a/b", ".hidden", "a" * 65])
def test_other_names_are_refused(run: OwnerCommands, records: str, name: str) -> None:
    assert "lower-case letters" in run("data", "add", name, "--data", records)[2]
    assert not (run.scene.desk.home.path / "sources").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--data", "/nowhere/at/all.csv"], "no file or folder /nowhere/at/all.csv"),
        (["--data", "postgresql://u:secret@host/db", "--query", "SELECT 1"], "command line"),
        (["--data", "postgresql://host/db"], "needs a query"),
        ([], "no data is given"),
    ],
)
def test_what_cannot_be_a_source_is_refused(run: OwnerCommands, words: list[str], problem: str) -> None:
    status, _, err = run("data", "add", "patients", *words)
    assert status != 0
    assert problem in err
    assert "secret" not in err
    assert json.loads(run("data", "list", "--json")[1]) == {"sources": []}


def test_a_folder_of_parts_and_a_query_are_sources(
    run: OwnerCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts").mkdir()
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("data", "add", "parts", "--data", "parts", "--json")[1])["data"] == str(
        tmp_path / "parts"
    )
    (tmp_path / "url.txt").write_text("sqlite:///people.db\n")
    query = ["--data-url-file", "url.txt", "--query", "SELECT * FROM people"]
    kept = json.loads(run("data", "add", "base", *query, "--json")[1])
    assert (kept["url_file"], kept["query"]) == (str(tmp_path / "url.txt"), "SELECT * FROM people")
    file = run.scene.desk.home.path / "sources" / "source-base.json"
    assert "people.db" not in file.read_text()


def test_review_and_join_take_the_source_and_its_data_set(run: OwnerCommands, records: str) -> None:
    address = str(run.scene.address)
    run("data", "add", "patients", "--data", records)
    status, out, _ = run("review", address, "--source", "patients", "--json")
    sheet = json.loads(out)
    assert (status, sheet["dry_run"]["records"], sheet["ledger"]["data_set"]) == (0, 40, "patients")
    status, out, _ = run("join", address, "--source", "patients", "--yes", "--json")
    assert (status, json.loads(out)["records"]) == (0, 40)
    assert run.scene.desk.home.ledger.read().data_sets == ("patients",)


def test_the_policy_s_data_set_comes_before_the_source_s_name(run: OwnerCommands, records: str) -> None:
    """Else a name chosen for convenience would open a second budget for the same people."""
    policy = run.scene.desk.home.policy_path
    policy.write_text(policy.read_text().replace('# dataset = "patients"', 'dataset = "everybody"'))
    run("data", "add", "extract-2026", "--data", records)
    run("join", str(run.scene.address), "--source", "extract-2026", "--yes")
    assert run.scene.desk.home.ledger.read().data_sets == ("everybody",)


def test_a_source_stands_alone(run: OwnerCommands, records: str) -> None:
    run("data", "add", "patients", "--data", records)
    for words in (["--data", records], ["--dataset", "others"], ["--decimal", ","]):
        status, _, err = run("join", str(run.scene.address), "--source", "patients", *words, "--yes")
        assert status == 2
        assert "use --source alone" in err
    assert (
        "no source of records is registered as 'others'"
        in run("join", str(run.scene.address), "--source", "others", "--yes")[2]
    )
    assert not any(line.startswith("PUT") for line in run.scene.proxy.received)
