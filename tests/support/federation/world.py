"""A proxy, a data user's service and owners as real processes on loopback, each with a home of its own.

Everything goes through the installed commands: what a test sees is what a person would see. All servers are
ended when the federation is.
"""

import json
import string
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from folders import files_below

from dpdpca_cli.federation.processes import free_port, inherited_environment, tail
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.enrolment import invite
from dpdpca_proxy.proxy import open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience
from dpdpca_user.service_client import ServiceClient
from federation.processes import STOP_SECONDS, Machine, Server, wait_for

KEY_BITS = 2048
"""The least that the product takes: nothing here hangs on the size, and the default takes longer."""

POLICY = """\
[study]
max_epsilon = 1000
max_delta = 0.01
min_owners = 1

[budget]
rho = 1e6
"""
"""Of owners who run many studies of little privacy, as tests must that look into results."""


@dataclass(frozen=True)
class Owner(Machine):
    """An enrolled owner."""

    def key(self) -> IdentityKey:
        return IdentityKey.from_pem((self.home / "identity.pem").read_bytes())

    def join(self, address: str, data: Path, *options: str) -> dict[str, Any]:
        return self.ask("owner", "join", address, "--data", data, "--yes", *options)

    def status(self, address: str) -> dict[str, Any]:
        return self.ask("owner", "status", address)


@dataclass(frozen=True)
class User(Machine):
    """An enrolled data user with its service."""

    service: Server = field(kw_only=True)
    service_url: str = field(kw_only=True)

    def key(self) -> IdentityKey:
        return IdentityKey.from_pem((self.home / "identity.pem").read_bytes())

    def create_study(self, draft: Mapping[str, Any]) -> str:
        """The id of a study that is open at the proxy, made by the service from this draft."""
        file = self.home.parent / f"{self.home.name}-draft.json"
        file.write_text(json.dumps(draft))
        made = self.ask("user", "study", "create", file)
        return str(wait_for(lambda: self._opened(made["draft"]), "the study is open", 60.0, 0.3))

    def _opened(self, draft: str) -> str | None:
        facts = self.study(draft)
        assert facts["state"] != "failed", facts["failure"]
        return facts["study"] if facts["state"] not in ("drafted", "signed") else None

    def study(self, study: str) -> dict[str, Any]:
        with self.client() as client:
            return client.study(study)

    def client(self) -> ServiceClient:
        return ServiceClient(self.service_url, home=self.home)

    def wait_state(self, study: str, *states: str, seconds: float = 60.0) -> dict[str, Any]:
        """The facts of the study, once the service has brought it to one of `states`."""

        def look() -> dict[str, Any] | None:
            facts = self.study(study)
            assert facts["state"] in states or facts["state"] != "failed", facts["failure"]
            return facts if facts["state"] in states else None

        facts = wait_for(look, f"the service says {states}", seconds, 0.2)
        assert isinstance(facts, dict)
        return facts


@dataclass
class Federation:
    """One proxy, and as many data users with their services and owners as a test makes.

    Args:
        folder: of this federation alone.
        relay_port: a second port under which the proxy is known, for a relay in front of it.
        public_url: https address of what ends TLS in front of the proxy, for all parties; default: none does.
        ca_file: PEM file of the authority that everybody trusts.
    """

    folder: Path
    relay_port: int = field(default_factory=free_port)
    public_url: str | None = None
    ca_file: Path | None = None
    port: int = field(default_factory=free_port)
    operator_port: int = field(default_factory=free_port)
    _homes: int = 0
    _servers: list[Server] = field(default_factory=list)
    _pool: list[Owner] = field(default_factory=list)
    _before: int = 0
    _user: User | None = None

    def __post_init__(self) -> None:
        self.logs = self.folder / "logs"
        self.logs.mkdir(parents=True)
        self.proxy_machine = self._machine("proxy", "Relay Institute")
        made = self.proxy_machine.ask(*self.proxy_machine.init("--url", self.url))
        self.proxy_key = bytes.fromhex(made["ed25519"])
        self.proxy = Server(
            "the proxy",
            self.proxy_machine.serve("--port", str(self.port), "--operator-port", str(self.operator_port)),
            {
                **self.proxy_machine.environment,
                "DPDPCA_PROXY_ALSO_KNOWN_AS": json.dumps([f"127.0.0.1:{self.relay_port}"]),
                "DPDPCA_PROXY_BEHIND_TLS": json.dumps(self.public_url is not None),
            },
            self.logs / "proxy-serve.log",
            f"http://127.0.0.1:{self.port}",
        )

    @property
    def url(self) -> str:
        return self.public_url or f"http://127.0.0.1:{self.port}"

    @property
    def relay_url(self) -> str:
        return f"http://127.0.0.1:{self.relay_port}"

    @property
    def proxy_home(self) -> Path:
        return self.proxy_machine.home

    def invitation(self, role: str, name: str) -> str:
        """What `dpdpca proxy invite` prints, without another process: there are many of these."""
        proxy = open_proxy(load_settings(self.proxy_home))
        try:
            return invite(proxy, role, name).token
        finally:
            proxy.database.close()

    def _enrol(self, machine: Machine, url: str | None = None) -> None:
        file = machine.home.with_name(f"{machine.home.name}.invitation")
        file.write_text(self.invitation(machine.role, machine.name))
        machine.ask(*machine.enrol(url or self.url, file))

    def new_owner(self, name: str, url: str | None = None) -> Owner:
        """An owner with fresh keys, enrolled here."""
        owner = Owner(**vars(self._machine("owner", name)))
        owner.ask(*owner.init())
        (owner.home / "policy.toml").write_text(POLICY)
        self._enrol(owner, url)
        return owner

    def new_user(self, name: str, poll_seconds: float = 0.3) -> User:
        """A data user, enrolled here, whose service runs."""
        machine, port = self._machine("user", name), free_port()
        url = f"http://127.0.0.1:{port}"
        settings = {
            "DPDPCA_USER_KEY_BITS": str(KEY_BITS),
            "DPDPCA_USER_PORT": str(port),
            "DPDPCA_USER_POLL_SECONDS": str(poll_seconds),
        }
        service = Server(
            f"the service of {name}",
            machine.serve(),
            machine.environment | settings,
            self.logs / f"{machine.home.name}-serve.log",
            url,
        )
        asking = {**machine.settings, "DPDPCA_USER_SERVICE_URL": url}
        user = User(**{**vars(machine), "settings": asking}, service=service, service_url=url)
        user.ask(*user.init())
        self._enrol(user)
        self.serve(service)
        return user

    @property
    def user(self) -> User:
        """A data user that all tests share."""
        if self._user is None:
            self._user = self.new_user("Research Institute")
        return self._user

    def owners(self, count: int) -> list[Owner]:
        """The first `count` owners of a pool that the tests of one file share.

        The proxy refuses cohorts that differ by one owner from those of earlier studies of the same features.
        """
        while len(self._pool) < count:
            self._pool.append(self.new_owner(_hospital(self._before + len(self._pool))))
        return self._pool[:count]

    def forget_owners(self) -> None:
        """The next file has owners of its own."""
        self._before += len(self._pool)
        self._pool = []

    def serve(self, server: Server) -> Server:
        """Start a server that ends with this federation."""
        self._servers.append(server)
        server.start()
        return server

    def client(self, key: IdentityKey) -> ProxyClient:
        """A client that does not try again: tests want the first answer."""
        return ProxyClient(
            self.url, key, self.proxy_key, patience=Patience(seconds=0.0), ca_file=self.ca_file
        )

    def requests(self, method: str, route: str) -> int:
        """How many requests of this route the proxy has answered since it started, by its own metrics."""
        answer = httpx.get(f"http://127.0.0.1:{self.operator_port}/metrics", trust_env=False)
        lines = (line for line in answer.text.splitlines() if line.startswith("dpdpca_requests_total{"))
        wanted = (line for line in lines if f'method="{method}"' in line and f'route="{route}"' in line)
        return sum(int(float(line.rpartition(" ")[2])) for line in wanted)

    def end(self) -> None:
        """Nothing of this federation runs any more when this returns."""
        for server in reversed(self._servers):
            if server.process is not None:
                server.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for server in reversed(self._servers):
            if server.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    server.process.wait(max(0.0, deadline - time.monotonic()))
            server.kill()

    def report(self) -> Iterator[tuple[str, str]]:
        """Title and end of each log, for a test that failed."""
        for log in sorted(self.logs.glob("*.log")):
            yield f"federation log {log.name}", tail(log)

    def _machine(self, role: str, name: str) -> Machine:
        self._homes += 1
        home = self.folder / f"{self._homes:02d}-{role}"
        # Whatever looks for the person's own folders must not find those of whoever runs the tests.
        folders = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / "config")}
        settings = {**inherited_environment(), **folders}
        if self.ca_file is not None:
            settings["DPDPCA_CA_FILE"] = str(self.ca_file)
        return Machine(role, name, home, settings, logs=self.logs)


def _hospital(number: int) -> str:
    letters = string.ascii_uppercase
    return f"Hospital {letters[number // 26 - 1] if number >= 26 else ''}{letters[number % 26]}"


@contextmanager
def federation_in(folder: Path, **options: Any) -> Iterator[Federation]:
    federation = Federation(folder, **options)
    try:
        federation.serve(federation.proxy)
        yield federation
    finally:
        federation.end()


def tree(folder: Path, without: str = "none of them") -> dict[str, bytes]:
    """Every file under `folder` and its content, but for those whose path holds `without`."""
    paths = (path for path in files_below(folder) if without not in str(path))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
