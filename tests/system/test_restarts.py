"""Servers that stop, crash and come back between and inside the states of a study: it still ends, once.

Each test has a federation of its own, for it stops what others would be using.
"""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from federation.processes import wait_for
from federation.records import draft, patients, write_csv
from federation.world import Federation, Owner, User, federation_in
from promises import Promise

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.study import StudyState
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_proxy.leases import StudyLeases
from dpdpca_proxy.proxy import open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_runtime.http.client import ProxyClient

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


def _open(
    federation: Federation, user: User, owners: list[Owner], release: str, **terms: Any
) -> tuple[StudyId, str]:
    names = [owner.name for owner in owners]
    terms = {"release": release, "participants": names, "min_owners": 2, "closing": "when-complete", **terms}
    study = user.create_study(draft(**terms))
    return StudyId.parse(study), f"{federation.url}/{study}"


_WAY = ("open", "closed", "counted", "released", "published")


class Restarts:
    """Ends a role of one study and starts it again, and keeps in which states that was done."""

    def __init__(self, federation: Federation, user: User, study: StudyId) -> None:
        self.servers = {"proxy": federation.proxy, "data user": user.service}
        self.client, self.study = federation.client(user.key()), study
        self.done: set[tuple[str, str]] = set()

    def restart(self, *roles: str, kill: bool = False) -> None:
        """All of them are away at once; when they are back, the study is where it was or goes on."""
        state = self.client.study(self.study).state
        for role in roles:
            server = self.servers[role]
            if server.process is not None:
                server.kill() if kill else server.stop()
        for role in roles:
            self.servers[role].start()
            self.done.add((state, role))
        after = self.client.study(self.study).state
        assert after in (_WAY[_WAY.index(state) :] if state in _WAY else (state,))

    def status(self, owner: Owner, address: str) -> None:
        """An owner's command is a process of its own each time: what it knows comes from its disk."""
        state = self.client.study(self.study).state
        assert owner.status(address)["state"] == state
        self.done.add((state, "owner"))


@contextmanager
def nobody_works_on(federation: Federation, study: StudyId) -> Iterator[None]:
    """By a lease of this process, as if it served the same home: so a state that passes at once stays."""
    leases, over = StudyLeases(open_proxy(load_settings(federation.proxy_home))), threading.Event()
    assert leases.take(study)

    def renew() -> None:
        while not over.wait(1):
            leases.renew()

    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(renew)
        try:
            yield
        finally:
            over.set()
        renewing.result()
    leases.give_back(study)


@pytest.mark.nightly
def test_masked_study_survives_restarts_at_every_state(
    own_federation: Federation, tmp_path: Path, promise: Promise
) -> None:
    federation = own_federation
    user = federation.new_user("Stubborn Institute", poll_seconds=SLOW_POLL_SECONDS)
    owners, service = federation.owners(2), user.service
    client = federation.client(user.key())
    study, address = _open(federation, user, owners, "masked")
    records = [patients(60, seed=11), patients(40, seed=12)]
    files = [write_csv(tmp_path / f"{index}.csv", part) for index, part in enumerate(records)]
    restarts = Restarts(federation, user, study)

    owners[0].join(address, files[0])
    restarts.restart("proxy")
    restarts.restart("data user", kill=True)
    restarts.status(owners[0], address)
    assert owners[0].join(address, files[0])["already"] is True
    service.kill()

    owners[1].join(address, files[1])
    restarts.restart("proxy", kill=True)  # somewhere in the aggregation, or right after it
    challenge = wait_for(lambda: _challenge(client, study), "the count challenge")
    restarts.restart("proxy", kill=True)
    restarts.status(owners[1], address)
    assert _challenge(client, study) == challenge

    with nobody_works_on(federation, study):
        service.start()
        restarts.done.add(("closed", "data user"))
        _wait(client, study, "counted")
        restarts.restart("proxy", "data user", kill=True)
        restarts.status(owners[0], address)
    service.kill()
    _wait(client, study, "released")
    before = _release(client, study)
    restarts.restart("proxy")
    restarts.status(owners[0], address)
    assert _release(client, study) == before
    assert [kind for kind in _kinds(client, study) if kind == "count"] == ["count"]

    restarts.restart("data user")
    user.wait_state(study.hex(), "fitted", "published")
    service.restart()
    user.wait_state(study.hex(), "published")
    restarts.restart("proxy", "data user", kill=True)
    restarts.status(owners[0], address)
    assert _release(client, study) == before
    assert _kinds(client, study) == [
        "manifest", "receipt", "receipt", "closed", "count", "release", "opened", "components"
    ]  # fmt: skip

    model = user.ask("user", "result", study.hex())
    assert model["records"] == len(records[0]) + len(records[1])
    assert user.ask("user", "verify", study.hex())["verified"]
    check_heads(client, study, owners)
    for owner in owners:
        assert owner.status(address)["included"] is True
        assert owner.ask("owner", "components", address)["components"] == model["components"]
    done = restarts.done | _restarts_when_it_is_over(federation, user, owners, files[0])
    assert done == set(product(map(str, StudyState), ("proxy", "data user", "owner")))
    promise(
        "P7",
        counted=f"{len(done)} pairs of state and role, stopped or killed there",
        result=f"{len({state for state, _ in done})} states went on, 1 release, byte for byte the same",
    )


def check_heads(client: ProxyClient, study: StudyId, owners: list[Owner]) -> None:
    """Everybody's newest log entry at the time stands in the release bundle, signed."""
    bundle = client.release(study)
    shares = [verify_statement("share", share).body["log"] for share in bundle.shares]
    ledgers = [{entry["digest"] for entry in owner.ask("owner", "ledger")["entries"]} for owner in owners]
    assert [sum(head in ledger for head in shares) for ledger in ledgers] == [1] * len(owners)
    released = [json.loads(event)["body"] for event in bundle.transcript]
    by_kind = {event["kind"]: event["detail"] for event in released}
    assert {"log"} <= by_kind["count"].keys() & by_kind["release"].keys()


def _restarts_when_it_is_over(
    federation: Federation, user: User, owners: list[Owner], file: Path
) -> set[tuple[str, str]]:
    """Of a cancelled study and one that failed: they stay so, and take nothing more."""
    over: set[tuple[str, str]] = set()
    for state in ("cancelled", "failed"):
        soon = (datetime.now(UTC) + timedelta(seconds=15)).strftime("%Y-%m-%dT%H:%M:%SZ")
        terms = {"closing": "at-time", "closes_at": soon} if state == "failed" else {}
        study, address = _open(federation, user, owners, "joint", **terms)
        owners[0].join(address, file)
        if state == "cancelled":
            user.ask("user", "study", "cancel", study.hex())
        restarts = Restarts(federation, user, study)
        _wait(restarts.client, study, state)
        restarts.restart("proxy", "data user", kill=True)
        restarts.restart("data user", "proxy")
        restarts.status(owners[1], address)
        assert owners[1].run("owner", "join", address, "--data", file, "--yes").status == 1
        assert user.study(study.hex())["state"] == state
        over |= restarts.done
    return over


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
        taken = f"cannot listen on 127.0.0.1:{federation.port}: another program is already listening"
        assert taken in refused.err
        assert "Traceback" not in refused.err
    user.service.stop()  # checks the exit status
    federation.proxy.stop()
