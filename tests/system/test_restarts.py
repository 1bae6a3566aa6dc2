"""Servers that stop, crash and come back between and inside the states of a study: it still ends, once.

Each test has a federation of its own, for it stops what others would be using.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation.processes import wait_for
from federation.records import add_up, draft, patients, write_csv
from federation.world import Federation, Owner, User, federation_in
from promises import Promise

from dpdpca_http.client import ProxyClient
from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.identifiers import StudyId

SLOW_POLL_SECONDS = 4.0
"""Between two looks of the data user's service: time enough to stop it between two of its steps."""


@pytest.fixture
def own_federation(tmp_path: Path) -> Iterator[Federation]:
    with federation_in(tmp_path / "federation") as federation:
        yield federation


def _state(client: ProxyClient, study: StudyId) -> str | None:
    try:
        return client.study(study).state
    except DpdpcaError:
        return None


def _wait(client: ProxyClient, study: StudyId, *states: str) -> None:
    wait_for(lambda: _state(client, study) in states, f"the proxy says {states}", 60.0, 0.05)


def _challenge(client: ProxyClient, study: StudyId) -> bytes | None:
    try:
        return client.count_challenge(study).encoded
    except DpdpcaError:
        return None


def _release(client: ProxyClient, study: StudyId) -> tuple[object, ...]:
    """Everything that the proxy serves of a release."""
    bundle = client.release(study)
    chunk = client.release_chunk(study, 0, 1 << 20)
    return bundle.release, bundle.shares, bundle.transcript, chunk


def _open(federation: Federation, user: User, owners: list[Owner], release: str) -> tuple[StudyId, str]:
    names = [owner.name for owner in owners]
    study = user.create_study(
        draft(release=release, participants=names, min_owners=2, closing="when-complete")
    )
    return StudyId.parse(study), f"{federation.url}/{study}"


def test_masked_study_survives_restarts_at_every_state(
    own_federation: Federation, tmp_path: Path, promise: Promise
) -> None:
    """Proxy and service are stopped or killed after opening, closing, challenge, answer and release."""
    federation = own_federation
    user = federation.new_user("Stubborn Institute", poll_seconds=SLOW_POLL_SECONDS)
    owners, proxy, service = federation.owners(2), federation.proxy, user.service
    client = federation.client(user.key())
    study, address = _open(federation, user, owners, "masked")
    records = [patients(60, seed=11), patients(40, seed=12)]
    files = [write_csv(tmp_path / f"{index}.csv", part) for index, part in enumerate(records)]

    owners[0].join(address, files[0])
    proxy.restart()
    assert owners[0].join(address, files[0])["already"] is True
    service.kill()

    owners[1].join(address, files[1])
    proxy.restart(kill=True)  # closed a moment ago: somewhere in the aggregation, or right after it
    challenge = wait_for(lambda: _challenge(client, study), "the count challenge")
    assert _state(client, study) == "closed"
    proxy.restart(kill=True)
    assert _challenge(client, study) == challenge

    service.start()
    _wait(client, study, "counted", "released")
    service.kill()  # it has answered, and looks again only in some seconds
    proxy.restart(kill=True)  # drawing, releasing, or done
    _wait(client, study, "released")
    before = _release(client, study)
    proxy.restart()
    assert _release(client, study) == before
    assert [kind for kind in _kinds(client, study) if kind == "count"] == ["count"]

    service.start()
    user.wait_state(study.hex(), "fitted", "published")
    service.restart()
    user.wait_state(study.hex(), "published")
    proxy.restart()
    assert _release(client, study) == before
    assert _kinds(client, study) == [
        "manifest", "receipt", "receipt", "closed", "count", "release", "components"
    ]  # fmt: skip

    model = user.ask("user", "result", study.hex())
    assert model["records"] == add_up(records[0]).count + add_up(records[1]).count
    assert user.ask("user", "verify", study.hex())["verified"]
    for owner in owners:
        assert owner.status(address)["included"] is True
        assert owner.ask("owner", "components", address)["components"] == model["components"]
    promise(
        "P7",
        counted="proxy and service stopped or killed in 5 states of a masked study, 9 times",
        result="1 release, read byte for byte the same",
    )


def _kinds(client: ProxyClient, study: StudyId) -> list[str]:
    return [json.loads(event)["body"]["kind"] for event in client.transcript(study)]


def test_joint_study_goes_on_when_everybody_was_away(
    own_federation: Federation, tmp_path: Path, promise: Promise
) -> None:
    """The owners deliver while the service is away; the proxy dies in its release; the service returns."""
    federation = own_federation
    user, owners = federation.new_user("Absent Institute"), federation.owners(2)
    client = federation.client(user.key())
    study, address = _open(federation, user, owners, "joint")
    user.service.stop()
    sizes = (80, 30)
    for index, owner in enumerate(owners):
        owner.join(address, write_csv(tmp_path / f"{index}.csv", patients(sizes[index], seed=21 + index)))
    federation.proxy.restart(kill=True)
    _wait(client, study, "released")
    before = _release(client, study)

    federation.proxy.stop()
    user.service.start()  # nobody answers it yet
    federation.proxy.start()

    user.wait_state(study.hex(), "published")
    assert _release(client, study) == before
    assert user.ask("user", "result", study.hex())["records"] == sum(sizes)
    promise(
        "P7",
        counted="a joint study with its service away, the proxy killed in the release",
        result="1 release, published",
    )


def test_draft_survives_the_death_of_its_key_maker(own_federation: Federation) -> None:
    """Killed at any moment between a draft and an open study, the service makes one study of it."""
    federation = own_federation
    user, owners = federation.new_user("Hasty Institute"), federation.owners(1)
    written = draft(participants=[owners[0].name], min_owners=1)
    file = federation.folder / "draft.json"
    file.write_text(json.dumps(written))
    made = user.ask("user", "study", "create", file)["draft"]
    user.service.restart(kill=True)
    facts = user.wait_state(made, "open")
    listed = user.ask("user", "study", "list")["studies"]
    assert [one["study"] for one in listed] == [facts["study"]]
    assert len(federation.client(user.key()).studies()) == 1


def test_servers_end_well_and_say_when_their_port_is_taken(own_federation: Federation) -> None:
    federation = own_federation
    user = federation.new_user("Displaced Institute")
    for machine, words in ((federation.proxy_machine, ("proxy", "serve")), (user, ("user", "serve"))):
        refused = machine.run(*words, "--port", str(federation.port))
        assert refused.status == 1
        assert f"dpdpca: cannot listen on 127.0.0.1:{federation.port}; choose" in refused.err
        assert "Traceback" not in refused.err
    user.service.stop()  # checks the exit status
    federation.proxy.stop()
