"""`dpdpca proxy …` at the command line, and the served process with TLS, end to end."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import issue
from folders import paths_below
from proxy_world import ProxyWorld, free_port, values_of, wait_for

from dpdpca_cli import main as cli
from dpdpca_protocol.messages.study_messages import ProxyCard
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.proxy import open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_runtime.http.client import ProxyClient


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPDPCA_PROXY_HOME", str(tmp_path / "proxy"))
    return tmp_path / "proxy"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["proxy", *words])
    assert isinstance(left.value.code, int)
    return left.value.code


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_init_makes_a_private_home_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = os.umask(0)
    try:
        first = printed(capsys, "init", "--name", 'Relay "Ä"', "--url", "https://proxy.example.org")
    finally:
        os.umask(old)
    assert first["new"] is True
    assert len(first["words"].split()) == 12
    again = printed(capsys, "init")
    assert again == first | {"new": False}
    renamed = printed(capsys, "init", "--name", "Other")
    assert (renamed["ed25519"], renamed["name"], renamed["url"]) == (
        first["ed25519"],
        "Other",
        "https://proxy.example.org",
    )
    for path in [home, *home.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://bücher.example/", "https://xn--bcher-kva.example"),
        ("HTTPS://Relay.Example.:08443", "https://relay.example:8443"),
        ("https://relay.example:443", "https://relay.example"),
        ("https://[2001:DB8:0::1]:8440", "https://[2001:db8::1]:8440"),
        ("http://LOCALHOST:8440", "http://localhost:8440"),
    ],
)
def test_init_keeps_an_address_as_clients_sign_it(
    home: Path, capsys: pytest.CaptureFixture[str], given: str, kept: str
) -> None:
    assert printed(capsys, "init", "--url", given)["url"] == kept
    assert f'url = "{kept}"' in (home / "proxy.toml").read_text()
    proxy = open_proxy(load_settings(home))
    assert ProxyCard.parse(proxy.card).url == kept
    client = ProxyClient(given, IdentityKey.generate())
    host = httpx.URL(client.url).netloc.decode()
    assert str(proxy.settings.known_addresses.arrived_at([host])) == kept
    proxy.database.close()
    # One that an earlier version kept as it was typed is read in the same way.
    (home / "proxy.toml").write_text(f'url = "{given}"\n')
    assert load_settings(home).public_url == kept


@pytest.mark.parametrize(
    "url",
    [
        "relay.example", "http://relay.example", "http://10.0.0.1:8440", "https://relay.example/dpdpca",
        "https://user:secret@relay.example", "https://relay.example#x", "https://relay.example?x",
        "https://relay.example:0", "https://relay.example:99999", "https://127.1", "https://0.0.0.0",
        "https://relay..example", "https://relay_1.example", "https://[fe80::1%eth0]",
        "https://💩.example", "",
    ],
)  # fmt: skip
def test_init_refuses_an_address_that_no_client_can_reach(
    home: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert run("init", "--url", url) == 2
    said = capsys.readouterr().err
    assert said.startswith("dpdpca: url: ")
    assert "the value comes from DPDPCA_PROXY_URL, from proxy.toml or from an option" in said
    assert "secret" not in said
    assert not home.exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("URL", "https://relay.example/x", "url: an address must not have a path"),
        (
            "ALSO_KNOWN_AS",
            '["https://relay.example"]',
            "also_known_as: this value must be host[:port], without https://",
        ),
        ("ALSO_KNOWN_AS", '["relay.example", "127.1"]', "also_known_as: '127.1' looks like an IPv4 address"),
        (
            "ALSO_KNOWN_AS",
            "relay.example:8443",
            "DPDPCA_PROXY_ALSO_KNOWN_AS is not a JSON list; write the list like",
        ),
        ("HOST", "0.0.0.0", "a proxy that listens beyond this machine needs its public address"),
    ],
)
def test_addresses_in_the_environment_are_read_in_the_same_way(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    said: str,
) -> None:
    monkeypatch.setenv(f"DPDPCA_PROXY_{variable}", value)
    assert run("init") == 2
    assert capsys.readouterr().err.startswith(f"dpdpca: {said}")
    assert not home.exists()


def test_a_plain_address_of_a_listener_with_tls_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issued = issue(tmp_path, "cert")
    assert run("init", "--url", "http://localhost:8440") == 0
    assert run("serve", "--tls-cert", str(issued.certificate_file), "--tls-key", str(issued.key_file)) == 2
    assert "set url to https://localhost:8440" in capsys.readouterr().err


def test_a_readable_identity_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init") == 0
    (home / "identity.pem").chmod(0o644)
    capsys.readouterr()
    assert run("studies") == 1
    assert "chmod 600" in capsys.readouterr().err


def test_invitations_and_lists(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init") == 0
    capsys.readouterr()
    assert run("invite", "--role", "owner", "--name", "Hospital A") == 0
    shown = capsys.readouterr()
    assert len(shown.out.strip()) == 64
    assert "Hospital A" in shown.err
    made = printed(capsys, "invite", "--role", "user", "--name", "Institute")
    assert (made["role"], made["name"], len(made["token"])) == ("user", "Institute", 64)
    assert printed(capsys, "owners") == {"parties": []}
    assert printed(capsys, "studies") == {"studies": []}
    for words in (["invite", "--role", "judge", "--name", "x"], ["invite", "--role", "owner"], ["nonsense"]):
        assert run(*words) == 2
    assert run("invite", "--role", "owner", "--name", "a\x1b[31m") == 1
    assert run("audit", "0" * 64) == 1
    assert "\x1b[31m" not in capsys.readouterr().err


def test_commands_before_init_say_what_to_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["serve"], ["studies"], ["owners"], ["invite", "--role", "user", "--name", "x"]):
        assert run(*words) == 1
        assert "dpdpca proxy init" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["init", "serve", "invite", "rotate", "owners", "studies", "audit"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    assert f"Example: dpdpca proxy {command}" in capsys.readouterr().out


def test_lists_and_audit_of_a_real_study(
    world: ProxyWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = world.open_study(3, title="[bold]Title[/bold]", closing="when-complete")
    for seed, owner in enumerate(world.owners):
        study.deliver(owner, values_of(3, seed))
    study.wait_state("released")
    wait_for(lambda: not any(path.name == "sealed" for path in paths_below(world.home / "studies")))
    monkeypatch.setenv("DPDPCA_PROXY_HOME", str(world.home))
    (listed,) = printed(capsys, "studies")["studies"]
    assert (listed["study"], listed["state"]) == (study.study.hex(), "released")
    parties = printed(capsys, "owners")["parties"]
    assert {party["name"] for party in parties} >= {"Institute", "Hospital A"}
    assert run("studies") == 0
    assert "[bold]" in capsys.readouterr().out
    # Outside tests a toy modulus is unfit, and the audit says so; everything else holds.
    assert run("audit", study.study.hex(), "--json") == 1
    outcomes = {check["check"]: check["outcome"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert {what for what, outcome in outcomes.items() if outcome != "holds"} == {
        "manifest: signature, figures and modulus"
    }


# The served process


class Served:
    """`dpdpca proxy serve` as a process of its own."""

    def __init__(self, home: Path, *words: str, scheme: str = "http", verify: Any = True) -> None:
        self.port, self.operator_port = free_port(), free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.verify = verify
        self.process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "dpdpca_cli.main", "proxy", "serve", "--port", str(self.port)),
                *("--operator-port", str(self.operator_port), *words),
            ],
            env={**os.environ, "DPDPCA_PROXY_HOME": str(home), "DPDPCA_PROXY_URL": self.url},
            stderr=subprocess.PIPE,
        )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 30
        with httpx.Client(verify=self.verify, trust_env=False) as client:
            while True:
                assert self.process.poll() is None, self.process.communicate()
                assert time.monotonic() < deadline
                try:
                    if client.get(f"{self.url}/readyz").status_code == 200:
                        return
                except httpx.TransportError:
                    time.sleep(0.05)

    def stop(self) -> bytes:
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=120)
        return errors


@pytest.fixture
def served(home: Path, tmp_path: Path) -> Iterator[Served]:
    issued = issue(tmp_path, "cert")
    cert_file, key_file = issued.certificate_file, issued.key_file
    assert run("init") == 0
    trust = ssl.create_default_context(cafile=str(cert_file))
    server = Served(
        home, "--tls-cert", str(cert_file), "--tls-key", str(key_file), scheme="https", verify=trust
    )
    try:
        server.wait_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()


def test_a_served_proxy_speaks_tls_and_stops_in_order(
    served: Served, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    token = printed(capsys, "invite", "--role", "owner", "--name", "Hospital A")["token"]
    key = IdentityKey.generate()
    client = ProxyClient(served.url, key, ca_file=tmp_path / "cert.pem")
    card, statement = client.card()
    assert card.url == served.url
    client = ProxyClient(served.url, key, statement.signer, ca_file=tmp_path / "cert.pem")
    assert client.enrol("owner", "Hospital A", token) == key.public.party_id
    assert [party.name for party in client.parties()] == ["Hospital A"]
    with httpx.Client(trust_env=False) as operator:
        base = f"http://127.0.0.1:{served.operator_port}"
        page = operator.get(base)
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert "<script src=" in page.text
        metrics = operator.get(f"{base}/metrics").text
        assert 'route="/v1/parties"' in metrics
        assert operator.get(f"{base}/metrics", headers={"host": "evil.example"}).status_code == 400
        assert operator.get(f"{base}/v1/studies").status_code == 404
    with httpx.Client(trust_env=False, verify=served.verify) as public:
        assert public.get(f"{served.url}/metrics").status_code == 404
        assert public.get(f"{served.url}/docs").status_code == 200
        paths = public.get(f"{served.url}/openapi.json").json()["paths"]
        assert "/v1/studies/{study}/share/chunks/{position}" in paths
    errors = served.stop()
    assert served.process.returncode == 0
    assert token.encode() not in errors
    lines = [json.loads(line) for line in errors.splitlines()]
    assert {"listening", "request", "stopped"} <= {line["event"] for line in lines}


def test_two_proxies_do_not_share_a_port(served: Served, home: Path, tmp_path: Path) -> None:
    words = ["proxy", "serve", "--port", str(served.port), "--operator-port", str(free_port())]
    done = subprocess.run(
        [sys.executable, "-m", "dpdpca_cli.main", *words],
        env={**os.environ, "DPDPCA_PROXY_HOME": str(home)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{served.port}" in done.stderr.decode().splitlines()[-1]
    assert served.process.poll() is None


def test_signals_end_open_streams(served: Served, home: Path, tmp_path: Path) -> None:
    with httpx.Client(trust_env=False) as operator:
        url = f"http://127.0.0.1:{served.operator_port}/events"
        with operator.stream("GET", url) as stream:
            assert next(stream.iter_lines()) == "event: studies"
            begin = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            served.process.wait(20)
            assert time.monotonic() - begin < 5
    assert served.process.returncode == 0
