"""The services as processes: certificates that are replaced while they run, and ports they cannot have."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import DAY, Issued, issue, shown_serial
from federation import warm
from proxy_world import free_port, wait_for

from dpdpca_protocol.wire.fields import time_text

COMMAND = (sys.executable, "-m", "dpdpca_cli.main")
WITHOUT_CALLS = Path(__file__).parents[1] / "support" / "without_calls.py"
WAIT_SECONDS = 90.0
SOON = "certificate expires soon; replace it and send SIGHUP"


@dataclass
class Service:
    """One of the two, with a home of its own."""

    role: str
    home: Path
    port: int
    operator_port: int
    log: Path
    process: warm.ForkedProcess | None = None

    @property
    def words(self) -> list[str]:
        words = [self.role, "serve", "--home", str(self.home)]
        return [*words, "--operator-port", str(self.operator_port)] if self.role == "proxy" else words

    def start(self, *options: str | Path, scheme: str = "https") -> None:
        self.log.unlink(missing_ok=True)
        words = [*self.words, "--port", str(self.port), *map(str, options)]
        self.process = warm.start(words, self.environment, self.log)
        url = f"{scheme}://127.0.0.1:{self.port}/readyz"
        wait_for(lambda: self._is_ready(url), WAIT_SECONDS)

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("DPDPCA_")}

    def _is_ready(self, url: str) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(url, verify=False, trust_env=False, timeout=120).status_code == 200
        except httpx.TransportError:
            return False

    def hang_up(self) -> None:
        """SIGHUP, and until the service has done what it does then."""
        assert self.process is not None
        before = len(self.events("hangup"))
        os.kill(self.process.pid, signal.SIGHUP)
        wait_for(lambda: len(self.events("hangup")) > before, WAIT_SECONDS)
        # The rest of it is done in the same turn of the loop, which then answers again.
        assert self.process.poll() is None, self.log.read_text()

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def wait_events(self, event: str, count: int) -> list[dict[str, Any]]:
        wait_for(lambda: len(self.events(event)) >= count, WAIT_SECONDS)
        return self.events(event)

    def end(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(WAIT_SECONDS)

    def refusal(self, *options: str | Path, without: str | None = None, status: int = 1) -> str:
        """The last line of a service that cannot start."""
        words = [*self.words, *map(str, options)]
        if without is None:
            done = warm.run(words, self.environment, WAIT_SECONDS)
        else:
            whole = [sys.executable, str(WITHOUT_CALLS), without, "--", *COMMAND, *words]
            done = subprocess.run(
                whole, capture_output=True, env=self.environment, timeout=WAIT_SECONDS, check=False
            )
        assert done.returncode == status, done.stderr
        return done.stderr.decode().splitlines()[-1]


@pytest.fixture(scope="module", params=["proxy", "user"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """Initialised; its tests follow each other in one home."""
    role, folder = request.param, tmp_path_factory.mktemp(request.param)
    made = Service(role, folder / role, free_port(), free_port(), folder / "log")
    init = [role, "init", "--home", str(made.home), "--name", "Relay"]
    if role == "proxy":
        init += ["--url", "https://relay.example"]
    assert warm.run(init, made.environment, WAIT_SECONDS).returncode == 0
    return made


@pytest.fixture
def service(made: Service) -> Iterator[Service]:
    yield made
    if made.process is not None and made.process.poll() is None:
        os.kill(made.process.pid, signal.SIGKILL)
        made.process.wait()


@pytest.fixture
def ca(tmp_path: Path) -> Issued:
    return issue(tmp_path, "CA", is_authority=True)


def tls_options(issued: Issued) -> tuple[str | Path, ...]:
    return "--tls-cert", issued.certificate_file, "--tls-key", issued.key_file


def test_a_certificate_is_replaced_while_the_service_runs(
    service: Service, ca: Issued, tmp_path: Path
) -> None:
    """It is warned of at the start; a new one that does not fit is not taken, one that does is; nobody is
    disconnected."""
    now = datetime.now(UTC).replace(microsecond=0)
    issued = issue(tmp_path, "first", issuer=ca, begins=now - 87 * DAY, ends=now + 3 * DAY)
    other = issue(tmp_path, "second", issuer=ca, ends=now + 90 * DAY)
    trust = ssl.create_default_context(cafile=str(ca.certificate_file))
    service.start(*tls_options(issued))
    (said,) = service.wait_events(SOON, 1)
    assert (said["level"], said["expires_at"]) == ("warning", time_text(now + 3 * DAY))
    if service.role == "proxy":
        left = (now + 3 * DAY - datetime.now(UTC)).total_seconds()
        assert seconds_left(service) == pytest.approx(left, abs=WAIT_SECONDS)

    issued.replace(other, key=False)
    service.hang_up()
    (said,) = service.wait_events("certificate not replaced", 1)
    assert said["slug"] == "bad-certificate"
    assert said["reason"] == "the TLS key (tls_key) does not belong to the certificate (tls_cert)"
    assert str(tmp_path) not in service.log.read_text()
    assert [shown_serial(service.port, ca) for _ in range(3)] == [issued.serial] * 3
    assert len(service.wait_events(SOON, 2)) == 2

    issued.replace(other)
    kept = HTTPSConnection("localhost", service.port, context=trust, timeout=60)
    assert is_healthy(kept)
    first_socket = kept.sock
    service.hang_up()
    assert is_healthy(kept)
    assert kept.sock is first_socket
    kept.close()
    (said,) = service.wait_events("certificate reloaded", 1)
    assert said["expires_at"] == time_text(now + 90 * DAY)
    assert [shown_serial(service.port, ca) for _ in range(3)] == [other.serial] * 3
    assert len(service.events(SOON)) == 2
    if service.role == "proxy":
        assert seconds_left(service) > 80 * 86400
    assert service.end() == 0


def is_healthy(connection: HTTPSConnection) -> bool:
    connection.request("GET", "/healthz")
    return connection.getresponse().read() == b'{"status":"ok"}'


def seconds_left(service: Service) -> float:
    page = httpx.get(f"http://127.0.0.1:{service.operator_port}/metrics", trust_env=False).text
    found = re.search(r"^dpdpca_certificate_seconds_left (\S+)$", page, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_a_hangup_without_tls_is_noted_and_nothing_else(service: Service) -> None:
    service.start(scheme="http")
    service.hang_up()
    assert httpx.get(f"http://127.0.0.1:{service.port}/healthz", trust_env=False).status_code == 200
    assert service.end() == 0


def test_a_pair_that_does_not_fit_is_refused_at_the_start(
    service: Service, ca: Issued, tmp_path: Path
) -> None:
    issued = issue(tmp_path, "first", issuer=ca)
    issued.key_file.write_bytes(ca.key_file.read_bytes())
    said = service.refusal(*tls_options(issued), status=2)
    assert said.startswith("dpdpca: the TLS key (tls_key) does not belong to the certificate (tls_cert); ")


# What cannot be listened on


def listener_of(service: Service) -> str:
    return "the public listener" if service.role == "proxy" else "the data user's service"


def test_a_taken_port_is_named_with_its_option(service: Service) -> None:
    with socket.create_server(("127.0.0.1", service.port)):
        assert service.refusal("--port", str(service.port)) == (
            f"dpdpca: {listener_of(service)} cannot listen on 127.0.0.1:{service.port}: another program"
            " is already listening there; choose a free port with --port, or stop that program"
        )


@pytest.mark.parametrize("made", ["proxy"], indirect=True)
def test_the_operators_port_is_told_from_the_public_one(service: Service) -> None:
    with socket.create_server(("127.0.0.1", service.operator_port)):
        assert service.refusal("--port", str(service.port)) == (
            f"dpdpca: the operator's page cannot listen on 127.0.0.1:{service.operator_port}: another program"
            " is already listening there; choose a free port with --operator-port, or stop that program"
        )


def test_a_machine_without_ipv6_is_told_so(service: Service) -> None:
    words = ("--host", "::1", "--port", str(service.port))
    assert service.refusal(*words, without="socket:AF_INET6=EAFNOSUPPORT") == (
        f"dpdpca: {listener_of(service)} cannot listen on [::1]:{service.port}: this machine has no IPv6;"
        " give an IPv4 address, such as 127.0.0.1"
    )


def test_an_address_of_another_machine_is_told_so(service: Service, ca: Issued, tmp_path: Path) -> None:
    words = ("--host", "192.0.2.1", "--port", str(service.port))
    assert service.refusal(*words, *tls_options(issue(tmp_path, "first", issuer=ca))) == (
        f"dpdpca: {listener_of(service)} cannot listen on 192.0.2.1:{service.port}: this machine has no such"
        " address; give an address of this machine, or 0.0.0.0 for all of IPv4"
    )
