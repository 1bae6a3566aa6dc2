"""Wheels of an earlier and of this version meet: every pairing finishes a study, or names both versions.

The wheels are built from commits and installed into environments of their own; no version is made up. The
table of pairings is in docs/compatibility.md.
"""

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from archives import extract
from federation.processes import Machine, Outcome, Server, wait_for
from federation.records import draft, patients, write_csv
from federation.world import KEY_BITS, POLICY
from terminal import ROOT, copy_of_checkout, lend_packages

from dpdpca_cli.federation.parties import is_ready
from dpdpca_cli.federation.processes import free_port, inherited_environment
from dpdpca_protocol.wire.signing import FORMAT

pytestmark = pytest.mark.system

LAST_OF_FORMAT_2 = "e50694dd0e40"
BEFORE_MANY_FEATURES = "04f249cf2431"
"""Also of format 2, but with other members of messages: the format number did not rise before 1.0.0."""
OLD_NAMES = ("format 2", "dpdpca 0.2")
NEW_NAMES = (f"format {FORMAT}", f"dpdpca {version('dpdpca')}")
FEATURES = [{"name": name, "lower": 0, "upper": 300} for name in ("weight", "age")]


@dataclass(frozen=True)
class Program:
    """An installed wheel."""

    environment: Path

    @property
    def command(self) -> Path:
        return self.environment / "bin" / "dpdpca"


def install(folder: Path, commit: str | None) -> Program:
    """The wheel of a commit, or of this checkout, in a new environment. No registry is asked."""
    folder.mkdir()
    if commit is None:
        source = copy_of_checkout(folder)
    else:
        source = folder / "checkout"
        git = ["git", "archive", commit]
        packed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            extract(archive, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", folder, source], check=True)
    (wheel,) = folder.glob("dpdpca-*.whl")
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    lend_packages(environment)
    pip = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([environment / "bin" / "python", *pip, wheel], check=True)
    return Program(environment)


@dataclass
class InstalledServer(Server):
    """A server whose commands are those of an installed wheel."""

    program: Program = field(kw_only=True)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.program.command, *self.arguments],
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(lambda: is_ready(self.url), f"{self.name} is ready", 90.0)


@dataclass
class Place:
    """A party, its program, which may be replaced, and its service, if it has one."""

    machine: Machine
    program: Program
    server: InstalledServer | None = None

    @property
    def home(self) -> Path:
        return self.machine.home

    def run(self, *arguments: str | Path) -> Outcome:
        done = subprocess.run(
            [self.program.command, *map(str, arguments)],
            env={**self.machine.environment, "COLUMNS": "4000"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        with (self.machine.logs / f"{self.home.name}.log").open("a") as log:
            log.write(f"$ dpdpca {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
        return Outcome(done.returncode, done.stdout, done.stderr)

    def ask(self, *arguments: str | Path) -> dict[str, Any]:
        outcome = self.run(*arguments, "--json")
        assert outcome.status == 0, outcome.err
        return outcome.facts

    def serve(self, server: InstalledServer) -> None:
        self.server = server
        server.start()

    def upgrade(self, program: Program) -> None:
        """As docs/upgrading.md says: stop, install, start."""
        self.program = program
        if self.server is not None:
            self.server.stop()
            self.server.program = program
            self.server.start()


@dataclass
class Meeting:
    """A proxy of one program, and whoever comes to it."""

    folder: Path
    program: Program
    places: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "logs").mkdir(parents=True)

    @cached_property
    def proxy(self) -> Place:
        proxy, port = self._place("proxy", "Relay", self.program), free_port()
        self.url = f"http://127.0.0.1:{port}"
        proxy.ask(*proxy.machine.init("--url", self.url))
        ports = ("--port", str(port), "--operator-port", str(free_port()))
        self._serve(proxy, proxy.machine.serve(*ports), {}, self.url)
        return proxy

    def owner(self, name: str, program: Program) -> Place:
        owner = self._place("owner", name, program)
        owner.ask(*owner.machine.init())
        (owner.home / "policy.toml").write_text(POLICY)
        self._enrol(owner)
        return owner

    def user(self, name: str, program: Program) -> Place:
        user, port = self._place("user", name, program), free_port()
        url = f"http://127.0.0.1:{port}"
        user.machine.settings["DPDPCA_USER_SERVICE_URL"] = url  # type: ignore[index]  # it is a dict
        user.ask(*user.machine.init())
        self._enrol(user)
        settings = {"KEY_BITS": str(KEY_BITS), "PORT": str(port), "POLL_SECONDS": "0.3"}
        variables = {f"DPDPCA_USER_{name}": value for name, value in settings.items()}
        self._serve(user, user.machine.serve(), variables, url)
        return user

    def create(self, user: Place, *owners: Place, title: str = "A study") -> str:
        """The id of a draft that the user's service now opens."""
        return str(user.ask("user", "study", "create", self.write_draft(*owners, title=title))["draft"])

    def write_draft(self, *owners: Place, title: str = "A study") -> Path:
        names = [owner.machine.name for owner in owners]
        terms = {"participants": names, "min_owners": len(names), "closing": "when-complete", "title": title}
        file = self.folder / "draft.json"
        file.write_text(json.dumps(draft(**terms, features=FEATURES, clip_norm="1.4")))
        return file

    def told(self, user: Place, name: str, *states: str) -> dict[str, Any]:
        """What the user's service says of the study, once it is in one of the states."""

        def look() -> dict[str, Any] | None:
            facts = user.ask("user", "study", "show", name)
            return facts if facts["state"] in (*states, "failed") else None

        facts = wait_for(look, f"the study is {states}", 120.0)
        assert facts["state"] in states, facts
        return dict(facts)

    def join(self, owner: Place, study: str) -> Outcome:
        data = write_csv(self.folder / f"{owner.home.name}.csv", patients(60, len(owner.home.name)))
        return owner.run("owner", "join", f"{self.url}/{study}", "--data", data, "--yes")

    def finish(self, user: Place, *owners: Place, title: str = "A study") -> None:
        """A study from its draft to the components that an owner opens."""
        made = self.create(user, *owners, title=title)
        study = self.told(user, made, "open")["study"]
        for owner in owners:
            outcome = self.join(owner, study)
            assert outcome.status == 0, outcome.err
        self.told(user, study, "published")
        assert owners[0].ask("owner", "components", f"{self.url}/{study}")["components"]

    def end(self) -> None:
        for place in reversed(self.places):
            if place.server is not None:
                place.server.kill()

    def _place(self, role: str, name: str, program: Program) -> Place:
        folders = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / "config")}
        home = self.folder / f"{len(self.places):02d}-{role}"
        settings = {**inherited_environment(), **folders}
        place = Place(Machine(role, name, home, settings, logs=self.folder / "logs"), program)
        self.places.append(place)
        return place

    def _serve(self, place: Place, arguments: list[str], settings: dict[str, str], url: str) -> None:
        log = self.folder / "logs" / f"{place.home.name}-serve.log"
        environment = {**place.machine.environment, **settings}
        place.serve(
            InstalledServer(place.machine.name, arguments, environment, log, url, program=place.program)
        )

    def _enrol(self, place: Place) -> None:
        invited = self.proxy.run(*self.proxy.machine.invite(place.machine))
        file = place.home.with_name(f"{place.home.name}.invitation")
        file.write_text(invited.facts["token"])
        place.ask(*place.machine.enrol(self.url, file))


@dataclass
class Programs:
    """An earlier wheel and that of this checkout."""

    old: Program
    new: Program


def programs_of(folder: Path, new: Program, commit: str) -> Programs:
    there = subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True)
    if there.returncode != 0:
        pytest.skip(f"the history of this checkout lacks commit {commit}, whose wheel is to be built")
    return Programs(install(folder / commit, commit), new)


@pytest.fixture(scope="module")
def this(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return install(tmp_path_factory.mktemp("wheels") / "new", None)


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory, this: Program) -> Programs:
    return programs_of(tmp_path_factory.mktemp("last"), this, LAST_OF_FORMAT_2)


@pytest.fixture
def meetings(tmp_path: Path) -> Iterator[list[Meeting]]:
    made: list[Meeting] = []
    yield made
    for meeting in made:
        meeting.end()


def names_both(text: str) -> None:
    plain = " ".join(text.split())
    for name in (*OLD_NAMES, *NEW_NAMES):
        assert name in plain, plain


def refuses_owner(meeting: Meeting, owner: Place, study: str) -> None:
    review = owner.run("owner", "review", f"{meeting.url}/{study}")
    joined = meeting.join(owner, study)
    for outcome in (review, joined):
        assert outcome.status != 0
        names_both(outcome.err)


def refuses_user(meeting: Meeting, user: Place, owner: Place) -> None:
    outcome = user.run("user", "study", "create", meeting.write_draft(owner))
    assert outcome.status != 0
    names_both(outcome.err)


def test_an_earlier_owner_at_this_proxy_is_told_both_versions(
    last: Programs, tmp_path: Path, meetings: list[Meeting]
) -> None:
    meeting = Meeting(tmp_path / "meeting", last.new)
    meetings.append(meeting)
    owner = meeting.owner("Hospital A", last.old)
    refuses_owner(meeting, owner, "0" * 64)


@pytest.mark.nightly
@pytest.mark.parametrize("commit", [LAST_OF_FORMAT_2, BEFORE_MANY_FEATURES])
@pytest.mark.parametrize("at", ["old", "new"])
def test_every_pairing_finishes_a_study_or_names_both_versions(
    commit: str, at: str, this: Program, tmp_path: Path, meetings: list[Meeting]
) -> None:
    programs = programs_of(tmp_path, this, commit)
    same, other = (programs.old, programs.new) if at == "old" else (programs.new, programs.old)
    meeting = Meeting(tmp_path / "meeting", same)
    meetings.append(meeting)
    owners = [meeting.owner(f"Hospital {name}", same) for name in "AB"]
    user = meeting.user("Institute", same)
    meeting.finish(user, *owners)

    strange_owner, strange_user = meeting.owner("Hospital C", other), meeting.user("Academy", other)
    study = meeting.told(user, meeting.create(user, strange_owner, title="Another"), "open")["study"]
    refuses_owner(meeting, strange_owner, study)
    refuses_user(meeting, strange_user, owners[0])
    refuses_user(meeting, strange_user, strange_owner)


@pytest.mark.nightly
def test_homes_of_format_2_are_upgraded_in_place(
    last: Programs, tmp_path: Path, meetings: list[Meeting]
) -> None:
    """Keys, pins, ledgers and databases are read on; a study of format 2 that is open is refused."""
    meeting = Meeting(tmp_path / "meeting", last.old)
    meetings.append(meeting)
    owners = [meeting.owner(f"Hospital {name}", last.old) for name in "AB"]
    user = meeting.user("Institute", last.old)
    meeting.finish(user, *owners)
    left = meeting.told(user, meeting.create(user, *owners, title="Left open"), "open")["study"]
    spent = owners[0].ask("owner", "ledger")

    for place in (meeting.proxy, user, *owners):
        place.upgrade(last.new)
    assert owners[0].ask("owner", "ledger") == spent
    refused = meeting.join(owners[0], left)
    assert refused.status != 0
    names_both(refused.err)
    meeting.finish(user, *owners, title="After the upgrade")
