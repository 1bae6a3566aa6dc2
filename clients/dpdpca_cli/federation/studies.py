"""Whole studies between processes on this machine that talk HTTP over loopback."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdpca_cli.federation.parties import LocalParty, is_ready
from dpdpca_cli.federation.processes import Child, ChildProcesses, free_port
from dpdpca_cli.federation.watch import ProxyNews
from dpdpca_owner.agent import is_agent_running
from dpdpca_owner.home import OwnerHome
from dpdpca_protocol.errors import UnavailableError
from dpdpca_protocol.terms.signed_manifest import parse_manifest
from dpdpca_runtime.files import private_dir, write_private
from dpdpca_user.offline import lists_in
from dpdpca_user.results.model import Model
from dpdpca_user.service_client import ServiceClient

PROXY_NAME = "Independent Relay"
USER_NAME = "Habitat Institute"

_START_SECONDS = 60.0
_KEY_SECONDS = 900.0
_STUDY_SECONDS = 24 * 3600.0
_LOOK_SECONDS = 0.3
_SOURCE = "records"
"""The name under which each owner has registered its records."""

Say = Callable[[str, float | None], None]
"""Receives the name of the current step, and the fraction of it that is done, or None if unknown."""


@dataclass(frozen=True, slots=True)
class OwnerRun:
    """What one owner did in a study."""

    name: str
    records: int
    seconds: float
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One study from draft to model.

    Attributes:
        key_seconds: from the draft to the signed manifest at the proxy; mostly for making the key.
        proxy_seconds: from the end of the last owner's command to the release on the operator's page.
        user_seconds: time of each later step of the data user, by name.
        release_bytes: size of the releases that the proxy gave to the data user, with E[N] if masked.
        rounds: releases of a chain, of which the last one gives the model; empty for a single study. Seconds
            and bytes of a chain are the totals of all its rounds.
        agents: how many owners' agents went through the chain and fetched the components; 0 for a single
            study.
    """

    model: Model
    owners: tuple[OwnerRun, ...]
    key_seconds: float
    proxy_seconds: float
    user_seconds: Mapping[str, float]
    release_bytes: int
    rounds: tuple[str, ...] = ()
    agents: int = 0

    @property
    def release(self) -> str:
        """Masked, joint or pairs; preceded by `auto` if a chain has chosen it."""
        release = str(self.model.manifest.release)
        return f"auto ({release})" if self.rounds else release

    @property
    def promise(self) -> str:
        """The privacy guarantee of one record; for a chain, over all its rounds."""
        manifest = self.model.manifest
        if not self.rounds:
            return str(manifest.figures.guarantee)
        total = f"(ε, δ) = ({float(manifest.epsilon):.6g}, {float(manifest.delta):.6g})"
        return f"{total}, {manifest.relation}, over {len(self.rounds)} rounds"


class Federation:
    """A proxy, a data user and owners, enrolled and serving.

    Args:
        processes: where the processes run.
        folder: a private folder; each party gets a home in it.
        owners: names, in the order of `parts`.
        parts: one data file for each owner.
        policy: the content of each owner's policy file.
        say: receives progress.
    """

    def __init__(
        self,
        processes: ChildProcesses,
        folder: Path,
        owners: Sequence[str],
        parts: Sequence[Path],
        policy: str,
        say: Say,
    ) -> None:
        self._processes = processes
        self._folder = folder
        self._parts = tuple(parts)
        self._policy = policy
        self._say = say
        ports = [free_port() for _ in range(3)]
        self.proxy_url = f"http://127.0.0.1:{ports[0]}"
        self.operator_url = f"http://127.0.0.1:{ports[1]}"
        self.service_url = f"http://127.0.0.1:{ports[2]}"
        proxy_settings = {"DPDPCA_PROXY_PORT": str(ports[0]), "DPDPCA_PROXY_OPERATOR_PORT": str(ports[1])}
        self._proxy = LocalParty("proxy", PROXY_NAME, folder / "proxy", proxy_settings)
        user_settings = {"DPDPCA_USER_PORT": str(ports[2]), "DPDPCA_USER_POLL_SECONDS": "0.3"}
        self._user = LocalParty("user", USER_NAME, folder / "user", user_settings)
        owner_settings = {"DPDPCA_OWNER_WITNESS": str(folder / "witnesses")}
        self._owners = tuple(
            LocalParty("owner", name, folder / f"owner-{number}", owner_settings)
            for number, name in enumerate(owners, start=1)
        )

    def found(self) -> None:
        """Create identities, start both services, and enrol all parties by invitation."""
        self._say("Creating the identities of all parties", None)
        self._run("proxy init", self._proxy, self._proxy.init())
        made = [self._start(f"init {party.name}", party, party.init()) for party in self._members]
        self._processes.wait_for(made, _START_SECONDS)
        for owner in self._owners:
            write_private(owner.home / "policy.toml", self._policy.encode())

        self._say("Starting the proxy", None)
        self._serve("proxy", self._proxy, self.proxy_url)
        self.news = ProxyNews(self.operator_url)

        self._say("Inviting and enrolling", None)
        enrolling = [self._enrol(party) for party in self._members]
        self._processes.wait_for(enrolling, _START_SECONDS)

        registering = [
            self._start(f"register records of {owner.name}", owner, _register(part))
            for owner, part in zip(self._owners, self._parts, strict=True)
        ]
        self._processes.wait_for(registering, _START_SECONDS)

        self._say("Starting the data user's service", None)
        self._service = self._serve("data user", self._user, self.service_url)

    @property
    def _members(self) -> tuple[LocalParty, ...]:
        """All parties that the proxy invites."""
        return (self._user, *self._owners)

    def close(self) -> None:
        if hasattr(self, "news"):
            self.news.close()

    def run_study(self, draft: Mapping[str, Any]) -> StudyRun:
        """Run one study from draft to model: the service creates it, and each owner joins by its command."""
        with ServiceClient(self.service_url, home=self._user.home) as service:
            begun = time.monotonic()
            study = self._create(service, draft)
            key_seconds = time.monotonic() - begun
            owners = self._join(study)
            joined = time.monotonic()
            self._await_model(service, study)
            model = Model.from_bytes(service.model_file(study))
        figures = model.manifest.figures
        return StudyRun(
            model=model,
            owners=owners,
            key_seconds=key_seconds,
            proxy_seconds=max(0.0, self.news.of(study).released_at() - joined),
            user_seconds=model.provenance.seconds,
            release_bytes=figures.share_bytes,
        )

    def run_chain(self, draft: Mapping[str, Any]) -> StudyRun:
        """Run a chain from its base draft to its model and the components in each owner's home.

        The service chooses the rounds. Each owner approves the chain once, by one command. Its agent joins
        all rounds and fetches the components.
        """
        owners: list[tuple[OwnerRun, ...]] = []
        key_seconds = proxy_seconds = 0.0
        user_seconds: dict[str, float] = {}
        with ServiceClient(self.service_url, home=self._user.home) as service:
            agents = self._start_agents()
            chain = str(service.run_chain(json.dumps(draft).encode(), "application/json")["id"])
            while True:
                begun = time.monotonic()
                facts = self._await_round(service, chain, len(owners))
                if facts["state"] == "done":
                    break
                key_seconds += time.monotonic() - begun
                study = str(facts["rounds"][-1]["study"])
                if not owners:
                    self._approve(agents, study)
                owners.append(self._await_shares(agents, study))
                joined = time.monotonic()
                self._await_model(service, study)
                proxy_seconds += max(0.0, self.news.of(study).released_at() - joined)
                for step, seconds in service.study(study)["seconds"].items():
                    user_seconds[step] = user_seconds.get(step, 0.0) + seconds
            model = Model.from_bytes(service.model_file(str(facts["study"])))
            released = [service.evidence(str(each["study"])) for each in facts["rounds"]]
            self._await_components(agents, str(facts["study"]))
        return StudyRun(
            model=model,
            owners=tuple(
                OwnerRun(
                    rounds[0].name,
                    rounds[0].records,
                    sum(each.seconds for each in rounds),
                    sum(each.sent_bytes for each in rounds),
                )
                for rounds in zip(*owners, strict=True)
            ),
            key_seconds=key_seconds,
            proxy_seconds=proxy_seconds,
            user_seconds=user_seconds,
            release_bytes=sum(map(_release_bytes, released)),
            rounds=tuple(str(each["release"]) for each in facts["rounds"]),
            agents=len(agents),
        )

    def _start_agents(self) -> list[Child]:
        """Start the owners' agents. They run until all processes end."""
        options = ("--json", "--every", str(_LOOK_SECONDS))
        return [
            self._processes.start(
                f"agent of {owner.name}",
                owner.serve(*options, "--port", str(free_port())),
                owner.environment,
                is_server=True,
            )
            for owner in self._owners
        ]

    def _approve(self, agents: Sequence[Child], study: str) -> None:
        """Each owner approves the chain with its first round, by one command. Its agent takes over."""
        self._say("Owners: approving the chain, each once", None)
        homes = [OwnerHome(owner.home) for owner in self._owners]
        self._wait(lambda: all(map(is_agent_running, homes)), _START_SECONDS, agents[0], "was not ready")
        words = ["owner", "join", f"{self.proxy_url}/{study}", "--source", _SOURCE, "--follow", "--yes"]
        approving = [self._start(f"approval of {owner.name}", owner, words) for owner in self._owners]
        self._processes.wait_for(approving, _START_SECONDS)

    def _await_shares(self, agents: Sequence[Child], study: str) -> tuple[OwnerRun, ...]:
        address, joined = f"{self.proxy_url}/{study}", list[dict[str, Any]]()

        def are_here() -> bool:
            news = [line for agent in agents for line in _news(agent)]
            joined[:] = [line for line in news if (line["event"], line["address"]) == ("joined", address)]
            self._say(
                f"Owners' agents: encrypting and sending, {len(joined)} of {len(agents)} done",
                len(joined) / len(agents),
            )
            return len(joined) == len(agents)

        self._wait(are_here, _STUDY_SECONDS, agents[0], "sent no share")
        return tuple(
            OwnerRun(owner.name, told["records"], told["seconds"], told["sent_bytes"])
            for owner, told in zip(self._owners, joined, strict=True)
        )

    def _await_components(self, agents: Sequence[Child], study: str) -> None:
        """Wait until each owner's agent has the components in its home."""
        self._say("Owners' agents: fetching the components", None)
        event = ("components", f"{self.proxy_url}/{study}")

        def are_here() -> bool:
            return all(
                any((line["event"], line["address"]) == event for line in _news(agent)) for agent in agents
            )

        self._wait(are_here, _STUDY_SECONDS, agents[0], "fetched no components")

    def _await_round(self, service: ServiceClient, chain: str, known: int) -> dict[str, Any]:
        """Wait until the chain has ended, or until a study after its first `known` studies is open."""
        self._say("Data user: choosing the next round and making its key", None)
        facts: dict[str, Any] = {}

        def is_open() -> bool:
            nonlocal facts
            facts = service.chain(chain)
            if facts["state"] in ("failed", "cancelled"):
                raise UnavailableError("study-failed", f"the chain ended: {facts['problem']}")
            rounds = facts["rounds"][known:]
            return facts["state"] == "done" or any(each["state"] == "open" for each in rounds)

        self._wait(is_open, _KEY_SECONDS, self._service, "opened no study")
        return facts

    def _create(self, service: ServiceClient, draft: Mapping[str, Any]) -> str:
        self._say("Data user: making a key for this study", None)
        created = service.create(json.dumps(draft).encode(), "application/json")
        facts: dict[str, Any] = {}

        def is_open() -> bool:
            nonlocal facts
            facts = service.study(str(created["draft"]))
            _check_alive(facts)
            return bool(facts.get("study")) and facts["state"] not in ("drafted", "signed")

        self._wait(is_open, _KEY_SECONDS, self._service, "made no key")
        return str(facts["study"])

    def _join(self, study: str) -> tuple[OwnerRun, ...]:
        address = f"{self.proxy_url}/{study}"
        begun = time.monotonic()
        joining: list[Child] = []
        for owner in self._owners:
            words = ["owner", "join", address, "--source", _SOURCE, "--yes", "--json"]
            joining.append(self._start(f"join {owner.name}", owner, words))
        ended: dict[str, float] = {}

        def look() -> None:
            for child in joining:
                if child.process.poll() is not None:
                    ended.setdefault(child.name, time.monotonic() - begun)
            self._say(
                f"Owners: encrypting and sending, {len(ended)} of {len(joining)} done",
                len(ended) / len(joining),
            )

        self._processes.wait_for(joining, _STUDY_SECONDS, look)
        runs = []
        for owner, child in zip(self._owners, joining, strict=True):
            said = json.loads(child.output.read_text(encoding="utf-8"))
            runs.append(OwnerRun(owner.name, said["records"], ended[child.name], said["sent_bytes"]))
        return tuple(runs)

    def _await_model(self, service: ServiceClient, study: str) -> None:
        def is_ready() -> bool:
            news = self.news.of(study)
            done = None
            if news.progress is not None:
                _, steps, total = news.progress
                done = steps / total if total else None
            self._say(f"Proxy and data user: study is {news.state or 'open'}", done)
            facts = service.study(study)
            _check_alive(facts)
            return facts["state"] in ("fitted", "published")

        self._wait(is_ready, _STUDY_SECONDS, self._service, "had no model")

    def _wait(self, condition: Callable[[], bool], limit_seconds: float, blamed: Child, what: str) -> None:
        self._processes.wait_until(condition, limit_seconds, blamed, what, every_seconds=_LOOK_SECONDS)

    def _start(self, title: str, party: LocalParty, words: Sequence[str]) -> Child:
        return self._processes.start(title, words, party.environment)

    def _run(self, title: str, party: LocalParty, words: Sequence[str]) -> str:
        return self._processes.run(title, words, party.environment)

    def _serve(self, title: str, party: LocalParty, url: str) -> Child:
        """Start a service, and wait until it is ready."""
        child = self._processes.start(title, party.serve(), party.environment, is_server=True)
        self._wait(lambda: is_ready(url), _START_SECONDS, child, "was not ready")
        return child

    def _enrol(self, party: LocalParty) -> Child:
        printed = self._run(f"invite {party.name}", self._proxy, self._proxy.invite(party))
        folder = private_dir(self._folder / "invitations")
        invitation = folder / f"{len(list(folder.iterdir()))}.txt"
        write_private(invitation, json.loads(printed)["token"].encode())
        return self._start(f"enrol {party.name}", party, party.enrol(self.proxy_url, invitation))


def _register(part: Path) -> list[str]:
    """The arguments with which an owner registers its records, once."""
    return ["owner", "data", "add", _SOURCE, "--data", str(part)]


def _news(agent: Child) -> list[dict[str, Any]]:
    """What an agent has printed, without a line that is still being written."""
    written = agent.output.read_text(encoding="utf-8")
    return [json.loads(line) for line in written[: written.rfind("\n") + 1].splitlines()]


def _release_bytes(evidence: Mapping[str, Any]) -> int:
    """The size of the release of one round, from its signed manifest."""
    return parse_manifest(evidence["manifest"]["body"], lists_in(evidence)).figures.share_bytes


def _check_alive(facts: Mapping[str, Any]) -> None:
    """Raises DpdpcaError if a study has ended without a model."""
    if facts.get("state") in ("failed", "cancelled"):
        reason = facts.get("failure") or facts["state"]
        raise UnavailableError("study-failed", f"the study ended without a result: {reason}")
