"""The compose files for real: engine, images, the three studies of the federation, a restart, the end.

Then the same federation with the overlay of deploy/scale.yml. Both are in one module, because they share an
engine and most layers of the images.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE_TOOL = Path(os.environ.get("COMPOSE_ENGINE", ROOT.parent / "shared" / "tools" / "compose-engine.sh"))
BASE_IMAGE = "python:3.11-slim-bookworm"
OWNERS = ("owner-1", "owner-2", "owner-3")
AGENTS = tuple(f"{owner}-agent" for owner in OWNERS)
SERVICES = ("proxy", "user", *OWNERS, *AGENTS)
SCALED = ("postgres", "store", "scheduler", "worker", "balancer", "proxy", "proxy-2")
CLUSTER, SEAL_KEY = ["cluster/ca.pem", "cluster/tls.key", "cluster/tls.pem"], "cluster/seal.key"

ENGINE_SECONDS = 600
BUILD_SECONDS = 900
STUDY_SECONDS = 1800
COMMAND_SECONDS = 600

# Asks the proxy itself, as the data user, for the release of a study.
RELEASE_DIGEST = """
import hashlib, sys
from dpdpca_runtime.passphrase import read_passphrase
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_user.home import UserHome
home = UserHome.find(None)
proxy = home.proxy(None)
passphrase = read_passphrase(None, "DPDPCA_USER_PASSPHRASE_FILE")
with ProxyClient(proxy.url, home.identity(passphrase), proxy.identity.ed25519) as client:
    study = StudyId.parse(sys.argv[1])
    print(hashlib.sha256(client.release(study).release + client.release_chunk(study, 0, 2**24)).hexdigest())
"""

AWAIT_FILE = """
import sys, time
from pathlib import Path
deadline = time.monotonic() + 60
while not Path(sys.argv[1]).exists() and time.monotonic() < deadline:
    time.sleep(0.5)
print("here" if Path(sys.argv[1]).exists() else "missing")
"""

CAN_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()
except OSError:
    print("no")
else:
    print("yes")
"""


@dataclass(frozen=True)
class Engine:
    """A container engine.

    Attributes:
        environment: what its client needs.
        inside: what runs a command where published ports can be reached.
        files: the compose files.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    inside: tuple[str, ...] = ()
    files: tuple[str, ...] = ("docker-compose.yml",)

    def run(self, *command: str, limit_seconds: float = COMMAND_SECONDS, check: bool = True) -> str:
        """What the command printed; its errors are shown where it fails."""
        outcome = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_seconds,
            check=False,
        )
        if check and outcome.returncode != 0:
            said = outcome.stdout[-4000:] + outcome.stderr[-8000:]
            pytest.fail(f"{' '.join(command)}: status {outcome.returncode}\n{said}")
        return outcome.stdout

    def compose(self, *words: str, limit_seconds: float = COMMAND_SECONDS, check: bool = True) -> str:
        files = [word for file in self.files for word in ("--file", file)]
        return self.run("docker", "compose", *files, *words, limit_seconds=limit_seconds, check=check)

    def python(self, service: str, program: str, *words: str) -> str:
        """What `program` prints inside a service's container."""
        return self.compose("exec", "-T", service, "python", "-c", program, *words).strip()

    def get(self, url: str, *options: str) -> str:
        return self.run(*self.inside, "curl", "-sS", "--fail", "--max-time", "20", *options, url)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A running engine of this machine, else a throw-away one."""
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    ):
        yield Engine()
        return
    if not ENGINE_TOOL.exists():
        pytest.skip(f"no container engine runs here, and the tool that starts one is not at {ENGINE_TOOL}")
    if os.geteuid() != 0:
        pytest.skip("no container engine runs here, and starting one needs root")
    tool = str(ENGINE_TOOL)
    starter = Engine()
    starter.run(tool, "down", limit_seconds=ENGINE_SECONDS, check=False)  # what a broken run may have left
    try:
        said = starter.run(tool, "up", BASE_IMAGE, limit_seconds=ENGINE_SECONDS)
        exports = starter.run("bash", "-c", f"{said}\nenv -0")
        environment = dict(line.split("=", 1) for line in exports.split("\0") if "=" in line)
        names = ("PATH", "DOCKER_HOST", "DOCKER_CONFIG", "COMPOSE_ENGINE_DIR")
        yield Engine({name: environment[name] for name in names if name in environment}, (tool, "exec"))
    finally:
        starter.run(tool, "down", limit_seconds=ENGINE_SECONDS)


@pytest.fixture(scope="module")
def federation(engine: Engine) -> Iterator[Engine]:
    """The federation, brought up from nothing and taken away with its volumes."""
    engine.compose("down", "--volumes", "--remove-orphans", check=False)
    try:
        engine.compose("up", "--build", "--detach", limit_seconds=BUILD_SECONDS)
        yield engine
    except BaseException:
        print(engine.compose("ps", "--all", check=False))
        print(engine.compose("logs", "--tail", "60", check=False)[-30_000:])
        raise
    finally:
        engine.compose("down", "--volumes", "--timeout", "20")


@pytest.fixture(scope="module")
def models(federation: Engine) -> dict[str, dict[str, object]]:
    """Masked, joint and chain → model, as the data user's application printed them when they had ended."""
    container = federation.compose("ps", "--all", "--quiet", "study").strip()
    status = federation.run("docker", "wait", container, limit_seconds=STUDY_SECONDS).strip()
    printed = federation.run("docker", "logs", container)
    assert status == "0", federation.compose("logs", "--tail", "40", check=False)[-20_000:]
    found = [json.loads(line) for line in printed.splitlines()]
    assert [model["name"] for model in found] == ["masked", "joint", "chain"]
    return {model["name"]: model for model in found}


def test_all_three_studies_end_with_a_model(models: dict[str, dict[str, object]]) -> None:
    assert len({str(model["study"]) for model in models.values()}) == 3
    assert all(model["records"] == 20_000 for model in models.values())
    assert all(int(str(model["trusted_components"])) >= 1 for model in models.values())


def test_joint_study_and_chain_are_blinded_and_the_masked_study_is_not(
    models: dict[str, dict[str, object]],
) -> None:
    """Each model tells it by what it assumes."""
    together = "The proxy, the data user and up to one owner may then work together."
    for name in ("joint", "chain"):
        assert together in str(models[name]["assumptions"])
    apart = "The proxy and the data user do not work together."
    assert apart in str(models["masked"]["assumptions"])


def test_owners_were_in_every_round_of_the_chain(
    federation: Engine, models: dict[str, dict[str, object]]
) -> None:
    rounds = models["chain"]["rounds"]
    assert isinstance(rounds, list)
    assert rounds[0] == "pre-study"
    assert rounds[-1] in ("joint", "pairs")
    said = federation.compose("exec", "-T", "owner-3", "dpdpca", "owner", "status", "--json")
    assert len(json.loads(said)["studies"]) == 2 + len(rounds)


def test_agents_took_part_and_fetched_the_components(
    federation: Engine, models: dict[str, dict[str, object]]
) -> None:
    """Each owner approved the first round of the chain, and nothing else of it."""
    rounds = models["chain"]["rounds"]
    assert isinstance(rounds, list)
    for owner, agent in zip(OWNERS, AGENTS, strict=True):
        place = f"/var/lib/dpdpca/studies/{models['chain']['study']}/components.npz"
        assert federation.python(agent, AWAIT_FILE, place) == "here", agent
        approved = federation.compose("logs", "--no-log-prefix", owner)
        assert approved.count("approved: the agent sends the share") == 3, approved
        joined = federation.compose("logs", "--no-log-prefix", agent)
        assert joined.count("dpdpca: joined '") == 2 + len(rounds), joined


def test_an_agent_ends_at_once_and_continues(
    federation: Engine, models: dict[str, dict[str, object]]
) -> None:
    assert models  # nothing is running any more
    federation.compose("restart", "--timeout", "20", AGENTS[0])
    federation.compose("up", "--detach", "--no-recreate", "--wait", AGENTS[0], limit_seconds=COMMAND_SECONDS)
    said = federation.compose("logs", "--no-log-prefix", AGENTS[0])
    assert "the agent has stopped; it continues at its next start" in said
    assert "Traceback" not in said


def test_the_file_for_an_owner_is_one_that_compose_reads(engine: Engine) -> None:
    replace(engine, files=("deploy/owner-agent.yml",)).compose("config", "--quiet")


def assert_few_rights(federation: Engine, services: Iterable[str]) -> None:
    """The containers of these services are healthy and can do no more than they need."""
    for service in services:
        containers = federation.compose("ps", "--quiet", service).split()
        assert containers, service
        for facts in json.loads(federation.run("docker", "inspect", *containers)):
            host = facts["HostConfig"]
            assert facts["Config"]["User"] == "10001:10001", service
            assert host["ReadonlyRootfs"], service
            assert host["CapDrop"] == ["ALL"], service
            assert "no-new-privileges:true" in host["SecurityOpt"], service
            assert not host["Privileged"], service
            assert facts["State"]["Health"]["Status"] == "healthy", service


def test_containers_have_no_more_rights_than_they_need(federation: Engine) -> None:
    assert_few_rights(federation, SERVICES)


def test_owners_reach_the_proxy_and_nothing_that_is_not_theirs(federation: Engine) -> None:
    assert federation.python("owner-1", CAN_CONNECT, "proxy", "8440") == "yes"
    assert federation.python("owner-1", CAN_CONNECT, "proxy", "8441") == "no"
    # An internal network has no way out; the address is one of those reserved for examples.
    assert federation.python("owner-1", CAN_CONNECT, "192.0.2.1", "443") == "no"


def test_published_addresses_answer_on_loopback(federation: Engine) -> None:
    assert "<title>" in federation.get("http://127.0.0.1:8441/")
    assert "ready" in federation.get("https://127.0.0.1:8450/readyz", "--insecure")
    published = federation.run("docker", "ps", "--format", "{{.Ports}}")
    assert "0.0.0.0:" not in published
    assert "[::]:" not in published


def test_certificates_are_of_the_federations_own_authority(federation: Engine) -> None:
    """A client that does not know the authority does not talk."""
    said = federation.python(
        "owner-1",
        "import ssl, socket\n"
        "plain = socket.create_connection(('proxy', 8440), timeout=5)\n"
        "try:\n    ssl.create_default_context().wrap_socket(plain, server_hostname='proxy')\n"
        "except ssl.SSLCertVerificationError:\n    print('refused')\n",
    )
    assert said == "refused"


def test_owner_opens_the_published_components(
    federation: Engine, models: dict[str, dict[str, object]]
) -> None:
    address = f"https://proxy:8440/{models['joint']['study']}"
    said = federation.compose("exec", "-T", "owner-2", "dpdpca", "owner", "components", address, "--json")
    assert json.loads(said)["records"] == 20_000


def test_release_survives_a_restart_of_the_proxy(
    federation: Engine, models: dict[str, dict[str, object]]
) -> None:
    studies = [str(model["study"]) for model in models.values()]
    before = [federation.python("user", RELEASE_DIGEST, study) for study in studies]
    federation.compose("restart", "--timeout", "20", "proxy")
    federation.compose("up", "--detach", "--no-recreate", "--wait", "proxy", limit_seconds=COMMAND_SECONDS)
    assert [federation.python("user", RELEASE_DIGEST, study) for study in studies] == before


# The overlay

LATE = "owner-3"
"""The owner without which no study ends. Its agent starts when the test lets it."""
SERVICE = ("--service", "https://user:8450")
PUNCTUAL = tuple(agent for agent in AGENTS if not agent.startswith(LATE))

SECRET_FILES = r"""
import re, stat
from contextlib import suppress
from pathlib import Path
secrets, shown = Path("/run/dpdpca/secrets"), b""
for what in ("cmdline", "environ"):
    for path in Path("/proc").glob(f"[0-9]*/{what}"):
        with suppress(PermissionError):  # a proxy shows nothing
            shown += path.read_bytes()
for path in sorted(path for path in secrets.rglob("*") if path.is_file()):
    facts = path.stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_uid) == (0o600, 10001), path
    words = re.split(rb"[:\s\"]", path.read_bytes())
    assert not any(len(word) > 16 and word in shown for word in words), path
    print(path.relative_to(secrets))
"""
"""Names of the files with secrets; fails if a process shows one of them, or if somebody else may read it."""

TASKS = """
from distributed import Client, Security
folder = "/run/dpdpca/secrets/cluster"
tls = Security(
    tls_ca_file=f"{folder}/ca.pem",
    tls_client_cert=f"{folder}/tls.pem",
    tls_client_key=f"{folder}/tls.key",
    require_encryption=True,
)

def steps(dask_scheduler):
    return dask_scheduler.transition_counter

with Client("tls://scheduler:8786", security=tls) as client:
    print(client.run_on_scheduler(steps))
"""
"""How many steps the calls to the Dask cluster have made."""


def await_log(engine: Engine, service: str, line: str) -> None:
    deadline = time.monotonic() + STUDY_SECONDS
    while line not in engine.compose("logs", "--no-log-prefix", service):
        assert time.monotonic() < deadline, f"{service} never said {line!r}"
        time.sleep(1)


@pytest.fixture(scope="module")
def scaled(engine: Engine) -> Iterator[Engine]:
    """The federation with the overlay, in place of the one before, which has the same names and ports."""
    engine.compose("down", "--volumes", "--remove-orphans", "--timeout", "20", check=False)
    overlay = replace(engine, files=(*engine.files, "deploy/scale.yml"))
    try:
        overlay.compose("create", "--build", limit_seconds=BUILD_SECONDS)
        overlay.compose("up", "--detach", "--wait", "user", LATE, *PUNCTUAL, limit_seconds=BUILD_SECONDS)
        yield overlay
    except BaseException:
        print(overlay.compose("ps", "--all", check=False))
        print(overlay.compose("logs", "--tail", "60", check=False)[-30_000:])
        raise
    finally:
        overlay.compose("down", "--volumes", "--remove-orphans", "--timeout", "20")  # `run` left an orphan


@pytest.fixture(scope="module")
def survivor(scaled: Engine) -> dict[str, object]:
    """The model of a masked study in which one proxy was killed and the database restarted."""
    container = scaled.compose("run", "--detach", "--no-deps", "study", "masked").split()[-1]
    for agent in PUNCTUAL:
        await_log(scaled, agent, "dpdpca: joined '")
    scaled.compose("kill", "proxy")  # as a machine that fails; nothing starts it again
    scaled.compose("up", "--detach", "--no-deps", f"{LATE}-agent")
    scaled.compose("restart", "--timeout", "20", "postgres")
    status = scaled.run("docker", "wait", container, limit_seconds=STUDY_SECONDS).strip()
    printed = scaled.run("docker", "logs", container)
    assert status == "0", scaled.compose("logs", "--tail", "40", check=False)[-20_000:]
    (model,) = [json.loads(line) for line in printed.splitlines()]
    assert isinstance(model, dict)
    return model


def test_services_of_the_overlay_have_no_more_rights_than_they_need(scaled: Engine) -> None:
    assert_few_rights(scaled, (*SCALED, "user", LATE))


def test_secrets_are_in_files_of_those_who_need_them_and_nowhere_else(scaled: Engine) -> None:
    expected = {
        "postgres": ["password", "tls.key", "tls.pem"],
        "store": ["s3.json", "tls.key", "tls.pem"],
        "balancer": ["tls.key", "tls.pem"],
        "scheduler": CLUSTER,
        "worker": [*CLUSTER[:1], SEAL_KEY, *CLUSTER[1:], "s3-credentials"],
        "proxy": [*CLUSTER[:1], SEAL_KEY, *CLUSTER[1:], "pgpass", "s3-credentials", "tls.key", "tls.pem"],
    }
    for service, files in expected.items():
        assert scaled.python(service, SECRET_FILES).split() == files, service


def test_owners_reach_the_balancer_and_nothing_behind_it(scaled: Engine) -> None:
    assert scaled.python(LATE, CAN_CONNECT, "proxy", "8440") == "yes"  # the balancer
    places = {"postgres": 5432, "store": 8333, "scheduler": 8786, "proxy-1": 8440, "operator": 8441}
    for host, port in places.items():
        assert scaled.python(LATE, CAN_CONNECT, host, str(port)) == "no", host
        near = "balancer" if host.startswith("proxy") else "proxy"
        assert scaled.python(near, CAN_CONNECT, host, str(port)) == "yes", host


def test_a_study_survives_a_killed_proxy_and_a_restart_of_the_database(
    scaled: Engine, survivor: dict[str, object]
) -> None:
    """The number of records comes out of the same sum of ciphertexts as everything else, without noise."""
    assert survivor["records"] == 20_000
    assert int(str(survivor["trusted_components"])) >= 1
    study = str(survivor["study"])
    said = scaled.compose("exec", "-T", "user", "dpdpca", "user", "verify", study, "--json", *SERVICE)
    assert json.loads(said)["verified"]
    said = scaled.compose("exec", "-T", "proxy-2", "dpdpca", "proxy", "audit", study, "--json")
    assert json.loads(said)["holds"] is True
    running = scaled.compose("ps", "--services", "--status", "running").split()
    assert {*SCALED} - {*running} == {"proxy"}


def test_facts_are_in_postgresql_files_in_the_store_and_work_is_on_the_cluster(
    scaled: Engine, survivor: dict[str, object]
) -> None:
    assert survivor  # the study has ended
    files = scaled.compose("exec", "-T", "proxy-2", "find", "/var/lib/dpdpca", "-type", "f").split()
    assert "/var/lib/dpdpca/identity.pem" in files
    assert not [file for file in files if "sqlite" in file or "/studies/" in file]
    listed = scaled.compose("exec", "-T", "store", "sh", "-c", "echo 's3.bucket.list' | weed shell")
    assert "studies" in listed
    assert int(scaled.python("proxy-2", TASKS)) > 0
    asked = "SELECT count(*) FROM studies"
    psql = ("psql", "--host=/tmp", "--username=dpdpca", "--dbname=proxy", "--tuples-only", "--command", asked)
    assert scaled.compose("exec", "-T", "postgres", *psql).strip() == "1"
