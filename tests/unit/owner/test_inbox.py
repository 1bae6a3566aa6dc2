"""What asks for an owner, as its command shows it. The proxy's list is tested with the proxy."""

import json
from pathlib import Path

import httpx
from owner_scene import OwnerCommands
from study_parties import Parties

from dpdpca_protocol.messages.study_messages import ProxyCard


def test_it_says_who_asks_for_what_and_what_the_ledger_says(run: OwnerCommands) -> None:
    address = run.scene.address
    status, out, _ = run("inbox", "--json")
    assert status == 0
    (request,) = json.loads(out)["requests"]
    assert request["address"] == str(address)
    assert request["user"]["name"] == "Institute"
    assert (request["share"], request["chain"], request["refused_by_policy"]) == ("absent", None, [])
    assert request["ledger"]["fits"] is None  # no data set is known yet
    status, out, _ = run("inbox")
    for part in (
        request["title"],
        request["purpose"],
        f"ε = {float(request['epsilon']):.6g}",
        "first contact",
    ):
        assert part in out
    assert f"dpdpca owner review {address}" in out


def test_it_sends_and_spends_nothing(run: OwnerCommands) -> None:
    before = run.scene.desk.home.ledger.read().last
    run("inbox")
    assert {line.split()[0] for line in run.scene.proxy.received} == {"GET"}
    assert run.scene.desk.home.ledger.read().last == before
    assert not run.scene.desk.home.studies()


def test_a_registered_source_tells_whether_the_study_fits(run: OwnerCommands) -> None:
    run("data", "add", "patients", "--data", run.scene.location.data)
    (request,) = json.loads(run("inbox", "--json")[1])["requests"]
    assert (request["ledger"]["data_set"], request["ledger"]["fits"]) == ("patients", True)
    assert "fits your budget (data set 'patients')" in run("inbox")[1]
    policy = run.scene.desk.home.policy_path
    policy.write_text(policy.read_text().replace("epsilon = 10\n", "epsilon = 0.001\n"))
    assert json.loads(run("inbox", "--json")[1])["requests"][0]["ledger"]["fits"] is False
    assert "ABOVE your budget" in run("inbox")[1]


def test_it_follows_the_share(run: OwnerCommands) -> None:
    address, data = str(run.scene.address), run.scene.location.data

    def share() -> str:
        return str(json.loads(run("inbox", "--json")[1])["requests"][0]["share"])

    run.scene.proxy.interfere = lambda request: (
        httpx.Response(500) if request.url.path.endswith("complete") else None
    )
    assert run("join", address, "--data", data, "--yes")[0] != 0
    assert share() == "partial"
    run.scene.proxy.interfere = lambda request: None
    run("join", address, "--data", data, "--yes")
    assert share() == "complete"
    assert "booked already" in run("inbox")[1]
    run("withdraw", address)
    assert share() == "withdrawn"
    run.scene.proxy.state = "closed"
    assert run("inbox")[1] == "no study asks for this owner\n"


def test_a_policy_s_refusal_is_shown(run: OwnerCommands) -> None:
    policy = run.scene.desk.home.policy_path
    policy.write_text(policy.read_text().replace("max_epsilon = 10 ", "max_epsilon = 0.1 "))
    (refused,) = json.loads(run("inbox", "--json")[1])["requests"][0]["refused_by_policy"]
    assert "limit: 0.1" in refused
    assert f"REFUSED: {refused}" in run("inbox")[1]


def test_a_proxy_that_cannot_be_read_does_not_hide_another(
    run: OwnerCommands, parties: Parties, tmp_path: Path
) -> None:
    other = "http://127.0.0.1:8999"
    card = ProxyCard("Other", other, parties.user.public).sign(parties.user)
    run.scene.desk.home.pins.pin_proxy(other, card)
    run.scene.proxy.interfere = lambda request: (
        httpx.Response(404, text="no such page") if request.url.port == 8999 else None
    )
    status, out, err = run("inbox", "--json")
    told = json.loads(out)
    assert status == 1
    assert err
    assert [each["address"] for each in told["requests"]] == [str(run.scene.address)]
    assert [each["address"] for each in told["unread"]] == [other]


def test_a_forged_manifest_is_named_and_never_shown(run: OwnerCommands) -> None:
    def swap(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/manifest"):
            return None
        forged = run.scene.proxy.manifest.encoded.replace(b"Blood", b"Flood")
        assert forged != run.scene.proxy.manifest.encoded
        return httpx.Response(200, content=forged)

    run.scene.proxy.interfere = swap
    status, out, _ = run("inbox", "--json")
    told = json.loads(out)
    assert (status, told["requests"]) == (1, [])
    assert told["unread"][0]["problem"]["type"] == "bad-signature"
    assert "Flood" not in out
