"""How studies end before they have a result, and what may no longer happen once they are closed."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from federation.bare_owner import claim, deliver, make_chunks, upload
from federation.bare_user import BareStudy, BareUser
from federation.checks import assert_release
from federation.processes import wait_for
from federation.records import add_up, draft, patients, write_csv
from federation.world import Federation, tree
from folders import files_below

from dpdpca_protocol.errors import ConflictError

LEAD_SECONDS = 8.0
"""From the signing of a manifest to its closing time: shares of this file are in within a second."""

PATIENTS = patients(50, seed=3)
SUMS = add_up(PATIENTS)


@pytest.fixture(scope="module")
def user(federation: Federation) -> BareUser:
    return BareUser(federation, "Impatient Institute")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("closing") / "patients.csv", PATIENTS)


def _noise_drawn(federation: Federation, study: BareStudy) -> bool:
    """Whether the proxy ever drew noise for a study, by what it has on its disk."""
    with sqlite3.connect(
        f"file:{federation.proxy_home / 'proxy.sqlite3'}?mode=ro", uri=True, timeout=120
    ) as database:
        columns = database.execute(
            "SELECT s.noise_drawn_at, d.token FROM studies s LEFT JOIN draws d ON d.study = s.study"
            " WHERE lower(hex(s.study)) = ? OR s.study = ?",
            (study.id.hex(), study.id.hex()),
        ).fetchall()
    database.close()
    (row,) = columns
    return any(value is not None for value in row)


def _study_files(federation: Federation, study: BareStudy) -> list[str]:
    folder = federation.proxy_home / "studies" / study.id.hex()
    return [str(path) for path in files_below(folder)]


@pytest.mark.parametrize("release", ["joint", pytest.param("masked", marks=pytest.mark.nightly)])
def test_too_few_owners_end_a_study_without_noise(
    federation: Federation, user: BareUser, file: Path, release: str
) -> None:
    owners = federation.owners(3)
    study = user.open_study(owners, closes_in=LEAD_SECONDS, release=release, min_owners=3)
    for owner in owners[:2]:
        deliver(study, owner.key(), SUMS)
    with pytest.raises(ConflictError) as refusal:
        study.close()
    assert refusal.value.slug == "cohort-too-small"
    assert "2 owners have complete shares, but the manifest requires 3" in str(refusal.value)
    assert study.state == "open"
    assert any("/shares/" in name for name in _study_files(federation, study))

    assert study.wait_state("failed", "closed", "released") == "failed"

    facts = user.client.study(study.id)
    assert facts.failure == "too-few-owners"
    assert [event["kind"] for event in study.events()][-1] == "failed"
    assert not _noise_drawn(federation, study)
    wait_for(lambda: not _study_files(federation, study), "the study's files are deleted", 10.0)
    for ask in (study.close, study.cancel, lambda: user.client.release(study.id)):
        with pytest.raises(ConflictError):
            ask()
    status = owners[2].status(study.address)
    assert (status["state"], status["failure"], status["included"]) == ("failed", "too-few-owners", None)
    late = owners[2].run("owner", "join", study.address, "--data", file, "--yes")
    assert late.status == 1
    assert late.err.splitlines() == [
        "dpdpca: the study is failed and accepts no more shares; ask the data user for a new study"
    ]


def test_study_closes_by_itself_in_time(federation: Federation, user: BareUser) -> None:
    owners = federation.owners(2)
    study = user.open_study(owners, closes_in=LEAD_SECONDS, min_owners=1)
    deliver(study, owners[0].key(), SUMS)
    study.wait_state("released")
    closed = next(event for event in study.events() if event["kind"] == "closed")
    assert closed["detail"]["reason"] == "on time"
    assert closed["time"] >= study.signed.statement.body["closes_at"]
    assert_release(study.open_release(), SUMS, study.manifest.figures)
    assert _noise_drawn(federation, study)


def test_closed_study_takes_nothing_more(federation: Federation, user: BareUser, file: Path) -> None:
    owners = [federation.new_owner(f"Closing Hospital {letter}") for letter in "ABC"]
    study = user.open_study(owners, release="masked", min_owners=2)
    owners[0].join(study.address, file)
    deliver(study, owners[1].key(), SUMS)
    study.close()
    study.close()  # saying it twice changes nothing
    before, home = _public_state(study), tree(owners[2].home)

    late = owners[2].run("owner", "join", study.address, "--data", file, "--yes")
    assert late.status == 1
    assert "accepts no more shares" in late.err
    regretted = owners[0].run("owner", "withdraw", study.address, "--yes")
    assert regretted.status == 1
    assert len(regretted.err.splitlines()) == 1
    key = owners[2].key()
    chunks = make_chunks(study, SUMS)
    client = federation.client(key)
    for late_request in (
        lambda: upload(study, key, chunks),
        lambda: client.complete_share(study.id, claim(study, key, chunks)),
    ):
        with pytest.raises(ConflictError) as refusal:
            late_request()
        assert refusal.value.slug == "study-closed"

    assert _public_state(study) == before
    assert not [name for name in tree(owners[2].home).keys() - home.keys() if "chunk" in name]
    assert [owners[0].status(study.address)["included"], owners[2].status(study.address)["included"]] == [
        True,
        False,
    ]
    assert study.answer() == 2 * SUMS.count
    study.wait_state("released")
    with pytest.raises(ConflictError):
        study.cancel()


def _public_state(study: BareStudy) -> tuple[Any, ...]:
    facts = study.user.client.study(study.id)
    return facts.state, facts.owners, facts.cohort, study.user.client.transcript(study.id)


def test_cancelled_study_forgets_its_shares(federation: Federation, file: Path) -> None:
    """Through the data user's own commands and service."""
    user, owner = federation.user, federation.owners(1)[0]
    study = user.create_study(draft(participants=[owner.name], min_owners=1))
    address = f"{federation.url}/{study}"
    owner.join(address, file)
    shares = federation.proxy_home / "studies" / study
    assert tree(shares)

    assert user.ask("user", "study", "cancel", study)["state"] == "cancelled"

    assert not tree(shares)
    assert owner.status(address)["state"] == "cancelled"
    again = user.ask("user", "study", "cancel", study)
    assert again["state"] == "cancelled"
    for words in (("result", study), ("study", "close", study)):
        refused = user.run("user", *words)
        assert refused.status == 1
        assert len(refused.err.splitlines()) == 1
    late = owner.run("owner", "withdraw", address, "--yes")
    assert late.status == 1
    refused = owner.run("owner", "components", address)
    assert refused.status == 1
    time.sleep(1.0)  # two rounds of the service: it must not wake the study again
    assert user.study(study)["state"] == "cancelled"
