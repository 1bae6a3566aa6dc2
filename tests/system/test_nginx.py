"""`deploy/nginx.example.conf` in a real nginx: a study through it, and what clients say where it is changed.

The example is used as it is shipped but for host name, ports and paths of certificates (`federation.nginx`).
"""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from federation.bare_owner import claim, make_chunks, seal_chunk
from federation.bare_user import BareStudy, BareUser, make_request
from federation.behind import run_whole_study
from federation.nginx import Nginx
from federation.records import add_up, patients, write_csv
from federation.world import Federation, federation_in
from installed import program

from dpdpca_cli.federation.processes import free_port
from dpdpca_protocol.errors import (
    AuthenticationError,
    DpdpcaError,
    LimitError,
    MessageError,
    UnavailableError,
)
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.paillier.chunks import CHUNK_CIPHERTEXTS
from dpdpca_protocol.wire.http import CHUNK_MEDIA_TYPE
from dpdpca_protocol.wire.sealing import seal
from dpdpca_protocol.wire.signing import verify_statement
from dpdpca_runtime.http import exchange
from dpdpca_runtime.http.client import ProxyClient

LIMIT = "    client_max_body_size 128m;\n"
TO_PROXY = "        proxy_pass http://127.0.0.1:8440;\n        # Requests"
"""Of everything but events."""

CHUNK_BYTES = CHUNK_CIPHERTEXTS * 4096 // 4
"""Of a whole chunk under a key of 4,096 bits, before it is sealed."""


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Nginx:
    path = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
    return Nginx.make(tmp_path_factory.mktemp("nginx"), program("nginx", "Debian: nginx", path))


@pytest.fixture(scope="module")
def federation(nginx: Nginx, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Parties that know the proxy by nginx's address alone."""
    folder = tmp_path_factory.mktemp("behind-nginx")
    with federation_in(folder, public_url=nginx.url, ca_file=nginx.ca_file) as behind:
        yield behind


@pytest.fixture
def shipped(nginx: Nginx, federation: Federation) -> Iterator[None]:
    """nginx serves with the example as it is."""
    with nginx.serving(federation.port):
        yield


@pytest.fixture(scope="module")
def study(nginx: Nginx, federation: Federation) -> BareStudy:
    """An open study of three owners, whose keys are at hand."""
    with nginx.serving(federation.port):
        user = BareUser(federation, "Institute Behind")
        return user.open_study(federation.owners(3), min_owners=3, closing="when-complete")


@contextmanager
def _through(
    nginx: Nginx, federation: Federation, study: BareStudy, changes: dict[str, str]
) -> Iterator[ProxyClient]:
    """The data user's client, while nginx serves with `changes`."""
    with nginx.serving(federation.port, changes), federation.client(study.user.key) as client:
        yield client


def test_the_example_loads_as_it_is_shipped(nginx: Nginx) -> None:
    nginx.configure(free_port())
    assert "test is successful" in nginx.check()


@pytest.mark.usefixtures("shipped")
def test_a_whole_study_goes_through_it_with_live_events(federation: Federation, tmp_path: Path) -> None:
    run_whole_study(federation, tmp_path)


# HTTP/2


@pytest.mark.usefixtures("shipped")
def test_a_share_and_its_events_go_over_http_2(
    nginx: Nginx, federation: Federation, study: BareStudy
) -> None:
    """Our own client speaks HTTP/1.1; others may not, and signatures must hold for them, too."""
    sums, key = add_up(patients(30, seed=5)), federation.owners(3)[0].key()
    chunks = make_chunks(study, sums)
    events = make_request(federation, key, "GET", f"{study.path}/events")
    with subprocess.Popen([*_curl(nginx, events), "--no-buffer"], stdout=subprocess.PIPE, text=True) as live:
        try:
            assert live.stdout is not None
            assert _next_state(live.stdout)["owners_complete"] == 0
            for position, chunk in enumerate(chunks):
                sealed = seal_chunk(study, key, chunk, 1, position)
                path = f"{study.path}/share/chunks/{position}?version=1"
                request = make_request(federation, key, "PUT", path, sealed, CHUNK_MEDIA_TYPE)
                assert _ask(nginx, request)[:2] == ("2", 204)
            statement = claim(study, key, chunks)
            path = f"{study.path}/share/complete"
            request = make_request(federation, key, "POST", path, statement.encoded)
            version, status, body = _ask(nginx, request)
            assert (version, status) == ("2", 200)
            receipt = Receipt.parse(verify_statement("receipt", body, federation.proxy_key))
            assert receipt.statement == statement.digest
            assert _next_state(live.stdout)["owners_complete"] == 1
        finally:
            live.terminate()


def _curl(nginx: Nginx, request: httpx.Request) -> list[str]:
    ours = ("host", "content-length")
    heads = [f"{name}: {value}" for name, value in request.headers.items() if name not in ours]
    options = ["--silent", "--show-error", "--http2", "--max-time", "60", "--cacert", str(nginx.ca_file)]
    options += [word for head in heads for word in ("--header", head)]
    return ["curl", *options, "--request", request.method, str(request.url)]


def _ask(nginx: Nginx, request: httpx.Request) -> tuple[str, int, bytes]:
    """HTTP version and status, then the body of the answer."""
    words = ["--data-binary", "@-", "--write-out", "%{stderr}%{http_version} %{http_code}"]
    done = subprocess.run(
        [*_curl(nginx, request), *words], input=request.content, capture_output=True, check=True
    )
    version, status = done.stderr.decode().split()
    return version, int(status), done.stdout


def _next_state(lines: Iterator[str]) -> dict[str, object]:
    data = next(line for line in lines if line.startswith("data: "))
    told: dict[str, object] = json.loads(data.removeprefix("data: "))
    return told


# Bodies


@pytest.mark.usefixtures("shipped")
def test_a_chunk_under_a_large_key_reaches_the_proxy(federation: Federation, study: BareStudy) -> None:
    assert _put_large_chunk(federation, study).slug == "sealed-body-does-not-open"


def test_request_buffering_does_no_harm(nginx: Nginx, federation: Federation, study: BareStudy) -> None:
    with nginx.serving(federation.port, {"        proxy_request_buffering off;\n": ""}):
        assert _put_large_chunk(federation, study).slug == "sealed-body-does-not-open"


def test_a_limit_below_a_chunk_is_named(nginx: Nginx, federation: Federation, study: BareStudy) -> None:
    """nginx's own default is below one under 4,096 bits."""
    with nginx.serving(federation.port, {LIMIT: ""}):
        error = _put_large_chunk(federation, study)
    assert isinstance(error, LimitError)
    assert error.slug == "too-large-on-the-way"
    assert f"{len(_sealed(study)):,} bytes" in error.problem
    assert "client_max_body_size" in error.next_step
    assert "128 MiB" in error.next_step


def test_an_owner_reads_which_limit_stopped_its_share(
    nginx: Nginx, federation: Federation, study: BareStudy, tmp_path: Path
) -> None:
    owner = federation.owners(3)[1]
    with nginx.serving(federation.port, {LIMIT: "    client_max_body_size 500;\n"}):
        records = write_csv(tmp_path / "b.csv", patients(50, seed=8))
        joined = owner.run("owner", "join", study.address, "--data", records, "--yes")
    assert joined.status == 1
    assert "client_max_body_size" in joined.err
    assert joined.err.count("\n") == 1


def _sealed(study: BareStudy) -> bytes:
    return seal(bytes(32 + CHUNK_BYTES), study.manifest.proxy.kem, b"")


def _put_large_chunk(federation: Federation, study: BareStudy) -> DpdpcaError:
    """What a chunk of a 4,096-bit key meets in a study that has none so large."""
    with federation.client(federation.owners(3)[2].key()) as client, pytest.raises(DpdpcaError) as refused:
        client.put_chunk(study.id, 1, 0, _sealed(study))
    return refused.value


# Addresses


def test_a_lost_port_is_named(nginx: Nginx, federation: Federation, study: BareStudy) -> None:
    changes = {"proxy_set_header Host $http_host;": "proxy_set_header Host $host;"}
    with _through(nginx, federation, study, changes) as client, pytest.raises(AuthenticationError) as refused:
        client.study(study.id)
    said = str(refused.value)
    assert "localhost" in said
    assert "port" in said
    assert "also_known_as" in said


@pytest.mark.parametrize("at_root", ["return 404;", "default_type text/html; return 200 '<p>Welcome</p>';"])
def test_a_path_before_the_proxy_is_refused_in_words(
    nginx: Nginx, federation: Federation, study: BareStudy, at_root: str
) -> None:
    owner = federation.owners(3)[0]
    changes = {
        "    location / {\n        proxy_pass http://127.0.0.1:8440;\n": f"    location / {{ {at_root} }}\n"
        f"    location /dpdpca/ {{\n        proxy_pass http://127.0.0.1:{federation.port}/;\n"
    }
    with nginx.serving(federation.port, changes):
        for words in (
            ("enrol", f"{nginx.url}/dpdpca"),
            ("review", f"{nginx.url}/dpdpca/{study.id.hex()}"),
        ):
            refused = owner.run("owner", *words)
            assert refused.status == 2
            assert "must not have a path" in refused.err
        with federation.client(owner.key()) as client, pytest.raises(MessageError) as elsewhere:
            client.card()
    assert elsewhere.value.slug == "not-a-proxy"
    assert "under a path" in elsewhere.value.next_step


# Events


UNBUFFERED = "        proxy_buffering off;\n        proxy_read_timeout 1h;\n"


def test_events_come_even_where_nginx_buffers(nginx: Nginx, federation: Federation, study: BareStudy) -> None:
    """The proxy forbids it in its answer, and nginx heeds that."""
    with (
        nginx.serving(federation.port, {UNBUFFERED: "        proxy_buffering on;\n"}),
        federation.client(study.user.key) as client,
    ):
        first = next(client.events(study.id))
    assert first.detail["state"] == "open"


def test_events_that_are_held_back_are_named_and_asking_goes_on(
    nginx: Nginx, federation: Federation, study: BareStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first event is there at once or never, so that a short wait shows the same.
    monkeypatch.setattr(exchange, "_STREAM_TIMEOUT", httpx.Timeout(60.0, read=2.0))
    changes = {UNBUFFERED: "        proxy_buffering on;\n        proxy_ignore_headers X-Accel-Buffering;\n"}
    with _through(nginx, federation, study, changes) as client:
        with pytest.raises(UnavailableError) as silent:
            next(client.events(study.id))
        assert client.study(study.id).state == "open"
    assert silent.value.slug == "no-events"
    assert "proxy_buffering" in silent.value.next_step


def test_events_that_are_cut_off_are_named(nginx: Nginx, federation: Federation, study: BareStudy) -> None:
    changes = {"proxy_read_timeout 1h;": "proxy_read_timeout 1s;"}
    with _through(nginx, federation, study, changes) as client, pytest.raises(UnavailableError) as cut:
        list(client.events(study.id))
    assert cut.value.slug == "no-events"
    assert "proxy_read_timeout" in cut.value.next_step


# What nginx answers itself


def test_a_proxy_that_is_down_is_named(nginx: Nginx, federation: Federation, study: BareStudy) -> None:
    error = _behind(nginx, federation, study, {TO_PROXY: _to(free_port())})
    assert (error.slug, "502" in error.problem, "proxy_pass" in error.next_step) == ("gateway", True, True)


def test_a_proxy_that_does_not_answer_is_named(
    nginx: Nginx, federation: Federation, study: BareStudy
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        changes = {TO_PROXY: f"        proxy_read_timeout 1s;\n{_to(port)}"}
        error = _behind(nginx, federation, study, changes)
    assert (error.slug, "504" in error.problem) == ("gateway", True)
    assert "proxy_read_timeout" in error.next_step


def test_a_limit_of_requests_is_named(nginx: Nginx, federation: Federation, study: BareStudy) -> None:
    changes = {"rate=100r/s": "rate=1r/m", " burst=2000 nodelay": ""}
    with _through(nginx, federation, study, changes) as client:
        client.card()
        with pytest.raises(UnavailableError) as refused:
            client.card()
    assert (refused.value.slug, "429" in refused.value.problem) == ("gateway", True)
    assert "limit_req" in refused.value.next_step


def _to(port: int) -> str:
    return f"        proxy_pass http://127.0.0.1:{port};\n        # Requests"


def _behind(
    nginx: Nginx, federation: Federation, study: BareStudy, changes: dict[str, str]
) -> UnavailableError:
    with _through(nginx, federation, study, changes) as client, pytest.raises(UnavailableError) as refused:
        client.study(study.id)
    return refused.value
