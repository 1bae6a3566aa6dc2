"""Requests that arrive for another address, as behind a reverse proxy that changes the Host header."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from federation.relay import Relay, relaying
from proxy_world import ProxyWorld, dump, free_port, slug

from dpdpca_owner.actions import enrol, make_desk
from dpdpca_owner.home import OwnerHome
from dpdpca_protocol.errors import AuthenticationError
from dpdpca_proxy.enrolment import invite
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience


@pytest.fixture
def relay_port(stopped_world: ProxyWorld) -> int:
    port = free_port()
    stopped_world.settings["also_known_as"] = [f"localhost:{port}"]
    return port


@pytest.fixture
def world(stopped_world: ProxyWorld, relay_port: int) -> ProxyWorld:
    """As clients know it behind a reverse proxy on the relay's port."""
    stopped_world.start()
    stopped_world.enrol_all()
    return stopped_world


@pytest.fixture
def relay(world: ProxyWorld, relay_port: int) -> Iterator[Relay]:
    with relaying(relay_port, world.port) as relay:
        yield relay


def refusal_at(url: str, world: ProxyWorld, signed: bool) -> AuthenticationError:
    with (
        ProxyClient(url, world.user, world.proxy_key, patience=Patience(0)) as client,
        pytest.raises(AuthenticationError) as refused,
    ):
        client.parties() if signed else client.card()
    return refused.value


@pytest.mark.parametrize("signed", [False, True])
def test_a_host_that_lost_its_port_is_explained(
    world: ProxyWorld, relay: Relay, relay_port: int, signed: bool
) -> None:
    """nginx with `proxy_set_header Host $host` on another port than that of https."""
    relay.host = lambda host: host.partition(":")[0]
    error = refusal_at(f"http://localhost:{relay_port}", world, signed)
    assert error.slug == "wrong-address"
    assert error.problem.startswith(
        f"this machine used the address localhost:{relay_port}; the proxy answered: the request is"
        f" addressed to localhost, but this service is known as 127.0.0.1:{world.port}, "
    )
    assert error.problem.endswith("is missing")
    assert "nginx: proxy_set_header Host $http_host" in error.next_step
    assert "add localhost to also_known_as (DPDPCA_PROXY_ALSO_KNOWN_AS)" in error.next_step


def test_a_host_that_was_changed_to_another_known_one_is_explained(
    world: ProxyWorld, relay: Relay, relay_port: int
) -> None:
    relay.host = lambda host: f"127.0.0.1:{world.port}"  # nginx without a word about Host
    error = refusal_at(f"http://localhost:{relay_port}", world, signed=True)
    assert error.slug == "wrong-address"
    assert f"signed for localhost:{relay_port} but arrived for 127.0.0.1:{world.port}" in error.problem


def test_a_host_that_is_passed_on_is_fine(world: ProxyWorld, relay: Relay, relay_port: int) -> None:
    with ProxyClient(f"http://LOCALHOST:0{relay_port}", world.user, world.proxy_key) as client:
        assert client.parties()


def enrol_owner(world: ProxyWorld, folder: Path, url: str) -> list[str]:
    """Enrols a new owner as its command does; the notes that a person sees."""
    token, notes = invite(world.proxy, "owner", "Hospital Z").token, list[str]()
    home = OwnerHome(folder / "owner")
    home.create("Hospital Z", None)
    enrol(make_desk(home, home.load(), None, say=notes.append), url, lambda: token, lambda card, known: True)
    return notes


def test_an_enrolment_behind_such_a_reverse_proxy_is_refused_at_once(
    world: ProxyWorld, relay: Relay, relay_port: int, tmp_path: Path
) -> None:
    relay.host = lambda host: host.partition(":")[0]
    url = f"http://localhost:{relay_port}"
    with pytest.raises(AuthenticationError, match="the request is addressed to localhost, but"):
        enrol_owner(world, tmp_path, url)
    assert [path for _, path in relay.seen] == ["/v1/proxy"]
    assert OwnerHome(tmp_path / "owner").pins.proxy_urls() == []
    # One that began before the reverse proxy was changed gets no further.
    with (
        ProxyClient(url, world.user, world.proxy_key) as client,
        pytest.raises(AuthenticationError) as refused,
    ):
        client.enrol("owner", "Hospital Z", invite(world.proxy, "owner", "Hospital Z").token)
    assert refused.value.slug == "wrong-address"


def test_an_enrolment_under_another_known_address_says_so(world: ProxyWorld, tmp_path: Path) -> None:
    (note,) = enrol_owner(world, tmp_path, f"http://LOCALHOST:{world.port}/")
    assert f"announces the address http://127.0.0.1:{world.port}, but it also answers at" in note
    assert OwnerHome(tmp_path / "owner").pins.proxy_urls() == [f"http://localhost:{world.port}"]


def routes(world: ProxyWorld) -> list[tuple[str, str]]:
    paths = httpx.get(f"{world.url}/openapi.json", trust_env=False).json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def test_every_route_is_for_this_proxy_alone(world: ProxyWorld) -> None:
    before = dump(world.proxy)
    asked = 0

    def elsewhere(request: httpx.Request) -> None:
        request.headers["host"] = "elsewhere.example"

    for method, path in routes(world):
        for name in ("study", "party"):
            path = path.replace(f"{{{name}}}", "ab" * 32)
        path = path.replace("{position}", "0")
        body = None if method == "GET" else b"{}"
        for key in (None, world.owners[0], world.user):
            answer = world.request(key, method, path, body, change=elsewhere)
            if path.startswith("/v1/"):
                assert (answer.status_code, slug(answer)) == (421, "wrong-address"), (method, path)
                asked += 1
            else:
                assert answer.status_code == 200, (method, path)  # health is for load balancers, too
    assert asked > 60
    assert dump(world.proxy) == before


@pytest.mark.parametrize("path", ["/dpdpca/v1/proxy", "/a/b/v1/parties", "/x/v1/studies/y"])
def test_a_path_prefix_is_refused_in_words(world: ProxyWorld, path: str) -> None:
    answer: Any = world.request(world.user, "GET", path)
    assert (answer.status_code, slug(answer)) == (404, "not-found")
    assert "it has a prefix before /v1/" in answer.json()["detail"]
    assert "location /" in answer.json()["next_step"]


def test_other_paths_have_no_prefix(world: ProxyWorld) -> None:
    for path in ("/v1/nothing", "/v1/nothing/v1/here", "/nothing"):
        assert "prefix" not in world.request(world.user, "GET", path).json()["detail"]
