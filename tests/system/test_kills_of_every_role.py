"""Whole studies while every role is killed with -9 at random moments: each ends, once, and is right.

The proxy, the service of the data user and the commands of owners are processes of the installed `dpdpca`. A
server lives for a random time, dies with its workers and starts again; an owner's command dies at a moment of
the time that it usually takes and is given again, as a person would. What a command may not do is to end in
words that nobody wrote for people.
"""

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from federation.bare_user import BareUser, opened_release, stored_secret
from federation.checks import assert_release
from federation.processes import Server, wait_for
from federation.records import add_up, draft, patients, write_csv
from federation.world import Federation, Owner, federation_in
from promises import Promise

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.terms.signed_manifest import open_manifest
from dpdpca_protocol.wire.identifiers import StudyId
from dpdpca_protocol.wire.signing import verify_statement

pytestmark = pytest.mark.nightly

STUDIES = 24
SEED = 13
LONGEST_LIFE_SECONDS = 2.5
MOST_DEATHS = 4
"""Of one server in one study: then it is left in peace, so that every study ends."""
STUDY_SECONDS = 600.0

CHAIN = {"epsilon": 8, "delta": "0.00001"}
PRE_STUDY = {"release": "pre-study", "blocks": {"norms": "0.6", "sum": "0.4"}, "rho_share": "0.1"} | CHAIN
KINDS: list[list[dict[str, Any]]] = [
    [{"release": "masked"}],
    [{"release": "joint"}],
    [{"release": "pairs"}],
    [{"release": "joint", "noise_by": "owners"}],
    [{"release": "joint", "blinding": "pairwise"}],
    [PRE_STUDY, {"release": "pairs", "rho_share": "0.9"} | CHAIN],
]
"""The last is a chain: the second study spends what was approved with the first."""


@dataclass
class Storm:
    """Random moments, and how many of each role have died."""

    source: random.Random
    deaths: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def uniform(self, most: float) -> float:
        with self._lock:
            return self.source.uniform(0, most)

    def below(self, most: int) -> int:
        with self._lock:
            return self.source.randrange(most)

    def died(self, role: str) -> None:
        with self._lock:
            self.deaths[role] += 1

    @contextmanager
    def over(self, servers: dict[str, Server]) -> Iterator[None]:
        """They die again and again while the body runs; they run when it has ended."""
        calm = threading.Event()
        with ThreadPoolExecutor(len(servers)) as pool:
            dying = [pool.submit(self._die, role, server, calm) for role, server in servers.items()]
            try:
                yield
            finally:
                calm.set()
                for one in dying:
                    one.result(120)

    def _die(self, role: str, server: Server, calm: threading.Event) -> None:
        for _ in range(MOST_DEATHS):
            calm.wait(self.uniform(LONGEST_LIFE_SECONDS))
            if calm.is_set() and self.deaths[role]:
                return
            server.kill()
            self.died(role)
            server.start()


@dataclass
class Stubborn:
    """An owner who gives a command again until it has worked."""

    owner: Owner
    storm: Storm
    usual_seconds: float = 3.0

    def ask(self, deaths: int, *words: str | Path) -> dict[str, Any]:
        """What the command says at last; it is killed so many times before."""
        end = time.monotonic() + STUDY_SECONDS
        while time.monotonic() < end:
            begin = time.monotonic()
            process = self.owner.start("owner", *words, "--json")
            if deaths:
                deaths -= self._kill(process)
            out, err = process.communicate()
            if process.returncode == 0:
                self.usual_seconds = time.monotonic() - begin
                return json.loads(out)  # type: ignore[no-any-return] # an object, by --json
            if process.returncode != -signal.SIGKILL:
                said = err.decode().strip().splitlines()
                assert said[-1].startswith("dpdpca: "), said
                assert "unexpected" not in said[-1], said
                self.storm.refusals[said[-1].rpartition("; ")[2]] += 1
        raise AssertionError(f"{words} does not come to its end")

    def _kill(self, process: subprocess.Popen[bytes]) -> int:
        with suppress(subprocess.TimeoutExpired):
            process.wait(self.storm.uniform(self.usual_seconds))
            return 0
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self.storm.died("owner")
        return 1


def _when_it_answers(ask: Callable[[], Any], what: str) -> Any:
    """What a server says, by clients that do not try again."""

    def answer() -> Any:
        with suppress(DpdpcaError):
            return ask()

    return wait_for(answer, what, STUDY_SECONDS, 0.2)


@dataclass
class Round:
    """One study of a storm."""

    federation: Federation
    storm: Storm
    owners: list[Stubborn]
    records: list[list[Any]]
    data: list[Path]

    def run(self, terms: dict[str, Any]) -> str:
        """Its id, published or fitted; all that must hold was looked at."""
        user = self.federation.user
        file = self.federation.folder / "draft.json"
        file.write_text(json.dumps(terms))
        made = user.ask("user", "study", "create", file)["draft"]
        end = "fitted" if terms["release"] == "pre-study" else "published"
        with self.storm.over({"proxy": self.federation.proxy, "data user": user.service}):
            study = _when_it_answers(lambda: self._opened(made), "the study is open")
            secret = stored_secret(user, StudyId.parse(study))
            self._join_all(f"{self.federation.url}/{study}", may_withdraw="blinding" not in terms)
            _when_it_answers(lambda: self._is(study, end), f"the study is {end}")
        self._check(study, terms, secret)
        return str(study)

    def _opened(self, made: str) -> str | None:
        facts = self.federation.user.study(made)
        assert facts["state"] != "failed", facts
        return facts["study"] if facts["state"] not in ("drafted", "signed") else None

    def _is(self, study: str, state: str) -> bool:
        facts = self.federation.user.study(study)
        assert facts["state"] != "failed", facts
        return bool(facts["state"] == state)

    def _join_all(self, address: str, *, may_withdraw: bool) -> None:
        """At least one owner is killed in the act. One takes its share back before and gives it anew, if that
        does not end the study for all."""
        again, killed = (self.storm.below(len(self.owners)) for _ in range(2))
        if may_withdraw:
            self._join(again, address, deaths=0)
            self.owners[again].ask(self.storm.below(2), "withdraw", address, "--yes")
        deaths = [self.storm.below(2) + (place == killed) for place in range(len(self.owners))]
        with ThreadPoolExecutor(len(self.owners)) as pool:
            joining = [pool.submit(self._join, place, address, dies) for place, dies in enumerate(deaths)]
            for one in joining:
                one.result(STUDY_SECONDS)

    def _join(self, place: int, address: str, deaths: int) -> None:
        said = self.owners[place].ask(deaths, "join", address, "--data", self.data[place], "--yes")
        assert said["records"] == len(self.records[place])

    def _check(self, study: str, terms: dict[str, Any], secret: bytes) -> None:
        federation, user = self.federation, self.federation.user
        bare = BareUser(federation, user.name, user.key())
        signed = open_manifest(bare.client.manifest(StudyId.parse(study)))
        events = bare.client.transcript(signed.study_id)
        happened = Counter(verify_statement("event", event).body["kind"] for event in events)
        assert [happened[kind] for kind in ("closed", "release")] == [1, 1]
        assert happened["count"] == (terms["release"] == "masked")
        assert happened["receipt"] >= len(self.owners)
        assert user.ask("user", "verify", study)["verified"]
        assert federation.proxy_machine.ask("proxy", "audit", study)["holds"] is True
        if terms["release"] in ("masked", "joint"):
            everybody = [record for part in self.records for record in part]
            noisy = opened_release(bare, signed, secret)
            assert_release(noisy, add_up(everybody), signed.manifest.figures, len(self.owners))
        model = None if terms["release"] == "pre-study" else user.ask("user", "result", study)
        for owner in self.owners:
            self._check_owner(owner.owner, study, model)

    def _check_owner(self, owner: Owner, study: str, model: dict[str, Any] | None) -> None:
        """It is in, it paid once, and it has the result that the data user has."""
        address = f"{self.federation.url}/{study}"
        assert owner.status(address)["included"] is True
        data_sets = owner.ask("owner", "ledger")["data_sets"]
        spent = [entry["state"] for one in data_sets for entry in one["studies"] if entry["study"] == study]
        assert spent == ["committed"]
        if model is not None:
            assert owner.ask("owner", "components", address)["components"] == model["components"]


def test_whole_studies_over_kills_of_every_role(tmp_path: Path, promise: Promise) -> None:
    """Twenty-four studies, four of each kind; a sum that is opened is exact up to the promised noise."""
    storm, ended = Storm(random.Random(SEED)), 0
    with federation_in(tmp_path / "federation") as federation:
        owners = [Stubborn(owner, storm) for owner in federation.owners(3)]
        for number in range(STUDIES):
            before = storm.deaths.copy()
            records = [patients(300 + storm.below(900), seed=100 * number + place) for place in range(3)]
            data = [write_csv(tmp_path / f"{number}-{place}.csv", part) for place, part in enumerate(records)]
            names = [owner.owner.name for owner in owners]
            earlier: list[str] = []
            for terms in KINDS[number % len(KINDS)]:
                chained = {"pre_studies": earlier} if earlier else {}
                common = {"participants": names, "min_owners": 3, "closing": "when-complete"}
                study = Round(federation, storm, owners, records, data).run(
                    draft(**common, **terms, **chained)
                )
                earlier.append(study)
            ended += 1
            deaths = storm.deaths - before
            assert set(deaths) >= {"proxy", "data user"}
        assert storm.deaths["owner"] >= STUDIES  # some of them had ended when their moment came
        for log in federation.logs.glob("*-serve.log"):
            said = log.read_text(errors="replace")
            assert "Traceback" not in said, log.name
            assert '"status": 500' not in said, log.name
    promise(
        "P7",
        counted=f"{ended} whole studies, kill -9: "
        + ", ".join(f"{count} of {role}" for role, count in sorted(storm.deaths.items())),
        result="all ended, once; sums exact, all owners in, each paid once",
    )
