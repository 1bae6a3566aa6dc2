"""Bodies of hundreds of megabytes: none is read that could not be of use, and there is room for few."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import numpy as np
import pytest
from proxy_world import OpenStudy, ProxyWorld, slug, values_of, wait_for

from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.result.components import Components, EncodedSpace
from dpdpca_protocol.result.publication import encode_components
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.http import MANIFEST_LIMIT_BYTES
from dpdpca_protocol.wire.sealing import components_info, seal
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.releases import publication_limit
from dpdpca_proxy.store.parties import find_party
from dpdpca_runtime.asgi.limits import LargeBodies
from dpdpca_runtime.http.signature import RequestSigner

MANY = 250 * 1024 * 1024
BEGIN = b'{"body":'


@contextlib.contextmanager
def sending(
    world: ProxyWorld, key: IdentityKey, path: str, framing: int | str, method: str = "PUT"
) -> Iterator[socket.socket]:
    """A request by `key` that declares so many bytes, or is framed otherwise; it sends the first of them."""
    request = httpx.Request(
        method, world.url + path, content=BEGIN, headers={"content-type": "application/json"}
    )
    RequestSigner(key).sign(request, BEGIN, datetime.now(UTC))
    signed = ("content-digest", "content-type", "signature", "signature-input")
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: 127.0.0.1:{world.port}",
        *(f"{name}: {request.headers[name]}" for name in signed),
        f"content-length: {framing}" if isinstance(framing, int) else framing,
    ]
    with socket.create_connection(("127.0.0.1", world.port), timeout=120) as link:
        begin = BEGIN if isinstance(framing, int) else f"{len(BEGIN):x}\r\n".encode() + BEGIN + b"\r\n"
        link.sendall("\r\n".join([*lines, "", ""]).encode() + begin)
        yield link


def answered(world: ProxyWorld, key: IdentityKey, path: str, size: int = MANY) -> str:
    """The type of the refusal that comes while the body is on its way."""
    with sending(world, key, path, size) as link:
        received = b""
        while b"}" not in received:
            piece = link.recv(65536)
            assert piece, received
            received += piece
    return str(json.loads(received.partition(b"\r\n\r\n")[2])["type"]).rpartition(":")[2]


def released(world: ProxyWorld, d: int = 3) -> OpenStudy:
    study = world.open_study(d)
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(d, seed))
    study.close()
    study.wait_state("released")
    return study


def limit_of(study: OpenStudy) -> int:
    proxy = study.world.proxy
    with proxy.database.reading("find user") as connection:
        user = find_party(connection, study.world.user.public.party_id)
    assert user is not None
    return publication_limit(proxy, user, study.study)


def statement_of(study: OpenStudy, space: EncodedSpace) -> bytes:
    """The largest components that the user's software makes of a study, sealed to every owner."""
    ones = np.full(study.d, -1 / 3)
    components = Components(
        space=space,
        count=study.manifest.max_records,
        vectors=np.eye(study.d),
        eigenvalues=ones,
        noise_edges=ones,
        captured=ones,
        signals=ones,
        overlaps=ones,
        noise_scale=1 / 3,
        noise_edge=1 / 3,
        total_variance=1 / 3,
        mean=ones,
    )
    plain, info = encode_components(study.study, components), components_info(study.study)
    sealed = {
        owner.public.party_id: seal(plain, owner.public.sealing_key, info) for owner in study.world.owners
    }
    return SealedComponents(study.study, sealed).sign(study.world.user).encoded


def test_no_byte_is_awaited_where_there_is_nothing_to_publish(world: ProxyWorld) -> None:
    other = IdentityKey.generate()
    world.enrol(other, "user", "Other institute")
    path = f"{world.open_study(3).path}/components"
    assert answered(world, world.user, f"/v1/studies/{'0' * 64}/components") == "not-found"
    assert answered(world, world.user, path) == "not-ready"
    assert answered(world, other, path) == "not-the-study-owner"
    assert answered(world, world.owners[0], path) == "wrong-role"


def test_the_limit_is_that_of_the_study(world: ProxyWorld) -> None:
    study = released(world)
    limit = limit_of(study)
    assert limit < 32_000
    assert answered(world, world.user, f"{study.path}/components", limit + 1) == "too-large"


@pytest.mark.parametrize("d", [1, 40])
def test_the_largest_components_fit(world: ProxyWorld, d: int) -> None:
    letters = ['"' * 60, "\\" * 60, "界" * 60, "plain"]
    features = [{"name": f"{letters[i % 4]}{i}", "lower": 0, "upper": 1} for i in range(d)]
    study = world.open_study(d, features=features, min_owners=3)
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(d, seed))
    study.close()
    study.wait_state("released")
    space = EncodedSpace.of(study.manifest)
    statement, limit = statement_of(study, space), limit_of(study)
    assert len(statement) <= limit <= 1.2 * len(statement) + 20_000
    assert len(statement_of(study, replace(space, common=False))) <= limit
    study.state_opened()
    path = f"{study.path}/components"
    assert world.request(world.user, "PUT", path, statement).status_code == 204
    published = world.request(world.owners[0], "GET", path)
    assert published.content == b'{"components":' + statement + b"}"


@pytest.mark.parametrize(
    "framing",
    [
        MANIFEST_LIMIT_BYTES,
        "transfer-encoding: chunked",
        "content-length: 1\r\ntransfer-encoding: chunked",
    ],
)
def test_a_user_takes_a_quarter_of_the_room_for_statements(world: ProxyWorld, framing: int | str) -> None:
    statement = sign_manifest(world.manifest(3), world.user).encoded
    with contextlib.ExitStack() as held:
        for _ in range(4):
            held.enter_context(sending(world, world.user, "/v1/studies", framing, "POST"))
        time.sleep(0.3)
        response = world.request(world.user, "POST", "/v1/studies", statement)
        assert (response.status_code, slug(response)) == (503, "busy")
        assert response.headers["retry-after"]
    wait_for(lambda: world.request(world.user, "POST", "/v1/studies", statement).status_code == 201)


def test_the_room_for_large_bodies_is_bounded() -> None:
    large = LargeBodies(100, 100)
    with large.room("a", 60), large.room("b", 40):
        for caller, size in (("a", 1), ("c", 1)):
            with pytest.raises(UnavailableError), large.room(caller, size):
                pass
    with pytest.raises(ZeroDivisionError), large.room("a", 100):
        1 / 0  # noqa: B018 # leaves the context by an error
    with large.room("a", 100):
        pass


def test_one_caller_leaves_room_for_others() -> None:
    large = LargeBodies(100, 25)
    with large.room("a", 10), large.room("a", 15), large.room("b", 10):
        with pytest.raises(UnavailableError), large.room("a", 1):
            pass
        with large.room("b", 15):
            pass
