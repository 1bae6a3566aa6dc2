"""Raw sockets against a running proxy: slow, silent, greedy, garbled. Only the deadlines are shortened."""

import contextlib
import random
import socket
import time
from collections.abc import Iterator

import pytest
from proxy_world import OpenStudy, ProxyWorld, dump, values_of

from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_runtime.asgi import limits

SECONDS = 0.6
IN_TIME = 9.0
"""Before the limits that the product has itself, which are 10 s or more, however busy this machine is."""


@pytest.fixture
def hasty(world: ProxyWorld, monkeypatch: pytest.MonkeyPatch) -> ProxyWorld:
    for name in ("HEAD_SECONDS", "BODY_GRACE_SECONDS", "UNDECLARED_BODY_SECONDS"):
        monkeypatch.setattr(limits, name, SECONDS)
    return world


@contextlib.contextmanager
def connected(world: ProxyWorld) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", world.port), timeout=120) as link:
        yield link


def answer(link: socket.socket) -> bytes:
    """All that comes until the proxy hangs up."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := link.recv(65536):
            received += piece
    return received


def closed_after(link: socket.socket) -> float:
    begin = time.monotonic()
    answer(link)
    return time.monotonic() - begin


def head(world: ProxyWorld, *lines: str, method: str = "POST", path: str = "/v1/parties") -> bytes:
    host = f"host: 127.0.0.1:{world.port}"
    return "\r\n".join([f"{method} {path} HTTP/1.1", host, *lines, "", ""]).encode()


def trickle(link: socket.socket, byte: bytes = b"x") -> float:
    """One byte every 50 ms until the proxy cuts it off; the seconds that it took."""
    begin = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - begin < 10:
            link.sendall(byte)
            link.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                if link.recv(4096) == b"":
                    break
    return time.monotonic() - begin


def test_a_silent_connection_is_cut_off(hasty: ProxyWorld) -> None:
    with connected(hasty) as link:
        assert closed_after(link) < IN_TIME


def test_a_trickled_head_is_cut_off(hasty: ProxyWorld) -> None:
    with connected(hasty) as link:
        link.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
        assert SECONDS / 2 < trickle(link) < IN_TIME


def test_a_trickled_body_is_cut_off(hasty: ProxyWorld) -> None:
    with connected(hasty) as link:
        link.sendall(head(hasty, "content-type: application/json", "content-length: 100"))
        assert SECONDS / 2 < trickle(link) < IN_TIME


def test_a_body_of_undeclared_length_is_cut_off(hasty: ProxyWorld) -> None:
    with connected(hasty) as link:
        link.sendall(head(hasty, "content-type: application/json", "transfer-encoding: chunked"))
        assert trickle(link, b"1\r\nx\r\n") < IN_TIME


def test_a_second_request_has_a_deadline_too(hasty: ProxyWorld) -> None:
    with connected(hasty) as link:
        link.sendall(head(hasty, method="GET", path="/healthz"))
        assert b"200 OK" in link.recv(65536)
        link.sendall(b"GET /heal")
        assert trickle(link) < IN_TIME


def test_an_answer_that_nobody_reads_is_cut_off(hasty: ProxyWorld) -> None:
    """Pipelined requests whose answers fill the socket: the proxy stops waiting for the reader."""
    with connected(hasty) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = head(hasty, method="GET", path="/openapi.json")
        deadline = time.monotonic() + 40
        link.settimeout(0.2)
        sent = 0
        while time.monotonic() < deadline:
            try:
                link.sendall(request)
                sent += 1
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() < deadline, "the proxy kept the connection"
        assert sent > 5


def test_a_declared_size_beyond_the_limit_is_refused_unread(hasty: ProxyWorld) -> None:
    with connected(hasty) as link:
        link.sendall(head(hasty, "content-type: application/json", f"content-length: {10**15}"))
        begin = time.monotonic()
        received = answer(link)
        assert b"413" in received
        assert b"urn:dpdpca:problem:too-large" in received
        assert time.monotonic() - begin < IN_TIME


def test_an_undeclared_size_beyond_the_limit_is_refused(world: ProxyWorld) -> None:
    with connected(world) as link:
        link.sendall(head(world, "content-type: application/json", "transfer-encoding: chunked"))
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            link.sendall(piece * 2 + b"0\r\n\r\n")
        assert b"413" in link.recv(65536)


def test_slow_peers_do_not_delay_honest_ones(world: ProxyWorld) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(150):
            link = stack.enter_context(connected(world))
            link.sendall(b"GET /healthz HTTP/1.1\r\nx: ")
        begin = time.monotonic()
        study = world.open_study(3)
        study.deliver(world.owners[0], values_of(3, 0))
        assert time.monotonic() - begin < 10


def test_a_peer_that_leaves_in_the_middle_costs_no_traceback(
    world: ProxyWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        with connected(world) as link:
            link.sendall(head(world, "content-type: application/json", "content-length: 100") + b"{")
    time.sleep(0.3)
    assert not [record for record in caplog.records if record.exc_info]
    assert 'dpdpca_problems_total{slug="disconnected"} 20' in world.proxy.metrics.text()


def test_an_open_stream_outlives_the_deadlines(hasty: ProxyWorld) -> None:
    study = hasty.open_study(3)
    updates = hasty.client(hasty.user).events(study.study)
    assert next(updates).kind == "state"
    time.sleep(3 * SECONDS)
    study.deliver(hasty.owners[0], values_of(3, 0))
    assert next(updates).detail["owners_complete"] == 1


def test_streams_are_limited(stopped_world: ProxyWorld) -> None:
    world = stopped_world
    world.settings["max_streams"] = 2
    world.start()
    world.enrol_all()
    study = world.open_study(3)
    streams = [world.client(owner).events(study.study) for owner in world.owners]
    assert [next(stream).kind for stream in streams[:2]] == ["state", "state"]
    response = world.request(world.owners[2], "GET", f"{study.path}/events")
    assert (response.status_code, "retry-after" in response.headers) == (503, True)


def test_requests_beyond_the_limit_are_refused_with_a_time(stopped_world: ProxyWorld) -> None:
    world = stopped_world
    world.settings["max_requests"] = 5
    world.start()
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            link = stack.enter_context(connected(world))
            link.sendall(head(world, "content-type: application/json", "content-length: 100") + b"{")
        time.sleep(0.3)
        response = world.request(None, "GET", "/v1/proxy")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert world.request(None, "GET", "/healthz").status_code == 200
    time.sleep(0.3)
    assert world.request(None, "GET", "/v1/proxy").status_code == 200


GARBAGE = [
    b"\x00" * 100,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"get / http/1.1\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    b"POST /v1/parties HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/parties HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    b"POST /v1/proxy HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/parties HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/studies/%2e%2e/%00 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://[::1/ HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    b"GET /v1/proxy HTTP/1.1\r\nhost: x\r\nsignature-input: sig1=();created=99999999999999999999\r\n\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_gets_no_server_error(hasty: ProxyWorld, garbage: bytes) -> None:
    before = dump(hasty.proxy)
    hasty.keep_idle(1)
    with connected(hasty) as link:
        with contextlib.suppress(ConnectionError):
            link.sendall(garbage)
        received = answer(link)
    status = received.split(b" ", 2)[1] if received.startswith(b"HTTP/") else b"4"
    assert status[:1] in (b"2", b"4"), received[:200]
    assert hasty.request(None, "GET", "/healthz").status_code == 200
    assert dump(hasty.proxy) == before


def malformed_bodies(source: random.Random, genuine: bytes) -> Iterator[bytes]:
    """Bodies near a genuine one, and far from any."""
    while True:
        kind = source.randrange(8)
        at = source.randrange(len(genuine))
        if kind == 0:
            yield genuine[:at]
        elif kind == 1:
            yield genuine[:at] + bytes([source.randrange(256)]) + genuine[at + 1 :]
        elif kind == 2:
            yield genuine[:at] + source.randbytes(source.randrange(1, 40)) + genuine[at:]
        elif kind == 3:
            yield source.randbytes(source.randrange(200))
        elif kind == 4:
            yield b"[" * source.randrange(1, 5000)
        elif kind == 5:
            value = source.choice([b"NaN", b"1e999", b'"\\ud800"', b"-0", b"1.0", b"null", b"9" * 400])
            yield b'{"body":' + value + b',"kind":"close","signature":"","signer":""}'
        elif kind == 6:
            yield genuine.replace(b'"', b"'", source.randrange(1, 4))
        else:
            yield genuine.decode().encode(source.choice(["utf-16", "utf-32", "utf-8-sig"]))


@pytest.mark.parametrize("of_each_route", [40, pytest.param(110, marks=pytest.mark.nightly)])
def test_malformed_signed_requests_change_nothing(world: ProxyWorld, of_each_route: int) -> None:
    """Genuinely signed by enrolled parties, so that the bodies reach the rules."""
    study = world.open_study(3)
    (chunk,) = study.plain_chunks(values_of(3, 0))
    study.upload(world.owners[0], [chunk])
    before = dump(world.proxy)
    source = random.Random(4711)
    statuses: dict[int, int] = {}
    for method, path, key, genuine in routes_with_bodies(world, study, chunk):
        media_type = "application/octet-stream" if "/chunks/" in path else "application/json"
        bodies = (
            malformed_bodies(source, genuine)
            if media_type == "application/json"
            else garbled(source, genuine)
        )
        for _ in range(of_each_route):
            body = next(bodies)
            if body == genuine:
                continue
            response = world.request(key, method, path, body, media_type)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
            assert 400 <= response.status_code < 500, (path, body[:80], response.text)
            assert response.headers["content-type"] == "application/problem+json"
    print("malformed requests by status:", dict(sorted(statuses.items())))
    assert sum(statuses.values()) > 8.5 * of_each_route
    assert dump(world.proxy) == before


def garbled(source: random.Random, genuine: bytes) -> Iterator[bytes]:
    while True:
        at = source.randrange(len(genuine))
        yield source.choice(
            [
                genuine[:at],
                source.randbytes(100),
                genuine[:at] + b"\0" + genuine[at + 1 :] + b"\0",
                genuine * 2,
            ]
        )


def routes_with_bodies(
    world: ProxyWorld, study: OpenStudy, chunk: bytes
) -> list[tuple[str, str, IdentityKey | None, bytes]]:
    owner, user, path = world.owners[0], world.user, study.path
    claim = study.claim(owner, [chunk]).encoded
    return [
        ("POST", "/v1/parties", None, b'{"enrolment":' + claim + b',"invitation":"' + b"0" * 64 + b'"}'),
        ("POST", "/v1/studies", user, study.statement.encoded.replace(b"pressure", b"measures")),
        ("POST", f"{path}/close", user, claim.replace(b'"share"', b'"close"')),
        ("DELETE", path, user, claim.replace(b'"share"', b'"cancel"')),
        ("POST", f"{path}/count", user, claim.replace(b'"share"', b'"count-answer"')),
        ("PUT", f"{path}/components", user, claim.replace(b'"share"', b'"components"')),
        ("POST", f"{path}/share/complete", owner, claim),
        ("DELETE", f"{path}/share", owner, claim.replace(b'"share"', b'"withdrawal"')),
        ("PUT", f"{path}/share/chunks/0?version=1", owner, study.seal(owner, chunk, 1, 0)),
    ]
