"""Whole studies with traces: every span that leaves a service says what the allow-list allows, and no more.

The exporter is the real one, and so is the receiver. The environment asks for more than the product may send.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from federation.processes import wait_for
from federation.records import draft, patients, write_csv
from federation.world import Federation, Owner, federation_in
from trace_receiver import Received, Receiver, receiving

from dpdpca_runtime.asgi.traces import ATTRIBUTES, METHOD, PHASE, ROUTE, STATUS

ASKS_FOR_MORE = {
    "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
    "OTEL_RESOURCE_ATTRIBUTES": "host.name=ward-seven",
    "OTEL_SERVICE_NAME": "ward-seven",
}
FOREIGN = {"traceparent": f"00-{'1c' * 16}-{'2d' * 8}-01", "baggage": "patient=4711"}
PHASES = {
    "dpdpca-proxy": {"aggregate", "count", "draw", "release"},
    "dpdpca-user": {"key", "count", "fetch", "open"},
}


@dataclass
class World:
    federation: Federation
    receiver: Receiver
    owners: list[Owner]
    studies: list[str]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A masked and a joint study, with traces of both services. Both have ended, and all spans are here."""
    folder = tmp_path_factory.mktemp("traces")
    with receiving() as receiver, federation_in(folder / "federation") as federation:
        more = {**ASKS_FOR_MORE, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        user, proxy = federation.user, federation.proxy
        proxy.environment = {**proxy.environment, **more, "DPDPCA_PROXY_TRACES": receiver.url}
        service = user.service
        service.environment = {**service.environment, **more, "DPDPCA_USER_TRACES": receiver.url}
        proxy.restart()
        service.restart()
        owners = [federation.new_owner(f"Hospital Traced {number}") for number in "123"]
        features = [{"name": name, "lower": 0, "upper": 300} for name in ("weight", "age")]
        terms = {
            "participants": [owner.name for owner in owners],
            "min_owners": 3,
            "closing": "when-complete",
        }
        studies = []
        for release in ("masked", "joint"):
            features[0]["name"] = f"weight {release}"
            features[1]["name"] = f"age {release}"
            study = user.create_study(draft(**terms, features=features, clip_norm="1.4", release=release))
            rows = [
                [{f"{name} {release}": row[name] for name in ("weight", "age")} for row in patients(40, seed)]
                for seed in range(3)
            ]
            for owner, part in zip(owners, rows, strict=True):
                file = folder / f"{owner.home.name}-{release}.csv"
                lines = [",".join(part[0]), *(",".join(str(value) for value in row.values()) for row in part)]
                file.write_text("\n".join(lines) + "\n")
                owner.join(f"{federation.url}/{study}", file)
            user.wait_state(study, "published")
            studies.append(study)
        answer = httpx.get(f"{federation.url}/v1/studies/{studies[0]}", headers=FOREIGN, trust_env=False)
        assert answer.status_code == 401
        service.stop()
        proxy.stop()
        try:
            yield World(federation, receiver, owners, studies)
        finally:
            proxy.start()
            service.start()


def of_requests(spans: list[Received]) -> list[Received]:
    return [each for each in spans if METHOD in each.attributes]


def test_every_span_has_only_what_the_list_allows(world: World) -> None:
    spans = world.receiver.spans
    assert len(spans) > 100
    for each in spans:
        span, told = each.span, each.attributes
        assert told.keys() <= ATTRIBUTES
        assert set(each.resource) == {"service.name", "service.version"}
        assert each.scope == "dpdpca"
        assert not any((span.parent_span_id, span.trace_state, span.links, span.events))
        assert not span.status.message
        assert span.start_time_unix_nano % 1_000_000 == span.end_time_unix_nano % 1_000_000 == 0
        if PHASE in told:
            assert told.keys() == {PHASE}
            assert span.name == f"step {told[PHASE]}"
            assert told[PHASE] in PHASES[str(each.resource["service.name"])]
        else:
            assert told.keys() - {STATUS} == {METHOD, ROUTE}
            assert span.name == f"{told[METHOD]} {told[ROUTE]}"
            assert re.fullmatch(r"unmatched|/[a-z0-9/{}_:.-]*", str(told[ROUTE]))
    assert len({each.span.trace_id for each in spans}) == len(spans)


def test_nothing_else_was_sent_whatever_the_environment_asks_for(world: World) -> None:
    assert world.receiver.paths == {"/v1/traces"}
    sent = b"".join(world.receiver.bodies)
    federation = world.federation
    secrets = {*world.studies, "ward-seven", "Hospital", "127.0.0.1", str(federation.port), "4711"}
    secrets |= {owner.key().public.party_id.hex() for owner in world.owners}
    secrets |= {owner.key().public.ed25519.hex() for owner in world.owners}
    for each in secrets:
        assert each.encode() not in sent, each
        assert not re.fullmatch("[0-9a-f]{64}", each) or bytes.fromhex(each) not in sent


def test_every_step_and_every_request_has_its_span(world: World) -> None:
    for service, phases in PHASES.items():
        told = {each.attributes.get(PHASE) for each in world.receiver.of(service)}
        assert phases <= told
    once = Counter(each.attributes.get(PHASE) for each in world.receiver.of("dpdpca-proxy"))
    assert (once["draw"], once["release"], once["count"]) == (2, 2, 1)
    routes = {each.attributes[ROUTE] for each in of_requests(world.receiver.of("dpdpca-proxy"))}
    assert {"/v1/studies", "/v1/studies/{study}/release", "/v1/studies/{study}/share"} <= routes
    assert of_requests(world.receiver.of("dpdpca-user"))


def test_context_of_strangers_is_ignored(world: World) -> None:
    refused = [each for each in of_requests(world.receiver.spans) if each.attributes.get(STATUS) == 401]
    assert refused
    assert all(each.span.trace_id != bytes.fromhex("1c" * 16) for each in world.receiver.spans)


def test_services_work_while_the_collector_is_away(world: World, tmp_path: Path) -> None:
    """The collector accepts connections and never answers."""
    federation = world.federation
    world.receiver.hold.clear()
    federation.proxy.start()
    federation.user.service.start()
    try:
        features = [{"name": name, "lower": 0, "upper": 300} for name in ("weight", "age")]
        names = [owner.name for owner in world.owners]
        terms = {"participants": names, "min_owners": 3, "closing": "when-complete", "features": features}
        study = federation.user.create_study(draft(**terms, clip_norm="1.4"))
        for seed, owner in enumerate(world.owners):
            file = write_csv(tmp_path / f"{seed}.csv", patients(40, seed))
            owner.join(f"{federation.url}/{study}", file)
        federation.user.wait_state(study, "published")
    finally:
        federation.user.service.stop()
        federation.proxy.stop()
        world.receiver.hold.set()
    wait_for(lambda: federation.proxy.process is None, "the proxy has ended")
