"""An owner whose machine has no network takes part in whole studies, from enrolment to components.

Its commands and those of the machine that sends run as processes. By the proxy's own count of requests, only
the machine that sends has spoken to it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from federation.processes import Machine
from federation.records import draft, patients, write_csv
from federation.world import POLICY, Federation, Owner

pytestmark = pytest.mark.system

KINDS = {
    "blinded": {"blinding": "pairwise"},
    "masked": {"release": "masked"},
}


def questions(federation: Federation) -> int:
    """How many questions the proxy has answered that only owners ask."""
    routes = ("/v1/parties/rotations", "/v1/studies/{study}/share")
    return sum(federation.requests("GET", route) for route in routes)


@pytest.fixture(scope="module")
def carrier(federation: Federation) -> Machine:
    """The machine that sends: it has no home and never gets one."""
    return federation._machine("owner", "Courier")


@pytest.fixture(scope="module")
def offline(federation: Federation, carrier: Machine, tmp_path_factory: pytest.TempPathFactory) -> Owner:
    """An owner that has enrolled through a folder."""
    owner = Owner(**vars(federation._machine("owner", "Hospital Offline")))
    owner.ask(*owner.init())
    (owner.home / "policy.toml").write_text(POLICY)
    invitation = owner.home.with_name("offline.invitation")
    invitation.write_text(federation.invitation("owner", owner.name))
    folder = tmp_path_factory.mktemp("stick") / "enrolment"
    enrol = [*owner.enrol(federation.url, invitation), "--to", str(folder)]
    assert owner.ask(*enrol)["contains"] == "questions"
    carrier.ask("owner", "send", folder)
    assert owner.ask(*enrol)["contains"].startswith("enrolment")
    carrier.ask("owner", "send", folder)
    assert owner.ask(*enrol)["party"] == owner.key().public.party_id.hex()
    return owner


@pytest.mark.parametrize("kind", KINDS)
def test_an_owner_without_a_network_takes_part(
    federation: Federation, carrier: Machine, offline: Owner, tmp_path: Path, kind: str
) -> None:
    others = [federation.new_owner(f"Hospital {kind} {number}") for number in range(2)]
    data = [write_csv(tmp_path / f"{seed}.csv", patients(60, seed)) for seed in range(3)]
    names = [offline.name, *(owner.name for owner in others)]
    terms: dict[str, Any] = {
        "participants": names, "min_owners": 3, "closing": "when-complete", "title": f"Study {kind}"
    }  # fmt: skip
    features = [{"name": name, "lower": 0, "upper": 300} for name in ("weight", "age")]
    features[0]["description"] = kind  # so that the two studies share no feature by chance
    study = federation.user.create_study(draft(**terms, **KINDS[kind]))
    address = f"{federation.url}/{study}"
    folder = tmp_path / "stick"
    join: list[str | Path] = ["owner", "join", address, "--data", data[0], "--yes", "--to", folder]

    before = questions(federation)
    assert offline.ask(*join)["contains"] == "questions"
    assert questions(federation) == before
    carrier.ask("owner", "send", folder)
    before = questions(federation)
    assert offline.ask(*join)["contains"] == "share"
    assert questions(federation) == before
    ledger = offline.ask("owner", "ledger")
    assert study in json.dumps(ledger)
    for owner, part in zip(others, data[1:], strict=True):
        owner.join(address, part)
    sent = carrier.ask("owner", "send", folder)
    (receipt,) = sent["receipts"]
    assert (receipt["study"], receipt["version"]) == (study, 1)
    booked = offline.ask(*join)
    assert (booked["version"], booked["receipt_time"]) == (1, receipt["time"])

    federation.user.wait_state(study, "published")
    carrier.ask("owner", "send", folder)
    shown = offline.ask("owner", "components", address, "--to", folder)
    assert shown["components"] == others[0].ask("owner", "components", address)["components"]
    assert offline.ask("owner", "status", address, "--to", folder)["state"] == "published"
    assert not carrier.home.exists()


def test_a_refused_folder_says_what_is_wrong(
    federation: Federation, carrier: Machine, offline: Owner, tmp_path: Path
) -> None:
    missing = carrier.run("owner", "send", tmp_path)
    assert missing.status != 0
    assert "is not a folder of carried requests" in missing.err
    address = f"{federation.url}/{'0' * 64}"
    records = write_csv(tmp_path / "records.csv", patients(5, 1))
    join: list[str | Path] = [
        "owner",
        "join",
        address,
        "--data",
        records,
        "--yes",
        "--to",
        tmp_path / "stick",
    ]
    offline.ask(*join)
    (tmp_path / "stick" / "to-proxy" / "letter.txt").write_text("by another hand")
    altered = carrier.run("owner", "send", tmp_path / "stick")
    assert altered.status != 0
    assert "to-proxy/letter.txt does not belong to the folder" in altered.err
    followed = offline.run(*join, "--follow")
    assert "--to makes none" in followed.err
