"""A proxy that is killed again and again while thirty owners deliver: whoever has a receipt is in, once.

So it is too where two processes serve one home and either of them dies at any moment; and where they keep
their facts on a real PostgreSQL, and their files in a real S3 bucket.

Each owner's values are a power of a base, in an entry that it shares with four others: the sum in a release
says who is in it, and how often.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pytest
from object_server import lead_to, object_server
from postgres_server import programs, running_server
from promises import Promise
from proxy_process import ProcessWorld, RoundRobin
from proxy_world import OpenStudy, Values, unlike_before
from quick_folder import quick_folder
from store_checks import check_rows, check_store, check_sum, row_of, wait_on_disk
from study_parties import Parties

from dpdpca_protocol.errors import ConflictError, DpdpcaError, UnavailableError
from dpdpca_protocol.messages.share import CohortMember, Receipt
from dpdpca_protocol.wire.identifiers import PartyId
from dpdpca_protocol.wire.signing import IdentityKey, Statement
from dpdpca_proxy.store.studies import frozen_cohort

OWNERS = 30
KILLS_OF_A_STUDY = 10
FAR_KILLS_OF_A_STUDY = 20
LONGEST_LIFE_SECONDS = 0.6
FAR_LONGEST_LIFE_SECONDS = 0.2
"""Shorter, since one of two is always there, and a study with few kills costs as much as one with many."""
_BASE = 32
_OF_AN_ENTRY = 5
_OWNERS_AT_ONCE = 4
_STORM_SECONDS = 300.0


def values_naming(owner: int) -> Values:
    """Five owners share one of six entries; 31 copies of one would not look like another."""
    upper = [0] * 6
    upper[owner // _OF_AN_ENTRY] = _BASE ** (owner % _OF_AN_ENTRY)
    return Values(1, [owner % 3, 1, 0], upper)


@dataclass
class Crowd:
    """Owners who do not give up, and a data user who closes at some moment."""

    study: OpenStudy
    source: random.Random
    receipts: dict[PartyId, Statement] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    end: float = field(default_factory=lambda: time.monotonic() + _STORM_SECONDS)

    def is_in_time(self) -> bool:
        """Always: a storm without an end is a failure."""
        assert time.monotonic() < self.end, "the storm does not come to its end"
        return True

    def deliver(self, place: int) -> None:
        """Until there is a receipt, or the study is closed."""
        owner = self.study.world.owners[place]
        chunks = self.study.plain_chunks(values_naming(place))
        claim: Statement | None = None
        while self.is_in_time():
            try:
                self.study.upload(owner, chunks)
                claim = claim or self.study.claim(owner, chunks)
                receipt = self.study.world.client(owner).complete_share(self.study.study, claim)
            except UnavailableError:
                self.over.wait(0.02)
            except ConflictError as error:
                if error.slug != "study-closed":
                    raise
                return
            else:
                self.receipts[owner.public.party_id] = receipt
                return

    def close(self, after: int) -> None:
        while len(self.receipts) < after:
            assert self.is_in_time()
            self.over.wait(0.01)
        while self.is_in_time():
            try:
                self.study.close()
            except UnavailableError:
                self.over.wait(0.02)
            else:
                return


class Victim(Protocol):
    """What dies and starts again."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


def storm(
    world: ProcessWorld, victims: Sequence[Victim], source: random.Random, most: int, longest_life: float
) -> tuple[int, int]:
    """One study among at most so many kills; how many kills it saw, and how many owners are in it.

    Args:
        world: with one process or several.
        victims: one of them dies each time.
        source: of all that is random.
        most: kills.
        longest_life: seconds before the next one dies.
    """
    world.with_new_key()
    study = world.open_study(named=False, max_owners=OWNERS, features=unlike_before(3))
    crowd = Crowd(study, source)
    places = list(range(OWNERS))
    source.shuffle(places)
    kills = 0
    with ThreadPoolExecutor(_OWNERS_AT_ONCE + 1) as pool:
        closing = pool.submit(crowd.close, source.randrange(OWNERS // 2, OWNERS))
        delivering = [pool.submit(crowd.deliver, place) for place in places]
        while kills < most and row_of(study).state != "released":
            crowd.over.wait(source.uniform(0, longest_life))
            victim = source.choice(victims)
            victim.kill()
            kills += 1
            if not world.is_running:  # else another process changes what is looked at
                check_rows(study, world.owners, list(crowd.receipts.values()))
            victim.start()
        for doing in (closing, *delivering):
            doing.result(60)
    wait_on_disk(study, "released", seconds=60)
    check_store(study, world.owners, list(crowd.receipts.values()))
    with world.proxy.database.reading("test: cohort") as connection:
        cohort = frozen_cohort(connection, study.study)
    held = [Receipt.parse(receipt) for receipt in crowd.receipts.values()]
    assert sorted(CohortMember(said.owner, said.version, said.statement) for said in held) == list(cohort)
    inside = {member.owner for member in cohort}
    members = [place for place, owner in enumerate(world.owners) if owner.public.party_id in inside]
    check_sum(study, [values_naming(place) for place in members])
    return kills, len(cohort)


@contextmanager
def serving(parties: Parties, processes: int, **settings: str) -> Iterator[ProcessWorld]:
    """Proxies of one home, at which thirty owners are enrolled."""
    owners = [IdentityKey.generate() for _ in range(OWNERS)]
    with quick_folder() as folder:
        people = (parties.user, owners, parties.secret, parties.proof)
        world = RoundRobin(folder / "proxy", *people, settings={**settings})
        try:
            world.start(processes=processes)
            world.enrol(world.user, "user", "Institute")
            for place, owner in enumerate(owners):
                world.enrol(owner, "owner", f"Hospital {place}")
            yield world
        finally:
            world.end()


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.nightly), 2], ids=["one", "two"])
def world(parties: Parties, request: pytest.FixtureRequest) -> Iterator[ProcessWorld]:
    with serving(parties, request.param) as world:
        yield world


@pytest.fixture
def far_world(parties: Parties, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessWorld]:
    """Two proxies with PostgreSQL and object storage."""
    with running_server(programs()) as server, object_server() as objects:
        objects.make_bucket("files")
        lead_to(monkeypatch, objects.url)
        database = server.url(server.new_database())
        with serving(parties, 2, database=database, store="s3://files/proxy") as world:
            yield world
            assert not list(world.home.glob("*.sqlite3*"))
            assert not list((world.home / "studies").iterdir())


@dataclass
class Toll:
    """What many storms were like."""

    kills: int = 0
    inside: int = 0
    studies: int = 0

    def storm(
        self,
        world: ProcessWorld,
        victims: Sequence[Victim],
        source: random.Random,
        most: int,
        longest_life: float,
    ) -> None:
        kills, members = storm(world, victims, source, most, longest_life)
        self.kills, self.inside, self.studies = self.kills + kills, self.inside + members, self.studies + 1

    def tell(self, promise: Promise, what: str) -> None:
        promise(
            "P1",
            counted=f"{self.kills} kills of {what}, {self.studies} studies of {OWNERS} owners,"
            f" {self.inside} receipts",
            result="0 lost, 0 doubled, every sum exact",
        )
        promise(
            "P35",
            counted=f"{self.studies} releases opened, their noise taken out",
            result="every sum the exact integers",
        )


@pytest.mark.parametrize("least", [6, pytest.param(200, marks=pytest.mark.nightly)])
def test_receipts_and_releases_agree_over_kills(world: ProcessWorld, promise: Promise, least: int) -> None:
    source, processes, toll = random.Random(least), len(world.served), Toll()
    while toll.kills < least // processes:
        toll.storm(world, world.served, source, KILLS_OF_A_STUDY, LONGEST_LIFE_SECONDS)
    toll.tell(promise, f"{processes} on one home")


@pytest.mark.parametrize("kills", [20, pytest.param(207, marks=pytest.mark.nightly)])
def test_receipts_and_releases_agree_over_kills_far_away(
    far_world: ProcessWorld, promise: Promise, kills: int
) -> None:
    """Either proxy dies at any moment; the server and the bucket, which both use, live on."""
    source, toll = random.Random(kills), Toll()
    while toll.kills < kills:
        most = min(FAR_KILLS_OF_A_STUDY, kills - toll.kills)
        toll.storm(far_world, far_world.served, source, most, FAR_LONGEST_LIFE_SECONDS)
    toll.tell(promise, "two on one PostgreSQL and one bucket")
    promise("P45", counted=f"{toll.kills} kills of two proxies", result="0 lost, 0 doubled, every sum exact")


@pytest.mark.parametrize("least", [3, pytest.param(60, marks=pytest.mark.nightly)])
def test_receipts_and_releases_agree_over_crashes_of_the_database(
    parties: Parties, promise: Promise, least: int
) -> None:
    """The server of two proxies loses all that it had only in memory."""
    source, toll = random.Random(least), Toll()
    with (
        running_server(programs()) as server,
        serving(parties, 2, database=server.url(server.new_database())) as world,
    ):
        while toll.kills < least:
            toll.storm(world, [server], source, KILLS_OF_A_STUDY, LONGEST_LIFE_SECONDS)
    toll.tell(promise, "the PostgreSQL of two proxies")


def test_the_names_in_a_sum_are_told_apart() -> None:
    total = [sum(column) for column in zip(*(values_naming(i).upper for i in range(OWNERS)), strict=True)]
    assert total == [sum(_BASE**i for i in range(_OF_AN_ENTRY))] * 6
    assert len({tuple(values_naming(i).upper) for i in range(OWNERS)}) == OWNERS


def test_a_doubled_share_would_be_seen(world: ProcessWorld) -> None:
    world.with_new_key()
    study = world.open_study(named=False, max_owners=OWNERS, features=unlike_before(3))
    for place in range(2):
        study.deliver(world.owners[place], values_naming(place))
    study.close()
    wait_on_disk(study, "released")
    check_sum(study, [values_naming(place) for place in range(2)])
    for wrong in ([0], [0, 1, 1], [0, 2]):
        with pytest.raises((AssertionError, DpdpcaError)):
            check_sum(study, [values_naming(place) for place in wrong])
