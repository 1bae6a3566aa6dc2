"""Agents of several owners and chains that are interrupted at random do all that was approved, and no more.

A data user runs chains whose first round each owner approves once. All the time, studies are open that nobody
approves: of the same data user, also as a round of these chains, and of another data user that names the
chains. Each run of an agent is a new one that knows nothing but its home. It may end at any request or write,
its network or its proxy may fail, clocks may be wrong, and another command may work in the same home.
"""

import json
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from chain_world import Chain
from following_scene import POLICY, PRE, TERMS, Killed, ManyKeys
from promises import Promise
from proxy_world import TOY_BITS, HandClock, ProxyWorld, wait_for
from quick_folder import quick_folder
from starlette.testclient import TestClient
from study_parties import Parties

from dpdpca_owner.agent import Agent, is_agent_running, only_agent
from dpdpca_owner.followed import FollowedStudy
from dpdpca_owner.following import Follower, Records, share_at
from dpdpca_owner.records.source import DataLocation
from dpdpca_owner.sources import RegisteredSource
from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_protocol.study import ShareState, StudyState
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import IdentityKey
from dpdpca_proxy.app import create_app
from dpdpca_proxy.proxy import make_home, open_proxy
from dpdpca_proxy.settings import load_settings
from dpdpca_proxy.store.shares import list_shares
from dpdpca_proxy.store.studies import complete_members, frozen_cohort, load_study
from dpdpca_proxy.studies import summaries
from dpdpca_runtime.http.address import StudyAddress
from dpdpca_runtime.http.client import ProxyClient
from dpdpca_runtime.http.retry import Patience
from dpdpca_user_service.chains import create_chain
from dpdpca_user_service.store.chains import ChainState

LETTERS = "ABC"
NAMED = {0: (0, 1, 2), 1: (1, 2)}
"""The owners that each chain names. The chains have features of their own."""
RECORDS, WIDTH = 1800, 3
MOST_STEPS = 4000
DAYS = 3650
"""After which studies close: never in a game."""
PROXY = -1
QUIET, OTHERWISE = 0.05, 0.1
"""How often a run is not interrupted, and how often an owner looks while nobody has anything to do."""


class Fault(StrEnum):
    """What may happen at one point of a run. All but the first strike at a request."""

    KILLED = auto()
    KILLED_AFTER_REQUEST = auto()
    NO_NETWORK = auto()
    ANSWER_LOST = auto()
    PROXY_RESTARTED = auto()
    PROXY_GONE = auto()
    OWNERS_CLOCK = auto()
    PROXYS_CLOCK = auto()
    TIME_PASSES = auto()
    OTHER_COMMAND = auto()


WEIGHTS = {
    Fault.KILLED: 8,
    Fault.KILLED_AFTER_REQUEST: 4,
    Fault.NO_NETWORK: 2,
    Fault.ANSWER_LOST: 4,
    Fault.PROXY_RESTARTED: 1,
    Fault.PROXY_GONE: 1,
    Fault.OWNERS_CLOCK: 2,
    Fault.PROXYS_CLOCK: 1,
    Fault.TIME_PASSES: 1,
    Fault.OTHER_COMMAND: 3,
}
POINTS, REQUESTS = 40, 10
"""The latest point, and the latest request, of a run at which something happens."""


class QuietWorld(ProxyWorld):
    """A proxy whose application is called in this process, without sockets, so that nothing depends on the
    machine's speed. `time` is the right time, and `clock` is the proxy's."""

    time: HandClock
    _called: TestClient | None = None

    def start(self) -> None:
        settings = load_settings(self.home, port=self.port, log_level="ERROR", **self.settings)
        make_home(settings)
        proxy = open_proxy(settings, now=self.clock, key_rules=KeyRules(TOY_BITS))
        self.app = create_app(proxy, worker=self.worker)
        self.proxy = self.app.state.proxy
        self._called = TestClient(self.app, self.url, client=("127.0.0.1", 50_000))
        self._called.__enter__()

    def stop(self) -> None:
        assert self._called is not None
        self._called.__exit__(None, None, None)
        self._called = None

    @property
    def is_running(self) -> bool:
        return self._called is not None

    def client(self, key: IdentityKey) -> ProxyClient:
        return self.connect(self.url, key, self.proxy_key, self.time)

    def connect(self, url: str, key: IdentityKey, proxy: bytes | None, clock: HandClock) -> ProxyClient:
        return ProxyClient(url, key, proxy, Line(self), patience=Patience(seconds=0.0), now=clock)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self._called is None:
            raise httpx.ConnectError("nobody listens", request=request)
        response: httpx.Response = self._called._transport.handle_request(request)
        return response


@dataclass
class Line(httpx.BaseTransport):
    """The way to a proxy, whether it runs or not."""

    world: QuietWorld

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.world.answer(request)


@dataclass
class Interruptions:
    """Lets one thing happen at one point of what runs within `at`.

    Points are each write, sync and rename of a file by this thread, and each request of any thread.
    """

    patch: pytest.MonkeyPatch
    happened: Counter[Fault] = field(default_factory=Counter)

    @contextmanager
    def at(self, turn: int, fault: Fault, act: Callable[[], None]) -> Iterator[None]:
        """Args: act: what happens, if it is not an end of this run or of its network."""
        left, here = turn, threading.current_thread()

        def is_now(is_request: bool) -> bool:
            nonlocal left
            if is_request or (fault is Fault.KILLED and threading.current_thread() is here):
                left -= 1
                if left == 0:
                    self.happened[fault] += 1
                    return True
            return False

        send, write, sync, rename = httpx.Client.send, os.write, os.fsync, Path.replace

        def sending(client: httpx.Client, *args: Any, **options: Any) -> httpx.Response:
            if not is_now(True):
                return send(client, *args, **options)
            match fault:
                case Fault.KILLED:
                    raise Killed
                case Fault.NO_NETWORK:
                    raise httpx.ConnectError("gone")
                case Fault.KILLED_AFTER_REQUEST | Fault.ANSWER_LOST:
                    send(client, *args, **options).close()
                    raise Killed if fault is Fault.KILLED_AFTER_REQUEST else httpx.ReadError("lost")
                case _:
                    act()
                    return send(client, *args, **options)

        def writing(descriptor: int, content: bytes) -> int:
            if is_now(False):
                write(descriptor, bytes(content)[: len(content) // 2])
                raise Killed
            return write(descriptor, content)

        def syncing(descriptor: int) -> None:
            if is_now(False):
                raise Killed
            sync(descriptor)

        def renaming(path: Path, target: Path) -> Path:
            if is_now(False):
                raise Killed
            return rename(path, target)

        with self.patch.context() as patch:
            patch.setattr(httpx.Client, "send", sending)
            patch.setattr(os, "write", writing)
            patch.setattr(os, "fsync", syncing)
            patch.setattr(Path, "replace", renaming)
            yield


@dataclass
class Game:
    """One world, from its first study to the last components.

    Attributes:
        source: of everything that is made up.
        first: for each chain, the address of its first round, once it is known.
        approved: for each owner, the chains whose first round it approved.
        results: what agents fetched, by owner and chain.
    """

    chain: Chain
    source: random.Random
    interruptions: Interruptions
    clocks: list[HandClock] = field(default_factory=lambda: [HandClock() for _ in LETTERS])
    wrong: dict[int, timedelta] = field(default_factory=dict)
    """How far an owner's clock is off, by owner; and the proxy's, under `PROXY`."""
    chains: dict[int, str] = field(default_factory=dict)
    first: dict[int, StudyAddress] = field(default_factory=dict)
    approved: dict[int, set[int]] = field(default_factory=lambda: {owner: set() for owner in range(3)})
    results: dict[tuple[int, int], Path] = field(default_factory=dict)
    unapproved: set[str] = field(default_factory=set)
    """This data user's studies that stay open, by their ids at its service."""

    def __post_init__(self) -> None:
        assert isinstance(self.chain.world, QuietWorld)
        self.world, self.user = self.chain.world, self.chain.user
        self.desks = [replace(desk, connect=self._connect(owner), now=self.clocks[owner])
                      for owner, desk in enumerate(self.chain.desks)]  # fmt: skip

    def _connect(self, owner: int) -> Callable[[str, IdentityKey, bytes | None, float], ProxyClient]:
        def connect(url: str, key: IdentityKey, pinned: bytes | None, _seconds: float) -> ProxyClient:
            return self.world.connect(url, key, pinned, self.clocks[owner])

        return connect

    def set_clocks(self, passed: timedelta = timedelta()) -> None:
        """Let time pass, and set every clock to that time or as wrong as it is."""
        now = self.world.time.ahead + passed
        self.world.time.ahead = self.user.clock.ahead = now
        self.world.clock.ahead = now + self.wrong.get(PROXY, timedelta())
        for owner, clock in enumerate(self.clocks):
            clock.ahead = now + self.wrong.get(owner, timedelta())

    def begin(self, chain: int) -> None:
        features = range(WIDTH * chain, WIDTH * (chain + 1))
        base = {name: TERMS[name] for name in ("epsilon", "max_records", "min_records")} | {
            "title": f"Chain {chain}",
            "purpose": "A test.",
            "participants": [f"Hospital {LETTERS[owner]}" for owner in NAMED[chain]],
            "min_owners": 2,
            "features": [{"name": f"f{number}", "lower": -1, "upper": 1} for number in features],
            "closing": "when-complete",
        }
        made = create_chain(self.user.service, json.dumps(base).encode(), "application/json", None)
        self.chains[chain] = str(made["id"])

    def rounds(self, chain: int) -> list[StudyId]:
        """The rounds that are known to the proxy, in order."""
        rows = {row.id: row for row in self.user.service.store.all()}
        told = self.user.service.chains.find(self.chains[chain]).rounds
        found = [rows[each.row].study for each in told if each.row in rows]
        return [study for study in found if study is not None]

    def tempt(self, chain: int) -> None:
        """Rounds that nobody approves: of this data user with another purpose, and of another data user."""
        rounds = {"rho_share": "0.1", "pre_studies": [self.first[chain].study.hex()]}
        terms = {name: value for name, value in TERMS.items() if name != "delta"}  # the chain's, by default
        self.open_unapproved(release="joint", **terms | rounds | {"purpose": "Something else."})
        world, closes_at = self.world, self.world.time() + timedelta(days=DAYS)
        ours = world.user, world.secret, world.proof
        world.user = world.owners[1].generate("user")
        world.enrol(world.user, "user", "Institute")
        world.with_new_key()
        world.open_study(3, epsilon=TERMS["epsilon"], closes_at=closes_at, **rounds)
        world.user, world.secret, world.proof = ours

    def open_unapproved(self, **draft: Any) -> None:
        self.unapproved.add(self.chain.open(**draft).id)

    # one step

    def step(self) -> None:
        if not self.world.is_running and self.source.random() < 0.5:
            self.world.start()
        if self.source.random() < 0.5:
            self.wrong.clear()
            self.set_clocks()
        at_work = [owner for owner in range(len(LETTERS)) if self.has_work(owner)]
        if self.world.is_running and PROXY not in self.wrong and (not at_work or self.source.random() < 0.3):
            self.advance_the_others()
        if at_work or self.source.random() < OTHERWISE:
            owner = self.source.choice(at_work or range(len(LETTERS)))
            self.run_agent(owner)
            self.check_nothing_else(owner)

    def advance_the_others(self) -> None:
        """The data user and the proxy do all that they can, and people approve."""
        service, known = self.user.service, set(self.first)
        for chain_id in self.chains.values():
            self.user.driver.advance_chain(service.chains.find(chain_id))
        for row in service.store.unfinished():
            if row.id not in self.unapproved:
                self.user.driver.advance(row)
        wait_for(self.is_quiet)
        for chain in self.chains:
            if chain not in self.first and (rounds := self.rounds(chain)) and self.is_open(rounds[0]):
                self.first[chain] = StudyAddress(self.world.url, rounds[0])
                self.tempt(chain)
            for owner in NAMED[chain]:
                if chain in known and chain not in self.approved[owner] and self.source.random() < 0.3:
                    followed = FollowedStudy(self.first[chain], "patients", "people")
                    self.desks[owner].home.followed.add(followed)
                    self.approved[owner].add(chain)

    def is_open(self, study: StudyId) -> bool:
        """Whether the proxy has the study, and it accepts shares."""
        return {each["study"]: each["state"] for each in summaries(self.world.proxy)}.get(
            study.hex()
        ) == "open"

    def is_quiet(self) -> bool:
        """Whether the proxy has done all that it does by itself."""
        studies = [StudyId.parse(each["study"]) for each in summaries(self.world.proxy)]
        with self.world.proxy.database.reading("test: is it quiet") as connection:
            for study in studies:
                row = load_study(connection, study)
                if row.state in (StudyState.CLOSED, StudyState.COUNTED):
                    return False
                complete = len(complete_members(connection, row.study))
                if row.state is StudyState.OPEN and complete and complete == self.asked(row.study):
                    return False
        return True

    def asked(self, study: StudyId) -> int:
        """How many owners a round of our chains asks; 0 for another study, which nobody joins."""
        return next((len(NAMED[chain]) for chain in self.chains if study in self.rounds(chain)), 0)

    def has_work(self, owner: int) -> bool:
        """Whether an approved round waits for this owner, or a chain has ended and its components wait."""
        for chain in self.approved[owner]:
            is_done = self.user.service.chains.find(self.chains[chain]).state is ChainState.DONE
            lacks = any(self.state(owner, study) is not ShareState.COMPLETE for study in self.rounds(chain))
            if (owner, chain) not in self.results and (is_done or lacks):
                return True
        return False

    def state(self, owner: int, study: StudyId) -> ShareState:
        return share_at(self.desks[owner].home, StudyAddress(self.world.url, study))

    def run_agent(self, owner: int) -> None:
        desk, source = self.desks[owner], self.source
        fault = source.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        turn = 1 + source.randrange(POINTS if fault is Fault.KILLED else REQUESTS)
        off = timedelta(hours=source.choice([1, 12, 3 * 24]))
        sign = source.choice([-1, 1])

        def act() -> None:
            match fault:
                case Fault.PROXY_RESTARTED | Fault.PROXY_GONE:
                    if self.world.is_running:  # it may have gone in an earlier run
                        self.world.stop()
                    if fault is Fault.PROXY_RESTARTED:
                        self.world.start()
                case Fault.OWNERS_CLOCK:
                    self.wrong[owner] = sign * off
                    self.set_clocks()
                case Fault.PROXYS_CLOCK:
                    self.wrong[PROXY] = -off  # after one that was ahead, the operator must act
                    self.set_clocks()
                case Fault.TIME_PASSES:
                    self.set_clocks(off)
                case Fault.OTHER_COMMAND:
                    assert is_agent_running(desk.home)
                    self.follow_by_command(owner)
                case _:
                    raise AssertionError(fault)

        def look() -> None:
            with suppress(Killed), only_agent(desk.home):
                Agent(desk, {}).look()

        if source.random() < QUIET:
            look()
        else:
            with self.interruptions.at(turn, fault, act):
                look()
        self.note_results(owner)

    def note_results(self, owner: int) -> None:
        """Note the components of each chain that the agent has ended to follow. A run that is killed after
        that tells nobody, so the home must say it."""
        home = self.desks[owner].home
        followed = {each.address for each in home.followed.all()}
        for chain in self.approved[owner]:
            paths = [home.study(study).path / "components.npz" for study in self.rounds(chain)]
            found = [path for path in paths if path.exists()]
            if found and self.first[chain] not in followed:
                (self.results[owner, chain],) = found

    def follow_by_command(self, owner: int) -> None:
        """`join --follow` looks once, in the middle of a request of the agent in the same home."""
        for chain in sorted(self.approved[owner]):
            records = Records(DataLocation(str(self.chain.data[owner])), "people")
            with suppress(DpdpcaError):
                Follower(self.desks[owner], self.first[chain], records, is_approved=True).advance()

    # what must hold

    def check_nothing_else(self, owner: int) -> None:
        """This owner's ledger and this owner's folders know approved rounds only."""
        allowed = {study for chain in self.approved[owner] for study in self.rounds(chain)}
        desk = self.desks[owner]
        assert {spend.charge.study for spend in desk.home.ledger.read().spends} <= allowed
        assert {folder.study for folder in desk.home.joined()} <= allowed

    def check_end(self) -> None:
        rounds = {chain: self.rounds(chain) for chain in self.chains}
        ours = {study for each in rounds.values() for study in each}
        told = [StudyId.parse(each["study"]) for each in summaries(self.world.proxy)]
        with self.world.proxy.database.reading("test: shares") as connection:
            shares = {study: list_shares(connection, study) for study in told}
            cohorts = {study: frozen_cohort(connection, study) for study in ours}
        others = set(told) - ours
        assert len(others) == 2 + 2 * len(self.chains)
        assert all(not shares[study] for study in others), "a study that nobody approved got something"
        parties = [desk.owner.key.public.party_id for desk in self.desks]
        for owner, desk in enumerate(self.desks):
            expected = {study for chain in self.approved[owner] for study in rounds[chain]}
            assert len(self.approved[owner]) == sum(owner in NAMED[chain] for chain in self.chains)
            for study in ours:
                members = [each for each in cohorts[study] if each.owner == parties[owner]]
                receipt = desk.home.study(study).last_receipt(self.world.proxy_key)
                complete = ShareState.COMPLETE if study in expected else ShareState.ABSENT
                assert self.state(owner, study) is complete, "a receipt is missing"
                assert len(members) == (receipt is not None) == (study in expected)
                for member in members:
                    assert receipt is not None
                    assert (receipt.version, receipt.statement) == (member.version, member.statement)
            ledger = desk.home.ledger.read()
            assert {spend.charge.study for spend in ledger.spends} == expected
            assert len(ledger.spends) == ledger.spent("people").releases == len(expected)
            assert desk.home.followed.all() == []
        for chain in self.chains:
            found = [self.results[owner, chain] for owner in NAMED[chain]]
            vectors = [np.load(path)["components"] for path in found]
            assert len({each.tobytes() for each in vectors}) == 1
            assert vectors[0].shape[1] >= 1

    def play(self, chains: int) -> None:
        for draft in (PRE | {"rho_share": "0.2"}, TERMS | {"release": "joint"}):
            self.open_unapproved(**draft, title="Nobody approves this")
        for chain in range(chains):
            self.begin(chain)
        wanted = sum(len(NAMED[chain]) for chain in range(chains))
        for _ in range(MOST_STEPS):
            if len(self.results) == wanted:
                break
            self.step()
        problems = [self.user.service.chains.find(each).problem for each in self.chains.values()]
        assert len(self.results) == wanted, f"it did not end: {problems}"
        if not self.world.is_running:
            self.world.start()
        self.check_end()


@contextmanager
def game(parties: Parties, seed: int, patch: pytest.MonkeyPatch) -> Iterator[Game]:
    """Three owners of records of six features, enrolled at a new proxy."""
    source = random.Random(seed)
    with quick_folder() as folder:
        owners = list(parties.owners)
        world = QuietWorld(folder / "proxy", parties.user, owners, parties.secret, parties.proof)
        world.time = HandClock()
        world.settings |= {"party_requests": 1_000_000, "address_requests": 1_000_000}
        world.start()
        world.enrol_all()
        user = ManyKeys(world, folder / "user", settings={"closes_after_days": DAYS})
        rng = np.random.default_rng(seed)  # noqa: TID251  # data, not noise
        shared = rng.normal(0, 0.25, (RECORDS, 1))
        records = shared * [1.0, -0.7, 0.2, 0.9, 0.5, -0.3] + rng.normal(0, 0.03, (RECORDS, 2 * WIDTH))
        chain = Chain.make(world, user, folder, np.clip(records, -1, 1))
        for desk, data in zip(chain.desks, chain.data, strict=True):
            desk.home.policy_path.write_text(POLICY.replace("epsilon = 9", "epsilon = 30"))
            desk.home.sources.add(RegisteredSource("patients", str(data), data_set="people"), {})
        try:
            yield Game(chain, source, Interruptions(patch))
        finally:
            user.service.close()
            if world.is_running:
                world.stop()


def play(parties: Parties, patch: pytest.MonkeyPatch, seed: int, chains: int) -> Counter[Fault]:
    """A whole game. A failure names its seed."""
    with game(parties, seed, patch) as played:
        try:
            played.play(chains)
        except BaseException as error:
            error.add_note(f"seed {seed}, {chains} chains, {dict(played.interruptions.happened)}")
            raise
        return played.interruptions.happened


def tell(promise: Promise, happened: Counter[Fault], games: int) -> None:
    kinds = ", ".join(f"{count} {fault}" for fault, count in sorted(happened.items()))
    promise(
        "P42",
        counted=f"{happened.total()} interruptions of 3 owners' agents in {games} games ({kinds})",
        result="all approved rounds have one share, nothing else has any",
    )


def test_interrupted_agents(parties: Parties, monkeypatch: pytest.MonkeyPatch, promise: Promise) -> None:
    happened = play(parties, monkeypatch, 2, 1)
    assert happened.total() >= 35
    tell(promise, happened, 1)


@pytest.mark.nightly
def test_a_thousand_interruptions(
    parties: Parties, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    happened: Counter[Fault] = Counter()
    games = 0
    while happened.total() < 1000:
        games += 1
        happened += play(parties, monkeypatch, 1000 + games, 2)
    assert set(happened) == set(Fault)
    tell(promise, happened, games)
