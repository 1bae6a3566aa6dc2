"""Every write of the proxy may be its last: it is killed before each of them in turn, and goes on unhurt.

For each act, at each point where something reaches a file, the database or the caller: die there, start
again, look whether store and receipts agree, do the act once more. By day four acts die at some of the
points; the nightly run takes every act, every fault and every point.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from fault_plan import DIE, ERROR, LIE, POWER, Point
from promises import Promise
from proxy_process import DeadProxyError, ProcessWorld, started_world
from proxy_world import PATIENCE_SECONDS, OpenStudy, values_of, wait_for
from quick_folder import quick_folder
from store_checks import check_store, check_sum, row_of, wait_on_disk
from study_parties import Parties

from dpdpca_protocol.errors import DpdpcaError
from dpdpca_protocol.messages.study_messages import SealedComponents
from dpdpca_protocol.study import RELEASED_STATES
from dpdpca_protocol.terms.signed_manifest import sign_manifest
from dpdpca_protocol.wire.identifiers import Digest
from dpdpca_protocol.wire.signing import IdentityKey, Statement
from dpdpca_proxy.audit import HOLDS, audit_study
from dpdpca_proxy.enrolment import invite
from dpdpca_proxy.store.leases import find_lease
from dpdpca_proxy.store.studies import load_blob

ALWAYS = frozenset({"commit", "committed", "answer", "answered"})
_TRIES = 5
"""For a point that is not on every way: what works in the background takes several."""
_DEATH_SECONDS = 10.0
_TIDYING_SECONDS = 2.0
_LOOK_SECONDS = 0.01
"""Between two looks at a process that has work to do."""


class Act:
    """One thing that is done to a proxy, on a study of its own.

    `do` may be repeated and says the receipts that it got; `is_settled` tells when nothing more comes of it.
    """

    terms: ClassVar[dict[str, Any]] = {}

    def __init__(self, world: ProcessWorld) -> None:
        self.world = world
        self.owners = world.owners[:2]
        self.receipts: list[Statement] = []
        world.with_new_key()
        self.study = self.begin()
        self.prepare()

    def begin(self) -> OpenStudy:
        return self.world.open_study(3, **self.terms)

    def prepare(self) -> None:
        pass

    def do(self) -> None:
        raise NotImplementedError  # each act has its own

    def is_settled(self) -> bool:
        return True

    def check(self) -> None:
        """What must be true when all is done."""

    def deliver_all(self) -> None:
        for seed, owner in enumerate(self.owners):
            self.receipts.append(self.study.deliver(owner, values_of(3, seed)))

    def is_released(self) -> bool:
        return row_of(self.study).state in RELEASED_STATES and self.study.is_swept()

    def check_release(self) -> None:
        """Of exactly those who delivered, under one noise, and the same to whoever asks, whenever."""
        served = {self.world.client(self.world.user).release(self.study.study).release}
        check_sum(self.study, [values_of(3, seed) for seed in range(len(self.owners))])
        self.world.restart()
        served |= {self.world.client(self.world.user).release(self.study.study).release for _ in range(2)}
        assert len(served) == 1


class Chunk(Act):
    def prepare(self) -> None:
        self.owner = self.owners[0]
        self.chunks = self.study.plain_chunks(values_of(3, 0))
        self.sealed = self.study.seal(self.owner, self.chunks[0], 1, 0)

    def do(self) -> None:
        self.world.client(self.owner).put_chunk(self.study.study, 1, 0, self.sealed)

    def check(self) -> None:
        assert self.world.client(self.owner).share(self.study.study).chunks == {0}


class Complete(Chunk):
    version = 1

    def prepare(self) -> None:
        super().prepare()
        self.study.upload(self.owner, self.chunks, self.version)
        self.claim = self.study.claim(self.owner, self.chunks, self.version)

    def do(self) -> None:
        self.receipts.append(self.world.client(self.owner).complete_share(self.study.study, self.claim))

    def check(self) -> None:
        share = self.world.client(self.owner).share(self.study.study)
        assert (share.state, share.version) == ("complete", self.version)


class Replace(Complete):
    version = 2

    def prepare(self) -> None:
        self.receipts.append(self.study.deliver(self.owners[0], values_of(3, 7)))
        super().prepare()


class Withdraw(Act):
    def prepare(self) -> None:
        self.receipts.append(self.study.deliver(self.owners[0], values_of(3, 0)))

    def do(self) -> None:
        self.receipts.append(self.study.withdraw(self.owners[0], 2))

    def check(self) -> None:
        assert self.world.client(self.owners[0]).share(self.study.study).state == "withdrawn"


class Release(Act):
    """From closing to the release of a joint study, aggregation and draw included."""

    def prepare(self) -> None:
        self.deliver_all()

    def do(self) -> None:
        self.study.close()

    def is_settled(self) -> bool:
        return self.is_released()

    def check(self) -> None:
        self.check_release()


class AskCount(Act):
    """From closing to the count challenge of a masked study."""

    terms: ClassVar[dict[str, Any]] = {"release": "masked"}

    def prepare(self) -> None:
        self.deliver_all()

    def do(self) -> None:
        self.study.close()

    def challenge(self) -> bytes | None:
        with self.world.proxy.database.reading("test: challenge") as connection:
            return load_blob(connection, self.study.study, "challenge")

    def is_settled(self) -> bool:
        return self.challenge() is not None

    def check(self) -> None:
        assert self.study.challenge().encoded == self.challenge()


class AnswerCount(AskCount):
    """From the answered count to the release of a masked study."""

    def prepare(self) -> None:
        super().prepare()
        self.study.close()
        self.answer = self.study.count_answer(self.study.challenge())

    def do(self) -> None:
        self.world.client(self.world.user).answer_count(self.study.study, self.answer)

    def is_settled(self) -> bool:
        return self.is_released()

    def check(self) -> None:
        self.check_release()


class Open(Release):
    def prepare(self) -> None:
        super().prepare()
        self.study.close()
        wait_on_disk(self.study, "released")
        self.statement = self.study.opened()

    def do(self) -> None:
        self.world.client(self.world.user).send_opened(self.study.study, self.statement)

    def check(self) -> None:
        history = self.world.client(self.owners[0]).history(self.study.study)
        assert history.opened == self.statement.encoded


class Publish(Open):
    def prepare(self) -> None:
        super().prepare()
        self.study.state_opened()
        sealed = {owner.public.party_id: bytes(200) for owner in self.owners}
        self.statement = SealedComponents(self.study.study, sealed).sign(self.world.user)

    def do(self) -> None:
        self.world.client(self.world.user).publish_components(self.study.study, self.statement)

    def check(self) -> None:
        assert self.world.client(self.owners[0]).components(self.study.study) == self.statement.encoded


class Cancel(Act):
    def prepare(self) -> None:
        self.receipts.append(self.study.deliver(self.owners[0], values_of(3, 0)))

    def do(self) -> None:
        self.study.cancel()

    def check(self) -> None:
        assert row_of(self.study).state == "cancelled"


class Create(Act):
    def begin(self) -> OpenStudy:
        manifest = self.world.manifest(3)
        statement = sign_manifest(manifest, self.world.user)
        return OpenStudy(self.world, manifest.study_id, manifest, statement)

    def do(self) -> None:
        self.world.client(self.world.user).create_study(self.study.statement.encoded)

    def check(self) -> None:
        assert row_of(self.study).state == "open"


class Enrol(Act):
    def prepare(self) -> None:
        self.key = IdentityKey.generate()
        self.token = invite(self.world.proxy, "owner", "Hospital N").token

    def do(self) -> None:
        self.world.client(self.key).enrol("owner", "Hospital N", self.token)

    def check(self) -> None:
        assert self.world.client(self.key).studies()


@pytest.fixture
def world(parties: Parties) -> Iterator[ProcessWorld]:
    with quick_folder() as folder, started_world(folder, parties) as world:
        yield world


def hurt(act: Act, at: Point | None, mode: str) -> tuple[bool, list[Point]]:
    """Does the act with something going wrong at a point: whether it was met, and all that were passed."""
    served = act.world.first
    served.arm(at, mode)
    passed: list[Point] = []
    try:
        act.do()
        # an answer that got lost is never answered, so this wait has an end
        end = time.monotonic() + (_DEATH_SECONDS if mode == ERROR else PATIENCE_SECONDS)
        while not is_over(act, passed):
            if time.monotonic() >= end:
                assert mode == ERROR, "the act does not come to its end"
                break
            time.sleep(_LOOK_SECONDS)
            passed = served.passed()
        passed = served.disarm()
    except DpdpcaError:
        if mode == ERROR:
            passed = served.disarm()
        else:
            assert served.wait_dead(_DEATH_SECONDS), "refused without a reason"
    except DeadProxyError:
        pass
    met = served.fell()
    if met and mode != ERROR:
        assert served.wait_dead(_DEATH_SECONDS)
    return met, passed


def is_over(act: Act, passed: list[Point]) -> bool:
    """Whether nothing more comes of it, in the background either."""
    names = Counter(point.name for point in passed)
    with act.world.proxy.database.reading("test: lease") as connection:
        lease = find_lease(connection, act.study.study)
        is_free = lease is None or lease.is_free
    return is_free and act.is_settled() and 0 < names["answer"] == names["answered"]


def loop(world: ProcessWorld, make: type[Act], mode: str, at_every_point: bool) -> tuple[list[Point], int]:
    """The points at which something went wrong, the act ending well after all; how many were tried."""
    _, ahead = hurt(make(world), None, mode)
    met: list[Point] = []
    if not at_every_point:
        firsts = {point.name: point for point in reversed(ahead)}
        ahead = [firsts[name] for number, name in enumerate(firsts) if name in ALWAYS or number % 6 == 0]
    tries: Counter[Point] = Counter()
    while ahead:
        point = ahead[0]
        tries[point] += 1
        act = make(world)
        is_met, passed = hurt(act, point, mode)
        if not world.first.is_alive:
            world.restart()
        tidy(act)
        check_store_if_there(act)
        act.do()
        wait_for(act.is_settled)
        tidy(act)
        check_store(act.study, act.owners, act.receipts)
        act.check()
        if is_met:
            met.append(point)
        if at_every_point:
            ahead = [*ahead, *(new for new in passed if new not in ahead)]
        ahead = [left for left in ahead if left not in met and tries[left] < _TRIES]
    return met, len(tries)


def tidy(act: Act) -> None:
    """Starts the proxy again if something is left that it could not delete while a test read the store.

    It goes with the tidying, which here follows a start alone.
    """
    with suppress(AssertionError):
        wait_for(lambda: is_tidy(act), _TIDYING_SECONDS)
        return
    act.world.restart()


def is_tidy(act: Act) -> bool:
    with suppress(DpdpcaError):
        return {check.outcome for check in audit_study(act.world.proxy, act.study.study)} == {HOLDS}
    return True


def check_store_if_there(act: Act) -> None:
    with suppress(DpdpcaError):
        row_of(act.study)
        check_store(act.study, act.owners, act.receipts)


BY_DAY: list[tuple[type[Act], str]] = [(Chunk, POWER), (Complete, DIE)]
ALL: list[tuple[type[Act], str]] = [
    (make, mode)
    for make in (
        Chunk,
        Complete,
        Replace,
        Withdraw,
        Release,
        AskCount,
        AnswerCount,
        Open,
        Publish,
        Cancel,
        Create,
        Enrol,
    )
    for mode in (DIE, POWER, ERROR)
]


def _named(pairs: list[tuple[type[Act], str]]) -> list[Any]:
    return [pytest.param(*pair, id=f"{pair[0].__name__}-{pair[1]}") for pair in pairs]


@pytest.mark.nightly
@pytest.mark.parametrize(("make", "mode"), _named(ALL))
def test_dying_at_every_point(world: ProcessWorld, promise: Promise, make: type[Act], mode: str) -> None:
    check_dying(world, promise, make, mode, at_every_point=True)


@pytest.mark.parametrize(("make", "mode"), _named(BY_DAY))
def test_dying_at_some_points(world: ProcessWorld, promise: Promise, make: type[Act], mode: str) -> None:
    check_dying(world, promise, make, mode, at_every_point=False)


def check_dying(
    world: ProcessWorld, promise: Promise, make: type[Act], mode: str, *, at_every_point: bool
) -> None:
    met, passed = loop(world, make, mode, at_every_point)
    assert {point.name for point in met} >= ALWAYS
    counted = f"{make.__name__}: {len(met)} points, {mode} at each"
    if passed > len(met):
        counted += f" ({passed - len(met)} more passed and not met again)"
    promise("P2", counted=counted, result="store and receipts agree, the act ends well")
    if make in (Release, AnswerCount):
        promise("P9", counted=f"{counted}, read 3 times over a restart", result="1 noise, 1 release each")
        restarts = 4 if at_every_point else 1
        reads = read_over_restarts(make(world), restarts)
        assert len(set(reads)) == 1
        promise("P9", counted=f"{len(reads)} reads over {restarts} restarts", result="1 digest")


def read_over_restarts(act: Act, restarts: int) -> list[Digest]:
    act.do()
    wait_for(act.is_settled)
    reads: list[Digest] = []
    for _ in range(restarts):
        act.world.restart()
        client = act.world.client(act.world.user)
        for _ in range(25):
            whole = client.release(act.study.study).release + client.release_chunk(
                act.study.study, 0, 2_000_000
            )
            reads.append(Digest.of(whole))
    return reads


def test_a_lie_about_syncing_would_be_seen(world: ProcessWorld) -> None:
    """What the disk only says it has is gone after a power cut, and the looks into the store see that."""
    act = Chunk(world)
    is_met, _ = hurt(act, Point("answered"), LIE)
    assert is_met
    world.restart()
    with pytest.raises(DpdpcaError, match="missing"):
        check_store(act.study, act.owners, act.receipts)
